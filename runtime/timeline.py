# SPDX-License-Identifier: Apache-2.0
"""Recordings in time, the same in training and runs: times as text, gaps, another rate, missing values and windows."""

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from decimal import Decimal
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError, EdgernnWarning, some
from edgernn.runtime.answers import IGNORED
from edgernn.runtime.csv_table import Dialect, of_the_day

# recordings whose rows a second differ by this factor have another rate; phones vary by some percent
OTHER_RATE = 1.2
# a time that rises by so many times the median rise has a jump
_JUMP = 20
# resampling to more rows than this, and than so many for each row, is refused: a time is wrong, or there is a gap
_MOST_ROWS, _MOST_ROWS_EACH = 1_000_000, 1000
# two times are equal if they differ by less than this share of a row or gap
_SAME = 1e-6
# a last row that is early by less than this share of a row is one: times are rounded, such as 30 a second to 1 ms
_ROUNDED = 0.1
# words of the name of a column of time, such as "Timestamp (ms)" or "seconds_elapsed"
_TIME = {"t", "time", "timestamp", "date", "datetime", "ts", "epoch", "elapsed", "clock"}
_ZONES = {"utc", "unix", "local"}
# seconds in a unit of time, by its names
_UNITS = {
    word: Decimal(seconds)
    for seconds, words in {
        "1e-9": "ns nsec nsecs nanos nanosecond nanoseconds",
        "1e-6": "us usec usecs μs μsec micros microsecond microseconds",
        "1e-3": "ms msec msecs millis millisecond milliseconds",
        "1": "s sec secs second seconds",
        "60": "min mins minute minutes",
        "3600": "h hr hrs hour hours",
        "86400": "d day days",
    }.items()
    for word in words.split()
}
# t_min may be a minimum, time_hour the hour of the day: units of a time in brackets alone
_UNITS_IN_BRACKETS = {"min", "minute", "h", "hr", "hour", "d", "day"}
# units that are words of other meanings, except in brackets or as the last of several words
_UNITS_AT_END = {"min", "h", "hr", "d", "s"}
# units of numbers above a size, if the column's name has none, and the seconds since 1970 that leave no doubt
_SIZES = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"))
_EPOCH = (9e8, 4.2e9)
# a date with the year first, or last, and the rest of the cell
_YEAR_FIRST = re.compile(r"(?P<year>\d{4})[-/.](?P<a>\d{1,2})[-/.](?P<b>\d{1,2})(?:[T ]+(?P<rest>.+))?$")
_YEAR_LAST = re.compile(r"(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})[-/.](?P<year>\d{4})(?:[T ,]+(?P<rest>.+))?$")
_MONTHS = 12
# cells of columns that have the date and the time of day apart; spreadsheets write a date with midnight
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})(?:[T ]+00?:00(?::00(?:\.0+)?)?)?$")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2}|\s*[AaPp]\.?[Mm]\.?)?$")
_HALF_DAY = re.compile(r"(.*\d)\s*([AaPp])\.?[Mm]\.?$")

Numbers = npt.NDArray[np.float64]
Targets = npt.NDArray[Any]


@dataclass(frozen=True)
class Recording:
    """Successive rows of a table that belong together.

    Attributes:
        name: Name of the file or of the sequence.
        group: Name of its group, such as a person.
        part: "train", "validation" or "test".
        rows: Indices of the rows in the table (T,).
        x: Channels (T, I).
        y: Labels (T,) int64, -1 where there is none, or target numbers (T, O) float64; None without targets.
        seconds: Times (T,), or None if they are unknown.
    """

    name: str
    group: str
    part: str
    rows: npt.NDArray[np.int64]
    x: Numbers
    y: Targets | None
    seconds: Numbers | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def changes(self) -> bool:
        """True if two rows have different targets; rows without a label do not count."""
        if self.y is None:
            return False
        y = self.y[self.y != IGNORED] if self.y.ndim == 1 else self.y
        return bool((y != y[:1]).any())

    def between(self, begin: int, end: int) -> "Recording":
        """Return the rows from `begin` to before `end` as a recording."""
        chosen = slice(begin, end)
        return replace(
            self,
            rows=self.rows[chosen],
            x=self.x[chosen],
            y=None if self.y is None else self.y[chosen],
            seconds=None if self.seconds is None else self.seconds[chosen],
        )

    def pieces(self, gap: float) -> list["Recording"]:
        """Split the recording where two successive times differ by more than `gap` seconds."""
        assert self.seconds is not None
        cuts = [0, *(np.flatnonzero(np.diff(self.seconds) > gap * (1 + _SAME)) + 1).tolist(), len(self)]
        return [self.between(begin, end) for begin, end in pairwise(cuts)]

    def resampled(self, rate: float, gap: float | None = None) -> "Recording":
        """Return the recording with `rate` rows a second: numbers are interpolated linearly, labels are the nearest.

        With `gap`, values of x are interpolated between those that are not missing, NaN, and stay missing where these
        are further apart than `gap` seconds.
        """
        assert self.seconds is not None
        times, first = np.unique(self.seconds, return_index=True)
        span = float(times[-1] - times[0])
        same = _SAME / rate + 2 * float(np.spacing(np.abs(times).max()))
        most = max(_MOST_ROWS, _MOST_ROWS_EACH * len(self))
        if not span * rate < most:
            raise EdgernnError(
                f"{self.name}: expected times of one recording, got {len(self):,} rows in {span:.3g} s, which would be "
                f"{span * rate:.3g} rows; set gap to split it, correct the times, or name their unit in the header, as "
                "in 'time (ms)'"
            )
        step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        slack = max(same, _ROUNDED * min(step, 1 / rate))
        grid = np.minimum(times[0] + np.arange(int((span + slack) * rate) + 1) / rate, times[-1])
        index = np.searchsorted((times[1:] + times[:-1]) / 2, grid)
        grid, nearest = np.where(np.abs(times[index] - grid) <= same, times[index], grid), first[index]
        y = self.y
        if y is not None:
            y = _interpolated(grid, times, y[first]) if y.ndim == 2 else y[nearest]
        x = _interpolated(grid, times, self.x[first], gap)
        return replace(self, rows=self.rows[nearest], x=x, y=y, seconds=grid)

    def observed(self) -> "Recording":
        """Return the recording with x (T, 3I) for an imputer: values, masks, and times since the last observation.

        A missing value, NaN, becomes 0. The mask is 1 at values that are not missing. The times are seconds, or rows
        without times, and 0 in the first row.
        """
        here = ~np.isnan(self.x)
        steps = np.ones(len(self) - 1) if self.seconds is None else np.diff(self.seconds)
        since = np.zeros(self.x.shape)
        for t, step in enumerate(steps, 1):
            since[t] = step + np.where(here[t - 1], 0, since[t - 1])
        return replace(self, x=np.concatenate([np.where(here, self.x, 0), here, since], 1))

    def windows(self, length: int, stride: int) -> Iterator["Recording"]:
        """Iterate over the windows of `length` rows, which begin every `stride` rows.

        A shorter rest and windows whose values are all missing are left out.
        """
        for begin in range(0, len(self) - length + 1, stride):
            window = self.between(begin, begin + length)
            if not np.isnan(window.x).all():
                yield window

    def common_target(self) -> Targets | None:
        """Return one target of all rows: the most frequent label, or the mean of each target number (O,).

        Rows without a label do not count. None: no row has one.
        """
        assert self.y is not None
        if self.y.ndim == 2:
            # the mean of equal numbers may differ from them in the last digit
            return np.asarray(np.where((self.y == self.y[0]).all(0), self.y[0], self.y.mean(0)))
        labels = self.y[self.y != IGNORED]
        return np.asarray(np.bincount(labels).argmax()) if len(labels) else None


def _interpolated(grid: Numbers, times: Numbers, columns: Numbers, gap: float | None = None) -> Numbers:
    return np.stack([_column(grid, times, column, gap) for column in columns.T], 1)


def _column(grid: Numbers, times: Numbers, column: Numbers, gap: float | None) -> Numbers:
    if gap is None:
        return np.interp(grid, times, column)
    here = ~np.isnan(column)
    if not here.any():
        return np.full(len(grid), np.nan)
    seen = times[here]
    after = np.searchsorted(seen, grid)
    before = np.maximum(after - (seen[np.minimum(after, len(seen) - 1)] != grid), 0)
    apart = seen[np.minimum(after, len(seen) - 1)] - seen[np.minimum(before, len(seen) - 1)]
    outside = (grid < seen[0]) | (grid > seen[-1])
    return np.where(outside | (apart > gap * (1 + _SAME)), np.nan, np.interp(grid, seen, column[here]))


def rows_of_sequences(
    begin: int, end: int, ids: Sequence[str] | None
) -> Iterator[tuple[str | None, npt.NDArray[np.int64]]]:
    """Iterate over the sequences in the rows of a file, as pairs of a name (None for the whole file) and its rows."""
    rows = np.arange(begin, end)
    if ids is None:
        yield None, rows
        return
    _, first, number = np.unique(np.array(ids[begin:end]), return_index=True, return_inverse=True)
    grouped = np.split(rows[np.argsort(number, kind="stable")], np.cumsum(np.bincount(number))[:-1])
    for i in np.argsort(first):
        yield ids[grouped[i][0]], grouped[i]


def read_recording(
    path: Path, x: Numbers, seconds: Numbers | None, reading: Mapping[str, Any], ids: Sequence[str] | None = None
) -> tuple[Numbers, npt.NDArray[np.int64] | None, list[str]]:
    """Resample and cut the rows of a raw file as the training of a model did.

    Args:
        path: The file, for errors.
        x: Channels (rows, I).
        seconds: Times (rows,), or None if the file has none.
        reading: Description of the training's reading in the model's file: names of its `columns`, `channels`,
            `time`, `sequence` and maybe `date`, `rate` of resampling, `measured` rate, `gap` in seconds, `window` and
            `stride` in rows, and `missing`, true if an imputer fills gaps.
        ids: Name of the sequence of each row; None if all rows are one sequence.

    Returns:
        One sequence (T, I) and None; or N sequences, windows or pieces (N, T, I), and their lengths (N,) if these
        differ. The N names come last, if there are `ids`: that of a sequence, with the number of a window or piece.

    Raises:
        EdgernnError: The file has another rate than the training, or fewer rows than a window.
    """
    rate, gap, missing = reading["rate"], reading["gap"], reading["missing"]
    wholes = [
        Recording(str(path) if name is None else f"{path}: {name}", name or "", "", rows, x[rows], None, seconds=None)
        for name, rows in rows_of_sequences(0, len(x), ids)
    ]
    if seconds is not None:
        wholes = [replace(whole, seconds=seconds[whole.rows]) for whole in wholes]
        for whole in wholes:
            check_times(whole, reading)
    if (seconds is None or len(x) == 1) and (rate is not None or gap is not None):
        text = f"{path}: no column of time: its rows are taken as {rate or reading['measured'] or 0:.4g} a second"
        warnings.warn(f"{text}, without gaps", EdgernnWarning, stacklevel=2)
        rate = gap = None
    pieces = wholes if gap is None or (missing and rate) else [piece for whole in wholes for piece in whole.pieces(gap)]
    if rate is not None:
        if gap is None and not missing:
            warn_of_jumps(str(path), pieces)
        pieces = [piece.resampled(rate, missing_gap(rate, gap) if missing else None) for piece in pieces]
    if (window := reading["window"]) is not None:
        warn_of_short(str(path), window, [(piece.group or piece.name, len(piece)) for piece in pieces])
        pieces = [cut for piece in pieces for cut in piece.windows(window, reading["stride"] or window)]
        if not pieces:
            raise EdgernnError(f"{path}: expected at least window={window} rows, got fewer; give a longer file")
    sequences = [(piece.observed() if missing else piece).x for piece in pieces]
    if len(sequences) == 1 and window is None and ids is None:
        return sequences[0], None, []
    counts, numbers = Counter(piece.group for piece in pieces), defaultdict[str, Iterator[int]](count)
    names = [p.group if counts[p.group] == 1 else f"{p.group} {next(numbers[p.group])}" for p in pieces]
    return *padded(sequences), names if ids is not None else []


def warn_of_short(source: str, window: int, pieces: Sequence[tuple[str, int]]) -> None:
    """Warn of recordings that a cut into windows leaves out: all of their pieces have fewer rows than a window.

    Args:
        source: The file or folder, for the warning.
        window: Number of rows of a window.
        pieces: Name of the recording and number of rows of each piece.
    """
    longest: dict[str, int] = {}
    for name, rows in pieces:
        longest[name] = max(rows, longest.get(name, 0))
    short = [f"{name} ({rows} rows)" for name, rows in longest.items() if rows < window]
    if 0 < len(short) < len(longest):
        text = f"{source}: {len(short)} of {len(longest)} recordings have fewer rows than window={window} and are left "
        warnings.warn(f"{text}out: {some(short)}; lower window to read them", EdgernnWarning, stacklevel=3)


def check_times(recording: Recording, reading: Mapping[str, Any]) -> None:
    """Raise EdgernnError if the times of a recording fall, or without resampling have another rate than in training."""
    if recording.seconds is None or len(recording) == 1:
        return
    if (steps := np.diff(recording.seconds)).min() < 0:
        row = (steps < 0).argmax() + 2
        raise EdgernnError(
            f"{recording.name}: expected times that rise from row to row, got row {row} before; {fall_remedy(steps)}"
        )
    measured, wanted = 1 / max(float(np.median(steps)), 1e-12), reading["measured"]
    if reading["rate"] is None and wanted and not 1 / OTHER_RATE < measured / wanted < OTHER_RATE:
        raise EdgernnError(
            f"{recording.name}: expected about {wanted:.4g} rows a second as in the training, got {measured:.4g}; "
            f"resample the file, or train with resample={wanted:.3g}, which resamples every file"
        )


def fall_remedy(steps: Numbers) -> str:
    """Return what to do about the first negative difference (T - 1,) of successive times in seconds."""
    fall = -float(steps[(steps < 0).argmax()])
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else fall
    for period, remedy in (
        (86400, "times of day begin again at midnight: write the date before them, as in 2026-01-31 00:00:00"),
        (3600, "local times repeat an hour at the end of summer time: write UTC, or the offset as in 02:00:00+01:00"),
    ):
        if 2 * usual < period and abs(fall + usual - period) <= min(_JUMP * usual, period / 10):
            return remedy
    return "sort the rows by time"


def padded(arrays: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
    """Stack arrays (T, ...) to (N, T, ...) of the longest T, with zeros after shorter ones; return also their lengths.

    The lengths (N,) are None if all arrays have the same.
    """
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays), None
    lengths = np.array([len(array) for array in arrays])
    stacked = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, array in zip(stacked, arrays, strict=True):
        row[: len(array)] = array
    return stacked, lengths


def warn_of_jumps(source: str, recordings: Sequence[Recording]) -> None:
    """Warn of recordings whose times jump, as resampling interpolates between the rows before and after.

    A jump is a second or more, and as long as 20 successive rows or more usually are.
    """
    jumps: dict[float, str] = {}
    for recording in recordings:
        if recording.seconds is not None and len(recording) > 1:
            steps = np.diff(recording.seconds)
            if steps.max() >= max(1, _JUMP * float(np.median(steps))):
                jumps[float(steps.max())] = recording.name
    if jumps:
        longest = max(jumps)
        text = f"{source}: the time jumps by {longest:.3g} s in {jumps[longest]}, and the rows between are interpolated"
        warnings.warn(f"{text}; with gap=1, training splits recordings there", EdgernnWarning, stacklevel=3)


def missing_gap(rate: float, gap: float | None) -> float:
    """Return the seconds between observed values above which an imputer, not an interpolation, fills in values."""
    return gap or 2 / rate


class TimeNames:
    """Container of all names of a column of time, such as "timestamp", except those in `channels`."""

    def __init__(self, channels: Collection[str] = ()) -> None:
        self._channels = channels

    def __contains__(self, name: object) -> bool:
        words, in_brackets = _words(str(name))
        units = {*_UNITS} - (_UNITS_IN_BRACKETS - {*in_brackets})
        return name not in self._channels and bool({*words} & _TIME) and {*words} <= _TIME | _ZONES | units


def _words(name: str) -> tuple[list[str], list[str]]:
    """Return the words of a column's name in lower case, and those in brackets."""
    # T is a temperature; casefold makes one of the two characters µ
    words = [word if word == "T" else word.casefold() for word in re.findall(r"[^\W\d_]+", name)]
    return words, re.findall(r"[^\W\d_]+", " ".join(re.findall(r"[(\[{<]([^)\]}>]*)", name)).casefold())


def _unit(name: str) -> str | None:
    """Return the unit of time in a column's name, or None if it has none."""
    words, in_brackets = _words(name)
    at_end = words[-1:] if len(words) > 1 else []
    candidates = [*in_brackets, *at_end, *(word for word in words if word not in _UNITS_AT_END)]
    return next((word for word in candidates if word in _UNITS), None)


def _scale(name: str, unit: str) -> Decimal:
    """Return the seconds of a unit in a column's name, as many as a number before it says: (100 ns) are 1e-7."""
    count = re.search(rf"[(\[{{<]\s*(\d+(?:\.\d+)?)\s*{unit}\b", name.casefold())
    return _UNITS[unit] * (Decimal(count[1]) if count else 1)


def date_and_time(columns: Mapping[str, Sequence[str | None]]) -> tuple[str, str] | None:
    """Return the names of the column of dates and of that of times of day; None if there is not one of each.

    `columns` is a dict from name to cells. The cells of other columns may have anything.
    """
    pair = [
        [name for name, cells in columns.items() if all(cell and form.match(cell.strip()) for cell in cells)]
        for form in (_DATE, _TIME_OF_DAY)
    ]
    return (pair[0][0], pair[1][0]) if [len(names) for names in pair] == [1, 1] else None


def with_dates(dates: Sequence[str | None], times: Sequence[str | None]) -> list[str | None]:
    """Join the cells of a column of dates and of one of times of day, which `date_and_time` found."""
    joined: list[str | None] = []
    for date, time_of_day in zip(dates, times, strict=True):
        match = _DATE.match((date or "").strip())
        joined.append(f"{match[1] if match else date} {time_of_day.strip()}" if date and time_of_day else None)
    return joined


def seconds_of(name: str, cells: Sequence[str], dialect: Dialect, *, warn: bool = False) -> Numbers | None:
    """Convert a column of times to seconds after its first row, as exactly as the cells are.

    Args:
        name: Name of the column. A word such as ms in it is the unit of numbers.
        cells: The N cells: numbers, also as HHMMSS; dates and times in ISO form, or with AM or PM; or dates with the
            year last, as in 31/01/2026 12:00. Those are taken as day and month, unless a second number above 12 says
            that the month is first; a warning names dates that could be either.
        dialect: Format of the numbers.
        warn: Warn of numbers without a unit that may have another one than that taken.

    Returns:
        The seconds (N,), of numbers in the unit of the column or that which fits their size. None if a cell has
        another form.
    """
    values = [dialect.number(cell) for cell in cells]
    if None not in values:
        numbers = np.array(values, np.float64)
        if not np.isfinite(numbers).all():
            return None
        size = float(np.median(np.abs(numbers)))
        unit = _unit(name) or next((unit for least, unit in _SIZES if size > least), "s")
        first, scale = dialect.exact(cells[0]), _scale(name, unit)
        seconds = np.array([float((dialect.exact(cell) - first) * scale) for cell in cells])
        if _unit(name) is None and (clock := of_the_day(numbers)) is not None and _is_more_even(clock, numbers):
            return np.asarray(clock - clock[0])
        if warn and _unit(name) is None and not _EPOCH[0] < size * float(scale) < _EPOCH[1]:
            step = float(np.median(np.abs(np.diff(seconds)))) if len(seconds) > 1 else 0
            # milliseconds since a start, or another count of seconds since 1970; days as in spreadsheets
            if step > 1 or unit != "s" or (0 < step < 1e-4 and size > 1e4):
                text = f"{name}: numbers without a unit are taken as {unit}, {step:.3g} s from row to row; name their"
                example = "days" if step < 1e-4 else "ms"
                warnings.warn(f"{text} unit in the header, as in '{name} ({example})'", EdgernnWarning, stacklevel=2)
        return seconds
    last = [match for cell in cells if (match := _YEAR_LAST.match(cell.strip()))]
    months_first = any(int(match["b"]) > _MONTHS for match in last)
    if last and not months_first and not any(int(match["a"]) > _MONTHS for match in last):
        text = f"{name}: dates such as {last[0][0]} are taken as day, month and year; write year, month and day"
        warnings.warn(f"{text}, as in 2026-01-31, if the month is first", EdgernnWarning, stacklevel=2)
    try:
        moments = [_moment(cell.strip(), months_first) for cell in cells]
    except ValueError:
        return None
    return np.array([(moment - moments[0]).total_seconds() for moment in moments])


def _is_more_even(clock: Numbers, numbers: Numbers) -> bool:
    """True if times HHMMSS rise more evenly as seconds of the day than as they are: 120100 follows 120059."""
    steps, others = np.diff(clock), np.diff(numbers)
    if (2 * steps < -86400).any():
        # midnight
        return True
    rises = steps > 0
    if not rises.any():
        return False
    even, uneven = (float(values.max() / np.median(values)) for values in (steps[rises], others[rises]))
    return even < uneven


def first_without_time(name: str, cells: Sequence[str | None], dialect: Dialect) -> int:
    """Return the index of the first cell of a column of times that is empty, or of another form than most (or 0).

    Raise EdgernnError if each cell is a time, but some dates have the day first and others the month.
    """
    # NaN compares as false
    is_number = [abs(math.nan if (n := dialect.number(cell or "")) is None else n) < math.inf for cell in cells]
    if 2 * sum(is_number) >= len(cells):
        return is_number.index(False) if False in is_number else 0
    for i, cell in enumerate(cells):
        if cell is None or not _is_moment(cell.strip()):
            return i
    raise EdgernnError(
        f"{name}: expected the day first in all dates, or the month, got both; write dates as in 2026-01-31"
    )


def _is_moment(cell: str) -> bool:
    for months_first in (False, True):
        try:
            _moment(cell, months_first)
        except ValueError:
            continue
        return True
    return False


def _moment(cell: str, months_first: bool) -> datetime:
    """Return the date and time in a cell, of a time of day in 1970; raise ValueError for other text."""
    if half := _HALF_DAY.match(cell):
        moment = _moment(half[1], months_first)
        if not 1 <= moment.hour <= 12:
            raise ValueError(cell)
        return moment.replace(hour=moment.hour % 12 + 12 * (half[2] in "Pp"))
    if match := _YEAR_FIRST.match(cell) or _YEAR_LAST.match(cell):
        month, day = (match["a"], match["b"]) if months_first or match.re is _YEAR_FIRST else (match["b"], match["a"])
        rest = match["rest"] or "00:00"
        moment = datetime.fromisoformat(f"{match['year']}-{month:0>2}-{day:0>2}T{'0' * (rest[1:2] == ':')}{rest}")
    elif ":" in cell and "-" not in cell:
        moment = datetime.combine(datetime(1970, 1, 1), time.fromisoformat("0" * (cell[1:2] == ":") + cell))
    else:
        moment = datetime.fromisoformat(cell)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
