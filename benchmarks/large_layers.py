# SPDX-License-Identifier: Apache-2.0
"""Time of large layers that skip, beside dense layers of fewer neurons: `python -m benchmarks.large_layers`.

Packed GRU layers with as many inputs as neurons run step by step in a C loop, one sequence, in interleaved rounds of
one process. Weights are random, and each rule is set to update every fourth or every ninth time. Writes
docs/results/large-layers.json, and goes on with the layers that it lacks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.step_times import run_steps, timer
from edgernn.bench.provenance import machine
from edgernn.export.rounding import rounded
from edgernn.files import write_json
from edgernn.random_models import random_model
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import Rounds, interleaved
from tests.models import packed_alone

SIZES = (128, 256, 512, 1150)
WEIGHTS = ("float32", "int8")
# neurons of the smaller dense layers, as shares of the large layer's
NARROW = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
# a rule of the report, and how it is made
RULES: dict[str, dict[str, Any]] = {
    "selective": {"rule": "selective", "rule_options": {"group_size": 1}},
    "selective, groups of 16": {"rule": "selective", "rule_options": {"group_size": 16}},
    "skip": {"rule": "skip"},
    "periodic": {"rule": "periodic"},
    "delta": {"rule": "delta"},
}
PERIODS = (4, 9)
# steps of a timed call: whole periods
STEPS = 72
# steps and sequences on which thresholds of delta are searched
_SEARCHED = 120, 4


@dataclass(frozen=True)
class Timed:
    """A packed layer that is timed: the function that runs STEPS steps, and its mean work in a step.

    Attributes:
        run: Runs the steps.
        macs: Executed multiply-adds of a step, mean over the steps.
        updated: Share of the neurons that are updated, mean over the steps.
    """

    run: Callable[[], None]
    macs: float
    updated: float


def prepared(library: Any, inputs: int, neurons: int, weights: str, skip: float, options: dict[str, Any]) -> Timed:
    """Pack a random layer, and count what it executes."""
    x: NDArray[np.float32] = np.random.default_rng(0).standard_normal((STEPS, inputs), np.float32)
    searched = torch.randn(_SEARCHED[0], _SEARCHED[1], inputs, generator=torch.Generator().manual_seed(0))
    model = rounded(random_model("gru", inputs, neurons, skip=skip, x=searched, **options), weights)
    stepper = Stepper(packed_alone(model, weights), 1)
    macs, updates = [], []
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        macs.append(sum(model.recurrent_layers()[0].cell.macs()) if stepper.macs is None else int(stepper.macs[0]))
        updates.append(neurons if stepper.updates is None else int(stepper.updates[0]))
    taken = np.zeros(STEPS, np.uint32)
    return Timed(
        partial(run_steps, library, stepper, x, taken), float(np.mean(macs)), float(np.mean(updates)) / neurons
    )


def measure(neurons: int, weights: str, settings: Rounds) -> dict[str, Any]:
    """Time a layer densely and under each rule, and smaller dense layers with its inputs."""
    prepare = partial(prepared, timer(), neurons, weights=weights)
    sizes = [round(share * neurons) for share in (*NARROW, 1)]
    dense = {size: prepare(size, skip=0, options={}) for size in sizes}
    skipping = {
        (rule, period): prepare(neurons, skip=1 - 1 / period, options=options)
        for rule, options in RULES.items()
        for period in PERIODS
    }
    named = {f"dense {size}": timed for size, timed in dense.items()}
    named |= {f"{rule} {period}": timed for (rule, period), timed in skipping.items()}
    blocks = interleaved({name: timed.run for name, timed in named.items()}, settings)
    us = {name: 1e6 / STEPS * np.array([np.median(block) for block in rounds]) for name, rounds in blocks.items()}
    whole = us[f"dense {neurons}"]
    times = [float(np.median(us[f"dense {size}"])) for size in sizes]
    return {
        "H": neurons,
        "weights": weights,
        "dense": [{"H": size, "us": time, "macs": dense[size].macs} for size, time in zip(sizes, times, strict=True)],
        "rules": [
            {
                "rule": rule,
                "period": period,
                "updated": timed.updated,
                "work": timed.macs / dense[neurons].macs,
                "us": float(np.median(us[name])),
                "time": float(np.median(us[name] / whole)),
                "equal_H": round(float(np.interp(np.median(us[name]), times, sizes))),
            }
            for (rule, period), timed in skipping.items()
            if (name := f"{rule} {period}")
        ],
    }


def caches() -> dict[str, str]:
    """Return the sizes of the caches of the first core as Linux tells them: from the level to, for example, 512K."""
    folders = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
    return {(folder / "level").read_text().strip(): (folder / "size").read_text().strip() for folder in folders}


@click.command()
@click.option("--rounds", default=9, show_default=True, help="Number of timing rounds of each layer.")
@click.option("--sizes", multiple=True, type=int, default=SIZES, show_default=True, help="Numbers of neurons.")
@click.option("--weights", multiple=True, type=click.Choice(WEIGHTS), default=WEIGHTS, show_default=True, help="Types.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=ROOT / "docs" / "results" / "large-layers.json",
    help="JSON file to write, or to complete.",
)
def main(rounds: int, sizes: tuple[int, ...], weights: tuple[str, ...], out: Path) -> None:
    """Time large layers that skip beside dense layers of fewer neurons."""
    torch.set_num_threads(1)
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"layers": []}
    report |= {
        "command": "python -m benchmarks.large_layers",
        "machine": machine(),
        "caches": caches(),
        "rounds": rounds,
    }
    measured = {(layer["H"], layer["weights"]) for layer in report["layers"]}
    for size in sizes:
        for kind in weights:
            if (size, kind) not in measured:
                report["layers"].append(measure(size, kind, Rounds(rounds=rounds, block_ms=20)))
                write_json(out, report)


if __name__ == "__main__":
    main()
