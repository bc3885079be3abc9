# SPDX-License-Identifier: Apache-2.0
"""A step of a packed model allocates no memory, takes no lock and makes no system call."""

import subprocess
from pathlib import Path

import pytest

from edgernn.cells import CELLS
from edgernn.rules import RULES
from tests.kernel_builds import compiler
from tests.models import contractive, packed_alone
from tests.native import library
from tests.own_cells import LiGRU
from tests.pairs import fits
from tests.source_tree import ROOT

# the counts of an activity: allocations and releases of memory, locks, and system calls
NOTHING = (0, 0, 0)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """tests/bounded_step.c, compiled; its functions replace those of the C library in the library, too."""
    path = tmp_path_factory.mktemp("bounded_step") / "bounded_step"
    include, source = ROOT / "runtime" / "csrc" / "include", ROOT / "tests" / "bounded_step.c"
    words = [compiler(), "-x", "c", "-Wall", "-Wextra", "-Werror", "-O1", "-I", include, source]
    subprocess.run([*words, "-o", path, "-rdynamic", "-ldl", "-lm"], check=True)
    return path


def counts(program: Path, content: bytes, batch: int, folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the counts of each activity of a packed model."""
    (folder / "model.edgernn").write_bytes(content)
    words = [program, library(), folder / "model.edgernn", str(batch)]
    process = subprocess.run(words, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    lines = [line.split(": ") for line in process.stdout.splitlines()]
    return {name: tuple(map(int, numbers.split())) for name, numbers in lines}


def assert_bounded(found: dict[str, tuple[int, ...]]) -> None:
    # the control allocates, releases, locks and calls the system once
    assert found["control"] == (2, 1, 1)
    for name in ("step", "held", "reset", "saved", "refused again"):
        assert found[name] == NOTHING, name
    # the first refusal of a thread may allocate the thread's message
    assert found["refused"] in (NOTHING, (1, 0, 0))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_every_rule(program, rule, batch, tmp_path):
    content = packed_alone(contractive("lstm" if fits("lstm", rule) else "gru", rule, layers=2, mean=0.5, std=2.0))
    found = counts(program, content, batch, tmp_path)
    assert_bounded(found)
    # the library allocates to open a model, so its calls are counted, too; a lock would hang in a fork
    memory, locks, _ = found["open"]
    assert memory > 0
    assert locks == 0


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.slow
def test_every_cell(program, cell, tmp_path):
    options = {"cell_options": {"length": 9}} if cell == "decaynet" else {}
    assert_bounded(counts(program, packed_alone(contractive(cell, **options)), 1, tmp_path))


@pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        ("gru-before", "skip", {"input_size": 9, "imputer": "gru-d"}),
        ("lstm", "selective", {"input_size": 9, "imputer": "rits"}),
        ("lstm", "always", {"vocabulary": 11, "input_size": 4, "output": "all"}),
        ("gru", "selective", {"rank": 4}),
        ("gru", "always", {"density": 0.25}),
        (LiGRU, "selective", {}),
        ("gru", "selective", {"input_size": 160, "frontend": "logmel", "normalise": "pcen"}),
        ("mingru", "always", {"layers": 2, "block": "linear"}),
        ("gru", "skip", {"layers": 2, "block": "gated"}),
    ],
    ids=["gru-d", "rits", "words", "low rank", "sparse", "own cell", "front end", "linear blocks", "gated blocks"],
)
@pytest.mark.slow
def test_every_kind_of_model(program, cell, rule, options, tmp_path):
    assert_bounded(counts(program, packed_alone(contractive(cell, rule, **options)), 2, tmp_path))


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.slow
def test_every_type_of_weights(program, rule, weights, tmp_path):
    content = packed_alone(contractive("gru", rule, hidden_size=64), weights)
    assert_bounded(counts(program, content, 1, tmp_path))
