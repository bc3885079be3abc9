# SPDX-License-Identifier: Apache-2.0
"""Reader of the intensive care stays of the PhysioNet/Computing in Cardiology Challenge 2012."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.npz import read_npz
from edgernn.training.formats.csv_text import read_csv, read_text

# the 5 general descriptors, then the weight and 36 other time series; `Stays.param` is an index into it
PARAMETERS = tuple(
    """RecordID Age Gender Height ICUType Weight GCS HR NIDiasABP NIMAP NISysABP RespRate Temp Urine HCT BUN Creatinine
    Glucose HCO3 Mg Platelets K Na WBC pH PaCO2 PaO2 DiasABP FiO2 MAP MechVent SysABP SaO2 Albumin ALP ALT AST Bilirubin
    Lactate Cholesterol TroponinI TroponinT""".split()  # noqa: SIM905
)
OUTCOMES = ("RecordID", "SAPS-I", "SOFA", "Length_of_stay", "Survival", "In-hospital_death")
_HEADER = "Time,Parameter,Value"
_RECORD = re.compile(r"[1-9][0-9]{0,8}")
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
# 48 hours
_LAST_MINUTE = 2880
# limit of a record's size in bytes; a record has a few thousand short lines
_LARGEST_RECORD = 1 << 24


@dataclass(frozen=True)
class Stays:
    """N stays in intensive care, by ascending record number, with M measurements in all.

    The measurements of a stay are in the order of its file.

    Source: Silva et al., "Predicting In-Hospital Mortality of ICU Patients", Computing in Cardiology, 2012.

    Attributes:
        record_id: Record number of each stay (N,), ascending.
        row_start: Index of the first measurement of each stay, and M at the end (N + 1,). Stay i has the measurements
            row_start[i] to row_start[i + 1] - 1.
        minute: Minutes from admission to each measurement (M,).
        param: Measured quantity, as an index into `PARAMETERS` (M,).
        value: Measured value (M,). For a general descriptor, such as the height, -1 means unknown.
        outcomes: Outcomes of each stay (N, 6), with the columns in `OUTCOMES`, such as the length of the stay.
    """

    record_id: npt.NDArray[np.int32]
    row_start: npt.NDArray[np.int32]
    minute: npt.NDArray[np.int16]
    param: npt.NDArray[np.uint8]
    value: npt.NDArray[np.float32]
    outcomes: npt.NDArray[np.int32]


def read_physionet(files: Sequence[Path]) -> Stays:
    """Read the intensive care stays of set-a of PhysioNet 2012.

    Args:
        files: Either one path, that of the archive set-a.npz (plain, .gz or .xz); or two paths, those of the folder
            set-a with a text file for each stay, and of the file Outcomes-a.txt.

    Returns:
        The stays.

    Raises:
        EdgernnError: A file is invalid.
    """
    return _read_archive(files[0]) if len(files) == 1 else _read_folder(files[0], files[1])


def _read_archive(path: Path) -> Stays:
    kinds: dict[str, tuple[type[np.generic], int]] = {
        "record_id": (np.int32, 1),
        "row_start": (np.int32, 1),
        "minute": (np.int16, 1),
        "param": (np.uint8, 1),
        "value": (np.float32, 1),
        "outcomes": (np.int32, 2),
    }
    arrays = read_npz(path, (*kinds, "param_names", "outcome_names"))
    for name, (dtype, rank) in kinds.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != rank:
            got = f"{arrays[name].dtype} {arrays[name].shape}"
            raise EdgernnError(
                f"{path}: {name}: expected {np.dtype(dtype)} of rank {rank}, got {got}; download it again"
            )
    for name, expected in (("param_names", PARAMETERS), ("outcome_names", OUTCOMES)):
        names = arrays.pop(name).tolist()
        if names != list(expected):
            got = f"{', '.join(map(str, names)):.100}"
            raise EdgernnError(f"{path}: {name}: expected {', '.join(expected)}, got {got}; download it again")
    return _checked(path, Stays(**arrays))


def _checked(path: Path, stays: Stays) -> Stays:
    """Return `stays` unchanged, or raise EdgernnError if its arrays are invalid; `path` is the npz file, for errors."""
    N, M = len(stays.record_id), len(stays.value)
    starts = stays.row_start
    if not N or len(starts) != N + 1 or starts[0] or starts[-1] != M or (np.diff(starts) < 0).any():
        raise EdgernnError(
            f"{path}: row_start: expected {N + 1} non-decreasing numbers from 0 to {M}, got others; download it again"
        )
    for name in ("minute", "param"):
        if len(getattr(stays, name)) != M:
            got = len(getattr(stays, name))
            raise EdgernnError(
                f"{path}: {name}: expected {M} numbers, as the array 'value' has, got {got}; download it again"
            )
    if (np.diff(stays.record_id) <= 0).any():
        raise EdgernnError(f"{path}: record_id: expected ascending numbers, got others; sort the stays by number")
    if M and (stays.minute.min() < 0 or stays.minute.max() > _LAST_MINUTE):
        raise EdgernnError(
            f"{path}: minute: expected 0 to {_LAST_MINUTE}, got {stays.minute.min()} to {stays.minute.max()}; "
            "leave out measurements at other times"
        )
    if M and stays.param.max() >= len(PARAMETERS):
        raise EdgernnError(
            f"{path}: param: expected numbers below {len(PARAMETERS)}, got {stays.param.max()}; download it again"
        )
    if not np.isfinite(stays.value).all():
        raise EdgernnError(f"{path}: value: expected finite numbers, got NaN or infinity; download it again")
    if stays.outcomes.shape != (N, len(OUTCOMES)) or (stays.outcomes[:, 0] != stays.record_id).any():
        raise EdgernnError(
            f"{path}: outcomes: expected a row of {len(OUTCOMES)} numbers for each of {N} stays, in the order of "
            "record_id, got others; download it again"
        )
    return stays


def _read_folder(folder: Path, outcomes_file: Path) -> Stays:
    paths = {int(path.stem): path for path in folder.glob("*.txt") if _RECORD.fullmatch(path.stem)}
    if not paths:
        raise EdgernnError(f"{folder}: expected records such as 132539.txt, got none; unpack the data set there")
    outcomes = _read_outcomes(outcomes_file)
    index = {name: i for i, name in enumerate(PARAMETERS)}
    starts, minutes, params, values = [0], array("h"), array("B"), array("f")
    for record in sorted(paths):
        if record not in outcomes:
            raise EdgernnError(
                f"{outcomes_file}: expected a row for record {record}, which is in {folder}, got none; download it "
                "again"
            )
        for minute, name, value in _read_record(paths[record], record):
            if name not in index:
                raise EdgernnError(
                    f"{paths[record]}: expected one of the parameters {', '.join(index)}, got {name[:40]!r}; "
                    "download it again"
                )
            minutes.append(minute)
            params.append(index[name])
            values.append(value)
        starts.append(len(values))
    return Stays(
        np.array(sorted(paths), np.int32),
        np.array(starts, np.int32),
        np.frombuffer(minutes, np.int16),
        np.frombuffer(params, np.uint8),
        np.frombuffer(values, np.float32),
        np.array([outcomes[record] for record in sorted(paths)], np.int32),
    )


def _read_record(path: Path, record: int) -> list[tuple[int, str, float]]:
    lines = read_text(path, _LARGEST_RECORD).split("\n")
    if lines[0].rstrip("\r") != _HEADER:
        raise EdgernnError(f"{path}: expected the header {_HEADER}, got {lines[0][:40]!r}; download it again")
    # the part after the last line break is empty
    rows = [
        _row(path, number, line.rstrip("\r")) for number, line in enumerate(lines[1:], 2) if line or number < len(lines)
    ]
    if not rows or rows[0] != (0, PARAMETERS[0], float(record)):
        raise EdgernnError(f"{path}: expected 00:00,RecordID,{record} as the first row, got another; download it again")
    return rows


def _row(path: Path, number: int, line: str) -> tuple[int, str, float]:
    try:
        time, name, word = line.split(",")
        hours, minutes = time.split(":")
        minute, value = 60 * int(hours) + int(minutes), float(word)
    except ValueError:
        raise EdgernnError(
            f"{path}: line {number}: expected HH:MM,parameter,value, got {line[:40]!r}; correct the line"
        ) from None
    if not 0 <= minute <= _LAST_MINUTE:
        raise EdgernnError(
            f"{path}: line {number}: expected a time from 00:00 to 48:00, got {time[:40]!r}; remove the line"
        )
    if not abs(value) <= _LARGEST_FLOAT:
        raise EdgernnError(f"{path}: line {number}: expected a finite number, got {word[:40]!r}; remove the line")
    return minute, name, value


def _read_outcomes(path: Path) -> dict[int, list[int]]:
    table = read_csv(path)
    if table.names != OUTCOMES:
        got = ",".join(table.names or ())
        raise EdgernnError(f"{path}: expected the header {','.join(OUTCOMES)}, got {got!r}; download it again")
    if not (np.abs(table.values) < 2**31).all() or (table.values % 1).any():
        raise EdgernnError(f"{path}: expected whole numbers in every column, got others; download it again")
    rows = {int(row[0]): [int(value) for value in row] for row in table.values}
    if len(rows) < len(table.values):
        raise EdgernnError(f"{path}: expected one row for each record, got two rows for one record; download it again")
    return rows
