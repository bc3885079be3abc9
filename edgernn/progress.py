# SPDX-License-Identifier: Apache-2.0
"""Progress of long commands on standard error: a bar on a terminal, otherwise a line every few seconds."""

import importlib.util
import sys
import time
from collections.abc import Mapping
from typing import Any

from edgernn.errors import without_controls

# seconds between two refreshes of a bar; no thread draws it, as that would disturb timings
_REFRESH = 0.1


class Progress:
    """Progress bar on a terminal if rich is installed, otherwise lines of text.

    Args:
        every: Minimum seconds between two lines that `update` prints.
    """

    def __init__(self, every: float = 5.0) -> None:
        self.done, self._every = 0, every
        self.total: int | None = None
        self._bar: Any = None

    def note(self, text: str) -> None:
        """Print a line of text to standard error, above the bar if there is one."""
        text = without_controls(text)
        if self._bar is None:
            # None in a process without streams; print would take standard output
            if sys.stderr is not None:
                print(text, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, total: int | None, done: int = 0, *, line: str = "", in_bytes: bool = False) -> None:
        """Begin to show the progress of a task, and end that of the previous task.

        Args:
            title: Name of the task, shown beside the bar.
            total: Number of parts of the task, such as training steps; None if unknown.
            done: Number of parts that are done already.
            line: Line to print if there is no bar.
            in_bytes: True if the parts are bytes.
        """
        self.close()
        self.done, self.total, self._first = done, total, done
        self._started = self._told = time.monotonic()
        self._drawn = 0.0
        self._figures: dict[str, float | str] = {}
        if sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich"):
            self._bar = _bar(in_bytes)
            self._task = self._bar.add_task(title, total=total, completed=done, figures="")
            self._bar.start()
        elif line:
            self.note(line)

    def update(self, done: int, line: str = "", **figures: float | str) -> None:
        """Show how many parts of the task are done.

        Args:
            done: Number of parts done.
            line: Line to print if there is no bar and at least `every` seconds have passed since the last line. The
                line of the last part is always printed.
            **figures: Values by name, such as loss=0.1, to show beside the bar until they are replaced.
        """
        self.done = done
        if self._bar is None:
            if line and (self.is_due() or done == self.total):
                self.note(line)
            return
        self._figures |= figures
        now = time.monotonic()
        refresh = now - self._drawn >= _REFRESH or done == self.total
        self._drawn = now if refresh else self._drawn
        self._bar.update(self._task, completed=done, figures=in_words(self._figures), refresh=refresh)

    def is_due(self) -> bool:
        """Return True if `every` seconds have passed since it last returned True, or since the task began."""
        now = time.monotonic()
        is_due = now - self._told >= self._every
        self._told = now if is_due else self._told
        return is_due

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the task is done, from the mean time per part so far."""
        pace = (time.monotonic() - self._started) / max(1, self.done - self._first)
        return pace * ((self.total or 0) - self.done)

    def close(self) -> None:
        """Stop drawing the bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def in_words(figures: Mapping[str, float | str]) -> str:
    """Format a dict of values by name as "loss 0.1234  lr 0.001", with numbers rounded to 4 significant digits."""
    return "  ".join(f"{name} {value if isinstance(value, str) else f'{value:.4g}'}" for name, value in figures.items())


def _bar(in_bytes: bool) -> Any:
    from rich import progress
    from rich.console import Console

    count = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn()) if in_bytes else (progress.MofNCompleteColumn(),)
    )
    figures = progress.TextColumn("{task.fields[figures]}")
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *count, figures)
    console = Console(stderr=True)
    return progress.Progress(*columns, progress.TimeRemainingColumn(), console=console, auto_refresh=False)


class Silent(Progress):
    """Progress that prints nothing, for calls from Python."""

    def note(self, text: str) -> None: ...

    def begin(
        self, title: str, total: int | None, done: int = 0, *, line: str = "", in_bytes: bool = False
    ) -> None: ...

    def update(self, done: int, line: str = "", **figures: float | str) -> None: ...

    @property
    def seconds_left(self) -> float:
        return 0.0

    def close(self) -> None: ...
