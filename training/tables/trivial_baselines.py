# SPDX-License-Identifier: Apache-2.0
"""Trivial baselines of a table of results, such as the majority class, on the test splits of its models.

The entry "baselines" of a table.json is a list with an object for each baseline, or it is missing in a table of an
earlier version. Its keys are

name      name of the baseline, such as "majority class", see `Task.baselines`
task      name of the task
settings  settings of the task in which the rows of the table differ, such as {"T": 10}
seeds     seeds of the test splits, and of the training splits that the baseline was fitted on
columns   an object from each column of the table that the baseline has to the statistics over the seeds
          (`statistics.spread`), in the unit of the column
error     reason why there are no metrics; name and columns are then empty
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.training.statistics import spread
from edgernn.training.tables.jobs import Job
from edgernn.training.tables.table_text import figure


def baselines(jobs: Iterable[Job], columns: Collection[str], data: Path | None) -> list[dict[str, Any]]:
    """Score the trivial baselines of trainings on their test splits; nothing is trained.

    Trainings with the same task, settings of the task and seed have the same test split, which is opened once.

    Args:
        jobs: The trainings.
        columns: Columns of the table; a baseline has those that are metrics of its own.
        data: The user's folder of data sets. None: the folder in the environment variable EDGERNN_DATA.

    Returns:
        The entry "baselines" of table.json. If data are missing, it has their error in place of the metrics.
    """
    groups: dict[str, dict[int, Job]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for job in jobs:
        task = job.choice().task
        key = f"{job.task} {task}"
        groups.setdefault(key, {}).setdefault(job.seed, job)
        settings[key] = {"task": job.task, **asdict(task)}  # type: ignore[call-overload]
    entries = []
    for key, by_seed in groups.items():
        alike = [values for values in settings.values() if values["task"] == settings[key]["task"]]
        differing = {name: value for name, value in settings[key].items() if any(o[name] != value for o in alike)}
        about = {"task": settings[key]["task"], "settings": differing, "seeds": sorted(by_seed)}
        try:
            runs = [_scores(by_seed[seed], data) for seed in about["seeds"]]
        except EdgernnError as error:
            entries.append({"name": "", **about, "columns": {}, "error": str(error)})
            continue
        for name in runs[0]:
            values = _columns([run[name] for run in runs], columns)
            entries += [{"name": name, **about, "columns": values}] if values else []
    return _merged(entries)


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep one entry of each baseline on which no setting of its task has an effect, without these settings."""
    merged = []
    for entry in entries:
        alike = [other for other in entries if all(other[key] == entry[key] for key in ("task", "name"))]
        if any(other[key] != entry[key] for other in alike for key in ("seeds", "columns")):
            merged.append(entry)
        elif entry is alike[0]:
            merged.append({**entry, "settings": {}})
    return merged


def _scores(job: Job, data: Path | None) -> dict[str, dict[str, float]]:
    """Return the metrics of each baseline on the test split of a training, and whether they solve its task."""
    choice = job.choice()
    task = choice.task
    task.open(choice.source or data, job.seed)
    scores = task.baselines()
    if task.solved is None:
        return scores
    return {
        name: {**metrics, "solved": task.is_solved(metrics[task.objective.metric])} for name, metrics in scores.items()
    }


def _columns(runs: list[dict[str, float]], columns: Collection[str]) -> dict[str, dict[str, Any]]:
    values = {metric: [figure(run, metric) for run in runs] for metric in columns if metric in runs[0]}
    return {metric: spread([value for value in of_runs if value is not None]) for metric, of_runs in values.items()}
