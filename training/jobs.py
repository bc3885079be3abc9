# SPDX-License-Identifier: Apache-2.0
"""Many trainings: which of them are missing, and training those in workers, several at once.

What is finished is never trained again, and what was begun goes on from its checkpoint, whatever ended it.
"""

import abc
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import edgernn
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import FULL, read_json
from edgernn.machine import processor
from edgernn.progress import Progress, in_words
from edgernn.settings import fields_of, flat, record
from edgernn.signals import Interrupted, number_of, raising
from edgernn.store import CONFIG, kept_cell, read_config
from edgernn.training.config import TrainConfig
from edgernn.training.known_runs import KnownRun, first_change
from edgernn.training.paper_table import duration
from edgernn.training.plan import choose
from edgernn.training.recipe import Settings
from edgernn.training.run_directory import RunDirectory
from edgernn.training.series import Series, run_series

# what config.json says of where a run was made
ORIGIN = ("machine", "edgernn", "threads", "device")
# how often a run is begun or gone on with whose worker dies
TRIES = 4
# how long a worker of a driver that was killed may take to notice that, in seconds
_ORPHAN = 60.0


@dataclass(frozen=True)
class Job:
    """One training, and its run directory `out`; the other fields are as those of `train`.

    known: Its result, if an earlier table.json has it; the run directory goes before it.
    """

    task: str
    cell: str
    rule: str | None
    seed: int
    settings: Settings
    out: Path
    known: KnownRun | None = None

    @property
    def is_finished_here(self) -> bool:
        """True if the run directory holds a finished training."""
        return RunDirectory(self.out).result() is not None

    def result(self) -> dict[str, Any] | None:
        """The result of a finished training, with the keys of ORIGIN and "latency".

        The run directory goes before a known result. A damaged result.json counts as missing.
        """
        directory = RunDirectory(self.out)
        result = directory.result()
        if result is None:
            return None if self.known is None else dict(self.known.result)
        config = read_json(self.out / CONFIG)
        return {**{key: config[key] for key in ORIGIN}, **result, "latency": directory.latency()}

    def series(self, name: str) -> Series | None:
        """One series of a finished training; None where it has no such series."""
        if self.is_finished_here or self.known is None:
            return run_series(name, self.out)
        return self.known.series.get(name)

    def all_settings(self) -> dict[str, Any]:
        """Every setting of the training by its short name, defaults included, without the seed.

        Raises:
            UsageError: an unknown name or a bad setting.
        """
        choice = choose(self.task, kept_cell(self.out, self.cell), self.rule, self.settings, self.seed)
        return _settings(record(choice.config), record(choice.model), asdict(choice.task))  # type: ignore[call-overload]

    def check(self) -> None:
        """Check the settings, also against those of a training in the run directory.

        Raises:
            UsageError: a bad setting, or a run directory with other settings.
        """
        ours = {"seed": self.seed, **self.all_settings()}
        if not (self.out / CONFIG).is_file():
            return
        config = read_config(self.out)
        theirs = {"seed": config["seed"], **_settings(config["train"], config["model"], config["task"]["settings"])}
        if change := first_change(theirs, ours):
            raise UsageError(f"{self.out}: trained with {change}; remove it, or give another --out")


def _settings(train: dict[str, Any], model: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """What a user can choose of a training, by short name, from the parts of its config."""
    values = {**flat(fields_of(TrainConfig), train), **flat(fields_of(ModelConfig), model), **task}
    for part in ("cell", "rule"):
        values |= {part: model["layer"][part]["name"], f"{part}_options": model["layer"][part]["options"]}
    return values


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
    EdgernnError where a disk is full, Interrupted after Ctrl-C, SIGTERM or SIGHUP: the same command goes on then.
    """
    for job in wanted:
        job.check()
    missing = deque(job for job in wanted if job.result() is None)
    if not missing:
        return {}
    try:
        return _run(missing, len(wanted), workers)
    except KeyboardInterrupt as stop:
        text = "interrupted; what ran is saved, and the same command goes on"
        raise Interrupted.by(number_of(stop), text) from None


def _run(missing: deque[Job], total: int, workers: Callable[[int], AbstractContextManager[Workers]]) -> dict[Path, str]:
    failed: dict[Path, str] = {}
    tries: Counter[Path] = Counter()
    progress, finished = Progress(every=60.0), total - len(missing)
    progress.begin("runs", total, finished, line=f"{total} runs, {finished} of them are finished")
    with closing(progress), workers(len(missing)) as pool:
        running: list[Job] = []
        while missing or running:
            # no more than there are workers: what a pool has queued it cannot always take back
            while missing and len(running) < pool.slots:
                running.append(missing.popleft())
                pool.start(running[-1])
            for job, outcome in pool.ended(seconds=2.0):
                running.remove(job)
                if outcome.full:
                    done = f"{progress.done} of {total} runs are finished and stay"
                    raise EdgernnError(
                        f"{job.out}: {outcome.error}: {done}; free some space and give the command again"
                    )
                tries[job.out] += 1
                if outcome.lost and tries[job.out] < TRIES:
                    progress.note(f"      {job.out.name}: {outcome.error}; it is gone on with")
                    missing.appendleft(job)
                    continue
                if outcome.error is not None:
                    failed[job.out] = outcome.error
                progress.update(progress.done + 1)
                left = f"about {duration(progress.seconds_left)} left"
                progress.note(f"{progress.done}/{total}  {job.out.name}: {outcome.error or 'done'}  {left}")
            if progress.is_due():
                for job in running:
                    _tell_figures(job.out, progress)
    return failed


def _tell_figures(run: Path, progress: Progress) -> None:
    """Print the last evaluation of a run, if there is one; a run that failed at its first step is removed."""
    with suppress(OSError):
        if lines := RunDirectory(run).metrics():
            figures = {key: value for key, value in lines[-1].items() if key not in ("seconds", "epoch")}
            progress.note(f"      {run.name}: {in_words(figures)}")


def attempt(job: Job, data: Path | None, device: str) -> Outcome:
    """Train a job to its end, in a worker. Raises Interrupted after a signal to end, when its checkpoint is saved."""
    from edgernn.training.api import train

    try:
        with raising():
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
                wait=_ORPHAN,
            )
    except OSError as error:
        return Outcome(f"{error.filename or job.out}: {error.strerror}", full=error.errno in FULL)
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
    others, context = multiprocessing.active_children(), multiprocessing.get_context("spawn")
    with environment(thread_variables(threads)), ProcessPoolExecutor(slots, context) as pool:
        try:
            yield _ProcessWorkers(pool, slots, data, device)
        except BaseException:
            # a worker that is interrupted saves its run before it ends; a signal may have reached this process alone
            for worker in set(multiprocessing.active_children()) - set(others):
                worker.terminate()
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
