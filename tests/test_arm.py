# SPDX-License-Identifier: Apache-2.0
"""The kernels on 64-bit Arm: examples/c, built by a cross compiler and run by qemu, says what torch says here."""

import shutil
import subprocess

import numpy as np
import pytest

from edgernn.cells import CELLS
from edgernn.imputers import IMPUTERS
from edgernn.rules import RULES
from edgernn.runtime.stepper import Stepper
from tests.apps import ROOT, arm_program, run, stream_packed
from tests.models import contractive, packed_alone
from tests.test_packed import random_input, torch_says

QEMU = "qemu-aarch64", "qemu-aarch64-static"
# as packed models on x86
CLOSE = 2e-6


def qemu() -> str:
    found = [tool for tool in map(shutil.which, QEMU) if tool]
    if not found:
        pytest.skip("qemu-aarch64 is not installed")
    return found[0]


def emulated() -> list[object]:
    """The words that start the program."""
    return [qemu(), arm_program()]


def assert_arm_equals_torch(tmp_path, x, cell, rule="always", **options):
    """x: (sequences, T, I) or (sequences, T); what the program says of the neurons updated is compared, too."""
    model = contractive(cell, rule, **options)
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(model))
    streamed = stream_packed(emulated(), path, x)
    expected = torch_says(model, np.swapaxes(x, 0, 1))
    np.testing.assert_allclose(streamed.y, np.swapaxes(expected, 0, 1), rtol=0, atol=CLOSE)
    assert np.abs(expected).max() > 100 * CLOSE
    said = [part for part in streamed.said.split(", ") if "neurons updated" in part]
    if not model.rule_type.can_skip:
        assert not said
        return
    stepper, updates = Stepper(path.read_bytes(), len(x)), []
    for x_t in np.swapaxes(x, 0, 1):
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        updates.append(stepper.updates)
    assert said[0].startswith(f"{np.mean(updates):.1f} neurons updated a step")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_under_every_rule(cell, rule, tmp_path):
    options = {"cell_options": {"length": 9}} if cell == "decaynet" else {}
    assert_arm_equals_torch(tmp_path, np.swapaxes(random_input(9, 2, 3), 0, 1), cell, rule, **options)


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0, "last_size": 17},
        {"output_size": None},
        {"rank": 4},
        {"density": 0.25},
        {"hidden_size": 1, "input_size": 3},
        {"hidden_size": 128},
    ],
    ids=["stack", "no head", "low rank", "sparse", "one neuron", "large"],
)
def test_every_shape_of_model(rule, options, tmp_path):
    assert_arm_equals_torch(tmp_path, np.swapaxes(random_input(6, 2, 3), 0, 1), "gru", rule, **options)


@pytest.mark.parametrize("imputer", IMPUTERS)
def test_every_imputer(imputer, tmp_path):
    x = np.abs(random_input(2, 6, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    assert_arm_equals_torch(tmp_path, x, "lstm", input_size=9, imputer=imputer)


def test_words(tmp_path):
    x = np.random.default_rng(0).integers(0, 40, (2, 7))
    assert_arm_equals_torch(tmp_path, x, "lstm", vocabulary=40, output="all", input_size=8, output_size=5)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    """The program of tests/side_by_side.c for Arm, with the functions that the example has."""
    qemu()
    functions = arm_program().parent / "edgernn" / "libedgernn.a"
    folder = tmp_path_factory.mktemp("side_by_side")
    compile_c = ["aarch64-linux-gnu-gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "runtime" / "csrc"]
    link = ["aarch64-linux-gnu-g++", "-static", folder / "main.o", functions, "-o", folder / "side_by_side"]
    for words in ([*compile_c, "-c", ROOT / "tests" / "side_by_side.c", "-o", folder / "main.o"], link):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    return folder / "side_by_side"


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("rule", ["always", "skip", "selective"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "irc-gru", "fastgrnn"])
def test_sequences_side_by_side(side_by_side, cell, rule, batch, tmp_path):
    # their products have tiles of several rows, of one to four gates
    model, x = contractive(cell, rule), random_input(9, batch, 3)
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(model))
    words = [qemu(), str(side_by_side), str(path), str(batch)]
    done = subprocess.run(words, input=x.tobytes(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    y = np.frombuffer(done.stdout, np.float32).reshape(9, batch, 2)
    np.testing.assert_allclose(y, torch_says(model, x), rtol=0, atol=CLOSE)


def test_what_is_wrong_is_said_on_arm_too(tmp_path):
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(contractive("gru"))[:-1])
    done = run(*emulated(), path, text="1,2,3\n")
    assert done.returncode == 1
    assert "the packed model: it should have" in done.stderr
