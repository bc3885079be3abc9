# SPDX-License-Identifier: Apache-2.0
"""Calibration of files that take one step a call, whose states the data leave out, or with layers in an If."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.runtime import Session
from edgernn.runtime.graph_states import pair_states
from edgernn.runtime.library import library_path
from edgernn.runtime.open_model import open_session
from edgernn.runtime.wav import read_wav, write_wav
from edgernn.runtime.weights import PACKED_MAGIC
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.calibrated_graph import open_graph
from tests.test_step_graph import Net, normal
from tests.test_stream_files import branching, model, weights_of

T, B, I, H = 40, 2, 3, 4


def one_step():
    """Make a model of a step of an LSTM, whose packed state (2, B, H) is an input and an output, with two outputs."""
    nodes = [
        *(helper.make_node("Gather", ["state", f"place{k}"], [f"{n}0"], axis=0) for k, n in enumerate("hc")),
        *(helper.make_node("Unsqueeze", [f"{n}0", "zero"], [f"{n}1"]) for n in "hc"),
        helper.make_node("LSTM", ["X", "W", "R", "B", "", "h1", "c1"], ["", "h2", "c2"], "rnn", hidden_size=H),
        helper.make_node("Concat", ["h2", "c2"], ["state_out"], axis=0),
        helper.make_node("Squeeze", ["h2", "zero"], ["h3"]),
        helper.make_node("Sigmoid", ["h3"], ["y"]),
        helper.make_node("MatMul", ["h3", "V"], ["z"]),
    ]
    constants = {
        "place0": np.array(0),
        "place1": np.array(1),
        "zero": np.array([0]),
        "V": np.eye(H, 2, dtype=np.float32),
    }
    ends = [("X", [1, "B", I]), ("state", [2, "B", H])], [("y", ["B", H]), ("z", ["B", 2]), ("state_out", [2, "B", H])]
    return model(nodes, weights_of("LSTM") | constants, *ends)


def calls(steps=T):
    return (0.2 * np.random.default_rng(1).standard_normal((steps, 1, B, I))).cumsum(0).astype(np.float32)


def store(folder, proto, **arrays):
    np.savez(folder / "m.npz", **arrays)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx", folder / "m.npz"


def run_calls(content, x, library, batch=B):
    """Run a file call by call from zeros; return the outputs y and z of all calls."""
    session = open_session("m.onnx", content, library, 1)
    names = [o.name for o in session.get_outputs()]
    following = {v.name: f"{v.name}.next" for v in session.get_inputs()} | {"state": "state_out"}
    states = {
        value.name: np.zeros([n if isinstance(n, int) else batch for n in value.shape], np.float32)
        for value in session.get_inputs()
        if following[value.name] in names
    }
    results = []
    for x_t in x:
        values = dict(zip(names, session.run(names, {"X": x_t, **states}), strict=True))
        states = {name: values[following[name]] for name in states}
        results.append(values)
    return {name: np.stack([r[name] for r in results]) for name in ("y", "z")}


@pytest.mark.parametrize("native", [True, False], ids=["native", "portable"])
def test_a_file_of_one_step_a_call_is_calibrated_on_calls(native, tmp_path):
    proto, x = one_step(), calls()
    path, npz = store(tmp_path, proto, X=x)
    result = calibrate_file(path, npz, loss=10.0)
    assert result["states"] == ["rnn.rule_x", "rnn.rule_h", "rnn.rule_age", "rnn.rule_p"]
    assert result["chosen"]["executed"] < 0.9
    expected = run_calls(proto.SerializeToString(), x, None)
    got = run_calls((tmp_path / "m-delta.onnx").read_bytes(), x, library_path() if native else None)
    changes = [np.linalg.norm(got[name] - y) / np.linalg.norm(y) for name, y in expected.items()]
    # the largest change of the two outputs, each over all calls
    assert max(changes) == pytest.approx(result["chosen"]["value"], rel=1e-3)
    assert max(changes) <= 0.1


def test_a_state_that_the_data_give_is_an_input_like_others(tmp_path):
    """Each call starts from the state in the data, so that one call does not change the next."""
    state = np.random.default_rng(2).uniform(-0.5, 0.5, (T, 2, B, H)).astype(np.float32)
    proto = one_step()
    # the name that a state has in files of edgernn
    proto.graph.output[2].name = proto.graph.node[5].output[0] = "state.next"
    path, npz = store(tmp_path, proto, X=calls(), state=state)
    result = calibrate_file(path, npz, loss=10.0)
    assert result["layers"][0]["name"] == "rnn"
    assert result["metric"] == "relative change of the outputs"


def test_calls_of_different_number_are_refused(tmp_path):
    path, npz = store(tmp_path, one_step(), X=calls(), state=np.zeros((3, 2, B, H), np.float32))
    with pytest.raises(EdgernnError, match="expected the same number of calls in each array, got 40 in X, 3 in state"):
        calibrate_file(path, npz)


def test_a_layer_in_the_body_of_an_if_is_calibrated_for_the_numbers_of_the_data(tmp_path):
    proto = branching(8000)
    path, npz = store(tmp_path, proto, X=calls()[:, 0], rate=np.array(16000))
    result = calibrate_file(path, npz, loss=10.0)
    assert result["fixed"] == ["rate"]
    assert result["layers"][0]["hidden_size"] == H
    y = open_session("m.onnx", proto.SerializeToString(), None, 1).run(
        None, {"X": calls()[:, 0], "rate": np.array(16000)}
    )
    content = (tmp_path / "m-delta.onnx").read_bytes()
    session = open_session("m.onnx", content, library_path(), 1)
    assert session.get_inputs()[0].shape == ["T", "B", I]
    (new, *_) = session.run(["Y"], {"X": calls()[:, 0]})
    assert np.linalg.norm(new - y[0]) / np.linalg.norm(y[0]) == pytest.approx(result["chosen"]["value"], rel=1e-3)


def test_a_folder_of_recordings_is_read_in_frames(tmp_path, capsys):
    """A frame has I samples, of which the first one is the last of the frame before; a recording starts at zeros."""
    rng = np.random.default_rng(4)
    for name in ("a", "b"):
        write_wav(tmp_path / f"{name}.wav", (0.02 * rng.standard_normal(81)).cumsum().astype(np.float32), 8000)
    proto = one_step()
    path, _ = store(tmp_path, proto)
    words = ["calibrate", str(path), "--data", str(tmp_path), "--loss", "10"]
    assert main([*words, "--json"]) == 2
    assert "--frames RATE,LENGTH,HOP" in capsys.readouterr().err
    assert main([*words, "--frames", "8000,3,4"]) == 2
    assert "with a hop of at most the length" in capsys.readouterr().err
    assert main([*words, "--frames", "8000,3,2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    expected, got = [], []
    for name in ("a", "b"):
        samples = np.concatenate([[0], read_wav(tmp_path / f"{name}.wav", 8000) / np.float32(2**15)]).astype(np.float32)
        x = np.stack([samples[i : i + I] for i in range(0, 80, 2)])[:, None, None]
        expected.append(run_calls(proto.SerializeToString(), x, None, batch=1)["z"])
        got.append(run_calls((tmp_path / "m-delta.onnx").read_bytes(), x, library_path(), batch=1)["z"])
    change = np.linalg.norm(np.subtract(got, expected)) / np.linalg.norm(expected)
    assert change == pytest.approx(result["chosen"]["value"], rel=1e-3)


def linear_maps(kind):
    """Make a model of a step, or of T steps, with linear maps or 1×1 convolutions around a GRU."""
    axes = ["B", "T"] if kind == "steps" else [1, 1]
    net = Net(x=[*axes, 12], h=[1, axes[0], 16])
    x = net("Relu", net("Add", net("MatMul", "x", normal(12, 24)), normal(24)))
    weights = [0.3 * normal(1, 48, width) for width in (24, 16)]
    time_major = net("Transpose", x, perm=[1, 0, 2])
    y, h = net("GRU", time_major, *weights, normal(1, 96), "", "h", outputs=2, hidden_size=16, linear_before_reset=1)
    y = net("Squeeze", y, np.array([1]))
    if kind == "conv":
        y = net("Relu", net("Conv", net("Transpose", y, perm=[1, 2, 0]), normal(20, 16, 1), normal(20)))
        y = net("Conv", y, normal(3, 20, 1))
    elif kind == "gemm":
        y = net("Gemm", net("Reshape", y, np.array([1, 16])), normal(3, 16), normal(3), transB=1)
    else:
        y = net("MatMul", y, normal(16, 3))
    return net.model(y, h=h)


def run_linear(content, x, library):
    """Run a file call by call from zeros, and return its first output and the multiply-adds of its layers."""
    session = open_session("m.onnx", content, library, 1)
    pairs = {
        s.input: s.output for s in pair_states(onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).graph)
    }
    states = {
        v.name: np.zeros([n if isinstance(n, int) else x.shape[1] for n in v.shape], np.float32)
        for v in session.get_inputs()
        if v.name in pairs
    }
    names, y, macs = [v.name for v in session.get_outputs()], [], 0
    for x_t in x:
        values = dict(zip(names, session.run(names, {"x": x_t, **states}), strict=True))
        states = {name: values[following] for name, following in pairs.items()}
        y.append(values[names[0]])
        macs += sum(int(value.sum()) for name, value in values.items() if name.endswith(".macs"))
    return np.stack(y), macs


@pytest.mark.parametrize("kind", ["gemm", "conv", "steps"])
def test_linear_maps_read_only_what_moved(kind, tmp_path):
    proto = linear_maps(kind)
    shape = (4, 2, 10, 12) if kind == "steps" else (40, 1, 1, 12)
    x = 0.1 * np.random.default_rng(1).standard_normal(shape).cumsum(0).astype(np.float32)
    path, _ = store(tmp_path, proto, x=x)
    graph = open_graph(path, lambda: {"x": x}, linear=True)
    assert [layer.macs for layer in graph.nodes] == [48 * 40, 12 * 24, *([16 * 20, 60] if kind == "conv" else [48])]
    expected, _ = run_linear(path.read_bytes(), x, None)
    for library in (None, library_path()):
        y, _ = run_linear(graph.with_delta([(0.0, 0.0)] * len(graph.nodes), True).SerializeToString(), x, library)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
    thresholds = [(0.1, 0.05)] * len(graph.nodes)
    content = graph.with_delta(thresholds, True).SerializeToString()
    (y, macs), (portable, dense) = (run_linear(content, x, library) for library in (library_path(), None))
    np.testing.assert_allclose(y, portable, rtol=0, atol=1e-5)
    steps = x.size // 12
    assert macs < 0.8 * dense == 0.8 * steps * sum(layer.macs for layer in graph.nodes)
    assert np.abs(y - expected).max() > 1e-3
    (tmp_path / "delta.onnx").write_bytes(graph.with_delta(thresholds, False).SerializeToString())
    if kind != "steps":
        session = Session(tmp_path / "delta.onnx")
        np.testing.assert_allclose(session.run(x[:, 0, 0]).reshape(y.shape), y, rtol=0, atol=1e-5)
        assert session.macs == [macs]


def test_the_command_gives_linear_maps_thresholds_of_x(tmp_path, capsys):
    x = 0.1 * np.random.default_rng(1).standard_normal((20, 1, 1, 12)).cumsum(0).astype(np.float32)
    path, npz = store(tmp_path, linear_maps("gemm"), x=x)
    assert main(["calibrate", str(path), "--data", str(npz), "--loss", "5", "--linear", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [layer["cell"] for layer in result["layers"]] == ["gru", "linear", "linear"]
    assert [layer["theta_h"] > 0 for layer in result["layers"]] == [True, False, False]
    assert min(layer["theta_x"] for layer in result["layers"]) > 0
    (tmp_path / "m.edgernn").write_bytes(PACKED_MAGIC)
    assert main(["calibrate", str(tmp_path / "m.edgernn"), "--linear"]) == 1
    assert "expected an ONNX file, got a packed model" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path), "--linear"]) == 2
    assert "--linear: expected only with an ONNX file" in capsys.readouterr().err
    assert result["chosen"]["executed"] < 0.9
