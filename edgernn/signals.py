# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a command to end: Ctrl-C (SIGINT), SIGTERM, and SIGHUP when its terminal is closed."""

import errno
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The end that a signal asked for; `number` is the signal's."""

    number: int = signal.SIGINT

    @classmethod
    def by(cls, number: int, text: str) -> "Interrupted":
        """An Interrupted by this signal."""
        stop = cls(text)
        stop.number = number
        return stop


def number_of(stop: KeyboardInterrupt) -> int:
    """The signal behind an interrupt."""
    return stop.number if isinstance(stop, Interrupted) else int(signal.SIGINT)


@contextmanager
def raising() -> Iterator[None]:
    """Inside, the first SIGTERM or SIGHUP raises Interrupted, as Ctrl-C raises KeyboardInterrupt."""
    raised = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if number == signal.SIGHUP:
            _leave_terminal()
        if not raised:
            raised = number
            raise Interrupted.by(number, "interrupted")

    with _handling(handler, (signal.SIGTERM, signal.SIGHUP)):
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt as stop:
            # Ray raises one of its own in place of ours
            if raised:
                raise Interrupted.by(raised, str(stop)) from None
            raise


@contextmanager
def noting() -> Iterator[Callable[[], int]]:
    """Inside, a signal is only noted, so that work can end in order; a second Ctrl-C interrupts at once.

    Yields:
        A function that returns the number of the first signal, or 0.
    """
    noted = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if number == signal.SIGHUP:
            _leave_terminal()
        if noted and number == signal.SIGINT:
            raise KeyboardInterrupt
        noted = noted or number

    with _handling(handler, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield lambda: noted


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...]) -> Iterator[None]:
    # Python allows signal handlers in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # nohup has a program ignore SIGHUP
    caught = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _leave_terminal() -> None:
    """Drop what is still written to a terminal that was closed, where it would be an error."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
