# SPDX-License-Identifier: Apache-2.0
"""Worker processes for measurements on a GPU: one that hangs or kills its process is lost alone, and is reported."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Item = dict[str, Any]
# function that measures an item, and function that records an entry of the report
Handler = Callable[[Item], dict[str, Any]]
Tell = Callable[[dict[str, Any]], None]
# seconds that the first item of a process may take longer, for imports
IMPORTS = 60.0


def reason(error: BaseException) -> str:
    """Return an exception as text of at most 600 characters in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


def measure(handlers: Mapping[str, Handler], item: Item) -> dict[str, Any]:
    """Measure an item by the handler that its key `do` names."""
    entry: dict[str, Any] = {"item": item}
    begun = time.perf_counter()
    try:
        entry |= handlers[item["do"]](item)
    except Exception as error:
        traceback.print_exc()
        entry["failure"] = reason(error)
    return {**entry, "took": round(time.perf_counter() - begun, 2)}


def serve(handlers: Mapping[str, Handler], fault: Callable[[], str | None]) -> None:
    """Run a worker: measure the items that come as lines of JSON on stdin, and answer each with a line on stdout.

    Everything else that the process prints goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        entry = measure(handlers, json.loads(line))
        why = fault()
        if why is not None:
            entry = {**entry, "passed": False, "failure": entry.get("failure", why), "lost": True}
        answers.write(json.dumps(entry, default=str) + "\n")
        answers.flush()
        if why is not None:
            os._exit(3)


class _Worker:
    """A worker process, and a thread that reads its answers."""

    def __init__(self, command: Sequence[str], log: IO[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._patience = IMPORTS
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def answer(self, item: Item, seconds: float, end: float) -> dict[str, Any]:
        """Return the entry of an item; `lost` is True in it if the process must be replaced."""
        assert self._process.stdin is not None
        limit = max(0.1, min(seconds + self._patience, end - time.monotonic()))
        self._patience = 0.0
        try:
            self._process.stdin.write(json.dumps(item) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            return {"item": item, "failure": f"no answer in {limit:.0f} s: killed", "lost": True}
        except OSError:
            line = None
        if line is None:
            status = self._process.wait()
            return {"item": item, "failure": f"the worker died with status {status}; see the log", "lost": True}
        entry: dict[str, Any] = json.loads(line)
        return entry

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            # what a dead worker did not read is lost
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def drive(
    items: Sequence[Item], tell: Tell, command: Sequence[str], log: IO[str], *, workers: int, seconds: float, end: float
) -> None:
    """Measure items in worker processes, the first items first, and record each entry as soon as it is known."""
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)

    def work() -> None:
        worker: _Worker | None = None
        while time.monotonic() < end:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                break
            worker = worker or _Worker(command, log)
            entry = worker.answer(item, seconds, end)
            if entry.pop("lost", False):
                worker.kill()
                worker = None
            tell(entry)
        if worker is not None:
            worker.kill()

    threads = [threading.Thread(target=work) for _ in range(max(1, min(workers, len(items))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if left := waiting.qsize():
        tell({"left_out": f"{left} of {len(items)} measurements: out of time"})
