# SPDX-License-Identifier: Apache-2.0
"""Electrocardiograms (ECG) with annotated heart beats: file reading, targets per step, and detection of beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.training.formats import read_npz, read_wfdb
from edgernn.training.tasks.parts import Array, check_apart, check_offsets, checked_array

# sample rate in Hz; samples are in units of 1/200 mV above 1024
RATE = 360
_ZERO, _PER_MILLIVOLT = 1024, 200
# the lead that is read
_LEAD = "MLII"
# names of the records of both sets of de Chazal et al.
DS1 = "101 106 108 109 112 114 115 116 118 119 122 124 201 203 205 207 208 209 215 220 223 230".split()  # noqa: SIM905
DS2 = "100 103 105 111 113 117 121 123 200 202 210 212 213 214 219 221 222 228 231 232 233 234".split()  # noqa: SIM905
# classes of the AAMI: normal, supraventricular, ventricular; then fusion and unknown beats, which are not counted
CLASSES = ("N", "S", "V")
SYMBOLS = {
    **dict.fromkeys("NLRej", 0),
    **dict.fromkeys("AaJS", 1),
    **dict.fromkeys("VE", 2),
    **dict.fromkeys("F/fQ", -1),
}
# begin and end of ventricular flutter, where beats are not annotated
_FLUTTER, _FLUTTER_END = "[", "]"
# target of steps that are not counted; beats that are detected there are not counted either
OTHER = -3
# in seconds: shortest gap between two detected beats; largest distance of a detected beat from its match
_GAP, TOLERANCE = 0.1, 0.15


@dataclass(frozen=True)
class HeartRecord:
    """An electrocardiogram of one lead, with its annotated beats.

    Attributes:
        name: Name of the record, such as 100.
        signal: Samples (S,) in mV.
        sample: Position of each beat, as an index into `signal` (beats,), ascending.
        label: Class of each beat (beats,): 0, 1 or 2 for normal, supraventricular or ventricular beats (CLASSES), -1
            for fusion and unknown beats, which are not counted.
        flutter: Begin and end of each episode of ventricular flutter, as indices into `signal`. The end is S if it is
            not annotated.
    """

    name: str
    signal: npt.NDArray[np.float32]
    sample: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    flutter: list[tuple[int, int]]


def read_records(path: Path) -> tuple[list[HeartRecord], list[HeartRecord]]:
    """Read the MIT-BIH arrhythmia database, split into the sets DS1 (training) and DS2 (test) of de Chazal et al.

    `path` is the file mit-bih-mlii.npz, plain or compressed (.gz, .xz), or the folder of PhysioNet's files.
    EdgernnError is raised for an invalid file, or a record without beats.
    """
    if path.is_dir():
        ds1, ds2 = ([_wfdb_record(path, name) for name in names] for names in (DS1, DS2))
        return ds1, ds2
    kinds = {"record": "U", "ds1": "U", "ds2": "U", "ann_symbol": "U", "ann_sample": "iu", "ann_offset": "iu"}
    arrays = read_npz(path, (*kinds, "first", "difference"))
    for name, kind in {**kinds, "first": "iu"}.items():
        checked_array(path, arrays, name, kind, 1)
    difference = checked_array(path, arrays, "difference", "iu", 2)
    names = arrays["record"].tolist()
    if len(difference) != len(names) or len(arrays["first"]) != len(names):
        raise EdgernnError(
            f"{path}: expected {len(names)} rows in the arrays first and difference, one for each record, got "
            f"{len(arrays['first'])} and {len(difference)}; get the file again"
        )
    check_offsets(path, "ann_offset", arrays["ann_offset"], len(names), len(arrays["ann_sample"]))
    if len(arrays["ann_symbol"]) != len(arrays["ann_sample"]):
        raise EdgernnError(
            f"{path}: ann_symbol: expected {len(arrays['ann_sample'])} symbols, one for each entry of ann_sample, got "
            f"{len(arrays['ann_symbol'])}; get the file again"
        )
    check_apart("record", {f"{path}: {part}": arrays[part].tolist() for part in ("ds1", "ds2")}, "get the file again")
    parts = []
    for part in ("ds1", "ds2"):
        if missing := [name for name in arrays[part].tolist() if name not in names]:
            raise EdgernnError(
                f"{path}: {part}: expected only names that are in the array 'record', got {missing[0]!r}; get the "
                "file again"
            )
        parts.append([_record(path, arrays, names.index(name)) for name in arrays[part].tolist()])
    return parts[0], parts[1]


def _record(path: Path, arrays: dict[str, Array], i: int) -> HeartRecord:
    name = arrays["record"][i].item()
    steps = np.concatenate([arrays["first"][i : i + 1], arrays["difference"][i]]).astype(np.int64)
    signal = ((steps.cumsum() - _ZERO) / _PER_MILLIVOLT).astype(np.float32)
    rows = slice(arrays["ann_offset"][i], arrays["ann_offset"][i + 1])
    return _checked(
        path, name, signal, arrays["ann_sample"][rows].astype(np.int64), arrays["ann_symbol"][rows].tolist()
    )


def _wfdb_record(folder: Path, name: str) -> HeartRecord:
    record = read_wfdb(folder, name, _LEAD)
    if record.rate != RATE:
        raise EdgernnError(
            f"{folder}: record {name}: expected {RATE} samples per second, got {record.rate:g}; resample the record"
        )
    signal = ((record.samples.astype(np.int64) - record.zero) / record.gain).astype(np.float32)
    return _checked(folder, name, signal, record.ann_sample, record.ann_symbol)


def _checked(
    path: Path,
    name: str,
    signal: npt.NDArray[np.float32],
    samples: npt.NDArray[np.int64],
    symbols: Sequence[str],
) -> HeartRecord:
    """Create a record from its signal in mV and its annotations."""
    if len(samples) and (np.any(np.diff(samples) < 0) or samples[0] < 0 or samples[-1] >= len(signal)):
        raise EdgernnError(
            f"{path}: record {name}: expected ascending sample numbers below {len(signal)} in ann_sample; get the file "
            "again"
        )
    is_beat = np.array([symbol in SYMBOLS for symbol in symbols], bool)
    if not is_beat.any():
        remedy = f"get the file {name}.atr again" if path.is_dir() else "leave it out of ds1 and ds2"
        raise EdgernnError(f"{path}: record {name}: expected annotated beats, got none; {remedy}")
    label = np.array([SYMBOLS[symbol] for symbol in symbols if symbol in SYMBOLS], np.int64)
    begins = [int(sample) for sample, symbol in zip(samples, symbols, strict=True) if symbol == _FLUTTER]
    ends = [int(sample) for sample, symbol in zip(samples, symbols, strict=True) if symbol == _FLUTTER_END]
    # an episode without an end lasts to the end of the record
    return HeartRecord(name, signal, samples[is_beat], label, list(zip(begins, [*ends, len(signal)], strict=False)))


def step_targets(record: HeartRecord, frame: int, delay: float, width: int) -> npt.NDArray[np.int64]:
    """Return the target of each step of a record: 0 without a beat, else 1 + the class of the beat, or -3 (OTHER).

    The class is 0, 1 or 2 for normal, supraventricular or ventricular beats. OTHER marks steps that are left out of
    loss and metrics: ventricular flutter, and fusion or unknown beats.

    Args:
        record: The record, with S samples.
        frame: Number of samples per step.
        delay: Seconds from a beat to the middle of the steps that are labelled with it.
        width: Number of steps that are labelled with a beat.

    Returns:
        Targets (S // frame,).
    """
    target = np.zeros(len(record.signal) // frame, np.int64)
    shift = round(delay * RATE)
    for begin, end in record.flutter:
        target[(begin + shift) // frame : (end + shift) // frame + 1] = OTHER
    for sample, label in zip(record.sample, record.label, strict=True):
        first = (sample + shift) // frame - width // 2
        target[max(0, first) : max(0, first + width)] = OTHER if label < 0 else 1 + label
    return target


def detect(scores: npt.NDArray[np.float64], gap: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Detect beats from a model's probabilities at the steps of a record.

    A beat is a run of steps at which the most probable class is more probable than no beat. Runs with a short gap
    between them are one beat. The beat's class is the one with the largest sum of probabilities over these steps.

    Args:
        scores: Probabilities (T, 1 + classes); column 0 is the probability of no beat.
        gap: Two runs are joined if the last step of the first and the first step of the second are at most `gap` steps
            apart.

    Returns:
        The middle of each beat (beats,), in steps from the start of the record (not rounded), and the index of its
        class (beats,), from 0.
    """
    steps = np.flatnonzero(scores.argmax(1) > 0)
    if not len(steps):
        return np.empty(0), np.empty(0, np.int64)
    runs = np.split(steps, np.flatnonzero(np.diff(steps) > max(gap, 1)) + 1)
    middles = np.array([(run[0] + run[-1] + 1) / 2 for run in runs])
    labels = np.array([scores[run, 1:].sum(0).argmax() for run in runs], np.int64)
    return middles, labels


def match(truth: Sequence[float], times: Sequence[float], tolerance: float) -> list[tuple[int | None, int | None]]:
    """Pair annotated beats with detected ones in order of time; a beat is in at most one pair.

    Each annotated beat is paired with the earliest detected beat that is within the tolerance and not yet in a pair.
    This gives the largest number of pairs.

    Args:
        truth: Times of the annotated beats, ascending.
        times: Times of the detected beats, ascending.
        tolerance: Largest difference of the times of a pair, in the unit of the times.

    Returns:
        Pairs (i, j) of an index i into `truth` and an index j into `times`, for all beats. j is None for an annotated
        beat that was missed, i is None for a detected beat without an annotated one.
    """
    pairs: list[tuple[int | None, int | None]] = []
    i = j = 0
    while i < len(truth) and j < len(times):
        if abs(truth[i] - times[j]) <= tolerance:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif truth[i] < times[j]:
            pairs.append((i, None))
            i += 1
        else:
            pairs.append((None, j))
            j += 1
    return pairs + [(i, None) for i in range(i, len(truth))] + [(None, j) for j in range(j, len(times))]


def count_beats(
    record: HeartRecord, target: Array, scores: npt.NDArray[np.float64], frame: int, delay: float
) -> npt.NDArray[np.int64]:
    """Detect the beats of a record, and count them by annotated and detected class.

    Fusion beats and unknown beats (class -1) are not counted. Detected beats that match them or lie in ventricular
    flutter are not counted either.

    Args:
        record: The record, with the annotated beats.
        target: Targets of its steps (T,), as `step_targets` returns them.
        scores: A model's probabilities at its steps (T, 1 + classes); column 0 is the probability of no beat.
        frame: Number of samples per step.
        delay: Seconds from a beat to the middle of the steps that are labelled with it.

    Returns:
        Numbers of beats (1 + classes, 1 + classes). Row 1 + c is the annotated class c, column 1 + d the detected class
        d. Row 0 counts detected beats that match no annotated beat, column 0 annotated beats that were missed.
    """
    middles, labels = detect(scores, _GAP * RATE / frame)
    times = middles * frame / RATE - delay
    counts = np.zeros((scores.shape[1], scores.shape[1]), np.int64)
    for i, j in match((record.sample / RATE).tolist(), times.tolist(), TOLERANCE):
        detected = 0 if j is None else 1 + labels[j]
        if i is not None:
            if record.label[i] >= 0:
                counts[1 + record.label[i], detected] += 1
        elif j is not None and target[min(int(middles[j]), len(target) - 1)] != OTHER:
            counts[0, detected] += 1
    return counts
