# SPDX-License-Identifier: Apache-2.0
"""Counts what the op does in steps of ONNX Runtime: `LD_PRELOAD=bounded_op.so python -m tests.step_op MODEL...`.

Prints for batches of 1 and of 5, and for each model, the allocations of memory, locks and system calls of the library,
as JSON: those of the first step and of later ones. The entry `onnxruntime` has those of ONNX Runtime, to show that the
counters work.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgernn.runtime.library import register
from tests.native import library

STEPS = 20


def code_of(name: str) -> tuple[int, int]:
    """First and last address of the loaded library with this file name."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if name in line]
    bounds = [int(address, 16) for line in lines for address in line[0].split("-")]
    return min(bounds), max(bounds)


def counts(run: Callable[[], object], counted: tuple[int, int], other: tuple[int, int]) -> tuple[int, ...]:
    """Allocations, locks and system calls of the code at `counted` in a call of `run`, not of that at `other`."""
    shim = ctypes.CDLL(None)
    begin = shim.bounded_op_begin
    begin.argtypes, numbers = [ctypes.c_size_t] * 4, (ctypes.c_long * 3)()
    if not begin(*counted, *other):
        raise SystemExit("step_op: this system refuses the filter that counts system calls")
    run()
    shim.bounded_op_end(numbers)
    return tuple(numbers)


def open_session(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    register(options, library())
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feeds(session: ort.InferenceSession, batch: int) -> list[dict[str, np.ndarray]]:
    """The inputs of each step: random x, and states of zeros."""
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(STEPS):
        step = {}
        for value in session.get_inputs():
            # the axes without a size are T and B
            shape = [size if isinstance(size, int) else batch for size in value.shape]
            shape[0] = 1 if value.name == "x" else shape[0]
            step[value.name] = np.float32(rng.normal(size=shape) if value.name == "x" else np.zeros(shape))
        steps.append(step)
    return steps


def count_model(path: str, batch: int) -> dict[str, tuple[int, ...]]:
    """Counts of the steps of a model, by what is counted."""
    session = open_session(path)
    inputs = feeds(session, batch)
    native, runtime = code_of(Path(library()).name), code_of("onnxruntime_pybind11_state")

    def steps() -> None:
        for step in inputs:
            session.run(None, step)

    return {
        "first_step": counts(lambda: session.run(None, inputs[0]), native, runtime),
        "later_steps": counts(steps, native, runtime),
        "onnxruntime": counts(lambda: (steps(), open_session(path)), runtime, native),
    }


if __name__ == "__main__":
    print(json.dumps([count_model(path, batch) for batch in (1, 5) for path in sys.argv[1:]]))
