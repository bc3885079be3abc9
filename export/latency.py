# SPDX-License-Identifier: Apache-2.0
"""Latency of an exported model on this machine, for the model card."""

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

# about a quarter of a second, unless a sequence takes longer than a block
_ROUNDS = Rounds(rounds=9, warmup=1, block_ms=10.0)


@dataclass(frozen=True)
class Latency:
    """Latency of a model for one sequence (B = 1), called from Python on one thread.

    Calls are timed in several rounds, and the median of each round is computed. Each time below is the median of these
    medians.

    Attributes:
        processor: Model name of the CPU.
        backend: "native" for the kernels of the native library, "portable" for standard ONNX operators.
        instruction_set: Instruction set that the native library uses, or None for the portable backend.
        steps: Number of steps of a sequence, T.
        sequence: Time of a call with a whole sequence, in µs.
        step: Time of a call with one step, in µs: the mean over the steps of a sequence, because the time depends on
            the number of updated neurons. None for a model that needs whole sequences.
    """

    processor: str
    backend: str
    instruction_set: str | None
    steps: int
    sequence: float
    step: float | None


def microseconds(value: float) -> str:
    """Format a duration, given in µs, as text with its unit."""
    return f"{value:.3g} µs" if value < 1000 else f"{value:,.0f} µs"


def latency(path: Path, x: NDArray[Any]) -> Latency:
    """Measure the latency of an exported model, with the native library if it has the kernels.

    Args:
        path: The exported file.
        x: B sequences (T, B, I), or word indices (T, B), which are run one at a time.

    Returns:
        The latency.
    """
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
    durations = {
        name: 1e6 * statistics.median(statistics.median(block) for block in blocks)
        for name, blocks in interleaved(calls, _ROUNDS).items()
    }
    step = durations["steps"] / len(x) if "steps" in durations else None
    used = instruction_set() if session.backend == "native" else None
    return Latency(processor(), session.backend, used, len(x), durations["whole"], step)
