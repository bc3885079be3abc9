# SPDX-License-Identifier: Apache-2.0
"""Inference on a file of inputs: `edgernn run`."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.byte_source import memory
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.files import EXAMPLE, check_regular, output_file, read_bytes, write_arrays, write_bytes, write_text
from edgernn.npz import read_npy, read_npz
from edgernn.runtime.answers import class_names, probabilities
from edgernn.runtime.csv_table import (
    Dialect,
    OtherNames,
    channel_values,
    csv_rows,
    decode,
    is_header,
    parse_csv,
)
from edgernn.runtime.info import frontend, step_samples
from edgernn.runtime.input_check import InputCheck, warn_of_rounding
from edgernn.runtime.lengths import checked_lengths
from edgernn.runtime.session import Session
from edgernn.runtime.timeline import TimeNames, first_without_time, read_recording, seconds_of, with_dates
from edgernn.runtime.wav import FULL_SCALE, clip_of, read_wav

FORMATS = (".npz", ".npy", ".csv")
WAV = ".wav"
# name for the standard output in place of a file
STDOUT = Path("-")
# sequences in one call
CHUNK = 256
# inputs (n, T, ...) and lengths (n,), if these differ
_Batches = Iterator[tuple[NDArray[Any], NDArray[np.int64] | None]]
# a csv file may have one in so many bytes of the memory: reading took 3.5 times 22 MB
_MEMORY_SHARE = 5
# seconds of sound above which x is a recording, not a clip with one word
_LONG = 10


def run_file(
    model: Path,
    source: Path,
    target: Path | None = None,
    *,
    backend: Literal["auto", "native", "portable"] = "auto",
    threads: int = 1,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run a model on the inputs x in a file, and write the outputs y to another file or return them.

    The suffix of a file name, in upper or lower case, selects the format: .npz (arrays x and y), .npy or .csv. The
    model's channels are taken by name from a csv file with a header, whose other columns are not read. If the model was
    trained on tables, the rows of a csv file are cut into sequences, resampled and cut into windows as in the training;
    y then has an answer for each of these. A model of sounds also takes a wav file, or a folder of them, as clips of
    the length of the training: a shorter file is padded with zeros, and a longer one cut to its loudest stretch.

    Args:
        model: The exported file.
        source: File with x: one sequence (T, I) or N sequences (N, T, I). A model with a vocabulary reads integer word
            indices (T,) or (N, T); a csv file then has one index per row. An npz file may have the number of steps of
            each sequence as `lengths` (N,); later steps of x are padding. Or a wav file, or a folder with N wav files,
            also in its subfolders, which are read in the order of their names.
        target: File to write, with the O outputs y: (T, O) or (N, T, O), without the axis T if the model has an output
            at the last step only. An npz file also has the `lengths` (N,) of sequences that differ in them. None or
            "-": no file.
        backend: "native" for edgernn's native library, "portable" for standard ONNX operators, or "auto" for native if
            it is available, else portable.
        threads: Number of threads that ONNX Runtime uses within an operator.
        device: "cpu" or "cuda".

    Returns:
        JSON-compatible dict with the `output` file as given, the `shape` of y, the names of its `axes` except the last
        ("file", "sequence" and "step"), the names of the `files` of sound or of the `sequences` in a table, the
        `backend`, and `skip_percent`, the percentage of neuron updates that were skipped, None for a model that never
        skips. Without a file, the dict has `y` as well, with the steps that each sequence has, the names of the
        `targets` if the training's table named them, and the names of the `classes` and their `probabilities` in the
        shape of y; these two are None if y is not the scores of classes.

    Raises:
        UsageError: A file is of another kind, `target` is one of the other files, or x has a wrong shape, dtype or
            value, such as NaN or a word outside the vocabulary.
        EdgernnError: A file cannot be read, a csv file lacks a channel of the model, or the backend or
            the device is not available.
    """
    file = None if target == STDOUT else target
    is_sound = source.is_dir() or source.suffix.lower() == WAV
    for path in ([] if is_sound else [source]) + ([] if file is None else [file]):
        if path.suffix.lower() not in FORMATS:
            raise UsageError(f"{path}: expected a file whose name ends in {', '.join(FORMATS)}; convert or rename it")
    if file is not None:
        output_file(file, source, model, option="--output")
    session = Session(model, backend=backend, threads=threads, device=device)
    per_step = session.info["model"]["head"]["output"] != "last"
    files, names = list[Path](), list[str]()
    if is_sound:
        axes, files = 1, _sounds(model, source, session, per_step=per_step)
        batches = _clips(files, session)
    else:
        axes, batches, names = _sequences(model, source, session)
    parts: list[NDArray[Any]] = []
    counts: list[int] = []
    updated, steps = None, 0
    for x, lengths in batches:
        y = session.run(x.swapaxes(0, 1), lengths)
        parts.append(y.swapaxes(0, 1) if per_step else y)
        counts += [] if lengths is None or not per_step else lengths.tolist()
        steps += x.shape[0] * x.shape[1] if lengths is None else int(lengths.sum())
        if session.updates is not None:
            # padded steps have no updates
            updated = (updated or 0) + int(session.updates.sum())
    y = np.concatenate(parts)
    if axes == 1 and not files:
        y = y[0]
    if counts and min(counts) == y.shape[1]:
        # no sequence has padding
        counts = []
    skipped = None if updated is None or not steps else 100 * (1 - updated / (session.neurons * steps))
    result = {
        "output": None if target is None else str(target),
        "shape": list(y.shape),
        "axes": [*["file"] * bool(files), *["sequence"] * (axes == 2), *["step"] * per_step],
        "backend": session.backend,
        "skip_percent": skipped,
    }
    if files:
        result["files"] = [path.relative_to(source).as_posix() if path != source else str(path) for path in files]
    if names:
        result["sequences"] = names
    if file is not None:
        write(file, y, counts)
        return result
    classes = class_names(session.info, y.shape[-1])
    likelihoods = None if classes is None else _steps(probabilities(y), counts)
    targets = (session.info.get("reading") or {}).get("targets")
    if targets and len(targets) == y.shape[-1]:
        result["targets"] = targets
    return {**result, "y": _steps(y, counts), "classes": classes, "probabilities": likelihoods}


def _steps(y: NDArray[Any], lengths: Sequence[int]) -> Any:
    """Return outputs as nested lists, without the steps after the `lengths` of sequences, if there are any."""
    return [part[:length].tolist() for part, length in zip(y, lengths, strict=True)] if lengths else y.tolist()


def _sequences(model: Path, source: Path, session: Session) -> tuple[int, _Batches, list[str]]:
    """Read and check x in a file; return its number of axes before the channels, batches, and names of sequences."""
    words = session.vocabulary is not None
    channels, reading = session.info.get("channels"), session.info.get("reading")
    lengths, names = None, list[str]()
    if reading is not None and "samples" not in reading and source.suffix.lower() == ".csv":
        x, lengths, names = _read_raw(source, channels, session.channels[0], reading)
    else:
        x = read(source, channels, 1 if words else session.channels[0])
    if words and source.suffix.lower() == ".csv":
        x = _column(source, x)
    axes = x.ndim - len(session.channels)
    if axes not in (1, 2) or x.shape[axes:] != session.channels or 0 in x.shape:
        raise UsageError(
            f"{source}: expected x of shape {session.shape('T')} or {session.shape('N', 'T')}, got {x.shape}; reshape x"
        )
    if x.dtype.kind not in ("iu" if words else "fiub"):
        raise UsageError(f"{source}: expected {'whole ' * words}numbers, got dtype {x.dtype}; convert x")
    if axes == 2 and lengths is None:
        lengths = _lengths(source, x)
    if lengths is not None:
        present = np.arange(x.shape[1]) < lengths[:, None]
        x = np.where(present.reshape(*present.shape, *[1] * (x.ndim - 2)), x, np.zeros(1, x.dtype))
    if not words:
        warn_of_rounding(str(source), x, channels)
    # the index in the error message is that of the file, (N, T, I); the session reads (T, B, I)
    InputCheck(session.info, model).converted(x, ("N", "T"))
    whole = x[None] if axes == 1 else x
    _warn_of_recording(session, source, whole.shape[1])
    starts = range(0, len(whole), CHUNK)
    chunks = (slice(start, start + CHUNK) for start in starts)
    batches = ((whole[chunk], None if lengths is None else lengths[chunk]) for chunk in chunks)
    return axes, batches, names


def _sounds(model: Path, source: Path, session: Session, *, per_step: bool) -> list[Path]:
    """List the wav files of a file or folder for a model that tells the class of a clip, or raise an error."""
    if frontend(session.info) is None:
        remedy = "name one of the files in this folder" if source.is_dir() else "convert it"
        raise UsageError(f"{source}: expected a file whose name ends in {', '.join(FORMATS)}; {remedy}")
    if per_step:
        raise UsageError(
            f"{source}: expected --stream FILE.wav, as {model} detects words in a recording; give it with --stream"
        )
    if not source.is_dir():
        return [source]
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() == WAV and path.is_file())
    hidden = [path for path in paths if any(part.startswith(".") for part in path.relative_to(source).parts)]
    if not (files := [path for path in paths if path not in hidden]):
        raise EdgernnError(f"{source}: expected a folder with wav files, got none; name another one")
    return files


def _clips(files: Sequence[Path], session: Session) -> _Batches:
    """Read wav files in batches of clips (n, T, hop), of the length of the training's, or one by one as they are."""
    audio, reading = frontend(session.info) or {}, session.info.get("reading")
    hop, rate = step_samples(audio), audio["sample_rate"]
    length = None if reading is None else reading["samples"]
    for start in range(0, len(files), CHUNK if length else 1):
        sounds = [read_wav(path, rate) for path in files[start : start + (CHUNK if length else 1)]]
        for path, samples in zip(files[start:], sounds, strict=False):
            _warn_of_recording(session, path, len(samples) // hop)
        clips = np.stack([clip_of(samples, length or -(-len(samples) // hop) * hop) for samples in sounds])
        yield clips.reshape(len(clips), -1, hop).astype(np.float32) / np.float32(FULL_SCALE), None


def run_example(
    model: Path,
    *,
    backend: Literal["auto", "native", "portable"] = "auto",
    threads: int = 1,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run a model on the inputs in example.npz in its folder, and compare the outputs with those in that file.

    Args:
        model: The exported file. example.npz has inputs x (N, T, I), or word indices (N, T), and expected outputs y.
        backend: "native" for edgernn's native library, "portable" for standard ONNX operators, or "auto" for native if
            it is available, else portable.
        threads: Number of threads that ONNX Runtime uses within an operator.
        device: "cpu" or "cuda".

    Returns:
        Dict with the path of the `example`, the `shape` of x, the `difference`, the `backend`, and `skip_percent`, the
        percentage of neuron updates that were skipped, or None. The difference is the median over the N sequences of
        the largest absolute difference from y.

    Raises:
        EdgernnError: A file cannot be read, y in example.npz has another shape than the model's output, or the backend
            or the device is not available.
    """
    example = model.parent / EXAMPLE
    session = Session(model, backend=backend, threads=threads, device=device)
    arrays = read_npz(example, ("x", "y"))
    axes, kind = 2 + len(session.channels), arrays["y"].dtype.kind
    if arrays["x"].ndim != axes or arrays["x"].shape[2:] != session.channels or kind not in "fiu":
        raise EdgernnError(
            f"{example}: expected x of shape {session.shape('N', 'T')} and numbers y, got x of shape "
            f"{arrays['x'].shape} and y of dtype {arrays['y'].dtype}; export the run directory again"
        )
    y = session.run(arrays["x"].swapaxes(0, 1))
    if session.info["model"]["head"]["output"] == "all":
        y = y.swapaxes(0, 1)
    if y.shape != arrays["y"].shape:
        raise EdgernnError(
            f"{example}: expected y of shape {y.shape}, got {arrays['y'].shape}; export the run directory again"
        )
    differences = np.abs(y - arrays["y"]).reshape(len(y), -1).max(1)
    skipped = None if session.updates is None else 100 * (1 - float(session.updates.mean()) / session.neurons)
    return {
        "example": str(example),
        "shape": list(arrays["x"].shape),
        "difference": float(np.median(differences)),
        "backend": session.backend,
        "skip_percent": skipped,
    }


def read(path: Path, channels: Sequence[str] | None = None, count: int | None = None) -> NDArray[Any]:
    """Read the array x from an npz, npy or csv file; pickled objects are refused.

    Args:
        path: The file; its suffix selects the format, csv unless it is .npz or .npy.
        channels: Names of the model's channels, which are taken by name from a csv file with a header.
        count: Number of the model's channels. A csv file may have other columns besides; a warning names them.

    Returns:
        The array x, in the dtype of the file. A csv file becomes float64 (rows, columns).

    Raises:
        EdgernnError: The file is missing or cannot be read, or lacks a channel.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, ("x",))["x"]
    if suffix == ".npy":
        return read_npy(path)
    text = _text(path)
    others = OtherNames(channels) if channels else TimeNames()
    table = parse_csv(path, text, text=others, dialect=Dialect.of(text))
    return channel_values(table, channels=channels, count=count)


def _text(path: Path) -> str:
    try:
        check_regular(path, "a csv file")
        size, most = path.stat().st_size, memory() // _MEMORY_SHARE
        if size > most:
            raise EdgernnError(
                f"{path}: expected at most {most:,} bytes, 1/{_MEMORY_SHARE} of this machine's memory, got {size:,}; "
                "split the file"
            )
        return decode(path, read_bytes(path, "a csv file"))
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None


def _read_raw(
    path: Path, channels: Sequence[str] | None, size: int, reading: Mapping[str, Any]
) -> tuple[NDArray[Any], NDArray[np.int64] | None, list[str]]:
    """Read the raw csv file of a recording as the training of a model read its tables (`read_recording`)."""
    gaps = reading["missing"]
    count = size // 3 if gaps else size
    text = _text(path)
    dialect = Dialect.of(text)
    is_bare = not is_header(next(csv_rows(path, text, dialect), (1, []))[1], dialect)
    # names of columns without a header are their places
    channels = reading["channels"] if channels or is_bare else None
    others = OtherNames(channels) if channels else TimeNames()
    table = parse_csv(path, text, text=others, dialect=dialect, gaps=gaps, columns=reading["columns"])
    cells = table.text.pop(reading["time"], None)
    dates = table.text.pop(reading.get("date", ""), None)
    if cells is not None and dates is not None:
        cells = [cell or "" for cell in with_dates(dates, cells)]
    needs_time = gaps or reading["rate"] is not None or reading["gap"] is not None
    seconds = None if cells is None else seconds_of(reading["time"], cells, dialect, warn=needs_time)
    if cells is not None and seconds is None and (needs_time or reading["measured"] is not None):
        row = first_without_time(f"{path}: {reading['time']}", cells, dialect)
        line = next(islice(csv_rows(path, text, dialect), row + (not is_bare), None))[0]
        raise EdgernnError(
            f"{path}: line {line} ({reading['time']}): expected seconds, or dates and times, got {cells[row]!r:.40}; "
            "correct it"
        )
    # files of earlier versions do not name the column
    column = reading.get("sequence")
    ids = None if column is None else table.text.pop(column, None)
    return read_recording(path, channel_values(table, channels=channels, count=count), seconds, reading, ids)


def _lengths(path: Path, x: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the array `lengths` of the sequences x (N, T, ...) in an npz file, or None if it has none."""
    if path.suffix.lower() != ".npz":
        return None
    lengths = read_npz(path, (), optional=("lengths",)).get("lengths")
    return None if lengths is None else checked_lengths(lengths, x.shape[1], len(x))


def _warn_of_recording(session: Session, source: Path, steps: int) -> None:
    """Name --stream if x is much longer than the clips on which a model of words is trained."""
    audio = frontend(session.info)
    if audio is None or not session.info.get("classes"):
        return
    seconds = steps * step_samples(audio) / audio["sample_rate"]
    if seconds > _LONG:
        text = f"{source}: {seconds:.3g} s of sound as one sequence; use --stream FILE.wav for the words in a recording"
        warnings.warn(text, EdgernnWarning, stacklevel=3)


def _column(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    """Convert the numbers of a csv file, float64 (T, 1), to word indices, int64 (T,); refuse other columns."""
    if x.shape[1] != 1 or not np.array_equal(x, x.round()) or not (abs(x) < 2**53).all():
        raise UsageError(
            f"{path}: expected one whole number in each row, the index of a word, got other values; correct the file"
        )
    return x[:, 0].astype(np.int64)


def write(path: Path, y: NDArray[Any], lengths: Sequence[int] = ()) -> None:
    """Write the output y of a model to a file.

    Args:
        path: The file; its suffix selects the format, csv unless it is .npz (an array y) or .npy.
        y: The array.
        lengths: Numbers of steps of the sequences in y, for an npz file, or none.

    Raises:
        UsageError: The file is csv, and y has the steps of several sequences.
    """
    if path.suffix.lower() == ".npz":
        write_arrays(path, {"y": y} | ({"lengths": np.array(lengths)} if lengths else {}))
    elif path.suffix.lower() == ".npy":
        content = io.BytesIO()
        np.save(content, y)
        write_bytes(path, content.getvalue())
    else:
        write_text(path, csv_text(path, y[:, : lengths[0]] if len(lengths) == 1 else y))


def csv_text(path: Path, y: NDArray[Any]) -> str:
    """Format outputs y (O,), (N, O) or (1, N, O) as csv, without a header; raise UsageError for more than one table."""
    if y.ndim == 3 and len(y) == 1:
        y = y[0]
    if y.ndim > 2:
        raise UsageError(
            f"{path}: expected a table or one sequence for csv, got y of shape {y.shape}, with {len(y)} sequences of "
            "steps; write npz or npy"
        )
    text = io.StringIO()
    np.savetxt(text, np.atleast_2d(y), delimiter=",", fmt="%.9g")
    return text.getvalue()
