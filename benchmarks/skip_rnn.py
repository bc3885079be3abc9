# SPDX-License-Identifier: Apache-2.0
"""Skip RNN on the adding task as its authors train it: `python -m benchmarks.skip_rnn FOLDER --out FILE`.

A GRU of 110 neurons, whose gates start with biases of 1, learns under the rule `skip` to add two of 50 numbers.
Batches of 256, Adam with a rate of 1e-4, a norm of the gradient of at most 1, and a fixed λ of 1e-5. The loss of the
authors is half the squared error, so that λ and the norm are twice theirs here. They give no length; 30,000 steps are
ours. Source: Campos et al. 2018, arXiv:1708.06834, and their code. The runs of three seeds are in FOLDER, and go on
where they were stopped; FILE is the JSON file to write.
"""

from typing import Any

import torch

from benchmarks import command_of
from benchmarks.trained_runs import parse
from edgernn.cells.gru import GRUBefore
from edgernn.files import write_json
from edgernn.machine import processor
from edgernn.training import train

SEEDS = range(3)
SETTINGS = {
    "T": 50,
    "values": "half",
    "markers": "halves",
    "hidden_size": 110,
    "batch_size": 256,
    "lr": 1e-4,
    "clip": 2.0,
    "lambda": 2e-5,
    "steps": 30_000,
    "stop_solved": False,
    "keep": "last",
    "eval_every": 500,
}


class PublishedGRU(GRUBefore):
    """GRU whose biases start as in the code of Skip RNN: those of r and of 1 - z at 1, that of n at 0."""

    name = "published-gru"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        for gate, bias in {"r": 1.0, "z": -1.0, "n": 0.0}.items():
            self._biases()[gate].fill_(bias)


def main() -> None:
    """Train each seed unless its run is finished, and write the metrics of those that are."""
    args = parse(__doc__)
    cell = f"{__file__}:{PublishedGRU.__name__}"
    runs: list[dict[str, Any]] = []
    for seed in SEEDS:
        out = args.folder / f"seed{seed}"
        run = train("adding", cell, "skip", out=out, seed=seed, resume=out.exists(), settings=SETTINGS)
        runs.append({"seed": seed, **{name: run[name] for name in ("mse", "solved", "skip_percent")}})
        report = {"command": command_of("skip_rnn"), "machine": processor(), "settings": SETTINGS, "runs": runs}
        write_json(args.out, report)


if __name__ == "__main__":
    main()
