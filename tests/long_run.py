# SPDX-License-Identifier: Apache-2.0
"""Streams models for very many steps: `python -m tests.long_run STEPS --out docs/results/long-run.json`.

Each cell and rule of STREAMS keeps sums between steps: those of the cell's first stage under the rule selective, and
all of them under delta. The steps run in a loop in C. After each block of them, a float64 oracle starts from the
stream's state and runs beside it for CHECKED steps. A second model runs the same steps from the saved state and must
give the same bits.
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
from edgernn.export.layer_functions import weights_of
from edgernn.files import write_json
from edgernn.layer import RecurrentLayer
from edgernn.random_models import random_model
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import Stepper
from tests import oracle
from tests.models import packed_alone, state_of
from tests.native import MARGIN

STREAMS = ("gru-before+selective", "ihc-lstm+selective", "eins+selective", "gru+delta")
INPUTS, NEURONS, SKIPPED = 4, 64, 0.8
BLOCK, CHECKED = 1_000_000, 20
Array = NDArray[np.float32]


class LongStream:
    """A stream of random numbers through a cell under a rule, named as in STREAMS, and its errors."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, (self._cell, self._rule) = name, name.split("+")
        model = random_model(self._cell, INPUTS, NEURONS, rule=self._rule, skip=SKIPPED, output="all", seed=seed)
        (layer,) = model.recurrent_layers()
        assert isinstance(layer, RecurrentLayer)
        parts = (layer.cell, layer.rule)
        self._weights = {name: w.detach().numpy() for part in parts for name, w in weights_of(part).items()}
        self._widths, self._cell_states = list(layer.widths.values()), len(layer.cell.states)
        self._memories = len(layer.rule.widths)
        packed = packed_alone(model)
        self._stream, self._fresh = Stepper(packed, 1), Stepper(packed, 1)
        self._random = np.random.default_rng(seed)
        # reused, so that the growth of memory is not that of these inputs
        self._block = np.empty((0, 1, INPUTS), np.float32)
        self.steps, self.left_out, self.errors = 0, 0, [0.0]

    def run(self, steps: int) -> None:
        """Run a number of steps in a loop in C."""
        if len(self._block) != steps:
            self._block = np.empty((steps, 1, INPUTS), np.float32)
        x = self._random.standard_normal(out=self._block, dtype=np.float32)
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
        x = self._random.standard_normal((CHECKED, 1, INPUTS), np.float32)
        self._fresh.restore_state(self._stream.save_state())
        state = [part[None] for part in np.split(state_of(self._stream).copy(), np.cumsum(self._widths)[:-1])]
        memory = state[self._cell_states :][: self._memories]
        expected = oracle.run(self._cell, self._rule, self._weights, x, state, memory=memory)
        y = _steps(self._stream, x)
        assert np.array_equal(y, _steps(self._fresh, x)), f"{self.name}: other bits at step {self.steps}"
        self.steps += CHECKED
        if expected.margin < MARGIN:
            self.left_out += 1
        else:
            self.errors.append(float(np.abs(y - expected.y).max()))


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


def measure(name: str, steps: int, block: int = BLOCK) -> dict[str, Any]:
    """Stream a number of steps.

    Args:
        name: The cell and the rule, as in STREAMS.
        steps: Number of steps.
        block: Number of steps between two checks.

    Returns:
        Dict with the steps, the largest error in each tenth of the stream, the checks that were left out because a
        decision was too close to its threshold, the growth of memory after the first tenth, and the seconds.
    """
    stream, begun = LongStream(name), time.monotonic()
    tenths, memory = [], 0
    for tenth in range(10):
        stream.errors.clear()
        while stream.steps < steps * (tenth + 1) // 10:
            stream.run(block)
            stream.check()
        tenths.append(max(stream.errors, default=0.0))
        memory = memory or resident()
    return {
        "name": name,
        "steps": stream.steps,
        "errors": tenths,
        "left_out": stream.left_out,
        "memory_growth": resident() - memory,
        "seconds": round(time.monotonic() - begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=int, help="Number of steps of the first stream; the others take a tenth.")
    parser.add_argument(
        "--streams", nargs="+", default=list(STREAMS), help="Cells and rules to stream.  [default: all]"
    )
    parser.add_argument("--out", type=Path, help="Write the result to this JSON file, beside other streams in it.")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"streams": []}
    if arguments.out is not None and arguments.out.is_file():
        report = json.loads(arguments.out.read_text(encoding="utf-8"))
    report["sizes"] = {"inputs": INPUTS, "neurons": NEURONS, "skipped": SKIPPED}
    words = "" if arguments.streams == list(STREAMS) else f" --streams {' '.join(arguments.streams)}"
    for i, name in reversed(list(enumerate(arguments.streams))):
        stream = {
            **measure(name, arguments.steps if i == 0 else arguments.steps // 10),
            "command": f"python -m tests.long_run {arguments.steps}{words}",
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
        }
        print(json.dumps(stream), flush=True)
        streams = {**{old["name"]: old for old in report["streams"]}, name: stream}
        # those of STREAMS first, in that order
        report["streams"] = [streams[key] for key in sorted(streams, key=[*STREAMS, *streams].index)]
        if arguments.out is not None:
            write_json(arguments.out, report)


if __name__ == "__main__":
    main()
