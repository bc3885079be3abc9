# SPDX-License-Identifier: Apache-2.0
"""What another model, such as one with rounded weights, scores where a run's own was tested."""

from collections.abc import Callable
from pathlib import Path

from edgernn.model import SequenceModel
from edgernn.store import read_config
from edgernn.training.evaluate import evaluate
from edgernn.training.tasks import find_task


def scorer(run: Path) -> Callable[[SequenceModel], tuple[float, bool]]:
    """A function that gives the run's metric for a model on its task's test sequences, and whether more is better.

    It reads the task's data again, and raises EdgernnError where they are missing.
    """

    def score(model: SequenceModel) -> tuple[float, bool]:
        config = read_config(run)
        kind, source = find_task(config.get("source") or config["task"]["name"])
        task = kind(**config["task"]["settings"])
        task.open(source or (Path(config["data"]) if config.get("data") else None), config["seed"])
        return evaluate(model, task, task.test)[task.objective.metric], task.objective.higher_is_better

    return score
