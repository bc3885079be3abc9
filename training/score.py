# SPDX-License-Identifier: Apache-2.0
"""What another model, such as one with rounded weights, scores where a run's own was tested."""

from collections.abc import Callable
from pathlib import Path

from edgernn.files import read_json
from edgernn.model import SequenceModel
from edgernn.store import CONFIG
from edgernn.training.evaluate import evaluate
from edgernn.training.plan import make_plan
from edgernn.training.settings import split_words


def scorer(run: Path) -> Callable[[SequenceModel], tuple[float, bool]]:
    """A function that gives the run's metric for a model on its task's test sequences, and whether more is better.

    It reads the task's data again, and raises what `make_plan` does where that is missing.
    """

    def score(model: SequenceModel) -> tuple[float, bool]:
        config = read_json(run / CONFIG)
        options, settings = _read(config["command"])
        data = Path(options["data"]) if "data" in options else None
        names = options["task"], options["cell"], options.get("rule")
        plan = make_plan(*names, split_words(settings), seed=config["seed"], device="cpu", data=data)
        objective = plan.task.objective
        return evaluate(model, plan.task, plan.task.test)[objective.metric], objective.higher_is_better

    return score


def _read(command: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options and the settings of `edgernn train --task … KEY=VALUE …`."""
    words = command[2:]
    options = {}
    while words and words[0].startswith("--"):
        options[words[0].removeprefix("--")] = words[1]
        words = words[2:]
    return options, tuple(words)
