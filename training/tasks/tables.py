# SPDX-License-Identifier: Apache-2.0
"""Task on a user's own tables: csv or parquet files, one recording each or with a column of sequences."""

import math
import shlex
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from pydantic import Field
from torch import Tensor

from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, counted, some
from edgernn.runtime.answers import IGNORED
from edgernn.runtime.csv_table import Dialect
from edgernn.runtime.input_check import warn_of_rounding
from edgernn.runtime.timeline import (
    OTHER_RATE,
    Recording,
    TimeNames,
    check_times,
    fall_remedy,
    first_without_time,
    missing_gap,
    padded,
    rows_of_sequences,
    warn_of_jumps,
    warn_of_short,
)
from edgernn.settings import Expected
from edgernn.training.formats.tables import CSV, PARQUET, Table, read_tables
from edgernn.training.tasks.folders import Files, files_fingerprint, list_files, part_folders, sorted_names
from edgernn.training.tasks.own import NEXT, OwnData
from edgernn.training.tasks.parts import (
    HELD_OUT,
    check_apart,
    groups_of,
    standardisation,
    visible,
    warn_of_copies,
    warn_of_left_out,
)
from edgernn.training.tasks.roles import AUTO, ColumnSettings, Roles, find_roles, is_pattern
from edgernn.training.tasks.sources import fingerprint

SEQUENCE, STEP = "sequence", "step"
_PARTS = ("train", "validation", "test")
# numbers that stand for missing values in many files
_MARKS = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0)


@dataclass
class Tables(ColumnSettings, OwnData):
    """Task on a user's own tables, csv or parquet files: a folder of recordings, or one file.

    A row is a time step, a column is a channel or has another role. csv files may have commas, semicolons or tabs,
    quotes, decimal commas, a byte order mark, and dates and times in ISO form. A first row without any number is a
    header. All files have the same columns, in any order if they have headers. With the model setting `imputer`, empty
    cells of channels are missing values, and the model reads the values, masks (1: observed) and times since the last
    observation of each channel. A file is a recording, unless a column tells the sequences apart (`sequence`). The
    targets are one of these, except with predict=next:

    - a column of labels (`label`) or of numbers (`targets`);
    - labels.csv, with the name of a file and the name of its class in each row;
    - targets.csv, with the name of a file and its O target numbers in each row;
    - one subfolder per class, named after it, with the files of that class.

    Recordings are split by group (`split_by`), such as a person, or else by recording, never by window. A tenth, at
    least one, is for validation, and as many for the test. A part gets a recording of each class if there are enough.
    The folder may have subfolders train, val and test instead; a missing part is drawn from train.
    split.json in the run has the names in each part. Classes are numbered in the order of their names, which
    config.json lists.

    Settings:

    - `T`: Use the first T rows of each recording; every one must have at least T rows. Default: all rows.
    - `resample`: Resample recordings to this many rows a second, by their column of time: numbers are interpolated
      linearly, labels are the nearest. Default: rows as they are.
    - `gap`: Split recordings where two successive times differ by more than this many seconds. Default: no split. With
      `resample` and the model setting `imputer`, values are missing there instead.
    - `window`: Cut recordings into sequences of this many rows. Default: whole recordings.
    - `stride`: Number of rows from the begin of a window to that of the next one. Default: `window`.
    - `label_by`: sequence for one target per sequence, the most frequent label or the mean number; step for one per
      row; or auto: step if the targets change within a recording and there is no window, else sequence.
    """

    T: Annotated[int | None, Field(ge=1)] = None
    resample: Annotated[float | None, Field(gt=0, le=1_000_000)] = None
    gap: Annotated[float | None, Field(gt=0)] = None
    window: Annotated[int | None, Field(ge=1)] = None
    stride: Annotated[int | None, Field(ge=1)] = None
    label_by: Annotated[str, Expected(f"{AUTO}, {SEQUENCE} or {STEP}")] = AUTO

    _imputes = False

    name = "table"
    help = "Train on your own csv or parquet tables."
    defaults: ClassVar[Mapping[str, Any]] = OwnData.defaults

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_by not in (AUTO, SEQUENCE, STEP):
            raise UsageError(f"label_by: expected {AUTO}, {SEQUENCE} or {STEP}, got {self.label_by!r}")
        if self.stride is not None and self.window is None:
            raise UsageError("stride: expected a window beside it; set window, or leave stride out")

    def adapted(self, model: ModelConfig) -> ModelConfig:
        self._imputes = isinstance(model, ModelConfig) and model.layer.imputer is not None
        if self._imputes and (self.predict == NEXT or self.augments):
            raise UsageError(
                "imputer: expected neither predict=next nor jitter, scaling, rotation or warp beside it, as the input "
                "has masks and times; leave them out"
            )
        return model

    def open(self, source: Path | None, seed: int) -> None:
        self._seed: int | None = seed
        self._origins: dict[str, Tensor] = {}
        super().open(source, seed)
        self.validation.origins, self.test.origins = self._origins["validation"], self._origins["test"]

    def open_test(self, source: Path, output_size: int) -> None:
        self._seed, self._origins = None, {}
        super().open_test(source, output_size)

    def _read(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        files = self._files(source)
        paths = [path for part in files.values() for path in part.paths]
        # refuses files above the memory, before they are hashed
        table = read_tables(source, paths)
        used = [*paths, *(path for part in files.values() for path in part.by_file)]
        self.older_fingerprint = files_fingerprint(source.parent if source.is_file() else source, used)
        if self.reading is not None and not table.has_names and len(self.reading["columns"]) == len(table.names):
            # of a trained model, by place
            frame = table.frame.rename(dict(zip(table.names, self.reading["columns"], strict=True)))
            table = replace(table, frame=frame, has_names=self.channels is not None)
        in_files = all(part.labels is not None or part.targets is not None for part in files.values())
        if self._seed is None and self.split_by not in table.names:
            # new data are not split
            self.split_by = None
        roles = find_roles(
            source,
            table,
            list(pairwise(table.begins)),
            self,
            needs_target=self.predict != NEXT and not in_files,
            channels=self.channels and self.channels[: len(self.channels) // (3 if self._imputes else 1)],
            time=None if self.reading is None else self.reading.get("time"),
            gaps=self._imputes,
        )
        if roles.date and roles.time:
            table = table.with_dates(roles.date, roles.time)
        # new data are read with the same roles
        self.label, self.targets = roles.label, ",".join(roles.targets) or None
        if table.has_names:
            since = "seconds" if roles.time else "rows"
            derived = (*(f"{n} observed" for n in roles.features), *(f"{since} since {n}" for n in roles.features))
            self.channels = (*roles.features, *(derived if self._imputes else ()))
        recordings = self._recordings(source, files, table, roles)
        if self._seed is not None:
            self._warn_of_doubtful_columns(source, table, recordings, roles)
            self._warn_of_other_classes(source, files, table, roles)
        rates = self._rates(source, table, recordings, roles)
        if self._seed is None and self.reading is not None:
            for recording in recordings:
                check_times(recording, self.reading)
        self.reading = {
            "columns": table.names,
            "channels": list(roles.features),
            "time": roles.time,
            **({"date": roles.date} if roles.date else {}),
            "sequence": roles.sequence,
            "targets": list(roles.targets),
            "rate": self.resample,
            "measured": rates[len(rates) // 2] if rates else None,
            "gap": self.gap,
            "window": self.window,
            "stride": self.stride,
            "missing": self._imputes,
        }
        if self.resample is not None and self.gap is None and not self._imputes:
            warn_of_jumps(str(source), recordings)
        recordings = self._pieces(recordings)
        if self._seed is not None:
            pattern = self.split_by if is_pattern(self.split_by) else None
            recordings = self._drawn(source, recordings, pattern or roles.group or "recording")
            names = [f"{recording.name} ({recording.part})" for recording in recordings]
            parts = [recording.part for recording in recordings]
            warn_of_copies(source, "numbers", (recording.x for recording in recordings), parts, names)
        if self.window is not None:
            warn_of_short(str(source), self.window, [(r.name, len(r)) for r in recordings])
        if self.label_by == AUTO:
            self.label_by = STEP if self.window is None and any(r.changes for r in recordings) else SEQUENCE
        self.summary = self._said(source, table, roles, rates, recordings)
        units = {name: i for i, name in enumerate(dict.fromkeys(r.group for r in recordings))}
        x, y = {}, {}
        for part in dict.fromkeys(r.part for r in recordings):
            sequences = self._cut(source, part, [r for r in recordings if r.part == part])
            self._origins[part] = torch.tensor([units[r.group] for r, _ in sequences])
            inputs, lengths = padded([r.x for r, _ in sequences])
            x[part] = torch.from_numpy(inputs).float()
            if lengths is not None:
                self._lengths[part] = torch.from_numpy(lengths)
            if self.predict != NEXT:
                targets = torch.from_numpy(padded([target for _, target in sequences])[0])
                y[part] = targets.float() if targets.is_floating_point() else targets
        return x, y

    def _statistics(self, x: Tensor) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel, with an imputer those of its observed values."""
        if not self._imputes:
            return super()._statistics(x)
        values, here, _ = x.chunk(3, -1)
        return standardisation(values.masked_fill(here == 0, math.nan))

    def _warn_of_constant_channels(self, source: Path, x: Tensor) -> None:
        if not self._imputes:
            super()._warn_of_constant_channels(source, x)

    def _files(self, source: Path) -> dict[str, Files]:
        if source.is_file():
            return {"train": Files(source.parent, [source], [])}
        in_columns = self.predict == NEXT or self.label is not None or self.targets is not None
        files = {part: list_files(folder, in_columns=in_columns) for part, folder in part_folders(source).items()}
        used = [path for part in files.values() for path in (*part.paths, *part.by_file)]
        warn_of_left_out(source, set(visible(source)) - set(used), f"{CSV} and {PARQUET}")
        kinds = {part: part_files.kind for part, part_files in files.items()}
        if other := [part for part, kind in kinds.items() if kind != kinds["train"]]:
            got = f"{kinds['train']} in {files['train'].folder} and {kinds[other[0]]} in {files[other[0]].folder}"
            raise EdgernnError(
                f"{source}: expected the same kind of targets in all parts, got {got}; use one kind in all"
            )
        return files

    def _recordings(self, source: Path, files: Mapping[str, Files], table: Table, roles: Roles) -> list[Recording]:
        """Cut the rows of the table into recordings, which are files, or the sequences of the column `sequence`."""
        x = np.stack([table.numbers(name, gaps=self._imputes) for name in roles.features], 1)
        warn_of_rounding(str(source), x, self.channels)
        y = self._row_targets(source, files, table, roles)
        needs_time = self.resample is not None or self.gap is not None or self._imputes
        seconds = None if roles.time is None else table.seconds(roles.time, warn=needs_time)
        if roles.time is None and (self.resample or self.gap):
            setting = "resample" if self.resample else "gap"
            raise EdgernnError(
                f"{source}: {setting}: expected a column of time, got the columns {some(table.names)}; set "
                f"time=COLUMN, or leave {setting} out"
            )
        if seconds is None and roles.time is not None and needs_time:
            cells = table.cells(roles.time)
            row = first_without_time(f"{source}: {roles.time}", cells, table.dialect)
            raise EdgernnError(
                f"{table.place(row, roles.time)}: expected seconds, or dates and times such as 2026-01-31 12:00:00.5, "
                f"got {cells[row] or ''!r:.40}; correct it, or convert the column"
            )
        groups = None if roles.group is None else _names(table, roles.group)
        pattern = self.split_by if self._seed is not None and is_pattern(self.split_by) else None
        ids = None if roles.sequence is None else _names(table, roles.sequence)
        parts = [part for part, part_files in files.items() for _ in part_files.paths]
        names = [path.relative_to(source).as_posix() if source.is_dir() else path.name for path in table.paths]
        persons = groups_of(pattern, names) if pattern else None
        recordings = []
        for file, (begin, end) in enumerate(pairwise(table.begins)):
            name = names[file]
            for own, rows in rows_of_sequences(begin, end, ids):
                title = name if own is None else own if len(table.paths) == 1 else f"{name}: {own}"
                group = title if groups is None else groups[rows[0]]
                group = group if persons is None else persons[file]
                if groups is not None and (other := [row for row in rows if groups[row] != group]):
                    raise EdgernnError(
                        f"{table.place(other[0], roles.group)}: expected the {roles.group} {group!r} as in the other "
                        f"rows of {title}, got {groups[other[0]]!r}; correct it, or set sequence or split_by"
                    )
                times = None if seconds is None else seconds[rows]
                targets = None if y is None else y[rows]
                recordings.append(Recording(title, group, parts[file], rows, x[rows], targets, times))
        # one file may be saved again under another name
        named = source.is_dir() or ids is not None
        content = (
            (r.name if named else "", r.part, groups and groups[r.rows[0]], *map(_tensor, (r.x, r.y, r.seconds)))
            for r in recordings
        )
        self.fingerprint = fingerprint(chain((self.classes,), *content))
        return recordings

    def _row_targets(
        self, source: Path, files: Mapping[str, Files], table: Table, roles: Roles
    ) -> npt.NDArray[Any] | None:
        """Return the target of each row: labels (N,), -1 for none, or numbers (N, O); None if predict=next."""
        if self.predict == NEXT:
            return None
        rows = np.diff(table.begins)
        if roles.targets:
            return np.stack([table.numbers(name) for name in roles.targets], 1)
        if roles.label is not None:
            labels = _without_nan(table.text(roles.label).to_list(), table.dialect)
        elif files["train"].targets is not None:
            numbers = {part: part_files.targets for part, part_files in files.items() if part_files.targets is not None}
            width = numbers["train"].shape[1]
            for part, values in numbers.items():
                if values.shape[1] != width:
                    wanted = f"{width} numbers per file as in train"
                    raise EdgernnError(
                        f"{files[part].by_file[0]}: expected {wanted}, got {values.shape[1]}; correct the file"
                    )
            return np.repeat(np.concatenate(list(numbers.values())), rows, 0)
        else:
            labels = np.repeat([name for part in files.values() for name in part.labels or ()], rows).tolist()
        names = sorted_names({name for name in labels if name is not None})
        if not names:
            raise EdgernnError(f"{source}: expected labels in the column {roles.label!r}, got none; fill some")
        if self.classes is None:
            self.classes = names
            spellings: dict[str, list[str]] = {}
            for name in names:
                spellings.setdefault(_plain(name), []).append(name)
            if alike := [name for group in spellings.values() if len(group) > 1 for name in group]:
                text = f"{source}: {some(alike)}: classes that differ in upper and lower case or in spaces alone"
                warnings.warn(f"{text}; if they are the same, write them alike", EdgernnWarning, stacklevel=2)
        elif unknown := [name for name in names if name not in self.classes]:
            raise EdgernnError(
                f"{source}: expected the classes {some(self.classes)} of the training, got {some(unknown)}; "
                "correct the labels"
            )
        if len(self.classes) == 1:
            raise EdgernnError(
                f"{source}: expected at least 2 classes, got only {self.classes[0]!r}; add another class"
            )
        number: dict[str | None, int] = {name: i for i, name in enumerate(self.classes)}
        return np.array([number.get(name, IGNORED) for name in labels])

    def _warn_of_doubtful_columns(
        self, source: Path, table: Table, recordings: Sequence[Recording], roles: Roles
    ) -> None:
        """Warn of a counter as time, of ids and marks of missing values in channels, and of several sensors in turn."""
        reads_time = self.time == AUTO and (self.resample or self.gap) and roles.time
        times = [r.seconds for r in recordings if r.seconds is not None and len(r) > 1]
        if reads_time and roles.time not in TimeNames() and all(np.median(np.diff(t)) == 1 for t in times):
            text = f"{source}: {roles.time}: taken as the time in s, as it rises from row to row"
            warnings.warn(f"{text}; if it counts rows, write a column of seconds", EdgernnWarning, stacklevel=2)
        columns = [name for name in (*roles.unread, *roles.features) if not table.is_true_or_false(name)]
        if name := next((name for name in columns if _alternates(table, name, recordings)), ""):
            text = f"{source}: {name}: its values alternate from row to row, as do rows of several sensors or devices"
            remedy = f"to read each on its own, set {shlex.quote('sequence=' + name)}; else write a column for each"
            warnings.warn(f"{text}, which are read as one sequence; {remedy}", EdgernnWarning, stacklevel=2)
        x = np.concatenate([r.x for r in recordings])
        for mark in _MARKS:
            for name, column in zip(roles.features, x.T, strict=True):
                if mark not in column or not (others := column[(column != mark) & ~np.isnan(column)]).size:
                    continue
                low, high = others.min(), others.max()
                if not low - (high - low) <= mark <= high + (high - low):
                    text = f"{source}: {name}: {np.sum(column == mark)} values are {mark:g}, the others {low:.4g} to "
                    remedy = "if that marks missing values, leave these cells empty"
                    warnings.warn(f"{text}{high:.4g}; {remedy}", EdgernnWarning, stacklevel=2)
        if self.features is None:
            firsts = np.stack([r.x[0] for r in recordings])
            is_same = np.all([(r.x == r.x[0]).all(0) & (len(r) > 1) for r in recordings], 0)
            is_id = is_same & (firsts == np.round(firsts)).all(0) & (firsts != firsts[0]).any(0)
            ids = [name for name, doubtful in zip(roles.features, is_id, strict=True) if doubtful]
            if 0 < len(ids) < len(is_id):
                text = f"{source}: {some(ids)}: a channel with one whole number in each recording, as an id has"
                remedy = f"if it is one, set {shlex.quote('split_by=' + ids[0])}, or features to the channels"
                warnings.warn(f"{text}; {remedy}", EdgernnWarning, stacklevel=2)

    def _warn_of_other_classes(self, source: Path, files: Mapping[str, Files], table: Table, roles: Roles) -> None:
        """Warn of a column that may have the classes, where subfolders or labels.csv name others."""
        by_file = [label for part in files.values() for label in part.labels or ()]
        if not by_file or roles.label is not None:
            return
        of_rows = pl.Series(by_file).gather(np.repeat(np.arange(len(by_file)), np.diff(table.begins)))
        for name in roles.unread:
            values = table.text(name)
            pairs = pl.DataFrame({"file": of_rows, "row": values}).drop_nulls().n_unique()
            count = values.drop_nulls().n_unique()
            if 2 <= count <= len(values) / 10 and pairs > max(count, len({*by_file})):
                text = f"{source}: {name}: not read, as the classes are {some(sorted(set(by_file)))}, of the files"
                remedy = f"if the column has the classes, set {shlex.quote('label=' + name)}"
                warnings.warn(f"{text}; {remedy}", EdgernnWarning, stacklevel=2)

    def _rates(self, source: Path, table: Table, recordings: Sequence[Recording], roles: Roles) -> list[float]:
        rates: dict[float, str] = {}
        for recording in recordings:
            if recording.seconds is None or len(recording) < 2:
                continue
            steps = np.diff(recording.seconds)
            if (steps < 0).any():
                row = int(recording.rows[(steps < 0).argmax() + 1])
                remedy = fall_remedy(steps)
                if remedy.startswith("sort") and not roles.sequence:
                    remedy += ", or name the column of sequences with sequence=COLUMN"
                raise EdgernnError(
                    f"{table.place(row, roles.time)}: expected a time after that of the row before it, got "
                    f"{table.text(roles.time or '')[row]}; {remedy}"
                )
            if (step := float(np.median(steps))) > 0:
                rates[1 / step] = recording.name
            elif self.resample is not None:
                row = int(recording.rows[steps.argmin() + 1])
                raise EdgernnError(
                    f"{table.place(row, roles.time)}: expected a time after that of the row before it in most rows, "
                    f"got {table.text(roles.time or '')[row]}; store finer times, or leave resample out"
                )
        is_time = roles.time == self.time or roles.time in TimeNames()
        if rates and is_time and self.resample is None and max(rates) > OTHER_RATE * min(rates):
            slow, fast = min(rates), max(rates)
            raise EdgernnError(
                f"{source}: expected recordings with one rate, got {slow:.4g} rows a second in {rates[slow]} and "
                f"{fast:.4g} in {rates[fast]}; to resample all, set resample={slow:.3g}"
            )
        return sorted(rates)

    def _pieces(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Split recordings at gaps and resample them; the pieces of one recording alone count as recordings."""
        pieces: list[Recording] = []
        for recording in recordings:
            becomes_missing = self._imputes and self.resample is not None
            split = [recording] if self.gap is None or becomes_missing else recording.pieces(self.gap)
            if len(recordings) == 1 and len(split) > 1 and recording.group == recording.name:
                names = [f"{recording.name}, piece {i + 1}" for i in range(len(split))]
                split = [replace(piece, name=name, group=name) for piece, name in zip(split, names, strict=True)]
            if (rate := self.resample) is not None:
                gap = missing_gap(rate, self.gap) if self._imputes else None
                split = [piece.resampled(rate, gap) for piece in split]
            pieces += split
        return pieces

    def _drawn(self, source: Path, recordings: Sequence[Recording], by: str) -> list[Recording]:
        """Draw the missing parts from the training part, by groups; set `division`, the groups in each part."""
        groups = {part: list(dict.fromkeys(r.group for r in recordings if r.part == part)) for part in _PARTS}
        check_apart(by, {f"{source}: {part}": names for part, names in groups.items()}, "move its files into one part")
        missing = [part for part in ("validation", "test") if not groups[part]]
        names = groups["train"]
        held_out = max(1, len(names) // HELD_OUT)
        if len(names) <= held_out * len(missing):
            wanted = f"at least {len(missing) + 1} groups by {by} for train, {' and '.join(missing)}"
            remedy = "add some, or set sequence, gap or split_by to another column"
            if len(names) == 1 and by == "recording":
                remedy = (
                    "name the column that tells sequences apart with sequence=NAME, set gap to split the recording "
                    "where its time jumps, or put its first, middle and last rows into files of folders train, val "
                    "and test"
                )
            raise EdgernnError(f"{source}: expected {wanted}, got {len(names)}; {remedy}")
        part_of = {name: part for part in _PARTS for name in groups[part]}
        classes = {name: set[int]() for name in names}
        for r in recordings:
            if r.part == "train" and self.classes is not None and r.y is not None:
                classes[r.group].update(np.unique(r.y[r.y != IGNORED]).tolist())
        drawn = self.draw(source, names, missing, self._seed or 0, classes)
        part_of |= {name: part for part, chosen in drawn.items() for name in chosen}
        self.division = {"by": by, **{part: [n for n in part_of if part_of[n] == part] for part in _PARTS}}
        return [replace(r, part=part_of[r.group]) for r in recordings]

    def _cut(
        self, source: Path, part: str, recordings: Sequence[Recording]
    ) -> list[tuple[Recording, npt.NDArray[Any]]]:
        """Cut the recordings of a part into sequences, each with its target; those without a label are left out."""
        short = [r for r in recordings if self.T is not None and len(r) < self.T]
        if short:
            least = min(len(r) for r in short)
            count = f"{len(short)} of {len(recordings)} recordings have fewer than {self.T}"
            raise EdgernnError(
                f"{source}: expected at least T={self.T} rows in {short[0].name}, got {least} ({count}); lower T"
            )
        cut = [sequence for recording in recordings for sequence in self._windows(recording)]
        labelled = [(sequence, y) for sequence in cut if (y := self._target(sequence)) is not None]
        if self._imputes:
            labelled = [(sequence.observed(), y) for sequence, y in labelled]
        if not labelled:
            most = max(len(r) for r in recordings)
            why = f"with at least window={self.window} rows" if not cut else "with labels"
            got = f"recordings of at most {most} rows" if not cut else "none"
            remedy = "lower window" if not cut else "label more"
            raise EdgernnError(f"{source}: {part} part: expected sequences {why}, got {got}; {remedy}")
        return labelled

    def _target(self, sequence: Recording) -> npt.NDArray[Any] | None:
        """Return the target of a sequence or those of its steps, or None if it has no label."""
        if sequence.y is None:
            return np.empty(0)
        target = sequence.common_target()
        return sequence.y if self.label_by == STEP and target is not None else target

    def _windows(self, recording: Recording) -> Iterator[Recording]:
        recording = recording.between(0, self.T or len(recording))
        if self.window is None:
            yield recording
        else:
            yield from recording.windows(self.window, self.stride or self.window)

    def _said(
        self, source: Path, table: Table, roles: Roles, rates: Sequence[float], recordings: Sequence[Recording]
    ) -> list[str]:
        """Say in at most five lines what was taken for what."""
        rows = counted(len(table.frame), "row") + ", decimal commas" * table.decimal_commas
        if table.has_names and table.without_names:
            rows += f"; {len(table.without_names)} without a header, columns taken by place"
        files = counted(len(table.paths), "file")
        lines = [f"{source}: {counted(len(recordings), 'recording')} in {files}, {rows}"]
        if roles.time is not None:
            text = f"time: {', '.join((roles.time, *roles.others_of_time))}"
            if rates:
                low, high = f"{rates[0]:.4g}", f"{rates[-1]:.4g}"
                text += f", {low if low == high else f'{low} to {high}'} rows a second"
            text += f", resampled to {self.resample:g}" if self.resample else ""
            lines.append(text + (f", split at gaps above {self.gap:g} s" if self.gap else ""))
        channels = some(roles.features) if table.has_names else f"{len(roles.features)}, without names"
        channels += ", empty cells are missing values" * self._imputes
        lines.append(f"channels: {channels}" + (f"; not read: {some(roles.unread)}" if roles.unread else ""))
        if self.predict != NEXT:
            role, where = ("label", roles.label) if roles.label else ("targets", ", ".join(roles.targets))
            text = f"{role}: {where}, " if where else "targets: "
            text += "one for each row" if self.label_by == STEP else "one for each sequence"
            lines.append(text + (f"; classes: {some(self.classes)}" if self.classes else ""))
        if self.division:
            parts = "; ".join(f"{part} {some(self.division[part])}" for part in _PARTS)
            lines.append(f"split by {self.division['by']}: {parts}")
        return lines


def _plain(name: str) -> str:
    """Return a name in one form of its letters and spaces, by which alike names are found."""
    text = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(c for c in text if c.isprintable()).split())


def _without_nan(labels: Sequence[str | None], dialect: Dialect) -> list[str | None]:
    """Return labels with None for NaN among numbers, as a label that is missing."""
    numbers = {name: dialect.number(name) for name in {label for label in labels if label is not None}}
    nan = {label for label, number in numbers.items() if number is not None and math.isnan(number)}
    return [*labels] if None in numbers.values() else [None if label in nan else label for label in labels]


def _alternates(table: Table, name: str, recordings: Sequence[Recording]) -> bool:
    """True if a column has few values, which change from row to row: text at most rows, numbers at equal times."""
    is_text = table.is_text(name)
    for recording in recordings:
        seconds = recording.seconds
        if not is_text and seconds is None:
            return False
        column, length = table.frame[name][recording.rows], len(recording)
        # most columns have too many values, which are counted faster than ranked
        if not 2 <= (count := column.n_unique()) <= length / 2:
            return False
        values = column.cast(pl.String).rank("dense").fill_null(0).to_numpy()
        if is_text or seconds is None:
            alternates = 2 * np.count_nonzero(np.diff(values)) >= length - 1
        else:
            # each time has each value once, and most values
            pairs = np.unique(np.stack([seconds, values]), axis=1).shape[1]
            alternates = pairs == length >= len(np.unique(seconds)) * count / 1.5
        if not alternates:
            return False
    return True


def _tensor(array: npt.NDArray[Any] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)


def _names(table: Table, column: str) -> list[str]:
    """Return the names in a column of sequences or groups, or raise EdgernnError for an empty cell."""
    names = table.text(column)
    if names.null_count():
        row = int(names.is_null().arg_max() or 0)
        raise EdgernnError(f"{table.place(row, column)}: expected a name, got an empty cell; fill it")
    return names.to_list()
