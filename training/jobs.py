# SPDX-License-Identifier: Apache-2.0
"""Many trainings: which of them are missing, and training those in workers, several at once.

What is finished is never trained again, and what was begun goes on from its checkpoint, whatever ended it.
"""

import abc
import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import edgernn
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import locked, read_json
from edgernn.machine import processor
from edgernn.store import CONFIG
from edgernn.training.plan import choose
from edgernn.training.progress import Watch
from edgernn.training.recipe import Settings
from edgernn.training.run import RunDirectory

# what config.json says of where a run was made
ORIGIN = ("machine", "edgernn", "threads", "device")
# how often a run is begun or gone on with whose worker dies
TRIES = 4
# how long a worker of a driver that was killed may take to notice that, in seconds
_ORPHAN = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Job:
    """One training, and its run directory `out`; the other fields are as those of `train`."""

    task: str
    cell: str
    rule: str | None
    seed: int
    settings: Settings
    out: Path

    def result(self) -> dict[str, Any] | None:
        """Of a finished training, with what it ran on; half a result.json is none."""
        result = RunDirectory(self.out).result()
        if result is None:
            return None
        config = read_json(self.out / CONFIG)
        return {**{key: config[key] for key in ORIGIN}, **result}

    def check(self) -> None:
        """Raises UsageError for a bad setting, and where a training with others is in the directory."""
        choice = choose(self.task, self.cell, self.rule, self.settings)
        if not (self.out / CONFIG).is_file():
            return
        there = read_json(self.out / CONFIG)
        ours = {"seed": self.seed, **choice.config.record(), **asdict(choice.task)}  # type: ignore[call-overload]
        theirs = {"seed": there["seed"], **there["train"], **there["task"]["settings"]}
        options = {
            "cell": self.cell,
            "rule": self.rule,
            "cell_options": choice.cell_options,
            "rule_options": choice.rule_options,
        }
        for key in options.keys() & there["model"].keys():
            ours[key], theirs[key] = options[key], there["model"][key]
        for key, value in ours.items():
            if key in theirs and theirs[key] != value:
                hint = "remove it, or give another --out"
                raise UsageError(f"{self.out}: trained with {key}={theirs[key]}, now it is {value}; {hint}")


def origin(results: list[dict[str, Any]]) -> dict[str, str]:
    """What the runs ran on, and with."""
    if not results:
        return {"machine": processor(), "edgernn": edgernn.__version__}
    machines = {
        f"{r['machine']}, {r['threads']} thread{'s' * (r['threads'] > 1)} each" if r["device"] == "cpu" else r["device"]
        for r in results
    }
    return {"machine": "; ".join(sorted(machines)), "edgernn": ", ".join(sorted({r["edgernn"] for r in results}))}


@dataclass(frozen=True)
class Outcome:
    """How a worker's try at a job ended: well, with an error, for want of space to write to, or with the worker."""

    error: str | None = None
    full: bool = False
    lost: bool = False


class Workers(abc.ABC):
    """What trains jobs, `slots` at once."""

    slots: int

    @abc.abstractmethod
    def start(self, job: Job) -> None:
        """Begin with a job, or go on with it."""

    @abc.abstractmethod
    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Those that have ended since the last call; waits so long for one.

        Raises KeyboardInterrupt where a worker was interrupted.
        """


def run_missing(wanted: list[Job], workers: Callable[[int], AbstractContextManager[Workers]]) -> dict[Path, str]:
    """Train what is not finished; what went wrong, by the run's directory.

    workers: opens workers for at most so many jobs; when it is left, those that still run save their checkpoints.
    A job whose worker dies is gone on with, TRIES times in all.
    Raises UsageError for bad settings and a run of other ones in a job's place, before anything is trained;
    EdgernnError where a disk is full, KeyboardInterrupt after Ctrl-C: all runs can be gone on with then.
    """
    for job in wanted:
        job.check()
    missing = deque(job for job in wanted if job.result() is None)
    if not missing:
        return {}
    failed: dict[Path, str] = {}
    tries: Counter[Path] = Counter()
    watch = Watch(len(wanted), len(wanted) - len(missing))
    with workers(len(missing)) as pool:
        running: list[Job] = []
        while missing or running:
            # no more than there are workers: what a pool has queued it cannot always take back
            while missing and len(running) < pool.slots:
                running.append(missing.popleft())
                pool.start(running[-1])
            for job, outcome in pool.ended(seconds=2.0):
                running.remove(job)
                if outcome.full:
                    done = f"{watch.finished} of {len(wanted)} runs are finished and stay"
                    raise EdgernnError(
                        f"{job.out}: {outcome.error}: {done}; free some space and give the command again"
                    )
                tries[job.out] += 1
                if outcome.lost and tries[job.out] < TRIES:
                    watch.again(job.out, outcome.error)
                    missing.appendleft(job)
                    continue
                if outcome.error is not None:
                    failed[job.out] = outcome.error
                watch.done(job.out, outcome.error)
            watch.look([job.out for job in running])
    return failed


def attempt(job: Job, data: Path | None, device: str) -> Outcome:
    """Train a job to its end, in a worker. Raises Interrupted after Ctrl-C, when its checkpoint is saved."""
    from edgernn.training.api import train

    try:
        with locked(job.out.with_name(f".{job.out.name}.lock"), _ORPHAN):
            train(
                job.task,
                job.cell,
                job.rule,
                out=job.out,
                seed=job.seed,
                device=device,
                data=data,
                resume=True,
                settings=job.settings,
            )
    except OSError as error:
        return Outcome(f"{error.filename or job.out}: {error.strerror}", full=error.errno in _FULL)
    except EdgernnError as error:
        return Outcome(str(error))
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {error}")
    return Outcome()


@contextmanager
def processes(
    count: int, jobs: int | None, threads: int, data: Path | None, device: str
) -> Iterator["_ProcessWorkers"]:
    """Processes of this machine, one for each of `count` jobs, but not more than `jobs`, or than it has processors for.

    Raises UsageError for less than one.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs: expected at least 1, got {jobs}")
    slots = min(count, jobs or max(1, (os.cpu_count() or 1) // threads))
    with environment(thread_variables(threads)), ProcessPoolExecutor(slots, get_context("spawn")) as pool:
        try:
            yield _ProcessWorkers(pool, slots, data, device)
        except BaseException:
            # a worker that was interrupted saves its run before it ends
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _ProcessWorkers(Workers):
    def __init__(self, pool: ProcessPoolExecutor, slots: int, data: Path | None, device: str) -> None:
        self.slots, self._pool, self._rest = slots, pool, (data, device)
        self._running: dict[Future[Outcome], Job] = {}

    def start(self, job: Job) -> None:
        self._running[self._pool.submit(attempt, job, *self._rest)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        done = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED).done
        return [(self._running.pop(future), future.result()) for future in done]


def thread_variables(threads: int) -> dict[str, str]:
    """What workers of so many threads are to find in their environment; read when torch is loaded there."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def environment(ours: dict[str, str]) -> Iterator[None]:
    """Inside, these variables are set."""
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
