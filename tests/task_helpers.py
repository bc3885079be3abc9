# SPDX-License-Identifier: Apache-2.0
"""Small runs of tasks from the command line."""

import json

import numpy as np
import torch

from edgernn.cli.frame import main
from edgernn.store import load_model
from tests.training_helpers import words


def opened(task, source=None, seed=0):
    task.open(source, seed)
    return task


def parts(task):
    return [task.train, task.validation, task.test]


def mean_squared_error(y, target):
    return np.mean((y - target) ** 2)


def accuracy(y, target):
    return np.mean(y.argmax(-1) == target)


class Trained:
    """A small gru, trained for a few steps by `edgernn train --task NAME KEY=VALUE...`.

    config, result: Contents of the files in the run directory.
    """

    def __init__(self, out, task, data=None, **settings):
        settings = {"hidden_size": 8, "batch_size": 10, "steps": 4, **settings}
        where = [] if data is None else ["--data", str(data)]
        assert main(["train", "--task", task, "--cell", "gru", "--out", str(out), *where, *words(settings)]) == 0
        self.model, self.config = load_model(out)
        self.result = json.loads((out / "result.json").read_text())
        self.losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]

    def outputs(self, x):
        """Return the model's outputs, (N, O) or (N, T, O), for x (N, T, I)."""
        with torch.no_grad():
            y, _ = self.model(torch.as_tensor(x).transpose(0, 1).float())
        return (y if y.ndim == 2 else y.transpose(0, 1)).double().numpy()
