# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run: a bar on a terminal, a line now and then elsewhere; always on standard error."""

import abc
import sys
import time
from pathlib import Path
from typing import Any

from edgernn.training.run import Position, RunDirectory


class Progress(abc.ABC):
    """Told of a run's beginning, of every step, every evaluation, and the end."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something that the user should know."""

    @abc.abstractmethod
    def begin(self, title: str, position: Position, total: int) -> None: ...

    @abc.abstractmethod
    def step(self, step: int, loss: float) -> None: ...

    @abc.abstractmethod
    def evaluated(self, line: dict[str, Any], metric: str, can_skip: bool) -> None: ...

    @abc.abstractmethod
    def end(self) -> None:
        """Also called after an error."""


class Silent(Progress):
    """Nothing at all: for calls from Python."""

    def note(self, text: str) -> None: ...

    def begin(self, title: str, position: Position, total: int) -> None: ...

    def step(self, step: int, loss: float) -> None: ...

    def evaluated(self, line: dict[str, Any], metric: str, can_skip: bool) -> None: ...

    def end(self) -> None: ...


class Lines(Progress):
    """A line at an evaluation, but not more often than every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self.every, self.title, self.total, self.last = every, "", 0, float("-inf")
        self.started, self.first = 0.0, 0

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, title: str, position: Position, total: int) -> None:
        self.title, self.total, self.first, self.started = title, total, position.step, time.monotonic()
        begins = f"resumed at step {position.step} of" if position.step else "training for at most"
        self.note(f"{title}: {begins} {total} steps")

    def step(self, step: int, loss: float) -> None: ...

    def evaluated(self, line: dict[str, Any], metric: str, can_skip: bool) -> None:
        now = time.monotonic()
        if now - self.last < self.every and line["step"] < self.total:
            return
        self.last = now
        left = (now - self.started) / max(1, line["step"] - self.first) * (self.total - line["step"])
        skip = f"  skip {line['skip_percent']:.1f} %" if can_skip else ""
        text = f"step {line['step']}/{self.total}  loss {line['loss']:.4g}  {metric} {line[metric]:.4g}{skip}"
        self.note(f"{text}  {left:.0f} s left at most")

    def end(self) -> None: ...


class Bar(Progress):
    """A bar with loss, validation metric, skip percentage and time left."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def begin(self, title: str, position: Position, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[metric]}"),
            TimeRemainingColumn(),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(title, total=total, completed=position.step, loss="-", metric="")
        self.bar.start()

    def step(self, step: int, loss: float) -> None:
        self.bar.update(self.task, completed=step, loss=f"{loss:.4g}")

    def evaluated(self, line: dict[str, Any], metric: str, can_skip: bool) -> None:
        skip = f"  skip {line['skip_percent']:.1f} %" if can_skip else ""
        self.bar.update(self.task, metric=f"{metric} {line[metric]:.4g}{skip}")

    def end(self) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()


def for_terminal() -> Progress:
    return Bar() if sys.stderr.isatty() else Lines()


class Watch:
    """Over many runs in other processes: a line when one ends, and now and then where the others are.

    total: how many there are, done: how many of them were finished before.
    """

    def __init__(self, total: int, done: int, every: float = 60.0) -> None:
        self.total, self.finished, self.every = total, done, every
        self.started = self.last = time.monotonic()
        self.before = done
        self._say(f"{total} runs, {done} of them are finished")

    def done(self, run: Path, error: str | None) -> None:
        self.finished += 1
        spent = time.monotonic() - self.started
        left = spent / (self.finished - self.before) * (self.total - self.finished)
        self._say(f"{self.finished}/{self.total}  {run.name}: {error or 'done'}  about {_duration(left)} left")

    def again(self, run: Path, error: str | None) -> None:
        """A run is gone on with whose worker died."""
        self._say(f"      {run.name}: {error}; it is gone on with")

    def look(self, running: list[Path]) -> None:
        """Say where running ones are, if it was long ago."""
        now = time.monotonic()
        if now - self.last < self.every:
            return
        self.last = now
        for run in running:
            try:
                lines = RunDirectory(run).metrics()
            except OSError:
                # a run that failed at its first step is removed
                continue
            if lines:
                figures = {k: v for k, v in lines[-1].items() if k not in ("seconds", "epoch")}
                self._say(f"      {run.name}: " + "  ".join(f"{name} {value:.5g}" for name, value in figures.items()))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
