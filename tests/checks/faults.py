# SPDX-License-Identifier: Apache-2.0
"""Commands that are killed, stopped, or cannot write: `python -m tests.checks.faults SECONDS`, or `make check-faults`.

Each trial runs a command with some faults. Verbs, such as train, get equal shares of the time. After each fault, every
file must be the old or the new one, whole, and the message a sentence. Then the command runs undisturbed. It must end
with the files of an undisturbed run and leave no temporary file. A library that is preloaded (tests/fault_shim.c) makes
calls fail; root also fills a disk.
"""

import argparse
import collections
import ctypes
import datetime
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checks.fault_commands import COMMANDS, FOLDER, SLOW, Command, Turns, file_server, prepare, unfinished
from tests.kernel_builds import compiler
from tests.source_tree import ROOT

# kinds of calls in tests/fault_shim.c
OPEN, WRITE, SYNC, RENAME, OTHER = 1, 2, 4, 8, 16
SHIM = "FAULT_SHIM"
# seconds until a command counts as hanging
TIMEOUT = 180
# seconds from which on the slow commands take part
LONG = 300
MOST_FAULTS = 6
# failures until the run ends
MOST_FAILURES = 20
# files in memory: a kill of a process loses nothing of what it wrote
MEMORY = Path("/dev/shm")
# bytes of a disk that is not full
LARGE = 1 << 28


@dataclass(frozen=True)
class Fault:
    """A fault to inject into a process: calls that fail, a signal, or a full disk.

    Attributes:
        calls: Kinds of calls of which one fails; 0: none.
        error: The errno of a call that fails; 0: the process is killed before the call.
        lasts: True if all later calls of these kinds fail, too.
        signal: Signal that is sent at a random moment; 0: none.
        small_disk: True if the folder is on a disk that becomes full.
    """

    calls: int = 0
    error: int = 0
    lasts: bool = False
    signal: int = 0
    small_disk: bool = False


FAULTS = {
    "kill -9 before a call": Fault(OPEN | WRITE | SYNC | RENAME | OTHER),
    "kill -9 at a moment": Fault(signal=signal.SIGKILL),
    "SIGTERM": Fault(signal=signal.SIGTERM),
    "write: disk is full": Fault(WRITE, errno.ENOSPC, lasts=True),
    "read-only folder": Fault(OPEN | RENAME | OTHER, errno.EROFS, lasts=True),
    "write: input/output error": Fault(WRITE, errno.EIO),
    "fsync: input/output error": Fault(SYNC, errno.EIO),
    "rename: input/output error": Fault(RENAME, errno.EIO),
    "small disk": Fault(small_disk=True),
}


@dataclass
class Reference:
    """An undisturbed run: its result, its files, its calls by kind, its seconds and its bytes on the disk."""

    result: Any
    files: dict[str, bytes]
    calls: dict[int, int]
    seconds: float
    bytes: int


@dataclass
class ProcessResult:
    """How a process ended: exit status, negative after a signal, its messages, and its calls by kind, if known.

    delivered: Whether the fault reached the process, as far as known.
    """

    status: int
    text: str
    calls: dict[int, int] = field(default_factory=dict)
    delivered: bool = False


def run(command: Command, folder: Path, fault: Fault, failing: int = 0, moment: float | None = None) -> ProcessResult:
    """Run a command in a forked process, which has all modules loaded.

    Args:
        command: The command.
        folder: Its folder.
        fault: The fault.
        failing: Index of the call that fails, from 1, among those of the fault's kinds; 0: none.
        moment: Seconds after which the fault's signal is sent.

    Returns:
        How the process ended.
    """
    messages, counts = folder.parent / "messages", folder.parent / "calls"
    counts.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        os.setsid()
        output = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        arguments = (str(folder), fault.calls, fault.error, int(fault.lasts), failing)
        # for the processes that the command starts
        names = ("FAULT_FOLDER", "FAULT_KINDS", "FAULT_ERROR", "FAULT_LASTS", "FAULT_FIRST")
        os.environ |= dict(zip(names, map(str, arguments), strict=True))
        library = ctypes.CDLL(os.environ[SHIM])
        library.fault_arm(os.fsencode(folder), *arguments[1:4], ctypes.c_long(failing))
        status = 99
        with suppress(BaseException):
            status = command.main(folder)
        sys.stdout.flush()
        sys.stderr.flush()
        kinds = (OPEN, WRITE, SYNC, RENAME, OTHER)
        library.fault_calls.restype = ctypes.c_long
        counts.write_text(json.dumps({kind: library.fault_calls(kind) for kind in kinds}))
        os._exit(status)
    started, status, sent = time.monotonic(), None, False
    while status is None:
        taken = time.monotonic() - started
        done, code = os.waitpid(process, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        elif taken > TIMEOUT:
            os.killpg(process, signal.SIGKILL)
        elif moment is not None and taken >= moment and not sent:
            os.kill(process, fault.signal)
            sent = True
        else:
            time.sleep(0.002)
    # orphans of a killed command may be writing, as after a real kill; they end within seconds
    text = messages.read_text(errors="replace") if messages.exists() else ""
    # a kill may come while the process writes its counts
    known = status >= 0 and counts.exists()
    calls = {int(kind): count for kind, count in json.loads(counts.read_text()).items()} if known else {}
    tried = sum(count for kind, count in calls.items() if kind & fault.calls)
    # a process that is killed counts no calls; a command that succeeds had room on its disk
    delivered = sent or (fault.small_disk and status != 0) or (failing > 0 and (status < 0 or tried >= failing))
    return ProcessResult(status, "hangs\n" + text if taken > TIMEOUT else text, calls, delivered)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Mount a disk of LARGE bytes, which may shrink later; one without a limit may not."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "edgernn-faults", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def can_mount(folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    with suppress(OSError, subprocess.CalledProcessError), disk(folder):
        return True
    return False


def contents(folder: Path) -> dict[str, bytes]:
    """The visible files of a folder, by relative path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in paths}
    return {
        n: path.read_bytes() for n, path in names.items() if not any(part.startswith(".") for part in Path(n).parts)
    }


class Trials:
    """Runs trials in a folder, and counts the faults by command and kind."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.references = folder, dict[str, Reference]()
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.failures: list[str] = []
        self.faults = {name: f for name, f in FAULTS.items() if not f.small_disk or can_mount(folder / "disk")}

    def add(self, report: dict[str, Any]) -> float:
        """Add the faults of an earlier report; return its seconds."""
        self.failures += report["failures"]
        for command, counts in report["counts"].items():
            self.counts[command].update(counts)
        return float(report["seconds"])

    def reference(self, command: Command) -> Reference:
        if command.name not in self.references:
            work = self.folder / "reference" / "work"
            shutil.rmtree(work.parent, ignore_errors=True)
            work.mkdir(parents=True)
            command.prepare(work)
            started = time.monotonic()
            ended = run(command, work, Fault())
            seconds = time.monotonic() - started
            assert ended.status == 0, f"{command.name}: {ended.text}"
            size = sum(path.stat().st_size for path in work.rglob("*"))
            files = contents(work)
            self.references[command.name] = Reference(command.result(work), files, ended.calls, seconds, size)
        return self.references[command.name]

    def run(self, number: int, command: Command) -> None:
        """Run the trial with this number."""
        draw, reference = random.Random(number), self.reference(command)
        work = self.folder / "trial" / "work"
        shutil.rmtree(work.parent, ignore_errors=True)
        work.mkdir(parents=True)
        names = [draw.choice(list(self.faults)) for _ in range(draw.randint(1, MOST_FAULTS))]
        small = any(self.faults[name].small_disk for name in names)
        with disk(work) if small else nullcontext():
            command.prepare(work)
            before = contents(work)
            title = f"trial {number}, {command.name}"
            for name in names:
                title += f", {name}"
                if text := self._disturb(draw, command, work, name, reference, before):
                    self.failures.append(f"{title}: {text}")
                    return
            self._finish(command, work, reference, title)

    def _disturb(
        self,
        draw: random.Random,
        command: Command,
        work: Path,
        name: str,
        reference: Reference,
        before: dict[str, bytes],
    ) -> str | None:
        """Run the command with a fault; return what is wrong after it, or None."""
        fault = self.faults[name]
        if fault.small_disk:
            statistics = os.statvfs(work)
            used = (statistics.f_blocks - statistics.f_bfree) * statistics.f_frsize
            _resize(work, used + 4096 + int(draw.random() * reference.bytes))
        possible = sum(count for kind, count in reference.calls.items() if kind & fault.calls)
        failing_call = draw.randint(1, possible) if possible else 0
        moment = draw.uniform(0, reference.seconds) if fault.signal else None
        ended = run(command, work, fault, failing_call, moment)
        if fault.small_disk:
            _resize(work, LARGE)
        if ended.delivered:
            self.counts[command.name][name] += 1
        return _wrong_end(fault, ended) or _wrong_files(command, contents(work), before, reference.files)

    def _finish(self, command: Command, work: Path, reference: Reference, title: str) -> None:
        ended = run(command, work, Fault())
        # an orphan of a killed command holds the folder until it ends
        deadline = time.monotonic() + TIMEOUT
        while ended.status == 2 and "in use by process" in ended.text and time.monotonic() < deadline:
            time.sleep(1)
            ended = run(command, work, Fault())
        if ended.status != 0:
            self.failures.append(f"{title}: the next command ended with {ended.status}: {ended.text[-600:]}")
        elif (result := command.result(work)) != reference.result:
            self.failures.append(
                f"{title}: the next command gives another result: {_different(result, reference.result)}"
            )
        elif hidden := [str(p.relative_to(work)) for p in work.rglob(".*")]:
            self.failures.append(f"{title}: left over: {hidden}")


def _different(result: Any, expected: Any) -> str:
    """Name the first part of a result that differs."""
    if isinstance(result, dict) and isinstance(expected, dict):
        return str([key for key in result.keys() | expected.keys() if result.get(key) != expected.get(key)])
    return f"{result!r:.300} in place of {expected!r:.300}"


def _resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def _wrong_end(fault: Fault, ended: ProcessResult) -> str | None:
    """Say what is wrong with the end of a disturbed command, or return None."""
    killed = ended.status == -signal.SIGKILL and (fault.signal == signal.SIGKILL or (fault.calls and not fault.error))
    stopped = ended.status == 128 + signal.SIGTERM and fault.signal == signal.SIGTERM
    # a signal before the handlers are set up
    stopped = stopped or ended.status == -signal.SIGTERM
    lines = ended.text.splitlines() or [""]
    unclear = any(word in ended.text for word in ("Traceback", "--debug shows the traceback"))
    unclear = unclear or ended.text.startswith("hangs")
    if unclear and not killed:
        return f"expected an error of one sentence, got: {ended.text[-600:]}"
    if killed or stopped or ended.status == 0:
        return None
    if ended.status in (1, 2) and lines[-1].startswith("edgernn: error: "):
        return None
    return f"ended with {ended.status}: {ended.text[-600:]}"


def _wrong_files(
    command: Command, now: dict[str, bytes], before: dict[str, bytes], after: dict[str, bytes]
) -> str | None:
    """Name a file that is neither the old nor the new one, or is not whole; None if there is none."""
    for name, content in now.items():
        if name.endswith(command.exact):
            if content not in (before.get(name), after.get(name)):
                return f"{name} is neither the old nor the new file"
        elif text := unfinished(name, content):
            return f"{name}: {text}"
    if lost := before.keys() - now.keys():
        return f"lost: {sorted(lost)}"
    return None


def with_shim(words: list[str]) -> int:
    """Run this module again with the library of tests/fault_shim.c preloaded."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="edgernn-faults-", dir=place) as name:
        library = Path(name) / "fault_shim.so"
        source = ROOT / "tests" / "fault_shim.c"
        flags = ["-x", "c", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler(), *flags, source, "-o", library, "-ldl"], check=True)
        ours = {FOLDER: name, SHIM: str(library), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "tests.checks.faults", *words]
        return subprocess.run(words, env=os.environ | ours).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, help="Seconds after which no further trial starts.")
    parser.add_argument(
        "--first", type=int, default=0, help="Number of the first trial; --first N --only COMMAND repeats one."
    )
    parser.add_argument("--only", help="Run the command of this name, or those whose names contain it.")
    parser.add_argument("--out", type=Path, help="Add the counts to this JSON file.")
    arguments = parser.parse_args()
    if SHIM not in os.environ:
        return with_shim(sys.argv[1:])
    with file_server():
        prepare()
        started, earlier = time.monotonic(), 0.0
        trials = Trials(Path(os.environ[FOLDER]))
        chosen = [c for c in COMMANDS if (arguments.only or "") in c.name]
        chosen = [c for c in chosen if c.name == arguments.only] or chosen
        if arguments.seconds < LONG and arguments.only is None:
            chosen = [c for c in chosen if c.name not in SLOW]
        if arguments.out is not None and arguments.out.is_file():
            earlier = trials.add(json.loads(arguments.out.read_text(encoding="utf-8")))
        number, end, turns = arguments.first, time.monotonic() + arguments.seconds, Turns(chosen, arguments.first)

        def write() -> None:
            if arguments.out is not None:
                _write(arguments.out, trials, earlier + min(time.monotonic() - started, arguments.seconds))

        while (begin := time.monotonic()) < end and len(trials.failures) < MOST_FAILURES:
            command, before = turns.next(), len(trials.failures)
            trials.run(number, command)
            turns.seconds[command] += time.monotonic() - begin
            print("".join(f"{failure}\n" for failure in trials.failures[before:]), end="", flush=True)
            number += 1
            if number % 10 == 0:
                write()
        write()
    for command, seconds in sorted(turns.seconds.items(), key=lambda item: item[0].name):
        print(f"{command.name}: {trials.counts[command.name].total():,} faults in {seconds:.0f} s")
    total = sum(count.total() for count in trials.counts.values())
    print(f"{total:,} faults in {number - arguments.first:,} trials: {len(trials.failures)} failures")
    return len(trials.failures) > 0


def _write(path: Path, trials: Trials, seconds: float) -> None:
    from edgernn.bench.provenance import machine
    from edgernn.files import write_json

    report = {
        "command": f"make check-faults SECONDS={seconds:.0f}",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seconds": round(seconds),
        "counts": {name: dict(trials.counts[name]) for name in sorted(trials.counts)},
        "failures": trials.failures,
    }
    write_json(path, report)


if __name__ == "__main__":
    sys.exit(main())
