# SPDX-License-Identifier: Apache-2.0
"""Weights in bfloat16 and int8: in the kernels, in exported files and in packed models."""

import json
import shutil

import numpy as np
import onnx
import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.export import to_onnx
from edgernn.rounded_weights import rounded_matrix, whole
from edgernn.runtime import Session
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack
from edgernn.runtime.step_graph.stored import stored
from edgernn.runtime.stepper import Stepper
from edgernn.weight_types import WEIGHT_TYPES
from tests.native import OPS, assert_equal, draw, draw_call, oracle_result, session
from tests.pairs import covering
from tests.tolerances import FLOAT32

MATRICES = ("W", "R", "C", "V")
# int8 products quantise their operand to 16 bits
TOLERANCES = {16: FLOAT32, 8: 2e-4}
TRAIN = ["train", "--task", "adding", "--cell", "sarnn", "T=10", "hidden_size=16", "steps=30"]
kinds = pytest.mark.parametrize("kind", ["bfloat16", "int8"])


def rounded(matrix, bits):
    """Round weights by the definition, independently of the exporter."""
    if bits == 16:
        nearest = [torch.tensor(row).bfloat16().float().numpy() for row in matrix]
        return np.stack(nearest)
    scale = np.abs(matrix).max(1, keepdims=True) / np.float32(127)
    return (np.rint(matrix / scale) * scale).astype(np.float32)


@pytest.mark.parametrize("weights", WEIGHT_TYPES)
def test_packing_rounds_matrices_as_the_export_does(weights):
    matrix = np.random.default_rng(0).standard_normal((300, 64), np.float32)
    # zeros, tiny and large rows, and ties between two numbers
    matrix *= np.float32(2) ** np.random.default_rng(1).integers(-126, 100, (300, 1)).astype(np.float32)
    matrix[0], matrix[1] = 0, np.arange(64) + 0.5
    matrix[2] = np.where(np.arange(64) > 0, matrix[1], 127)
    matrix[3:5, 1:] = matrix[3:5, :1]
    np.testing.assert_array_equal(stored(matrix, weights).floats, rounded_matrix(torch.tensor(matrix), weights).numpy())


def small(cell, rule, hidden, inputs, bits):
    weights = draw(cell, rule, hidden, inputs)
    return {name: rounded(w, bits) if name in MATRICES else w for name, w in weights.items()}


def attributes(bits):
    return {"weight_bits": bits}


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize(("cell", "rule"), covering(OPS, ("gru", "gru-before", "eins")))
def test_op_equals_oracle(cell, rule, bits):
    for hidden, inputs in ((33, 33), (40, 40) if cell in ("sru", "irc-sru") else (40, 17)):
        weights = small(cell, rule, hidden, inputs, bits)
        call = draw_call(cell, rule, hidden, inputs, 9, 3)
        outputs = session(cell, rule, weights, attributes=attributes(bits), sizes=(hidden, inputs)).run(None, call)
        expected = oracle_result(cell, rule, {**weights, **call}, bits)
        assert_equal(cell, rule, outputs, expected, atol=TOLERANCES[bits])


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize(("cell", "rule"), [("gru/4", "always"), ("lstm/3", "selective"), ("gru/4", "skip")])
def test_low_rank_equals_oracle(cell, rule, bits):
    weights = small(cell, rule, 33, 7, bits)
    call = draw_call(cell, rule, 33, 7, 9, 3)
    outputs = session(cell, rule, weights, attributes=attributes(bits), sizes=(33, 7)).run(None, call)
    q = weights.pop("Q").astype(np.float64)
    expected = oracle_result(cell.split("/")[0], rule, {**weights, "R": weights["R"] @ q, **call})
    np.testing.assert_allclose(outputs[0], expected.y, rtol=0, atol=TOLERANCES[bits])


@pytest.mark.parametrize("rule", ["always", "selective", "skip"])
def test_sums_of_bytes_do_not_depend_on_the_batch(rule):
    weights = small("gru", rule, 40, 17, 8)
    call = draw_call("gru", rule, 40, 17, 12, 7)
    run = session("gru", rule, weights, attributes=attributes(8), sizes=(40, 17))
    together = run.run(None, call)
    for b in range(7):
        one = {name: value[:, b : b + 1] if name == "X" else value[b : b + 1] for name, value in call.items()}
        alone = run.run(None, one)
        np.testing.assert_array_equal(alone[0][:, 0], together[0][:, b])


def test_the_largest_sums_do_not_overflow():
    hidden = 1150
    weights = {name: np.ones_like(w) for name, w in draw("rnn", "always", hidden, 1).items()}
    weights["b"][:] = -hidden
    call = {"X": np.zeros((1, 1, 1), np.float32), "h": np.ones((1, hidden), np.float32)}
    y, _ = session("rnn", "always", weights, attributes=attributes(8), sizes=(hidden, 1)).run(None, call)
    np.testing.assert_allclose(y, 0, atol=1e-3)
    call["h"] *= -1
    y, _ = session("rnn", "always", weights, attributes=attributes(8), sizes=(hidden, 1)).run(None, call)
    np.testing.assert_allclose(y, -1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
    weights = small("gru", "always", 40, 17, 8)
    call = draw_call("gru", "always", 40, 17, 3, 3)
    call["X"][1, 1, 5] = bad
    y, _ = session("gru", "always", weights, attributes=attributes(8), sizes=(40, 17)).run(None, call)
    assert np.isfinite(y[:, (0, 2)]).all()
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:, 1]).all()


def test_other_bits_are_refused():
    with pytest.raises(Exception, match=r"edgernn: gru: weight_bits: expected 32, 16 or 8, got 4"):
        session("gru", "always", draw("gru", "always", 5, 3), attributes=attributes(4))


MODELS = {
    "gru": {"cell": "gru", "input_size": 64, "hidden_size": 256, "output_size": 10},
    "two layers": {
        "cell": "lstm", "rule": "selective", "input_size": 8, "hidden_size": 40, "output_size": 5, "layers": 2,
        "output": "all", "mean": 0.5, "std": 2.0,
    },
    "words": {"cell": "gru", "input_size": 16, "hidden_size": 40, "output_size": 7, "vocabulary": 50},
    "tied": {
        "cell": "lstm", "input_size": 40, "hidden_size": 40, "output_size": 50, "vocabulary": 50, "tied": True,
        "output": "all",
    },
    "imputer": {"cell": "lstm", "input_size": 9, "hidden_size": 40, "output_size": 2, "imputer": "rits"},
    "low rank": {"cell": "gru", "rule": "skip", "input_size": 9, "hidden_size": 40, "output_size": 2, "rank": 8},
    "both ways": {"cell": "gru", "input_size": 9, "hidden_size": 40, "output_size": 2, "bidirectional": True},
}  # fmt: skip


@kinds
@pytest.mark.parametrize("name", MODELS)
def test_a_file_gives_the_same_everywhere(tmp_path, name, kind):
    torch.manual_seed(3)
    model = edgernn.SequenceModel(**MODELS[name]).eval()
    path = tmp_path / "small.onnx"
    # itself a comparison of torch with the standard operators and with the library
    checks = to_onnx(model, path, weights=kind)
    assert [check.backend for check in checks] == ["portable", "native"]
    session = Session(path, backend="native")
    assert session.info["weights"] == kind
    rng = np.random.default_rng(0)
    if session.vocabulary is None:
        x = rng.standard_normal((6, 2, session.input_size)).astype(np.float32)
    else:
        x = rng.integers(0, session.vocabulary, (6, 2))
    y = session.run(x)
    with torch.no_grad():
        exact, _ = model(torch.from_numpy(x))
    assert 0 < np.abs(y - exact.numpy()).max() < 0.05
    if not session.info["streaming"]:
        return
    stepper = Stepper(pack(read_model(path), path), 2)
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
    np.testing.assert_allclose(
        stepper.y, y[-1] if session.info["model"]["head"]["output"] == "all" else y, rtol=0, atol=1e-6
    )


@kinds
def test_matrices_take_fewer_bytes_and_vectors_stay(tmp_path, kind):
    model = edgernn.SequenceModel("gru", 64, 128, 1).eval()
    path, whole = tmp_path / "small.onnx", tmp_path / "whole.onnx"
    to_onnx(model, path, weights=kind)
    to_onnx(model, whole)
    assert path.stat().st_size <= {"bfloat16": 0.51, "int8": 0.271}[kind] * whole.stat().st_size
    types = {w.name: w.data_type for w in onnx.load(path).graph.initializer}
    number = {"bfloat16": onnx.TensorProto.BFLOAT16, "int8": onnx.TensorProto.INT8}[kind]
    suffix = {"bfloat16": "b", "int8": "q"}[kind]
    assert types[f"layer0.R.{suffix}"] == types[f"layer0.W.{suffix}"] == types[f"head.W.T.{suffix}"] == number
    assert types["layer0.b"] == types["head.b"] == onnx.TensorProto.FLOAT
    assert kind == "bfloat16" or types["layer0.R.s"] == onnx.TensorProto.BFLOAT16
    assert "layer0.R" not in types


def test_a_row_of_bytes_uses_all_of_them():
    torch.manual_seed(0)
    rows = torch.randn(2000, 5) * torch.logspace(-30, 30, 2000)[:, None]
    q, scale = whole(rows)
    assert (q.int().abs().amax(1) == 127).all()
    # half a quantisation step; rounding the scale is negligible
    assert ((q * scale.float() - rows).abs() <= 0.5001 * scale.float()).all()
    assert (scale.float() * 127 / rows.abs().amax(1, keepdim=True) - 1).abs().max() <= 1 / 256
    assert all(torch.equal(*pair) for pair in zip(whole(q * scale.float()), (q, scale), strict=True))


@pytest.mark.parametrize("number", [0.0, 1e-45, 1e-39])
def test_rows_of_next_to_nothing_are_rounded_to_it(number):
    q, scale = whole(torch.full((2, 3), number) * torch.tensor([1.0, -1.0, 0.5]))
    assert (q[:, 0] >= 0).all()
    assert (q[:, 1] <= 0).all()
    assert (q * scale.float()).abs().max() <= 1.01 * number


def test_what_does_not_go_together_is_refused(tmp_path):
    with pytest.raises(
        edgernn.UsageError,
        match="weights: expected float32 for a model with block-sparse weights, got int8",
    ):
        to_onnx(edgernn.SequenceModel("gru", 3, 33, density=0.25), tmp_path / "m.onnx", weights="int8")
    with pytest.raises(edgernn.UsageError, match="unknown weights 'int4': did you mean 'int8'"):
        to_onnx(edgernn.SequenceModel("gru", 3, 33), tmp_path / "m.onnx", weights="int4")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the finished run, `run` in the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "run")


@kinds
def test_export_says_what_rounding_costs(run, tmp_path, capsys, kind):
    assert main(["export", "run", "--weights", kind]) == 0
    output = capsys.readouterr().out
    assert f"run/model-{kind}.onnx" in output
    assert "mse on the test sequences: " in output
    assert f"with {kind}" in output
    card = (tmp_path / "run" / f"model-{kind}.md").read_text()
    assert f"| matrices | {kind} |" in card
    assert f"| mse with {kind} |" in card
    assert Session(tmp_path / "run" / f"model-{kind}.onnx").info["metric_float32"] > 0


def test_a_large_loss_is_a_warning(run, tmp_path, capsys):
    # the file without rounding, for comparison
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"mse": 1e-9}))
    assert main(["export", "run", "--weights", "int8"]) == 0
    assert "warning: a large loss: mse on the test sequences" in capsys.readouterr().out
    assert ", a large loss |" in (tmp_path / "run" / "model-int8.md").read_text()
