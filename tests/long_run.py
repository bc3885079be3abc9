# SPDX-License-Identifier: Apache-2.0
"""Streams a model for very many steps: `python -m tests.long_run STEPS --out docs/results/long-run.json`.

Each cell of CELLS keeps the sums of its first stage between steps, under the rule selective. The steps run in a loop in
C. After each block of them, a float64 oracle starts from the stream's state and runs beside it for CHECKED steps, and a
second model, which keeps no sums yet, runs the same steps from the saved state and must give the same bits.
"""

import argparse
import ctypes
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.bench.provenance import machine
from edgernn.export.trace import weights_of
from edgernn.files import write_json
from edgernn.layer import RecurrentLayer
from edgernn.random_models import random_model
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import Stepper
from tests import oracle
from tests.models import packed_alone
from tests.native import MARGIN

CELLS = ("gru-before", "ihc-lstm", "eins")
INPUTS, NEURONS, SKIPPED = 4, 64, 0.8
BLOCK, CHECKED = 1_000_000, 20
Array = NDArray[np.float32]


class LongStream:
    """A stream of random numbers through a cell under selective, and its errors."""

    def __init__(self, cell: str, seed: int = 0) -> None:
        model = random_model(cell, INPUTS, NEURONS, rule="selective", skip=SKIPPED, output="all", seed=seed)
        (layer,) = model.recurrent_layers()
        assert isinstance(layer, RecurrentLayer)
        parts = (layer.cell, layer.rule)
        self._weights = {name: w.detach().numpy() for part in parts for name, w in weights_of(part).items()}
        self._cell, self._widths = cell, list(layer.widths.values())
        packed = packed_alone(model)
        self._stream, self._fresh = Stepper(packed, 1), Stepper(packed, 1)
        self._random = np.random.default_rng(seed)
        self.steps, self.left_out, self.errors = 0, 0, [0.0]

    def run(self, steps: int) -> None:
        """Run a number of steps in a loop in C."""
        x = self._draw(steps)
        step, model, _, y = self._stream.native
        # a reset that keeps the state
        keep = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
        data = x.ctypes.data_as(ctypes.c_void_p)
        assert probes().edgernn_probe_sequences(step, keep, model, data, 1, steps, INPUTS, y) == 0
        self.steps += steps

    def check(self) -> None:
        """Run a few steps beside the oracle and a model that was opened anew.

        Raises:
            AssertionError: The model that was opened anew gives other bits.
        """
        x = self._draw(CHECKED)
        self._fresh.restore_state(self._stream.save_state())
        expected = oracle.run(self._cell, "selective", self._weights, x, self._state())
        y = _steps(self._stream, x)
        assert np.array_equal(y, _steps(self._fresh, x)), f"{self._cell}: other bits at step {self.steps}"
        self.steps += CHECKED
        if expected.margin < MARGIN:
            self.left_out += 1
        else:
            self.errors.append(float(np.abs(y - expected.y).max()))

    def _draw(self, steps: int) -> Array:
        return self._random.standard_normal((steps, 1, INPUTS), np.float32)

    def _state(self) -> list[Array]:
        """Copies of the states (1, size) of the layer."""
        library, state = self._stream._library, ctypes.POINTER(ctypes.c_float)()
        assert library.edgernn_state(self._stream._model, ctypes.byref(state)) == 0
        numbers = np.ctypeslib.as_array(state, (sum(self._widths),)).copy()
        return [part[None] for part in np.split(numbers, np.cumsum(self._widths)[:-1])]


def _steps(stepper: Stepper, x: Array) -> Array:
    y = np.empty((len(x), *stepper.y.shape), np.float32)
    for t, x_t in enumerate(x):
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        y[t] = stepper.y
    return y


def resident() -> int:
    """Bytes of memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(cell: str, steps: int, block: int = BLOCK) -> dict[str, Any]:
    """Stream a number of steps.

    Args:
        cell: The cell.
        steps: Number of steps.
        block: Number of steps between two checks.

    Returns:
        Dict with the steps, the largest error in each tenth of the stream, the checks that were left out because a
        decision was too close to its threshold, the growth of memory after the first tenth, and the seconds.
    """
    stream, begun = LongStream(cell), time.monotonic()
    tenths, memory = [], 0
    for tenth in range(10):
        stream.errors.clear()
        while stream.steps < steps * (tenth + 1) // 10:
            stream.run(block)
            stream.check()
        tenths.append(max(stream.errors, default=0.0))
        memory = memory or resident()
    return {
        "cell": cell,
        "steps": stream.steps,
        "errors": tenths,
        "left_out": stream.left_out,
        "memory_growth": resident() - memory,
        "seconds": round(time.monotonic() - begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=int, help="Number of steps of the first cell; the others take a tenth.")
    parser.add_argument("--out", type=Path, help="Write the result to this JSON file.")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "command": f"python -m tests.long_run {arguments.steps}",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "sizes": {"inputs": INPUTS, "neurons": NEURONS, "skipped": SKIPPED},
        "streams": [],
    }
    for cell in reversed(CELLS):
        report["streams"].insert(0, measure(cell, arguments.steps if cell == CELLS[0] else arguments.steps // 10))
        print(json.dumps(report["streams"][0]), flush=True)
        if arguments.out is not None:
            write_json(arguments.out, report)


if __name__ == "__main__":
    main()
