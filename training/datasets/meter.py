# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a download, on standard error: a bar on a terminal, a line now and then elsewhere."""

import abc
import sys
import time


class Meter(abc.ABC):
    """Told where a download begins, how far it is, and that it has ended, also after an error."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something that the user should know."""

    @abc.abstractmethod
    def begin(self, title: str, have: int, total: int | None) -> None: ...

    @abc.abstractmethod
    def at(self, have: int) -> None: ...

    @abc.abstractmethod
    def end(self) -> None: ...


class Quiet(Meter):
    """Nothing at all: for calls from Python."""

    def note(self, text: str) -> None: ...

    def begin(self, title: str, have: int, total: int | None) -> None: ...

    def at(self, have: int) -> None: ...

    def end(self) -> None: ...


class Lines(Meter):
    """A line at the beginning, and one every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self.every, self.total, self.last = every, "?", 0.0

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, title: str, have: int, total: int | None) -> None:
        self.total, self.last = f"{total:,}" if total is not None else "?", time.monotonic()
        self.note(f"{title}: {self.total} bytes" + (f", from byte {have:,} on" if have else ""))

    def at(self, have: int) -> None:
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            self.note(f"{have:,} of {self.total} bytes")

    def end(self) -> None: ...


class Bar(Meter):
    """A bar with the speed and the time left."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def begin(self, title: str, have: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        self.end()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(title.rpartition("/")[2], total=total, completed=have)
        self.bar.start()

    def at(self, have: int) -> None:
        self.bar.update(self.task, completed=have)

    def end(self) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()


def for_terminal() -> Meter:
    return Bar() if sys.stderr.isatty() else Lines()
