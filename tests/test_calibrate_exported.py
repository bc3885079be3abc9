# SPDX-License-Identifier: Apache-2.0
"""Calibration of files that edgernn exported: what the new file computes, counts and says, and refusals."""

import json

import numpy as np
import onnx
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.export import graph, to_onnx
from edgernn.runtime import Session, library_path
from edgernn.runtime.open_model import open_session
from edgernn.runtime.packed import pack
from edgernn.runtime.weights import Weights
from edgernn.training.calibration import calibrate
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.calibrated_graph import open_graph
from tests import oracle
from tests.models import contractive, exported
from tests.test_packed import steps
from tests.tolerances import FLOAT32

AUDIO = {"frontend": "logmel", "normalise": "pcen", "sample_rate": 8000, "hop": 160, "window_size": 256, "bands": 16}
WORDS = {"vocabulary": 11, "input_size": 8, "output_size": 11, "layers": 2, "last_size": 8, "tied": True}
CASES = {
    "gru": ("gru", {"layers": 2}),
    "mean and std": ("gru", {"layers": 2, "mean": 0.5, "std": 2.0}),
    "two directions": ("lstm", {"layers": 2, "bidirectional": True, "output": "all"}),
    "blocks": ("lstm", {"layers": 2, "block": "gated", "last_size": 17, "output": "all"}),
    "audio": ("gru", AUDIO | {"input_size": 160, "output": "all"}),
    "words": ("gru", WORDS | {"output": "all"}),
    "equations as data": ("mingru", {"layers": 2}),
    "last input": ("t-lstm", {"layers": 2}),
    "imputer": ("gru-d", {}),
    "sparse": ("gru", {"density": 0.5}),
}
# a mean and a standard deviation are further nodes of the plain model
every_case = pytest.mark.parametrize("case", [case for case in CASES if case != "gru"])
T, N = 40, 6


def model_of(case):
    cell, options = CASES[case]
    return exported(cell, **options)


def inputs(session, steps=T, count=N, seed=1):
    """Return x (N, T, ...) that moves slowly, as sensors do."""
    rng = np.random.default_rng(seed)
    if session.vocabulary is not None:
        return rng.integers(0, session.vocabulary, (count, steps))
    if session.info["model"]["frontend"]["name"] is not None:
        return (0.1 * rng.standard_normal((count, steps, *session.channels))).astype(np.float32)
    return (0.1 * rng.standard_normal((count, steps, *session.channels))).cumsum(1).astype(np.float32)


def store(tmp_path, **arrays):
    np.savez(tmp_path / "data.npz", **arrays)
    return tmp_path / "data.npz"


def with_thresholds(path, tmp_path, *pairs):
    """Give a file the rule delta with thresholds for each layer; return the path of the new file."""
    layers = open_graph(path)
    thresholds = [*pairs] if len(pairs) > 1 else [*pairs] * len(layers.nodes)
    proto = layers.final(thresholds, {"metric": "accuracy"})
    onnx.checker.check_model(proto, full_check=True)
    out = tmp_path / "delta.onnx"
    onnx.save(proto, out)
    return out


def in_onnx_runtime(path, x, library):
    """Run a file in ONNX Runtime without a Session; return y and the next states."""
    info = Session(path, backend="portable").info
    session = open_session(path, path.read_bytes(), library, 1)
    feeds = {"x": x}
    for value in session.get_inputs()[1:]:
        start = info["initial_state"].get(value.name, 0)
        feeds[value.name] = np.full((x.shape[1], value.shape[1]), start, np.float32)
    names = [value.name for value in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, feeds), strict=True))
    return {name: value for name, value in outputs.items() if name not in ("updates", "macs")}


@every_case
@pytest.mark.slow
def test_with_thresholds_of_zero_the_file_computes_the_original(case, tmp_path):
    _, path = model_of(case)
    delta = with_thresholds(path, tmp_path, (0.0, 0.0))
    session = Session(delta, backend="native")
    x = inputs(session).swapaxes(0, 1)
    for library in (None, library_path()):
        expected, got = in_onnx_runtime(path, x, library), in_onnx_runtime(delta, x, library)
        assert expected.keys() <= got.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=0, atol=FLOAT32, err_msg=name)
    y = Session(path, backend="portable").run(x)
    for backend in ("portable", "native"):
        np.testing.assert_allclose(Session(delta, backend=backend).run(x), y, rtol=0, atol=FLOAT32)
    if session.info["streaming"]:
        steps = [session.step(x_t) for x_t in x]
        last = session.info["model"]["head"]["output"] == "last"
        np.testing.assert_allclose(steps[-1] if last else np.stack(steps), y, rtol=0, atol=FLOAT32)


@every_case
def test_the_file_is_the_export_of_a_model_with_these_thresholds(case, tmp_path):
    """Graph, weights, functions and metadata, with thresholds for each layer."""
    model, path = model_of(case)
    thresholds = [(0.1 + 0.1 * i, 0.05 + 0.02 * i) for i in range(len(model.layers))]
    got = onnx.load(with_thresholds(path, tmp_path, *thresholds))
    expected = graph.build(calibrate.with_thresholds(model, thresholds))
    for values in ("input", "output"):
        assert [v.SerializeToString() for v in getattr(got.graph, values)] == [
            v.SerializeToString() for v in getattr(expected.graph, values)
        ]
    for part in ("initializer", "node"):
        ours, theirs = ({one.name: one for one in getattr(proto.graph, part)} for proto in (got, expected))
        assert ours == theirs
    assert list(got.functions) == list(expected.functions)
    assert (got.ir_version, list(got.opset_import)) == (expected.ir_version, list(expected.opset_import))
    info, wanted = (json.loads(proto.metadata_props[0].value) for proto in (got, expected))
    assert info.pop("calibration") == {"metric": "accuracy"}
    assert info == wanted
    rule = info["model"]["layer"]["rule"]
    options = [dict(zip(("theta_x", "theta_h"), pair, strict=True)) for pair in thresholds]
    assert rule == {"name": "delta", "options": {}, "layers": []} | (
        {"layers": options} if len(options) > 1 else {"options": options[0]}
    )


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_stored_types_stay(weights, tmp_path):
    path = tmp_path / "m.onnx"
    to_onnx(contractive("gru", layers=2, output="all"), path, weights=weights)
    delta = with_thresholds(path, tmp_path, (0.0, 0.0))
    x = inputs(Session(path)).swapaxes(0, 1)
    for backend, tolerance in (("portable", FLOAT32), ("native", 1e-3 if weights == "int8" else FLOAT32)):
        expected = Session(path, backend=backend).run(x)
        np.testing.assert_allclose(Session(delta, backend=backend).run(x), expected, rtol=0, atol=tolerance)
    before, after = (Weights(onnx.load(file), file) for file in (path, delta))
    for name in before:
        assert after[name].values.dtype == before[name].values.dtype
        np.testing.assert_array_equal(after[name].values, before[name].values)
    result = calibrate_file(path, store(tmp_path, x=x.swapaxes(0, 1)), loss=5.0)
    assert result["chosen"]["executed"] < 0.9


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_outputs_and_counts_are_those_of_the_oracle(cell, tmp_path):
    """Two layers with thresholds of their own, against the equations of the paper in float64."""
    model, path = exported(cell, layers=2, output="all", output_size=None)
    thresholds = [(0.11, 0.043), (0.027, 0.019)]
    session = Session(with_thresholds(path, tmp_path, *thresholds), backend="native")
    x = inputs(session).swapaxes(0, 1)
    y, macs, updates = x, 0, 0
    for i, (layer, (theta_x, theta_h)) in enumerate(zip(model.recurrent_layers(), thresholds, strict=True)):
        parameters = {name: weight.detach().numpy() for name, weight in layer.cell.named_parameters()}
        parameters |= {"rule_theta_x": np.array([theta_x]), "rule_theta_h": np.array([theta_h])}
        state = [np.zeros((N, layer.cell.hidden_size)) for _ in layer.cell.states]
        result = oracle.run(cell, "delta", parameters, y, state)
        assert result.margin > 1e-7, i
        y, macs, updates = result.y, macs + result.macs, updates + result.updates
    np.testing.assert_allclose(session.run(x), y, rtol=0, atol=FLOAT32)
    np.testing.assert_array_equal(session.macs, macs)
    np.testing.assert_array_equal(session.updates, updates)
    assert session.macs.max() < 0.9 * T * session.info["macs"]


def test_new_thresholds_replace_those_of_a_file_with_the_rule(tmp_path):
    _, path = exported("gru", layers=2)
    once = with_thresholds(path, tmp_path, (0.3, 0.2), (0.1, 0.1)).rename(tmp_path / "once.onnx")
    x = inputs(Session(once)).swapaxes(0, 1)
    assert np.abs(Session(once).run(x) - Session(path).run(x)).max() > 1e-3
    twice = with_thresholds(once, tmp_path, (0.0, 0.0))
    np.testing.assert_allclose(Session(twice).run(x), Session(path).run(x), rtol=0, atol=FLOAT32)
    # the loss is that from thresholds of 0, and the same thresholds are found
    npz = store(tmp_path, x=x.swapaxes(0, 1))
    first, second = (calibrate_file(file, npz, tmp_path / f"{file.stem}-new.onnx", loss=5.0) for file in (path, once))
    for layer, other in zip(first["layers"], second["layers"], strict=True):
        for theta in ("theta_x", "theta_h"):
            assert layer[theta] == pytest.approx(other[theta], rel=1e-4)
    assert first["chosen"]["executed"] == pytest.approx(second["chosen"]["executed"], rel=1e-3)
    assert second["states"] == []


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Return the file of a classifier of slow sequences, and the class that it gives to each of 400 sequences."""
    path = tmp_path_factory.mktemp("classifier") / "model.onnx"
    to_onnx(contractive("gru", layers=2, output_size=3), path)
    x = inputs(Session(path), count=400)
    return path, x, Session(path).run(x.swapaxes(0, 1)).argmax(-1)


def test_the_metric_moves_no_more_than_asked(classifier, tmp_path):
    path, x, labels = classifier
    rng = np.random.default_rng(0)
    # some labels that the model does not give
    labels = np.where(rng.random(len(labels)) < 0.1, rng.integers(0, 3, len(labels)), labels)
    result = calibrate_file(path, store(tmp_path, x=x[:200], y=labels[:200]), tmp_path / "m.onnx", loss=5.0)
    assert result["metric"] == "accuracy"
    assert result["chosen"]["value"] >= result["dense"] - 0.05
    assert result["chosen"]["executed"] < 0.7
    # on sequences that the calibration has not seen, with 2 standard errors
    held = {}
    for file in (path, result["model"]):
        held[file] = Session(file).run(x[200:].swapaxes(0, 1)).argmax(-1) == labels[200:]
    difference = held[path].astype(float) - held[result["model"]]
    assert difference.mean() <= 0.05 + 2 * difference.std() / len(difference) ** 0.5
    info = Session(result["model"]).info
    assert info["calibration"] == {
        "metric": "accuracy",
        "dense": result["dense"],
        "value": result["chosen"]["value"],
        "executed": result["chosen"]["executed"],
    }
    weights = Weights(onnx.load(result["model"]), path)
    for layer in result["layers"]:
        for key in ("theta_x", "theta_h"):
            assert weights[f"{layer['name']}.rule_{key}"].values == pytest.approx([layer[key]])


def test_the_change_of_the_outputs_is_measured_without_labels_or_with_the_outputs(classifier, tmp_path):
    path, x, _ = classifier
    y = Session(path).run(x.swapaxes(0, 1))
    results = [calibrate_file(path, store(tmp_path, x=x[:50]), tmp_path / "m.onnx", loss=5.0)]
    results.append(calibrate_file(path, store(tmp_path, x=x[:50], y=y[:50]), tmp_path / "m.onnx", loss=5.0))
    assert results[0] == results[1]
    assert results[0]["metric"] == "relative change of the outputs"
    for backend in ("native", "portable"):
        change = Session(results[0]["model"], backend=backend).run(x[:50].swapaxes(0, 1)) - y[:50]
        assert np.sqrt(np.square(change).mean() / np.square(y[:50]).mean()) <= 0.05
    # the multiply-adds of the file that was written
    session = Session(results[0]["model"], backend="native")
    session.run(x[:50].swapaxes(0, 1))
    assert session.macs.sum() / (50 * T * session.info["macs"]) == pytest.approx(results[0]["chosen"]["executed"])
    shifted = calibrate_file(path, store(tmp_path, x=x[:50], y=y[:50] + 0.1), tmp_path / "m.onnx", loss=50.0)
    assert shifted["metric"] == "mse"


def test_labels_of_all_steps_have_the_axes_of_x(tmp_path):
    _, path = model_of("two directions")
    x = inputs(Session(path))
    labels = Session(path).run(x.swapaxes(0, 1)).argmax(-1).T
    assert labels.shape == (N, T)
    result = calibrate_file(path, store(tmp_path, x=x, y=labels), tmp_path / "m.onnx", loss=5.0)
    assert result["dense"] == 1.0
    with pytest.raises(EdgernnError, match=r"y: expected integer classes of shape \(6, 40\) or float targets of shape"):
        calibrate_file(path, store(tmp_path, x=x, y=labels.T), tmp_path / "m.onnx", loss=5.0)


def test_commands_run_the_file(classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, x, _ = classifier
    npz = store(tmp_path, x=x[:20])
    assert main(["calibrate", str(path), "--data", str(npz), "--loss", "10", "--out", "m.onnx"]) == 0
    out = capsys.readouterr().out
    assert "layer1: gru (33, 33), theta_x" in out
    assert main(["run", "m.onnx", "--input", str(npz), "--output", "y.npz"]) == 0
    assert main(["bench", "m.onnx", "--device", "cpu", "--rounds", "1"]) == 0
    assert main(["pack", "m.onnx"]) == 0
    expected = np.load("y.npz")["y"]
    y, _, _ = steps((tmp_path / "m.edgernn").read_bytes(), x[:20].swapaxes(0, 1))
    np.testing.assert_allclose(y[-1], expected, rtol=0, atol=FLOAT32)
    assert main(["pack", "m.onnx", "--target", "c"]) == 0


def test_the_audio_front_end_stays(tmp_path):
    _, path = model_of("audio")
    x = inputs(Session(path))
    result = calibrate_file(path, store(tmp_path, x=x), tmp_path / "m.onnx", loss=5.0)
    before, after = onnx.load(path), onnx.load(result["model"])
    kept = [node for node in before.graph.node if node.name.startswith("frontend.")]
    assert kept
    assert [node for node in after.graph.node if node.name.startswith("frontend.")] == kept
    assert pack(after.SerializeToString(), tmp_path / "m.onnx")


@pytest.mark.slow
def test_missing_values_of_an_imputer_may_be_nan(tmp_path):
    _, path = model_of("imputer")
    x = inputs(Session(path))
    masks = np.random.default_rng(3).random((N, T, 1)) < 0.7
    x = np.concatenate([np.where(masks, x[..., :1], np.nan), masks, np.ones_like(x[..., :1])], -1)
    result = calibrate_file(path, store(tmp_path, x=x.astype(np.float32)), tmp_path / "m.onnx", loss=5.0)
    assert result["chosen"]["executed"] < 1


def test_torch_models_keep_their_random_numbers():
    _, path = exported("gru", layers=2)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    open_graph(path)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
