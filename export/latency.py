# SPDX-License-Identifier: Apache-2.0
"""How long an exported model takes on the machine that exports it, for its card."""

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.machine import processor
from edgernn.runtime.info import kernels
from edgernn.runtime.library import instruction_set, no_native
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, interleaved

# a quarter of a second, unless a sequence takes longer than a block
_ROUNDS = Rounds(rounds=9, warmup=1, block_ms=10.0)


@dataclass(frozen=True)
class Latency:
    """Of one sequence at a time, in Python on one thread: medians over rounds of the median of a round.

    sequence: µs of a call with T = `steps` steps. step: µs of a step that is a call, the mean over a sequence, as steps
    at which little is updated take less time; None where a model needs whole sequences.
    """

    processor: str
    backend: str
    instruction_set: str | None
    steps: int
    sequence: float
    step: float | None


def microseconds(value: float) -> str:
    return f"{value:.3g} µs" if value < 1000 else f"{value:,.0f} µs"


def latency(path: Path, x: NDArray[Any]) -> Latency:
    """Measured with the sequences of x (T, B, I) or (T, B), natively where the library has the kernels."""
    session = Session(path, backend="portable")
    if no_native(kernels(session.info)) is None:
        session = Session(path, backend="native")
    sequences = itertools.cycle(np.ascontiguousarray(x.swapaxes(0, 1)))

    def whole() -> None:
        session.run(next(sequences))

    def step_by_step() -> None:
        session.reset()
        for x_t in next(sequences):
            session.step(x_t)

    calls = {"whole": whole} | ({"steps": step_by_step} if session.info["streaming"] else {})
    taken = {
        name: 1e6 * statistics.median(statistics.median(block) for block in blocks)
        for name, blocks in interleaved(calls, _ROUNDS).items()
    }
    step = taken["steps"] / len(x) if "steps" in taken else None
    chosen = instruction_set() if session.backend == "native" else None
    return Latency(processor(), session.backend, chosen, len(x), taken["whole"], step)
