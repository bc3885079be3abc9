# SPDX-License-Identifier: Apache-2.0
"""Times every step of packed models: `python -m benchmarks.step_times --out docs/results/step-times.json`.

A loop in C (tests/step_times.c) reads the clock after each step. Run it on an idle machine: the longest times are those
of the operating system.
"""

import argparse
import ctypes
import datetime
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.bench.provenance import machine
from edgernn.files import write_json
from edgernn.random_models import random_model
from edgernn.rules import RULES
from edgernn.runtime.stepper import Stepper
from tests.kernel_builds import compiler
from tests.models import packed_alone
from tests.source_tree import ROOT

CELL, INPUTS, NEURONS, SKIPPED = "gru", 2, 128, 0.8
STEPS, BLOCK = 10_000_000, 500_000
SHARES = {"p50": 50.0, "p99": 99.0, "p99.99": 99.99}


def timer() -> ctypes.CDLL:
    """Compile and load tests/step_times.c."""
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / "step_times.so"
        flags = ["-x", "c", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler(), *flags, ROOT / "tests" / "step_times.c", "-o", library], check=True)
        return ctypes.CDLL(str(library))


def run_steps(library: ctypes.CDLL, stepper: Stepper, x: NDArray[np.float32], nanoseconds: NDArray[np.uint32]) -> None:
    """Run a packed model on x (T, I) in C and write the nanoseconds of each step (T,), the clock's own included."""
    step, model, _, y = stepper.native
    steps, inputs = (ctypes.c_int64(size) for size in x.shape)
    data, out = (ctypes.c_void_p(array.ctypes.data) for array in (x, nanoseconds))
    assert library.time_steps(step, model, data, inputs, y, steps, out) == 0


def times(library: ctypes.CDLL, rule: str, steps: int, block: int) -> NDArray[np.uint32]:
    """Return the nanoseconds of each step of a random cell under a rule, the clock's own time included."""
    skip = SKIPPED if rule in ("selective", "random", "skip", "delta", "topk") else 0.0
    stepper = Stepper(packed_alone(random_model(CELL, INPUTS, NEURONS, rule=rule, skip=skip)), 1)
    nanoseconds, drawn = np.zeros(steps, np.uint32), np.random.default_rng(0)
    for first in range(0, steps, block):
        x = drawn.standard_normal((block, INPUTS), np.float32)
        run_steps(library, stepper, x, nanoseconds[first : first + block])
    return nanoseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="Number of steps of each rule.  [default: 10 million]")
    parser.add_argument("--rules", nargs="+", default=list(RULES), help="Update rules to time.  [default: all]")
    parser.add_argument("--out", type=Path, help="Write the result to this JSON file, beside other rules in it.")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"rules": {}}
    if arguments.out is not None and arguments.out.is_file():
        report = json.loads(arguments.out.read_text(encoding="utf-8"))
    library = timer()
    for rule in arguments.rules:
        taken = times(library, rule, arguments.steps, min(BLOCK, arguments.steps))
        figures = {name: float(np.percentile(taken, share)) for name, share in SHARES.items()}
        report["rules"][rule] = {**figures, "mean": float(taken.mean()), "worst": int(taken.max())}
        print(rule, json.dumps(report["rules"][rule]), flush=True)
        report |= {
            "command": "python -m benchmarks.step_times",
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "model": f"{CELL}, I = {INPUTS}, H = {NEURONS}",
            "steps": arguments.steps,
        }
        if arguments.out is not None:
            write_json(arguments.out, report)


if __name__ == "__main__":
    main()
