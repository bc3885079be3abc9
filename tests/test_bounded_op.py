# SPDX-License-Identifier: Apache-2.0
"""In a step of ONNX Runtime the native op allocates no memory, takes no lock and calls no system function."""

import os
import platform
import subprocess
import sys

import pytest

from edgernn.rules import RULES
from tests.kernel_builds import compiler
from tests.models import exported
from tests.pairs import fits
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the counter of system calls is written for x86-64"
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """tests/bounded_op.c, compiled; its functions replace those of the C library in a process."""
    path = tmp_path_factory.mktemp("bounded_op") / "bounded_op.so"
    words = [compiler(), "-x", "c", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*words, ROOT / "tests" / "bounded_op.c", "-o", path, "-ldl"], check=True)
    return path


def counts(shim, model, batch):
    """Allocations, locks and system calls of each activity of tests/step_op.py."""
    words = [sys.executable, "-m", "tests.step_op", model, str(batch)]
    environment = os.environ | {"LD_PRELOAD": str(shim)}
    process = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    lines = [line.split(": ") for line in process.stdout.splitlines()]
    return {name: tuple(map(int, numbers.split())) for name, numbers in lines}


def assert_bounded(found):
    # the first step allocates the memory that later ones use
    assert found["first"][0] > 0
    assert found["steps"] == (0, 0, 0)
    # ONNX Runtime does each of the three when it opens a file and runs steps
    assert min(found["other"]) > 0


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule(shim, rule, batch):
    _, path, _ = exported("lstm" if fits("lstm", rule) else "gru", rule, layers=2)
    assert_bounded(counts(shim, path, batch))


def test_a_cell_of_two_stages(shim):
    _, path, _ = exported("gru-before", "selective")
    assert_bounded(counts(shim, path, 1))
