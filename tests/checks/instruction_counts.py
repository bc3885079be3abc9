# SPDX-License-Identifier: Apache-2.0
"""Instruction counts, which do not depend on load as times do: three kernels against stored counts, and two benchmarks.

Callgrind counts one call of 100 steps at (I, H) = (2, 128) with the AVX2 kernels, which valgrind can run. After an
intended change, `python -m tests.checks.instruction_counts` stores new counts.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from benchmarks.skip_work import DENSE
from benchmarks.skip_work import main as skip_work
from benchmarks.worst_steps import main as worst_steps
from tests.kernel_builds import ISA, build, compiler, need

STORED = Path(__file__).with_name("instruction_counts.json")
# the layer of each kernel and its inputs: constant (=) or uniform in [-VALUE, VALUE) (~)
_GRU = ("W~0.5", "R~0.05", "b~0.05", "X~1", "h~0.5")
KERNELS = {
    "gru": ("gru", *_GRU),
    # x is uniform in a square: about one neuron in ten changes
    "sarnn": ("gru+selective", *_GRU, "rule_W~1", "rule_d=0", "rule_b=-0.59"),
    # the pressure grows by 0.11 per step: the state changes at every fifth step
    "skiprnn": ("gru+skip", *_GRU, "rule_w=0", "rule_b=-2.1", "rule_pressure=1"),
}
# relative, for the same compiler version
TOLERANCE = 0.01


def version() -> str:
    words = [compiler(), "-dumpfullversion"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def counted(folder: Path) -> dict[str, dict[str, float]]:
    """Return the instruction count of each kernel and the fraction of its neurons that changed."""
    program = build(folder, targets=("edgernn_count",)) / "edgernn_count"
    counts = {}
    for kernel, inputs in KERNELS.items():
        words = ["valgrind", "--tool=callgrind", "--toggle-collect=edgernn_count_run", program, *inputs]
        words.insert(2, f"--callgrind-out-file={folder / kernel}.out")
        environment = {**os.environ, "EDGERNN_ISA": ISA}
        process = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        (count,) = re.findall(r"^totals: (\d+)$", Path(f"{folder / kernel}.out").read_text(), re.MULTILINE)
        counts[kernel] = {"instructions": int(count), "changed": float(process.stdout)}
    return counts


def test_kernels_take_the_instructions_that_are_stored(tmp_path, add_summary_line):
    need("cmake", "valgrind", compiler())
    stored, got = json.loads(STORED.read_text(encoding="utf-8")), counted(tmp_path)
    worst = 0.0
    for kernel in KERNELS:
        expected = stored["kernels"][kernel]
        # a different fraction would mean different work, not different code
        assert got[kernel]["changed"] == pytest.approx(expected["changed"], abs=0.002), kernel
        ratio = got[kernel]["instructions"] / expected["instructions"]
        worst = max(worst, abs(ratio - 1))
        if abs(ratio - 1) > TOLERANCE:
            add_summary_line(
                f"{kernel}: {got[kernel]['instructions']:,} instructions, stored {expected['instructions']:,} "
                f"({100 * (ratio - 1):+.1f} %), compiler {version()}, stored with {stored['compiler']}"
            )
    # skipped steps are nearly free
    dense = got["gru"]["instructions"]
    assert got["sarnn"]["instructions"] < 0.3 * dense
    assert got["skiprnn"]["instructions"] < 0.3 * dense
    if version() != stored["compiler"]:
        pytest.skip(f"counts are NOT compared: stored with compiler {stored['compiler']}, this one is {version()}")
    assert worst <= TOLERANCE, "kernels changed: store the counts with python -m tests.checks.instruction_counts"


def test_skipped_updates_save_instructions_and_bytes(tmp_path, monkeypatch) -> None:
    need("cmake", "valgrind", compiler())
    for name, values in (("SKIPS", (0.0, 0.75)), ("GROUP_SIZES", (16,))):
        monkeypatch.setattr(f"benchmarks.skip_work.{name}", values)
    skip_work(["--steps", "20", "--layers", "1", "--out", str(tmp_path)], standalone_mode=False)
    (layer,) = json.loads((tmp_path / "skip-work.json").read_text())["layers"]
    dense, (none, most) = layer[DENSE], layer["points"]
    assert dense["instruction_set"] == ISA
    # W and R of a gru (2, 128), which a step reads once
    assert layer["weight_bytes"] == 4 * 3 * 128 * 130
    assert 1 <= dense["bytes"] / layer["weight_bytes"] < 1.1
    # a vector of AVX2 holds 8 multiply-adds, and one of SSE 4
    assert 1 / 8 < dense["instructions"] / (layer["weight_bytes"] / 4) < 2
    assert most["instructions"] < 0.7 * none["instructions"]
    assert most["bytes"] < 0.3 * dense["bytes"]
    assert none["bytes"] < 1.1 * dense["bytes"]
    assert (tmp_path / "skip-work.png").stat().st_size > 10_000


def test_the_worst_step_is_counted_beside_the_mean(tmp_path) -> None:
    need("cmake", "valgrind", compiler())
    words = ["--steps", "10", "--rules", "always,skip", "--out", str(tmp_path)]
    worst_steps(words, standalone_mode=False)
    report = json.loads((tmp_path / "worst-steps.json").read_text())
    assert report["instruction_set"] == ISA
    always, skip = (report["rules"][rule] for rule in ("always", "skip"))
    # every step of a dense cell takes the same instructions; one step in five updates
    assert always["worst"] == always["median"] > 128 * 130 * 3 / 8
    assert 2 * skip["median"] < skip["mean"] + always["mean"]
    assert skip["worst"] > 2 * skip["mean"]


def main() -> None:
    from edgernn.files import write_json

    with tempfile.TemporaryDirectory() as folder:
        write_json(STORED, {"compiler": version(), "kernels": counted(Path(folder))})


if __name__ == "__main__":
    main()
