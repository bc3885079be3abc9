# SPDX-License-Identifier: Apache-2.0
"""Inference on a file of inputs: `edgernn run`."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.files import EXAMPLE, output_file, read_bytes, write_arrays, write_bytes, write_text
from edgernn.npz import read_npy, read_npz
from edgernn.runtime.answers import class_names, probabilities
from edgernn.runtime.csv_table import (
    Dialect,
    OtherNames,
    TimeNames,
    channel_values,
    csv_rows,
    decode,
    is_header,
    parse_csv,
)
from edgernn.runtime.info import frontend
from edgernn.runtime.input_check import InputCheck, warn_of_rounding
from edgernn.runtime.lengths import checked_lengths
from edgernn.runtime.session import Session
from edgernn.runtime.timeline import read_recording, seconds_of

FORMATS = (".npz", ".npy", ".csv")
# name for the standard output in place of a file
STDOUT = Path("-")
# sequences in one call
CHUNK = 256
_STREAM = ", or detect words in a recording with --stream FILE.wav"
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
    y then has an answer for each of these.

    Args:
        model: The exported file.
        source: File with x: one sequence (T, I) or N sequences (N, T, I). A model with a vocabulary reads integer word
            indices (T,) or (N, T); a csv file then has one index per row. An npz file may have the number of steps of
            each sequence as `lengths` (N,); later steps of x are padding.
        target: File to write, with the O outputs y: (T, O) or (N, T, O), without the axis T if the model has an output
            at the last step only. None or "-": no file.
        backend: "native" for edgernn's native library, "portable" for standard ONNX operators, or "auto" for native if
            it is available, else portable.
        threads: Number of threads that ONNX Runtime uses within an operator.
        device: "cpu" or "cuda".

    Returns:
        JSON-compatible dict with the `output` file as given, the `shape` of y, the names of its `axes` except the last
        ("sequence" and "step"), the `backend`, and `skip_percent`, the percentage of neuron updates that were skipped.
        The percentage is None for a model that never skips. Without a file, the dict has `y` as well, the names of the
        `classes` and their `probabilities` in the shape of y; these two are None if y is not the scores of classes.

    Raises:
        UsageError: A suffix is not .npz, .npy or .csv, `target` is one of the other files, or x has a wrong shape,
            dtype or value, such as NaN or a word outside the vocabulary.
        EdgernnError: A file cannot be read, a csv file lacks a channel of the model, or the backend or
            the device is not available.
    """
    file = None if target == STDOUT else target
    for path in (source,) if file is None else (source, file):
        if path.suffix.lower() not in FORMATS:
            remedy = f"convert it{_STREAM}" if path.suffix.lower() == ".wav" else "convert or rename it"
            if path.is_dir():
                remedy = "name one of the files in this folder"
            raise UsageError(f"{path}: expected a file whose name ends in {', '.join(FORMATS)}; {remedy}")
    if file is not None:
        output_file(file, source, model, option="--output")
    session = Session(model, backend=backend, threads=threads, device=device)
    words = session.vocabulary is not None
    channels, reading, lengths = session.info.get("channels"), session.info.get("reading"), None
    if reading is not None and source.suffix.lower() == ".csv":
        x, lengths = _read_raw(source, channels, session.channels[0], reading)
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
    batches = x[None] if axes == 1 else x
    _warn_of_recording(session, source, batches.shape[1])
    per_step = session.info["model"]["head"]["output"] != "last"
    parts: list[NDArray[Any]] = []
    updated: int | None = None
    for start in range(0, len(batches), CHUNK):
        some_lengths = None if lengths is None else lengths[start : start + CHUNK]
        y = session.run(batches[start : start + CHUNK].swapaxes(0, 1), some_lengths)
        parts.append(y.swapaxes(0, 1) if per_step else y)
        if session.updates is not None:
            # padded steps have no updates
            updated = (updated or 0) + int(session.updates.sum())
    y = np.concatenate(parts)
    if axes == 1:
        y = y[0]
    steps = len(batches) * batches.shape[1] if lengths is None else int(lengths.sum())
    skipped = None if updated is None or not steps else 100 * (1 - updated / (session.neurons * steps))
    result = {
        "output": None if target is None else str(target),
        "shape": list(y.shape),
        "axes": [*["sequence"] * (axes == 2), *["step"] * per_step],
        "backend": session.backend,
        "skip_percent": skipped,
    }
    if file is not None:
        write(file, y)
        return result
    classes = class_names(session.info, y.shape[-1])
    likelihoods = None if classes is None else probabilities(y).tolist()
    return {**result, "y": y.tolist(), "classes": classes, "probabilities": likelihoods}


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
    if arrays["x"].ndim != axes or kind not in "fiu":
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
        return decode(path, read_bytes(path, "a csv file"))
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None


def _read_raw(
    path: Path, channels: Sequence[str] | None, size: int, reading: Mapping[str, Any]
) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
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
    seconds = None if cells is None else seconds_of(reading["time"], cells, dialect.number)
    if cells is not None and seconds is None:
        raise EdgernnError(
            f"{path}: {reading['time']}: expected seconds, or dates and times, got other text; correct it"
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
    seconds = steps * audio["hop"] / audio["sample_rate"]
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


def write(path: Path, y: NDArray[Any]) -> None:
    """Write the output y of a model to a file.

    Args:
        path: The file; its suffix selects the format, csv unless it is .npz (an array y) or .npy.
        y: The array.

    Raises:
        UsageError: The file is csv and y has more than two axes.
    """
    if path.suffix.lower() == ".npz":
        write_arrays(path, {"y": y})
    elif path.suffix.lower() == ".npy":
        content = io.BytesIO()
        np.save(content, y)
        write_bytes(path, content.getvalue())
    else:
        write_text(path, csv_text(path, y))


def csv_text(path: Path, y: NDArray[Any]) -> str:
    """Format outputs y (O,) or (N, O) as csv, without a header; raise UsageError, which names `path`, for more axes."""
    if y.ndim > 2:
        raise UsageError(f"{path}: expected at most two axes for csv, got y of shape {y.shape}; write npz or npy")
    text = io.StringIO()
    np.savetxt(text, np.atleast_2d(y), delimiter=",", fmt="%.9g")
    return text.getvalue()
