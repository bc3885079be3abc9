# SPDX-License-Identifier: Apache-2.0
"""`make check-arm`: the kernels on 64-bit Arm: examples/c, cross-compiled and run by qemu, must equal torch."""

import subprocess

import numpy as np
import pytest

from edgernn.export.rounding import rounded
from edgernn.imputers import IMPUTERS
from tests.apps import ROOT, arm_program, run, stream_packed
from tests.foreign import qemu
from tests.models import contractive, packed_alone
from tests.own_cells_oracle import CASE_RULES, CASES
from tests.pairs import PAIRS, covering, pairwise
from tests.step_networks import packed_networks
from tests.test_own_cells import assert_matches, case_model, case_truth
from tests.test_packed import random_input, steps, torch_outputs
from tests.tolerances import FLOAT32

# tolerance against torch, as for packed models on x86: int8 products quantise their operand to 16 bits
CLOSE = {"float32": 2e-6, "bfloat16": 2e-6, "int8": 2e-4}
# tolerance against x86 for all weight types: integer products are identical
SAME = 2e-6
# processors without and with the int8 dot-product instruction
PLAIN, DOTS = "cortex-a72", "cortex-a76"
SMALL_WEIGHTS = [("bfloat16", DOTS), ("int8", PLAIN), ("int8", DOTS)]


def emulated(processor: str = DOTS) -> list[object]:
    """Return the command that runs the program under qemu."""
    return [qemu(), "-cpu", processor, arm_program()]


def assert_arm_equals_torch(tmp_path, x, cell, rule="always", weights="float32", processor=DOTS, **options):
    """Assert that Arm agrees with torch, and more closely with x86, for x (sequences, T, I) or (sequences, T)."""
    model = rounded(contractive(cell, rule, **options), weights)
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(model, weights))
    streamed = stream_packed(emulated(processor), path, x)
    expected = torch_outputs(model, np.swapaxes(x, 0, 1))
    np.testing.assert_allclose(streamed.y, np.swapaxes(expected, 0, 1), rtol=0, atol=CLOSE[weights])
    assert np.abs(expected).max() > 100 * CLOSE[weights]
    y, updates, _ = steps(path.read_bytes(), np.swapaxes(x, 0, 1))
    np.testing.assert_allclose(streamed.y, np.swapaxes(y, 0, 1), rtol=0, atol=SAME)
    output = [part for part in streamed.report.split(", ") if "updates per step" in part]
    if not model.rule_type.can_skip:
        assert not output
        return
    assert output[0].startswith(f"{np.mean(updates):.1f} updates per step")


# the C++ is that of other processors, whose tests have all pairs
@pytest.mark.parametrize(("cell", "rule"), covering(PAIRS, ("gru", "gru-before", "eins", "t-lstm")))
def test_every_cell_and_every_rule(cell, rule, tmp_path):
    options = {"cell_options": {"length": 9}} if cell == "decaynet" else {}
    assert_arm_equals_torch(tmp_path, np.swapaxes(random_input(9, 2, 3), 0, 1), cell, rule, **options)


def test_the_zoo_and_networks_of_other_tools(tmp_path):
    for name, (packed, x) in packed_networks(tmp_path).items():
        path = tmp_path / "model.edgernn"
        path.write_bytes(packed)
        y, _, _ = steps(packed, x)
        streamed = stream_packed(emulated(), path, np.swapaxes(x, 0, 1))
        limit = FLOAT32 * max(1.0, np.abs(y).max())
        np.testing.assert_allclose(np.swapaxes(streamed.y, 0, 1), y, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("rule", CASE_RULES)
@pytest.mark.parametrize("name", CASES)
def test_cells_that_the_library_does_not_know(name, rule, tmp_path):
    model, path = case_model(name, rule), tmp_path / "model.edgernn"
    x, expected = case_truth(name, rule, model)
    path.write_bytes(packed_alone(model))
    streamed = stream_packed(emulated(), path, np.swapaxes(x, 0, 1))
    assert_matches(np.swapaxes(streamed.y, 0, 1), None, expected, "always")
    output = [part for part in streamed.report.split(", ") if "updates per step" in part]
    assert [part.split()[0] for part in output] == ([] if rule == "always" else [f"{expected.updates.mean():.1f}"])


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


@pytest.mark.parametrize(
    ("cell", "rule", "small"),
    pairwise(
        ["rnn", "gru", "lstm", "irc-gru", "eins", "sru", "fastgrnn"], ["always", "skip", "selective"], SMALL_WEIGHTS
    ),
)
def test_weights_of_fewer_bytes(cell, rule, small, tmp_path):
    # an input size that is not a multiple of the vector size
    options = {"input_size": 33 if cell == "sru" else 17}
    x = random_input(2, 9, options["input_size"])
    assert_arm_equals_torch(tmp_path, x, cell, rule, *small, **options)


@pytest.mark.parametrize(("weights", "processor"), SMALL_WEIGHTS)
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0, "last_size": 17, "rule": "selective"},
        {"rank": 4, "rule": "selective"},
        {"hidden_size": 1},
        {"hidden_size": 128, "output_size": 40},
        {"imputer": "rits"},
    ],
    ids=["stack", "low rank", "one neuron", "large", "imputer"],
)
def test_shapes_with_weights_of_fewer_bytes(options, weights, processor, tmp_path):
    x = np.abs(random_input(2, 6, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    options = {"weights": weights, "processor": processor, "input_size": 9} | options
    assert_arm_equals_torch(tmp_path, x, "gru", **options)


@pytest.mark.parametrize("imputer", IMPUTERS)
def test_every_imputer(imputer, tmp_path):
    x = np.abs(random_input(2, 6, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    assert_arm_equals_torch(tmp_path, x, "lstm", input_size=9, imputer=imputer)


@pytest.mark.parametrize("weights", CLOSE)
def test_words(weights, tmp_path):
    x = np.random.default_rng(0).integers(0, 40, (2, 7))
    options = {"vocabulary": 40, "output": "all", "input_size": 8, "output_size": 5}
    assert_arm_equals_torch(tmp_path, x, "lstm", weights=weights, **options)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    """tests/side_by_side.c compiled for Arm and linked with the library of the example."""
    qemu()
    functions = arm_program().parent / "edgernn" / "libedgernn.a"
    folder = tmp_path_factory.mktemp("side_by_side")
    include = ROOT / "runtime" / "csrc" / "include"
    compile_c = ["aarch64-linux-gnu-gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", include]
    link = ["aarch64-linux-gnu-g++", "-static", folder / "main.o", functions, "-o", folder / "side_by_side"]
    for words in ([*compile_c, "-c", ROOT / "tests" / "side_by_side.c", "-o", folder / "main.o"], link):
        process = run(*words)
        assert process.returncode == 0, process.stderr
    return folder / "side_by_side"


@pytest.mark.parametrize(
    ("cell", "rule", "batch", "stored"),
    pairwise(
        ["rnn", "gru", "lstm", "irc-gru", "fastgrnn"],
        ["always", "skip", "selective"],
        [1, 3, 8],
        [("float32", DOTS), *SMALL_WEIGHTS],
    ),
)
def test_sequences_side_by_side(side_by_side, cell, rule, batch, stored, tmp_path):
    # batches use tiles of several rows, with one to four gates
    weights, processor = stored
    model, x = rounded(contractive(cell, rule), weights), random_input(9, batch, 3)
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(model, weights))
    words = [qemu(), "-cpu", processor, str(side_by_side), str(path), str(batch)]
    process = subprocess.run(words, input=x.tobytes(), capture_output=True, timeout=120)
    assert process.returncode == 0, process.stderr
    y = np.frombuffer(process.stdout, np.float32).reshape(9, batch, 2)
    np.testing.assert_allclose(y, torch_outputs(model, x), rtol=0, atol=CLOSE[weights])


def test_what_is_wrong_is_said_on_arm_too(tmp_path):
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(contractive("gru"))[:-1])
    process = run(*emulated(), path, text="1,2,3\n")
    assert process.returncode == 1
    assert "packed model: expected " in process.stderr


def test_a_processor_gets_what_it_can_run(tmp_path):
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(contractive("gru"), "int8"))
    tool, *words = emulated(PLAIN)
    process = run(tool, "-E", "EDGERNN_ISA=nativedotprod", *words, path, text="1,2,3\n")
    assert process.returncode == 1
    assert "EDGERNN_ISA: expected one of native, got nativedotprod" in process.stderr
    tool, *words = emulated(DOTS)
    for name in ("native", "nativedotprod"):
        process = run(tool, "-E", f"EDGERNN_ISA={name}", *words, path, text="1,2,3\n")
        assert process.returncode == 0, process.stderr
