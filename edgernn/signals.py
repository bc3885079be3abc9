# SPDX-License-Identifier: Apache-2.0
"""Handling of the signals that end a command: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (its terminal was closed)."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# seconds after which a signal that arrived where none may be raised is sent again
_PAUSE = 0.02
# modules that are not interrupted: those of imports and of weak references
_WHOLE = ("importlib._bootstrap", "weakref", "_weakrefset")
# 0 on Windows, which has no such signal
_HANGUP = getattr(signal, "SIGHUP", 0)
_ENDING = (signal.SIGTERM, _HANGUP) if _HANGUP else (signal.SIGTERM,)


class Interrupted(KeyboardInterrupt):
    """KeyboardInterrupt for a signal of the operating system; the attribute `number` is the signal's number."""

    number: int = signal.SIGINT

    @classmethod
    def by(cls, number: int, text: str) -> "Interrupted":
        """Create the exception for the signal `number` of the operating system, with the message `text`."""
        interrupt = cls(text)
        interrupt.number = number
        return interrupt


def number_of(stop: KeyboardInterrupt) -> int:
    """Return the number of the signal that raised `stop`; SIGINT for a plain KeyboardInterrupt."""
    return stop.number if isinstance(stop, Interrupted) else int(signal.SIGINT)


@contextmanager
def raising() -> Iterator[None]:
    """Raise Interrupted at the first SIGTERM or SIGHUP and at every Ctrl-C inside the block.

    If a signal arrives during the import of a module, Interrupted is raised after the import: modules must not stay
    half loaded, and some modules catch all exceptions of their imports. It is also raised after a method `__del__` or a
    callback of a weak reference, whose exceptions Python prints and drops.
    """
    raised = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if number == _HANGUP:
            _leave_terminal()
        if _may_not_raise(frame):
            _send_again(number)
        elif not raised or number == signal.SIGINT:
            raised = raised or number
            raise Interrupted.by(number, "interrupted")

    numbers = (signal.SIGINT,) * (signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)
    with _handling(handler, (*numbers, *_ENDING)):
        yield


@contextmanager
def noting() -> Iterator[Callable[[], int]]:
    """Record SIGINT, SIGTERM and SIGHUP inside the block instead of raising an exception.

    It yields a function that returns the number of the first signal, or 0 if there was none. A Ctrl-C after the first
    signal raises KeyboardInterrupt.
    """
    noted = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if number == _HANGUP:
            _leave_terminal()
        if noted and number == signal.SIGINT:
            raise KeyboardInterrupt
        noted = noted or number

    with _handling(handler, (signal.SIGINT, *_ENDING)):
        yield lambda: noted


@contextmanager
def delaying() -> Iterator[None]:
    """Delay signals (SIGINT, SIGTERM, SIGHUP) until the end of the block, so that they do not interrupt its work.

    A Ctrl-C after the first signal still raises KeyboardInterrupt at once.
    """
    with noting() as noted:
        yield
    if number := noted():
        os.kill(os.getpid(), number)


@contextmanager
def blocking_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes that are started inside the block, until they call `ignore_interrupts`.

    A Ctrl-C inside the block reaches this process after the block. Windows cannot block signals: there, the block
    changes nothing.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this worker process, except in blocks of `raising`; the parent process ends its workers.

    A terminal sends Ctrl-C to the parent and to its workers. Without this call, a worker that starts, waits or exits
    would print a traceback.
    """
    # SIG_IGN, if the caller has set it, stays; `raising` respects it, so this function does not set it
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...]) -> Iterator[None]:
    # Python allows signal handlers in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # keep signals ignored that the caller ignores, as nohup does SIGHUP
    caught = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _may_not_raise(frame: FrameType | None) -> bool:
    """Return True if a stack frame, where a signal arrived, is inside code that `raising` does not interrupt."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _WHOLE or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send a signal to this process again after `_PAUSE` seconds."""
    timer = threading.Timer(_PAUSE, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _leave_terminal() -> None:
    """Redirect stdout and stderr to the null device if their terminal was closed, so that writes do not fail."""
    import termios

    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
