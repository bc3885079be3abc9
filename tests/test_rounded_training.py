# SPDX-License-Identifier: Apache-2.0
"""Training with weights that are rounded as the export rounds them: the setting weights."""

import dataclasses
import functools
import json
import os
import shutil
from itertools import product

import numpy as np
import pytest
import torch

import edgernn
from benchmarks import zoo_entry
from edgernn.bench.measure import Settings
from edgernn.cli.frame import main
from edgernn.costs import model_cost
from edgernn.dropout import with_dropped_weights
from edgernn.errors import EdgernnWarning, UsageError
from edgernn.export import to_onnx
from edgernn.export.rounding import rounded as rounded_copy
from edgernn.kernels import attach
from edgernn.kernels.graphs import GraphUnroller
from edgernn.layer import RecurrentLayer
from edgernn.runtime import Session
from edgernn.store import load_model, read_tensors
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate, with_thresholds
from edgernn.training.evaluate import evaluate, open_task
from edgernn.training.papers.networks.brits import BRITS
from edgernn.training.sweep.plan import load_sweep
from tests.oracle import run as oracle
from tests.tolerances import FLOAT32
from tests.training_helpers import SMALL, Stop, snapshot, without_pictures

pytestmark = pytest.mark.usefixtures("no_pictures")

# the native library quantises vectors to 16 bits
INT8 = 2e-4
RUN = {**SMALL, "steps": 30, "eval_every": 5, "checkpoint_every": 3, "epoch_steps": 10, "test_size": 50}


def bfloat16(values):
    """Round float32 to the nearest float32 whose lower half is zero, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rounded(matrix, weights="int8"):
    """Round a matrix by the definition, independently of the package."""
    values = matrix.detach().numpy()
    if weights == "bfloat16":
        return bfloat16(values)
    scale = bfloat16(np.abs(values).max(1, keepdims=True) / np.float32(127))
    return np.rint(values / scale) * scale


def by_hand(model, weights="int8"):
    """Return a copy with rounded matrices, which rounds nothing itself."""
    plain = edgernn.SequenceModel(dataclasses.replace(model.config, weights="float32"))
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.from_numpy(rounded(parameter, weights)))
    return plain


def gradients(model, x):
    """Return the gradients of a loss with respect to all parameters that have one, by name."""
    model.zero_grad()
    y, state = model(x)
    (y.sin().sum() + sum(s.cos().sum() for s in state)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


LAYERS = {
    "gru": {"cell": "gru"},
    "gru, selective": {"cell": "gru", "rule": "selective"},
    "gru, delta": {"cell": "gru", "rule": "delta", "rule_options": {"theta_x": 0.1, "theta_h": 0.05}},
    "gru, topk": {"cell": "gru", "rule": "topk", "rule_options": {"k": 5}},
    "gru, skip": {"cell": "gru", "rule": "skip"},
    "gru, clockwork": {"cell": "gru", "rule": "clockwork"},
    "lstm": {"cell": "lstm"},
    "lstm, two layers, both ways": {"cell": "lstm", "layers": 2, "bidirectional": True},
    "two stages": {"cell": "gru-before"},
    "low rank": {"cell": "gru", "rank": 4},
    "imputer": {"cell": "gru", "imputer": "rits", "input_size": 9},
    "gated blocks": {"cell": "mingru", "block": "gated", "layers": 2},
}
WORDS = {"cell": "lstm", "input_size": 17, "vocabulary": 40, "output_size": 40, "tied": True, "output": "all"}
MODELS = {**LAYERS, "words": WORDS}
models = pytest.mark.parametrize("name", MODELS)


def make(name, weights="int8", **changes):
    torch.manual_seed(4)
    sizes = {"input_size": 3, "hidden_size": 17, "output_size": 2}
    model = edgernn.SequenceModel(**{**sizes, **MODELS[name], "weights": weights, **changes})
    torch.manual_seed(5)
    words = model.vocabulary is not None
    return model, torch.randint(40, (9, 4)) if words else torch.rand(9, 4, model.input_size)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@models
def test_a_forward_pass_and_its_gradients_are_those_of_rounded_weights(name, weights):
    model, x = make(name, weights)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plain = by_hand(model, weights)
    assert not torch.equal(plain.layers[0].cell.W, model.layers[0].cell.W)
    for mode in (True, False):
        assert torch.equal(model.train(mode)(x)[0], plain.train(mode)(x)[0])
        ours, theirs = gradients(model, x), gradients(plain, x)
        assert ours.keys() == theirs.keys()
        for key, gradient in theirs.items():
            assert torch.equal(ours[key], gradient), key
    # the weights that are trained are not rounded
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("rule", ["always", "selective"])
def test_a_layer_equals_the_oracle_with_rounded_weights(rule):
    model, x = make("gru", rule=rule, output="all", output_size=None)
    (layer,) = model.recurrent_layers()
    state = layer.initial_state(4, x)
    named = {**dict(layer.cell.named_parameters()), **layer.rule.weights}
    p = {key: rounded(w) if w.ndim == 2 else w.detach().numpy() for key, w in named.items()}
    expected = oracle("gru", rule, p, x.numpy(), [s.numpy() for s in state])
    assert expected.margin > FLOAT32
    np.testing.assert_allclose(model.eval()(x)[0].detach().numpy(), expected.y, rtol=0, atol=FLOAT32)


def test_the_ramp_mixes_weights_and_rounded_weights():
    model, _ = make("gru")
    (layer,) = model.recurrent_layers()
    shares = []
    for step in range(30):
        model.rounding.ramp(step, 30)
        shares.append(model.rounding.share)
        assert model.rounding.is_full(step, 30) == (model.rounding.share == 1)
        values = model.rounding.of(layer)
        assert values.keys() == {"cell.W", "cell.R"}
        weight = layer.cell.R.detach().numpy()
        mixed = weight + shares[-1] * (rounded(layer.cell.R) - weight)
        np.testing.assert_allclose(values["cell.R"].detach().numpy(), mixed, rtol=0, atol=1e-7)
    np.testing.assert_allclose(shares[:11], 0)
    np.testing.assert_allclose(shares[10:21], np.arange(11) / 10)
    np.testing.assert_allclose(shares[20:], 1)
    # evaluation rounds from the beginning
    model.rounding.ramp(0, 30)
    values = model.eval().rounding.of(layer)
    np.testing.assert_array_equal(values["cell.R"].detach().numpy(), rounded(layer.cell.R))


ON_CPU = [(name, "cpu") for name in LAYERS if name != "imputer"]


@pytest.mark.parametrize(("name", "device"), [*ON_CPU, ("gru", "cuda"), ("gru, selective", "cuda")])
def test_kernels_see_the_rounded_weights(name, device, monkeypatch):
    if device == "cuda":
        pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("TRITON_INTERPRET=1 is not set: the kernels need a GPU")
    model, x = make(name)
    # products in float32, as in the loop
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model.rounding.ramp(17, 30)
    assert attach(model, "torch", "cpu") == "torch"
    y, loop = model(x)[0], gradients(model, x)
    assert attach(model, "fused", device) == "fused"
    torch.testing.assert_close(model(x)[0], y, rtol=0, atol=FLOAT32)
    model.rounding.share = 0.0
    assert not torch.allclose(model(x)[0], y, rtol=0, atol=FLOAT32)
    model.rounding.ramp(17, 30)
    for key, gradient in gradients(model, x).items():
        expected = loop.get(key, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=FLOAT32, msg=key)


def test_dropped_weights_are_rounded_ones():
    model, x = make("gru")
    (layer,) = model.recurrent_layers()
    seen = {}

    class Spy:
        name = "spy"

        def __call__(self, layer: RecurrentLayer, x, state):
            seen.update(W=layer.cell.W, R=layer.cell.R)

    layer.unroller = Spy()
    with_dropped_weights(layer, 0.5, weights=model.rounding.of(layer))(x, layer.initial_state(4, x))
    kept = seen["R"].detach().numpy()
    expected = 2 * rounded(layer.cell.R)
    assert 0.4 < (kept == 0).mean() < 0.7
    np.testing.assert_array_equal(kept[kept != 0], expected[kept != 0])
    np.testing.assert_array_equal(seen["W"].detach().numpy(), rounded(layer.cell.W))


def test_cuda_graphs_do_not_record_rounded_weights():
    recorded = []
    model, x = make("gru")
    (layer,) = model.recurrent_layers()
    layer.unroller = GraphUnroller(lambda steps, tensors: recorded.append(tensors) or steps, "cpu")
    model(x)
    assert recorded == []
    layer(x, layer.initial_state(4, x))
    assert len(recorded) == 1
    model, _ = make("gru", norm="layer")
    with pytest.warns(EdgernnWarning, match="weights=int8: the loop over time steps runs in torch"):
        assert attach(model, "auto", "cuda") == "torch"


@pytest.mark.parametrize(
    "name",
    [
        "gru, delta",
        "gru, skip",
        "lstm, two layers, both ways",
        "two stages",
        "low rank",
        "imputer",
        "gated blocks",
        "words",
    ],
)
def test_the_exported_file_gives_what_the_model_gives(tmp_path, name):
    model, x = make(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(3):
        model.rounding.ramp(step, 3)
        optimizer.zero_grad()
        y, _ = model(x)
        y.square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        y = model.eval()(x)[0].numpy()
    path = tmp_path / "model.onnx"
    to_onnx(model, path)
    for backend, tolerance in (("portable", FLOAT32), ("native", INT8)):
        session = Session(path, backend=backend)
        assert (session.info["weights"], session.info["model"]["weights"]) == ("int8", "int8")
        np.testing.assert_allclose(session.run(x.numpy()), y, rtol=0, atol=tolerance)
    # another type stores the same values, and the model stays as it is
    to_onnx(model, path, weights="float32")
    np.testing.assert_allclose(Session(path, backend="native").run(x.numpy()), y, rtol=0, atol=FLOAT32)
    with torch.no_grad():
        np.testing.assert_array_equal(model(x)[0].numpy(), y)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that was trained for int8."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        train("adding", "sarnn", out=folder, settings={**RUN, "weights": "int8"})
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of the finished run, `run` in the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, tmp_path / "run")


def test_metrics_are_those_of_the_exported_file(run):
    model, _ = load_model(run)
    task = open_task(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((run / "result.json").read_text())
    assert lines[-1]["mse"] == evaluate(model, task, task.validation)["mse"]
    assert result["mse"] == evaluate(model, task, task.test)["mse"]
    assert result["mse"] == pytest.approx(evaluate(by_hand(model), task, task.test)["mse"], rel=1e-6)
    # the weights themselves are float32
    weights = read_tensors(run / "model.safetensors")["layers.0.cell.R"]
    assert not np.array_equal(rounded(weights), weights.numpy())
    assert main(["export", "run"]) == 0
    session = Session(run / "model-int8.onnx", backend="native")
    errors = [session.run(batch.x.numpy()) - batch.target.numpy() for batch in task.test.chunks()]
    assert np.square(np.concatenate(errors)).mean() == pytest.approx(result["mse"], rel=1e-3)


def test_the_export_of_a_run_has_its_type(run, capsys):
    assert main(["export", "run"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(str(run.name) + "/model-int8.onnx")
    assert "trained with weights=int8: the file has the same int8 values, and so the metric of the training" in output
    assert "on the test sequences" not in output
    assert "| matrices | int8, trained for int8 |" in (run / "model-int8.md").read_text()
    assert main(["export", "run", "--weights", "float32"]) == 0
    assert "the file has the same int8 values in float32" in capsys.readouterr().out
    small, large = (Session(run / name, backend="native") for name in ("model-int8.onnx", "model.onnx"))
    x = np.load(run / "example.npz")["x"].swapaxes(0, 1)
    np.testing.assert_allclose(small.run(x), large.run(x), rtol=0, atol=INT8)
    assert small.info["metric_value"] == large.info["metric_value"]
    assert main(["export", "run", "--weights", "bfloat16"]) == 0
    output = capsys.readouterr().out
    assert "trained with weights=int8: the file rounds them again" in output
    assert " with int8, " in output
    assert Session(run / "model-bfloat16.onnx").info["metric_int8"] == small.info["metric_value"]


@pytest.mark.parametrize("at", [4, 11, 17, 29])
def test_stopped_and_resumed_equals_whole(tmp_path, finished, at):
    settings = {**RUN, "weights": "int8"}
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train("adding", "sarnn", out=tmp_path / "run", settings=settings, progress=Stop(at))
    train("adding", "sarnn", out=tmp_path / "run", settings=settings, resume=True)
    assert snapshot(tmp_path / "run") == snapshot(finished)
    with pytest.raises(UsageError, match=r"weights: the run in .* has 'int8', got 'float32'"):
        train("adding", "sarnn", out=tmp_path / "run", settings=RUN, resume=True)


def test_patience_begins_with_full_rounding(tmp_path):
    still = {**RUN, "eval_every": 1, "patience": 1, "lr": 1e-30}
    steps = {}
    for weights in ("float32", "int8"):
        result = train("adding", "gru", out=tmp_path / weights, settings={**still, "weights": weights})
        assert result["stopped"] == "patience"
        steps[weights] = result["steps"]
    assert steps == {"float32": 2, "int8": 20}


def test_bytes_of_the_weights():
    # W (51, 3), R (51, 17) and the head's matrix (2, 17) in int8 with scales of 2 bytes, and the other numbers
    numbers, rows, vectors = 51 * 3 + 51 * 17 + 2 * 17, 51 + 51 + 2, 4 * 17 + 2
    by_type = {"float32": 4 * numbers, "bfloat16": 2 * numbers, "int8": numbers + 2 * rows}
    for weights, expected in by_type.items():
        model, _ = make("gru", weights)
        assert model_cost(model).weight_bytes == expected + 4 * vectors
        assert model_cost(model).parameters == numbers + vectors


def test_a_sweep_varies_the_type_of_weights(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        'task = "adding"\ncells = ["gru"]\nseeds = 1\n[settings]\nT = 8\n[vary]\nweights = ["float32", "int8"]\n'
    )
    plan = load_sweep(tmp_path / "sweep.toml", tmp_path / "runs")
    assert [row.name for row in plan.rows] == ["gru-weights=float32", "gru-weights=int8"]


def test_a_module_of_torch_has_the_rounded_weights():
    model, x = make("gru", output="all", output_size=None)
    with torch.no_grad():
        torch.testing.assert_close(edgernn.to_torch(model)(x)[0], model.eval()(x)[0])


def test_networks_of_models_share_their_rounding():
    model = BRITS("gru", 9, 5, 1, imputer="rits", weights="int8")
    model.rounding.ramp(0, 30)
    assert (model.ahead.rounding.share, model.behind.rounding.share) == (0, 0)


def test_a_calibrated_model_keeps_its_rounding(tmp_path):
    model, x = make("gru")
    torch.testing.assert_close(with_thresholds(model, [(0.0, 0.0)])(x)[0], model.eval()(x)[0])
    train("adding", "gru", out=tmp_path / "run", settings={**RUN, "weights": "int8"})
    with pytest.warns(EdgernnWarning, match="execute 0 % of the multiply-adds"):
        calibrate(tmp_path / "run", loss=50.0)
    assert Session(tmp_path / "run" / "model-delta.onnx").info["weights"] == "int8"


def test_both_files_of_a_published_model_have_one_metric(run, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo_entry, "Settings", functools.partial(Settings, rounds=1, warmup=0, block_ms=1))
    entry = zoo_entry.add_model(run, folder=tmp_path / "zoo")
    assert {file["weights"] for file in entry["files"].values()} == {"float32", "int8"}
    assert {file["mse"] for file in entry["files"].values()} == {entry["value"]}


def test_what_does_not_go_together_is_refused(tmp_path):
    with pytest.raises(UsageError, match="weights: expected float32 with density"):
        edgernn.SequenceModel("gru", 3, 33, density=0.5, weights="int8")
    with pytest.raises(UsageError, match="weights: expected 'float32' or 'bfloat16' or 'int8', got 'int4'"):
        train("adding", "gru", out=tmp_path / "run", settings={"weights": "int4"})
    with pytest.raises(UsageError, match="weights: the network of the task sentence-vae has no such setting"):
        train("sentence-vae", "lstm", out=tmp_path / "run", settings={"weights": "int8"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("block", [None, "linear", "gated"])
@pytest.mark.parametrize(("trained", "weights"), list(product(["int8", "bfloat16"], ["float32", "int8", "bfloat16"])))
def test_a_rounded_copy_rounds_nothing(block, trained, weights):
    model, x = make("gru", trained, block=block, layers=2)
    copy = rounded_copy(model.eval(), weights)
    plain = edgernn.SequenceModel(dataclasses.replace(model.config, weights="float32")).eval()
    plain.load_state_dict(copy.state_dict())
    torch.testing.assert_close(copy(x)[0], plain(x)[0], rtol=0, atol=0)
    # the model itself still rounds
    assert model.rounding.weights == trained
