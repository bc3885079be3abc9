# SPDX-License-Identifier: Apache-2.0
"""A benchmark case, its targets, and the summary of its times."""

import datetime
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.config import ModelConfig

# names of contenders (functions to time) that are not peers (other runtimes)
EDGERNN, FLOAT32, DENSE, PYTHON = "edgernn", "edgernn float32", "edgernn gru", "edgernn from Python"
COMPILED, PORTABLE = "the library's cell", "portable function"
ROOFLINE, WITH_INPUT, BEST = "roofline", "roofline and input", "best peer"
# absolute error of contenders with fewer bits than float32
ROUNDED = 5e-2
# pause before each block with several threads, for the previous contender's threads to stop spinning
PAUSE_MS = 30.0


@dataclass(frozen=True)
class Target:
    """Performance target: a limit on the ratio of edgernn's time to the time of another runtime.

    Attributes:
        against: Name of the other runtime; the constant BEST stands for the fastest one.
        limit: Largest ratio that meets the target.
    """

    against: str
    limit: float


@dataclass(frozen=True)
class Case:
    """The work that a benchmark times: T steps of B sequences through one layer.

    T = 1 is streaming, one step per call with the state kept. T = 0 creates a session without running it.

    Attributes:
        group: Heading of the case in the report.
        model: The measured model; its weights are random.
        steps: T.
        batch: B.
        threads: Number of threads of each runtime.
        skip: Share of updates that the model skips, or None for a model that updates all neurons. Under the rule delta,
            a column of the weights whose value is not sent anew is a skipped update.
        weights: Number type of the stored weights: float32, bfloat16 or int8. It applies only to gru and lstm without
            options; other models are measured in float32.
        in_c: True to call the steps from C instead of Python. Only edgernn is measured then, not the other runtimes.
        compiled: For a custom cell, name of the built-in cell with the same equations, which is timed beside it.
        targets: Performance targets, which limit ratios of times.
    """

    group: str
    model: ModelConfig
    steps: int = 500
    batch: int = 1
    threads: int = 1
    skip: float | None = None
    weights: str = "float32"
    in_c: bool = False
    compiled: str | None = None
    targets: tuple[Target, ...] = field(default=())

    @property
    def name(self) -> str:
        parts = [f"{self.model.layer.name} {self.sizes}", f"T={self.steps}" if self.steps else "load"]
        parts += [f"B={self.batch}"] * (self.batch > 1) + [f"{self.threads} threads"] * (self.threads > 1)
        parts += ["from C"] * self.in_c
        parts += [] if self.skip is None else [f"{100 * self.skip:.0f} % skipped"]
        rank = self.model.layer.recurrent.rank
        parts += [] if rank is None else [f"rank {rank}"]
        parts += [] if self.weights == "float32" else [self.weights]
        return ", ".join(parts)

    @property
    def is_plain(self) -> bool:
        """True if other runtimes support the model: gru or lstm without options."""
        return self.skip is None and self.model in (ModelConfig.of(cell, *self.sizes) for cell in ("gru", "lstm"))

    @property
    def sizes(self) -> tuple[int, int]:
        """Input size and number of neurons, (I, H)."""
        return self.model.input.size, self.model.hidden_size

    @property
    def gates(self) -> int:
        """Number of gates: 3 for a GRU, 4 for an LSTM."""
        return 3 if self.model.layer.name == "gru" else 4


def described(
    case: Case, times: dict[str, NDArray[np.float64]], errors: dict[str, float | None], peers: Collection[str] = ()
) -> dict[str, Any]:
    """Summarise the times and errors of a benchmark case for its report.

    Args:
        case: The benchmark case.
        times: Dict from contender to its µs per step in each round.
        errors: Dict from contender to its largest absolute error, None if its outputs are not compared.
        peers: Names of the other runtimes that compute in float32.

    Returns:
        The case's entry in the report. `contenders` maps each name to the medians and quartiles of µs per step (`us`)
        and of edgernn's time divided by this contender's time (`ratio`). `best_peer` is the fastest other runtime that
        computes in float32, or None, and `targets` are the results of `judged`.
    """
    listed = {}
    for name, rounds in times.items():
        q1, middle, q3 = np.percentile(rounds, (25, 50, 75))
        low, ratio, high = np.percentile(times[EDGERNN] / rounds, (25, 50, 75))
        listed[name] = {
            "us": float(middle),
            "us_q1": float(q1),
            "us_q3": float(q3),
            "ratio": float(ratio),
            "ratio_q1": float(low),
            "ratio_q3": float(high),
            "error": errors.get(name),
        }
    _, best = max(((listed[name]["ratio"], name) for name in listed if name in peers), default=(0.0, None))
    return {
        "name": case.name,
        "group": case.group,
        "at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "contenders": listed,
        "best_peer": best,
        "targets": [judged(target, listed, best) for target in case.targets],
    }


def judged(target: Target, listed: dict[str, Any], best: str | None) -> dict[str, Any]:
    """Compare a performance target with the measured ratio of times.

    Args:
        target: The target.
        listed: Dict from contender to its entry in the report, which has the `ratio`.
        best: Name of the fastest other runtime, which is used if `target.against` is BEST; None if no other was timed.

    Returns:
        Dict with the target's `against` and `limit`, the measured ratio `value`, and `met`, True if `value` is at most
        `limit`. `value` and `met` are None if the other runtime was not timed.
    """
    name = best if target.against == BEST else target.against
    value = listed[name]["ratio"] if name in listed else None
    met = None if value is None else value <= target.limit
    return {"against": target.against, "limit": target.limit, "value": value, "met": met}
