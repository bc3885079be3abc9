# SPDX-License-Identifier: Apache-2.0
"""Execution of many trainings: finds the unfinished ones and runs several at a time in worker processes.

A finished training is never repeated. An interrupted one resumes from its checkpoint.
"""

import abc
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import edgernn
from edgernn.config import ModelConfig, NetworkConfig
from edgernn.errors import EdgernnError, UsageError, counted
from edgernn.files import CONFIG, FULL, read_json
from edgernn.machine import processor
from edgernn.progress import Progress, in_words
from edgernn.settings import fields_of, flat, record
from edgernn.signals import Interrupted, number_of, raising
from edgernn.store import kept_cell, read_config
from edgernn.training.config import TrainConfig
from edgernn.training.plan import Choice, choose
from edgernn.training.run_directory import RunDirectory
from edgernn.training.tables.series import Series, run_series
from edgernn.training.tables.table_text import duration
from edgernn.training.tables.toml_settings import Settings

# keys of config.json that describe where a run was trained
ORIGIN = ("machine", "edgernn", "threads", "device")
# attempts at a run whose worker dies
TRIES = 4
# seconds that a worker may take to notice that its parent process was killed
_ORPHAN = 60.0


@dataclass(frozen=True)
class KnownRun:
    """A finished run that an earlier table.json records.

    Attributes:
        result: Content of the run's result.json, with the further keys that `Job.result` adds, such as "machine".
        series: Dict from the name of a series that the run recorded, such as "loss", to the series.
    """

    result: Mapping[str, Any]
    series: Mapping[str, Series]


@dataclass(frozen=True)
class Job:
    """Description of one training of `edgernn reproduce` or `edgernn sweep`: the arguments of a call of `train`.

    Attributes:
        task: Name of the task, or path of the user's data.
        cell: Name of the cell, or FILE.py:CLASS.
        rule: Name of the update rule; None if the cell's name implies it.
        seed: Random seed.
        settings: Dict from name to value of the settings of training, model, task, cell and rule.
        out: The run directory.
        known: Result of this training in the file table.json of an earlier `edgernn reproduce`, or None. It is used
            only if `out` has no finished run.
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
        """True if the run directory contains a finished training."""
        return RunDirectory(self.out).result() is not None

    def result(self) -> dict[str, Any] | None:
        """Return the content of the training's result.json; None if the training is not finished.

        The dict also has the keys machine, edgernn, threads and device of config.json, and "latency", the content of
        latency.json or None. A result in the run directory is preferred to one from an earlier table (`known`). A
        damaged result.json counts as missing.
        """
        directory = RunDirectory(self.out)
        result = directory.result()
        if result is None:
            return None if self.known is None else dict(self.known.result)
        config = read_json(self.out / CONFIG)
        return {**{key: config[key] for key in ORIGIN}, **result, "latency": directory.latency()}

    def series(self, name: str) -> Series | None:
        """Return the values of one quantity, such as "loss", in the training; None if none are recorded."""
        if self.is_finished_here or self.known is None:
            return run_series(name, self.out)
        return self.known.series.get(name)

    def choice(self) -> Choice:
        """Return the task of the training, not opened yet, and its configs; UsageError is raised for a bad setting."""
        return choose(self.task, kept_cell(self.out, self.cell), self.rule, self.settings, self.seed)

    def all_settings(self) -> dict[str, Any]:
        """Return all settings of the training by short name, such as "lr", including defaults but not the seed.

        UsageError is raised if a name is unknown or a setting is invalid.
        """
        choice = self.choice()
        return _settings(record(choice.config), record(choice.model), asdict(choice.task))  # type: ignore[call-overload]

    def check(self) -> None:
        """Raise UsageError if a setting is invalid, or the run in the run directory has other settings."""
        ours = {"seed": self.seed, **self.all_settings()}
        if not (self.out / CONFIG).is_file():
            return
        config = read_config(self.out)
        theirs = {"seed": config["seed"], **_settings(config["train"], config["model"], config["task"]["settings"])}
        if change := first_change(theirs, ours):
            raise UsageError(
                f"{self.out}: holds a run with other settings: {change}; delete this folder or choose another --out"
            )


def first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Describe the first setting whose value differs between two dicts, as "NAME=OLD, now it is NEW".

    Return None if no value differs. Settings that `before` lacks are ignored.
    """
    for key, value in now.items():
        if key in before and before[key] != value:
            return f"{key}={before[key]}, now it is {value}"
    return None


def _settings(train: dict[str, Any], model: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Return all settings of a training as a flat dict from short name, such as "lr", to value."""
    if "layer" not in model:
        own = {"network": model["name"], "network_options": model["options"]}
        return {**flat(fields_of(TrainConfig), train), **flat(fields_of(NetworkConfig), model), **task, **own}
    values = {**flat(fields_of(TrainConfig), train), **flat(fields_of(ModelConfig), model), **task}
    for part in ("cell", "rule"):
        values |= {part: model["layer"][part]["name"], f"{part}_options": model["layer"][part]["options"]}
    return values


def origin(results: list[dict[str, Any]]) -> dict[str, str]:
    """Describe where finished runs were trained: a dict with "machine" (processors or GPUs) and "edgernn" (versions).

    `results` has the value of `Job.result` of each run. If it is empty, this machine and version are described.
    """
    if not results:
        return {"machine": processor(), "edgernn": edgernn.__version__}
    machines = {
        f"{r['machine']}, {r['threads']} thread{'s' * (r['threads'] > 1)} each" if r["device"] == "cpu" else r["device"]
        for r in results
    }
    return {"machine": "; ".join(sorted(machines)), "edgernn": ", ".join(sorted({r["edgernn"] for r in results}))}


@dataclass(frozen=True)
class Outcome:
    """Outcome of one attempt at a training.

    Attributes:
        error: The error message, or None if the training finished.
        full: True if the training failed because the disk is full.
        lost: True if the worker process died.
    """

    error: str | None = None
    full: bool = False
    lost: bool = False


class Workers(abc.ABC):
    """Base class of pools of worker processes, which run up to `slots` trainings (jobs) at a time."""

    slots: int

    @abc.abstractmethod
    def start(self, job: Job) -> None:
        """Submit a training to the pool, which starts it or resumes it from its checkpoint."""

    @abc.abstractmethod
    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Wait until a training ends, or this number of seconds; return the jobs that ended since the last call.

        Each has its outcome. KeyboardInterrupt is raised if a worker was interrupted.
        """


# K of N: the K-th of N parts of the trainings
Part = tuple[int, int]
WHOLE: Part = (1, 1)
# opens a pool of workers for a number of trainings
Pool = Callable[[int], AbstractContextManager[Workers]]


def run_missing(wanted: list[Job], workers: Pool) -> dict[Path, str]:
    """Run all trainings of a list that are not finished.

    A job whose worker process dies is resumed from its checkpoint. After 4 attempts (`TRIES`), it counts as failed.

    Args:
        wanted: All jobs, finished or not.
        workers: Function from the number of unfinished jobs to a context manager that opens a pool of workers. If an
            exception, such as KeyboardInterrupt, closes the pool, the running jobs save checkpoints and stop.

    Returns:
        Dict from the run directory of each failed job to its error message.

    Raises:
        UsageError: A setting is invalid, or a run directory has other settings. Nothing is trained.
        EdgernnError: The disk is full.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP was received. Run the same command again to resume.
    """
    for job in wanted:
        job.check()
    missing = deque(job for job in wanted if job.result() is None)
    if not missing:
        return {}
    try:
        return _run(missing, len(wanted), workers)
    except KeyboardInterrupt as stop:
        text = "interrupted; the running trainings are saved; run the same command again to resume"
        raise Interrupted.by(number_of(stop), text) from None


def _run(missing: deque[Job], total: int, workers: Pool) -> dict[Path, str]:
    failed: dict[Path, str] = {}
    tries: Counter[Path] = Counter()
    progress, finished = Progress(every=60.0), total - len(missing)
    progress.begin("runs", total, finished, line=f"{counted(total, 'run')}, {finished} finished")
    with closing(progress), workers(len(missing)) as pool:
        running: list[Job] = []
        while missing or running:
            while missing and len(running) < pool.slots:
                running.append(missing.popleft())
                pool.start(running[-1])
            for job, outcome in pool.ended(seconds=2.0):
                running.remove(job)
                if outcome.full:
                    done = f"{progress.done} of {counted(total, 'run')} finished and kept"
                    raise EdgernnError(f"{job.out}: {outcome.error}: {done}; free some space and run the command again")
                tries[job.out] += 1
                if outcome.lost and tries[job.out] < TRIES:
                    progress.note(f"      {job.out.name}: {outcome.error}; resuming it")
                    missing.appendleft(job)
                    continue
                if outcome.error is not None:
                    failed[job.out] = outcome.error
                progress.update(progress.done + 1)
                left = f"about {duration(progress.seconds_left)} left"
                progress.note(f"{progress.done}/{total}  {job.out.name}: {outcome.error or 'done'}  {left}")
            if progress.is_due():
                for job in running:
                    _report_figures(job.out, progress)
    return failed


def _report_figures(run: Path, progress: Progress) -> None:
    """Print the loss and metrics of the last evaluation of the run in directory `run`, if it has one."""
    with suppress(OSError):
        if lines := RunDirectory(run).metrics():
            figures = {key: value for key, value in lines[-1].items() if key not in ("seconds", "epoch")}
            progress.note(f"      {run.name}: {in_words(figures)}")


def attempt(job: Job, data: Path | None, device: str) -> Outcome:
    """Run or resume one training in a worker process, and turn its errors into an outcome.

    Args:
        job: The training.
        data: The folder of data sets; None to use the environment variable EDGERNN_DATA.
        device: Device to train on: auto, cpu or cuda.

    Returns:
        The outcome, without an error if the training has finished.

    Raises:
        Interrupted: A signal ended the training, and its checkpoint is saved.
    """
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
