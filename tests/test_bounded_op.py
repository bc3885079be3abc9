# SPDX-License-Identifier: Apache-2.0
"""In a step of ONNX Runtime the native op allocates no memory, takes no lock and makes no system call."""

import json
import os
import platform
import subprocess
import sys
from itertools import product

import pytest

from edgernn.rules import RULES
from tests.kernel_builds import compiler
from tests.models import contractive, write_alone
from tests.pairs import fits
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the counter of system calls is written for x86-64"
)


MODELS = [*(("lstm" if fits("lstm", rule) else "gru", rule) for rule in RULES), ("gru-before", "selective")]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """tests/bounded_op.c, compiled; its functions replace those of the C library in a process."""
    path = tmp_path_factory.mktemp("bounded_op") / "bounded_op.so"
    words = [compiler(), "-x", "c", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*words, ROOT / "tests" / "bounded_op.c", "-o", path, "-ldl"], check=True)
    return path


@pytest.mark.slow
def test_steps_of_every_rule(shim, tmp_path):
    paths = [tmp_path / f"{cell}-{rule}.onnx" for cell, rule in MODELS]
    for path, model in zip(paths, MODELS, strict=True):
        write_alone(contractive(*model, layers=2), path)
    words = [sys.executable, "-m", "tests.step_op", *paths]
    environment = os.environ | {"LD_PRELOAD": str(shim)}
    process = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    for (batch, model), counts in zip(product((1, 5), MODELS), results, strict=True):
        # the first step allocates the memory that later ones use
        assert counts["first_step"][0] > 0, (model, batch)
        assert counts["later_steps"] == [0, 0, 0], (model, batch)
        # ONNX Runtime does each of the three when it opens a file and runs steps
        assert min(counts["onnxruntime"]) > 0, (model, batch)
