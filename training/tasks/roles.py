# SPDX-License-Identifier: Apache-2.0
"""Roles of the columns of a user's own tables: time, label or targets, sequence, group and channels."""

import difflib
import shlex
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, some
from edgernn.runtime.csv_table import no_number, rises
from edgernn.runtime.timeline import TimeNames, date_and_time, rows_of_sequences
from edgernn.training.formats.tables import Table

# values of the setting `time` that are no name of a column
AUTO, NONE = "auto", "none"
# names by which a role is found
_NAMES = {
    "label": {"label", "labels", "class"},
    "targets": {"target", "targets"},
    "sequence": {"sequence", "sequence_id", "recording", "recording_id"},
    "split_by": {"group", "person", "subject", "participant", "patient", "user"},
}


@dataclass(frozen=True)
class Roles:
    """Names of the columns by their role.

    Attributes:
        features: The channels, in their order.
        time: Column of the time.
        others_of_time: Further columns of time.
        label: Column of the names of classes.
        targets: Columns of the target numbers.
        sequence: Column that tells the sequences of a table apart.
        group: Column of the groups, such as persons, that a split must not divide.
        unread: Columns without a role.
        date: That of the further columns which has the dates of the times of day in `time`.
    """

    features: tuple[str, ...]
    time: str | None = None
    others_of_time: tuple[str, ...] = ()
    label: str | None = None
    targets: tuple[str, ...] = ()
    sequence: str | None = None
    group: str | None = None
    unread: tuple[str, ...] = ()
    date: str | None = None


@dataclass
class ColumnSettings:
    """Columns of a user's tables by their role; a base of tasks.

    Settings:

    - `time`: Column of the time, which is not a channel: its name; or none if all columns are channels; or auto for
      columns with a name such as time, timestamp, t or date, else the one column of dates and times, and for those that
      rise from row to row in all files, or in all sequences of them. Times HHMMSS and days with a fraction, as in
      spreadsheets, may repeat. A column of dates and one of times of day are joined. Times are seconds, HHMMSS, dates
      and times in ISO form or with AM or PM, or another unit that the name has, as in `t (ms)`.
    - `label`: Column of the class of each row. Default: the one column named label or class, or the one of text.
    - `targets`: Columns of target numbers, separated by commas. Default: the one column named target, if any.
    - `sequence`: Column that tells the sequences of a file apart. Default: the one column named sequence or recording.
    - `split_by`: Column of groups, such as persons or devices, which the split does not divide; or a pattern of the
      files' paths with {} for the name of the group, such as "{}_*" for anna_3.csv or "{}/*" for anna/3.csv. Default:
      the one column named group, person, subject, participant, patient or user.
    - `features`: Channels, separated by commas. Default: all other columns of numbers, except those named label, class
      or target.
    """

    time: str = AUTO
    label: str | None = None
    targets: str | None = None
    sequence: str | None = None
    split_by: str | None = None
    features: str | None = None


def find_roles(
    source: Path,
    table: Table,
    files: Sequence[tuple[int, int]],
    settings: ColumnSettings,
    *,
    needs_target: bool,
    channels: Sequence[str] | None = None,
    time: str | None = None,
    gaps: bool = False,
) -> Roles:
    """Find the role of each column.

    Args:
        source: The user's file or folder, for errors.
        table: The table.
        files: First and last row + 1 of each file, within which a time rises.
        settings: The roles that the user set.
        needs_target: True if a column must be the label or the target.
        channels: Names of the channels that a model was trained on.
        time: Name of its column of the time, which may be one that rises.
        gaps: True if channels may have empty cells.

    Returns:
        The roles.

    Raises:
        UsageError: A setting names no column, or one that has another role.
        EdgernnError: Several columns or none could have a role, or no channels are left.
    """
    names = table.names
    chosen = {
        "time": () if settings.time in (AUTO, NONE) else (settings.time,),
        "label": _listed(settings.label),
        "targets": _listed(settings.targets),
        "sequence": _listed(settings.sequence),
        "split_by": () if is_pattern(settings.split_by) else _listed(settings.split_by),
        "features": tuple(channels) if channels and table.has_names else _listed(settings.features),
    }
    for role, columns in chosen.items():
        for name in columns:
            if name not in names:
                raise _unknown(source, role, name, names, from_training=bool(channels) and role == "features")
    taken: dict[str, str] = {}
    for role, columns in chosen.items():
        for name in columns:
            if name in taken:
                raise UsageError(f"{role}: expected a column without another role, got {name!r}, the {taken[name]}")
            taken[name] = role
    if len(chosen["label"]) > 1 or (chosen["label"] and chosen["targets"]):
        raise UsageError("label: expected one column, and no targets beside it; leave one out")

    def named(role: str) -> tuple[str, ...]:
        if chosen[role]:
            return chosen[role]
        found = tuple(name for name in names if name not in taken and name.lower() in _NAMES[role])
        if len(found) > 1:
            raise _several(source, role, found)
        taken.update(dict.fromkeys(found, role))
        return found

    times = chosen["time"]
    if settings.time == AUTO:
        known = TimeNames(taken)
        times = tuple(name for name in names if name in known)
        if len(times) > 1:
            # the date of a row and its time of day may have a column each
            times = tuple(sorted(times, key=lambda name: not _advances(table, name)))
        taken.update(dict.fromkeys(times, "time"))
    sequence = named("sequence") if table.has_names else ()
    group = named("split_by") if table.has_names and not is_pattern(settings.split_by) else ()
    label, targets = chosen["label"], chosen["targets"]
    texts = [name for name in names if name not in taken and table.is_text(name)]
    pair = None
    if settings.time == AUTO:
        pair = date_and_time({name: table.cells(name) for name in (*times, *texts)})
        if pair and (not times or times[0] in pair):
            times = (pair[1], pair[0], *(name for name in times if name not in pair))
        elif not times:
            dates = [name for name in texts if table.seconds(name) is not None]
            times = tuple(dates) if len(dates) == 1 else ()
        if not times and time in names and time not in taken and table.has_names:
            times = (time,)
        taken.update(dict.fromkeys(times, "time"))
        texts = [name for name in texts if name not in times]
    if not chosen["features"]:
        _check_numbers(table, texts)
    if needs_target and not (label or targets):
        label, targets = named("label"), named("targets")
        if label and targets:
            raise _several(source, "label or targets", label + targets)
        if not (label or targets):
            if len(texts) > 1:
                raise _several(source, "label", texts)
            if not texts:
                raise EdgernnError(
                    f"{source}: expected a column of labels or target numbers, got the columns {some(names)}; set "
                    "label=COLUMN or targets=COLUMN, add labels.csv, targets.csv or a subfolder for each class, or set "
                    "predict=next to predict the next step without targets"
                )
            label = (texts[0],)
            taken[texts[0]] = "label"
    features = chosen["features"]
    if not features:
        # the target must not be an input, even if the task takes its targets from another place
        answers = _NAMES["label"] | _NAMES["targets"]
        features = tuple(
            name
            for name in names
            if name not in taken and name not in texts and name.lower() not in answers and not table.is_empty(name)
        )
        if settings.time == AUTO and not (channels and table.has_names):
            ids = table.text(sequence[0]).fill_null("").to_list() if sequence else None
            recordings = [rows for begin, end in files for _, rows in rows_of_sequences(begin, end, ids)]
            numbers = ((name, table.numbers(name, gaps=gaps)) for name in features)
            rising = tuple(name for name, column in numbers if all(rises(column[rows]) for rows in recordings))
            if channels and len(features) - len(rising) != len(channels):
                rising = ()
            times += rising
            features = tuple(name for name in features if name not in rising)
        if not features:
            got, hint = f"the columns {some(names)}", "; add some"
            if times:
                got = f"columns of time alone ({some(times)})"
                hint = ": they have the name of a time or rise from row to row; to train on them, set time=none"
            elif len(names) == 1:
                hint = (
                    "; separate the cells by commas, semicolons or tabs, with as many in the header as in each row, "
                    "and remove lines before the header"
                )
            raise EdgernnError(f"{source}: expected channels, columns of numbers without another role, got {got}{hint}")
    used = {*features, *times, *label, *targets, *sequence, *group}
    left = tuple(name for name in names if name not in used)
    if thousands := [name for name in features if table.may_mark_thousands(name)]:
        mark = table.dialect.decimal
        text = (
            f"{source}: {some(thousands)}: numbers such as 1{mark}234 are read as decimals; if they are thousands, "
            "write them without marks"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    if not table.has_names and (unnamed := [name for name in left if name in texts]):
        cell = next(filter(None, table.cells(unnamed[0])))
        text = f"{source}: {some(unnamed)}: text such as {cell!r:.40}, so no channel; give the files a header"
        warnings.warn(f"{text}, or remove the text", EdgernnWarning, stacklevel=2)
    if not chosen["features"] and (switches := [name for name in left if table.is_true_or_false(name)]):
        text = (
            f"{source}: {some(switches)}: true and false are no numbers, so no channel; write 1 and 0 to train on them"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    return Roles(
        features,
        times[0] if times else None,
        times[1:],
        label[0] if label else None,
        targets,
        sequence[0] if sequence else None,
        group[0] if group else None,
        left,
        pair[0] if pair and times[:1] == pair[1:] else None,
    )


def is_pattern(split_by: str | None) -> bool:
    """True if the setting `split_by` is a pattern of paths, not a column."""
    return split_by is not None and "{}" in split_by


def _advances(table: Table, name: str) -> bool:
    """True if a column has times, and most of them are after that of the row before."""
    seconds = table.seconds(name)
    return seconds is not None and len(seconds) > 1 and bool(np.median(np.diff(seconds)) > 0)


def _check_numbers(table: Table, texts: Iterable[str]) -> None:
    """Raise EdgernnError for columns of text that have numbers in a form that is not read; warn of those with units."""
    for name in texts:
        if (row := table.written_number(name)) is None:
            continue
        place, cell = table.place(row, name), table.cells(name)[row]
        remedy = f"or set {shlex.quote('label=' + name)} if it is the label, or features to the channels"
        if not any(map(str.isalpha, cell)):
            raise EdgernnError(f"{no_number(place, cell, table.dialect)}, {remedy}")
        text = f"{place}: {cell!r:.40} is no number, and its column no channel; write decimals without a unit, {remedy}"
        warnings.warn(text, EdgernnWarning, stacklevel=2)


def _listed(words: str | None) -> tuple[str, ...]:
    return () if words is None else tuple(word.strip() for word in words.split(","))


def _unknown(source: Path, role: str, name: str, names: Collection[str], *, from_training: bool) -> EdgernnError:
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {matches[0]!r}?" if matches else "correct the setting or the header"
    if from_training:
        return EdgernnError(f"{source}: expected the column {name!r} of the training, got {some(names)}; {hint}")
    return UsageError(f"{role}: expected a column of {source}, got {name!r}, none of {some(names)}; {hint}")


def _several(source: Path, role: str, columns: Iterable[str]) -> EdgernnError:
    columns = list(columns)
    settings = " or ".join(shlex.quote(f"{role.split(maxsplit=1)[0]}={name}") for name in columns[:2])
    return EdgernnError(f"{source}: expected one column for the {role}, got {some(columns)}; set {settings}")
