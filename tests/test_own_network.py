# SPDX-License-Identifier: Apache-2.0
"""Networks of one's own as FILE.py:CLASS, from training to a running file, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.costs import executed_macs
from edgernn.errors import CodeError, EdgernnError, EdgernnWarning, UsageError
from edgernn.export.own_network import export_own_network
from edgernn.export.run import export_run
from edgernn.layer import RecurrentLayer
from edgernn.npz import read_npz
from edgernn.rules import Delta
from edgernn.runtime import NetworkSession, Session
from edgernn.runtime.wav import write_wav
from edgernn.store import load_any, load_model
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate
from edgernn.training.sweep.plan import load_sweep
from tests.firmware import step_in_c
from tests.layers import oracle_run
from tests.training_helpers import Stop, snapshot, without_pictures

HEAD = """
import torch
from torch import nn
from edgernn.nn import CausalConv1d, Recurrent

class Net(nn.Module):
    def __init__(self, input_size: int, output_size: int, hidden: int = 8, cell: str = "sarnn"):
        super().__init__()
        self.conv = CausalConv1d(input_size, 6, 3)
        self.rnn = Recurrent(cell, 6, hidden)
        self.head = nn.Linear(hidden, output_size)
"""
STREAM = (
    HEAD
    + """
    def forward(self, x, state=None):
        c, h = state or (None, None)
        y, c = self.conv(x.permute(1, 2, 0), c)
        y, h = self.rnn(y.permute(2, 0, 1).relu(), h)
        return self.head(y[-1]), (c, h)
"""
)
# a layer that runs at every third step
HELD = """
import torch
from torch import nn
from edgernn.nn import Conditional, Recurrent


class Net(nn.Module):
    def __init__(self, input_size: int = 1, output_size: int = 2) -> None:
        super().__init__()
        self.fast, self.slow = Recurrent("gru", input_size, 4), Conditional(nn.GRU(4, 5), 4, 5, period=3)
        self.head = nn.Linear(9, output_size)

    def forward(self, x, state=None):
        first, second = state or (None, None)
        y, first = self.fast(x, first)
        z, second = self.slow(y, second)
        return self.head(torch.cat([y, z], -1)[-1]), (first, second)
"""
# states that start with other numbers than 0
START = (
    STREAM.replace('"sarnn"', '"skiprnn"')
    + """
    def initial_state(self, batch, like):
        return self.conv.initial_state(batch, like), self.rnn.initial_state(batch, like)
"""
)
# an output at every step, after a second layer that cannot skip
STEPS = (
    STREAM.replace("self.head(y[-1]), (c, h)", "self.head(y), (c, h, d)")
    .replace("c, h = state or (None, None)", "c, h, d = state or (None, None, None)")
    .replace("relu(), h)\n", "relu(), h)\n        y, d = self.gru(y, d)\n")
    .replace("        self.head =", "        self.gru = nn.GRU(hidden, hidden)\n        self.head =")
)
# attention over the steps of a recurrent layer that has half of them, and a layer of torch
POOL = """
import torch
from torch import nn
from edgernn.nn import Recurrent

class Net(nn.Module):
    def __init__(self, input_size: int, output_size: int, hidden: int = 8):
        super().__init__()
        self.conv = nn.Conv1d(input_size, 6, 3, stride=2)
        self.rnn = Recurrent("skiprnn", 6, hidden)
        self.gru = nn.GRU(hidden, hidden, bidirectional=True)
        self.score, self.head = nn.Linear(2 * hidden, 1), nn.Linear(2 * hidden, output_size)

    def forward(self, x):
        y = self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)
        y, _ = self.gru(self.rnn(y)[0])
        return self.head((self.score(y).softmax(0) * y).sum(0))
"""
# three steps do not reach a wanted share
pytestmark = pytest.mark.filterwarnings("ignore:(skip|loss). :edgernn.errors.EdgernnWarning")
SETTINGS = {"steps": 3, "eval_every": 2, "checkpoint_every": 1, "batch_size": 8}
WORDS = [f"{name}={value}" for name, value in SETTINGS.items()]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)
    random = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = np.sin(np.arange(14) * (0.2 + 0.3 * y[:, None]))[..., None] + 0.1 * random.standard_normal((60, 14, 2))
    classes = np.array(["low", "middle", "high"])
    np.savez("mine.npz", x=x.astype(np.float32), y=y, classes=classes)
    np.savez("steps.npz", x=x.astype(np.float32), y=np.repeat(y[:, None], 14, 1))


def trained(text, task="mine.npz", **settings):
    """Train the network Net of a file with this text for three steps, and return it."""
    Path("my_net.py").write_text(text)
    train(task, network="my_net.py:Net", out="run", settings={**SETTINGS, **settings})
    return load_any(Path("run"), allow_code=True)[0]


def test_a_part_that_runs_at_some_steps_is_trained_and_counted_in_files():
    model = trained(HELD)
    export_run(Path("run"))
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)[:, :3]
    with torch.no_grad():
        expected = model(torch.from_numpy(x))[0].numpy()
    runs = (np.arange(len(x)) + 1) % 3 == 0
    for backend in ("portable", "native"):
        session = Session("run/model.onnx", backend=backend)
        np.testing.assert_allclose(session.run(x), expected, atol=1e-5)
        np.testing.assert_array_equal(session.updates, (4 + 5 * runs)[:, None].repeat(x.shape[1], 1))
        fast, slow = 3 * 4 * (x.shape[2] + 4), 3 * 5 * (4 + 5)
        np.testing.assert_array_equal(session.macs, len(x) * fast + runs.sum() * slow)
        for row in x:
            y = session.step(row)
        np.testing.assert_allclose(y, expected, atol=1e-5)
    assert executed_macs(model) == pytest.approx(fast + runs.mean() * slow)


@pytest.mark.parametrize(
    ("text", "task"), [(START, "mine.npz"), (STEPS, "steps.npz"), (POOL, "mine.npz")], ids=["stream", "steps", "pool"]
)
def test_a_network_is_trained_exported_and_run_like_torch(text, task):
    model = trained(text, task, hidden=5, skip=0.5)
    exported = export_run(Path("run"))
    assert {check["backend"] for check in exported["checks"]} == {"portable", "native"}
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)
    # another length and batch than those of the trace
    x = np.concatenate([x, x[3:]])[:, :3]
    with torch.no_grad():
        expected = model(torch.from_numpy(x))[0].numpy()
    for backend in ("portable", "native"):
        session = Session("run/model.onnx", backend=backend)
        np.testing.assert_allclose(session.run(x), expected, atol=1e-5)
        if text is POOL:
            # its layers have half the steps, which no number of updates per step of x can tell
            assert session.updates is None
            assert not session.info["streaming"]
            with pytest.raises(UsageError, match="step: expected a model that runs step by step"):
                session.step(x[0])
            continue
        rate, macs = model.update_rate, executed_macs(model)
        assert session.updates.mean() / session.neurons == pytest.approx(rate, abs=1e-6)
        assert backend == "portable" or session.macs.mean() / len(x) == pytest.approx(macs, rel=0.05)
        outputs = [session.step(x_t) for x_t in x]
        np.testing.assert_allclose(outputs if task == "steps.npz" else outputs[-1], expected, atol=1e-5)
        saved = session.save_state()
        again = Session("run/model.onnx", backend=backend)
        again.restore_state(saved)
        np.testing.assert_array_equal(again.step(x[0]), session.step(x[0]))
        other = Session("run/model.onnx", backend="native" if backend == "portable" else "portable")
        other.restore_state(session.save_state())
        np.testing.assert_allclose(other.step(x[1]), session.step(x[1]), atol=1e-5)
        np.testing.assert_array_equal(other.updates, session.updates)
        assert (text is START) == any(np.any(value) for value in session.initial_state(2).values())
    if text is STEPS:
        np.testing.assert_allclose(NetworkSession("run/model.onnx").run(x)["y"], expected, atol=1e-5)


def test_the_command_line_takes_a_network_all_the_way(capsys):
    Path("my_net.py").write_text(STREAM)
    assert main(["train", "--task", "mine.npz", "--network", "my_net.py:Net", "hidden=5", "skip=0.5", *WORDS]) == 0
    assert "next: edgernn export runs/mine-Net" in capsys.readouterr().out
    run = Path("runs/mine-Net")
    assert (run / "network.py").read_text() == STREAM
    Path("my_net.py").unlink()
    result = json.loads((run / "result.json").read_text())
    assert (result["cell"], result["rule"], result["neurons"]) == ("Net", "selective", 5)
    assert main(["train", "--resume", "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "--json"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert {name: result[name] for name in metrics} == metrics
    assert main(["export", str(run)]) == 0
    card = (run / "model.md").read_text()
    assert "| network | Net(hidden=5) |" in card
    assert "| classes of y | `low`, `middle`, `high` |" in card
    assert "`state0` (B, 4), `state1` (B, 5)" in card
    model = str(run / "model.onnx")
    capsys.readouterr()
    assert main(["run", model, "--input", "mine.npz", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert answers["shape"] == [60, 3]
    assert answers["classes"] == ["low", "middle", "high"]
    for words in (["info", model], ["info", str(run)], ["run", model], ["plot", str(run)]):
        assert main(words) == 0, words
    assert "network                Net" in capsys.readouterr().out
    assert main(["bench", model, "--rounds", "1", "--warmup", "0"]) == 0
    assert "faster than portable" in capsys.readouterr().out
    assert main(["pack", model]) == 0
    assert "1 RECURRENT" in capsys.readouterr().out
    for words, message in (
        (["calibrate", model, "--data", "mine.npz"], "name its run directory, or open it with Session"),
        (["evaluate", model], "name its run directory"),
        (["calibrate", str(run)], "expected one with the rule 'always'"),
    ):
        assert main(words) != 0
        assert re.fullmatch(f"edgernn: error: .*{message}.*\n", capsys.readouterr().err), words


def test_a_stopped_training_is_resumed_bit_for_bit():
    Path("my_net.py").write_text(STREAM)
    arguments = {"task": "mine.npz", "network": "my_net.py:Net", "settings": {**SETTINGS, "steps": 6, "skip": 0.5}}
    train(**arguments, out="whole")
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(**arguments, out="part", progress=Stop(5))
    # the run needs its own copy alone
    Path("my_net.py").write_text("raise ValueError")
    with pytest.warns(EdgernnWarning, match=r"my_net.py:Net differs from the copy in part, which the resumed run uses"):
        train(**arguments, out="part", resume=True)
    assert snapshot(Path("part")) == snapshot(Path("whole"))
    with pytest.raises(CodeError, match=r"network.py: the run's network is Python code, which is not executed"):
        load_any(Path("part"))
    Path("part/network.py").write_text(STREAM + "\n")
    with pytest.raises(EdgernnError, match=r"network.py: changed since the run began"):
        load_any(Path("part"), allow_code=True)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.slow
def test_matrices_of_all_parts_are_stored_in_a_smaller_type(weights):
    trained(STREAM, hidden=64)
    exported = export_run(Path("run"), weights=weights)
    stored = [tensor for tensor in onnx.load(exported["model"]).graph.initializer if len(tensor.dims) > 1]
    kinds = {"bfloat16": {onnx.TensorProto.BFLOAT16}, "int8": {onnx.TensorProto.INT8, onnx.TensorProto.BFLOAT16}}
    assert {tensor.data_type for tensor in stored} == kinds[weights]
    # W and R of the cell, the rule's weights, those of the convolution (6, 2 · 3) and of the head
    assert [6, 6] in [list(tensor.dims) for tensor in stored]
    assert max(check["worst"] for check in exported["checks"]) < 1e-5
    assert "| arithmetic | float32, with the rounded matrices |" in Path(exported["card"]).read_text()
    # the C code quantises the inputs of int8 matrices
    assert_c_equals_session(Path(exported["model"]), 2e-4 if weights == "int8" else 1e-5)


def assert_c_equals_session(path, tolerance):
    x = read_npz(Path("run/example.npz"), ("x",))["x"][0]
    session = Session(path)
    y = np.array([session.step(row).ravel() for row in x])
    np.testing.assert_allclose(step_in_c(path.read_bytes(), x).y, y, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_a_network_becomes_c_code_with_the_starts_of_its_states():
    trained(START, hidden=5)
    assert_c_equals_session(Path(export_run(Path("run"))["model"]), 1e-5)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_training_rounds_the_matrices_that_the_file_stores(weights):
    model = trained(STREAM, hidden=64, weights=weights)
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)
    expected, _ = model(torch.from_numpy(x))
    model.rounding.weights = "float32"
    assert not torch.equal(model(torch.from_numpy(x))[0], expected)
    # the default type is that of the training
    exported = export_run(Path("run"))
    assert exported["weights"] == weights
    np.testing.assert_allclose(Session(exported["model"]).run(x), expected.detach().numpy(), atol=1e-5)


def test_calibration_gives_every_dense_layer_thresholds_of_its_own():
    text = POOL.replace('"skiprnn"', '"gru"').replace("import torch\n", "import torch\n")
    model = trained(text)
    dense = Path("run/model.safetensors").read_bytes()
    result = calibrate(Path("run"), loss=60)
    assert [layer["cell"] for layer in result["layers"]] == ["gru", "gru", "gru"]
    assert result["layers"][0]["theta_x"] != result["layers"][1]["theta_x"]
    assert result["test"]["executed"] < 1
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)
    y = Session("run/model-delta.onnx").run(x)
    assert y.shape == model(torch.from_numpy(x))[0].shape
    assert Path("run/model.safetensors").read_bytes() == dense


# a layer of torch whose first state the network makes
FIRST = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_size: int, output_size: int, kind: str = "GRU"):
        super().__init__()
        self.kind, self.rnn, self.head = kind, getattr(nn, kind)(input_size, 4), nn.Linear(4, output_size)

    def initial_state(self, batch, like):
        h = like.new_full((1, batch, 4), 0.5)
        return (h, -h) if self.kind == "LSTM" else h

    def forward(self, x, state=None):
        y, state = self.rnn(x, state if state is not None else self.initial_state(x.shape[1], x))
        return self.head(y[-1]), state
"""


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_calibration_completes_the_first_state_of_a_network(kind):
    trained(FIRST, kind=kind)
    thresholds = calibrate(Path("run"), loss=60)["layers"][0]
    model = load_any(Path("run"), allow_code=True)[0]
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)
    session = Session("run/model-delta.onnx")
    steps = [session.step(x_t) for x_t in x]
    rule = Delta(2, 4, thresholds["theta_x"], thresholds["theta_h"])
    layer = RecurrentLayer(model.recurrent_layers()[0].cell, rule).double()
    h = torch.full((x.shape[1], 4), 0.5)
    u = (torch.from_numpy(x).double() - model.input_mean) / model.input_std
    states = oracle_run(kind.lower(), layer, u, (h, -h) if kind == "LSTM" else (h,)).y
    head = model.network.head.double()
    expected = states @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(steps, expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(session.run(x), expected[-1], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return self.head(y[-1]), (state[0], state[1])", "state: expected the same outputs in two parts"),
        (
            "h, c = state",
            "Net: forward fails: line 16: .*; the state of a layer has the tensors of the rule delta after",
        ),
    ],
)
def test_calibration_names_a_network_that_drops_the_states_of_the_rule(line, message):
    trained(FIRST.replace("return self.head(y[-1])", f"{line}\n        return self.head(y[-1])"), kind="LSTM")
    with pytest.raises(EdgernnError, match=message):
        calibrate(Path("run"), loss=60)


@pytest.mark.filterwarnings("ignore:.*trained on clips:edgernn.errors.EdgernnWarning")
def test_a_network_reads_audio_and_detects_words_in_a_recording(capsys):
    random = np.random.default_rng(0)
    for word, frequency in (("low", 300), ("high", 1200)):
        for i in range(20):
            tone = np.sin(2 * np.pi * frequency * np.arange(8000) / 16000) / 4 + random.standard_normal(8000) / 100
            path = Path("wavs", word, f"{i}.wav")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_wav(path, tone, 16000)
    Path("my_net.py").write_text(STREAM)
    settings = ["steps=40", "eval_every=20", "batch_size=16", "lr=0.01", "frontend=logmel", "hidden=16"]
    assert main(["train", "--task", "wavs", "--network", "my_net.py:Net", *settings]) == 0
    assert main(["export", "runs/wavs-Net"]) == 0
    recording = np.concatenate([random.standard_normal(8000) / 100, tone, random.standard_normal(8000) / 100])
    write_wav(Path("room.wav"), recording, 16000)
    model = load_any(Path("runs/wavs-Net"), allow_code=True)[0]
    # the front end is a part of the file, and keeps its samples from step to step
    x = torch.from_numpy(recording).float().view(-1, 1, model.input_size)
    with torch.no_grad():
        expected, _ = model(x)
    session = Session("runs/wavs-Net/model.onnx")
    np.testing.assert_allclose([session.step(x_t) for x_t in x.numpy()][-1], expected, atol=1e-4)
    capsys.readouterr()
    words = ["run", "runs/wavs-Net/model.onnx", "--stream", "room.wav", "--threshold", "0.4", "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["skip_percent"] > 0
    assert result["frontend_macs_a_second"] > 0
    assert {word["word"] for word in result["detections"]} <= {"low", "high"}


def test_a_sweep_varies_the_settings_of_a_network():
    Path("my_net.py").write_text(STREAM)
    lines = ['task = "mine.npz"', 'cells = ["my_net.py:Net"]', "seeds = 1", "[settings]", "steps = 3"]
    Path("sweep.toml").write_text("\n".join([*lines, "[vary]", "hidden = [4, 8]"]))
    with pytest.raises(CodeError, match=r"my_net.py:Net is Python code, which is not executed"):
        load_sweep(Path("sweep.toml"), Path("out"))
    rows = load_sweep(Path("sweep.toml"), Path("out"), allow_code=True).rows
    assert [(row.cell, row.settings) for row in rows] == [("Net", {"hidden": 4}), ("Net", {"hidden": 8})]
    Path("sweep.toml").write_text("\n".join([*lines, "[vary]", "hiden = [4, 8]"]))
    with pytest.raises(UsageError, match=r"unknown setting 'hiden'.*the network Net takes hidden, cell"):
        load_sweep(Path("sweep.toml"), Path("out"), allow_code=True)


CELL = "from edgernn import Cell, Gate\nclass Net(Cell):\n    name, gates = 'mine', (Gate('n'),)\n"
PLAIN = HEAD + "\n    def forward(self, x):\n        "
WRONG = {
    "file missing": (None, [], 2, "no such file: my_net.py; expected FILE.py:CLASS"),
    "class missing": (STREAM.replace("Net(", "Nets("), [], 2, "unknown class 'Net': did you mean 'Nets'"),
    "no network": ("Net = 3", [], 2, "Net: expected a subclass of torch.nn.Module in this file, got something else"),
    "cell": (CELL, [], 2, "Net: expected a network, got a cell; name it with --cell"),
    "misspelt": (STREAM, ["hiden=4"], 2, "unknown setting 'hiden': did you mean 'hidden'.* takes hidden, cell"),
    "type": (STREAM, ["hidden=x"], 2, "hidden: expected a whole number, got 'x'"),
    "range": (STREAM, ["hidden=0"], 2, "hidden_size: expected a whole number of at least 1, got 0"),
    "no value": (STREAM.replace("hidden: int = 8", "hidden: int"), [], 2, "hidden: expected a value"),
    "no annotation": (STREAM.replace("hidden: int", "hidden"), ["hidden=4"], 2, "unknown setting 'hidden'"),
    "rule": (STREAM, ["--rule", "skip"], 2, "rule: expected none with the network Net"),
    "cell too": (STREAM, ["--cell", "gru"], 2, "--network: expected no --cell beside it"),
    "dense": (
        STREAM,
        ["cell=gru", "skip=0.5"],
        2,
        "skip: expected an update rule with a penalty on updates, got always",
    ),
    "constructor": (
        STREAM.replace("self.head = ", "self.head = 1 / 0 + "),
        [],
        1,
        "constructor fails: line 11: ZeroDiv",
    ),
    "forward": (PLAIN + "return self.head(x)", [], 1, "Net: forward fails: line 14: RuntimeError: mat1"),
    "shape": (
        PLAIN + "return self.head(self.rnn(self.conv(x.permute(1, 2, 0))[0].permute(2, 0, 1))[0])",
        [],
        2,
        r"Net: forward: expected y of shape \(B, O\) = \(2, 3\), got \(14, 2, 3\); return one output",
    ),
    "no gradient": (
        PLAIN.replace("def forward", "@torch.no_grad()\n    def forward")
        + "return self.head(self.rnn(self.conv(x.permute(1, 2, 0))[0].permute(2, 0, 1))[0][-1])",
        [],
        2,
        "forward: expected y with a gradient, got one without; leave out torch.no_grad",
    ),
    "lazy": (
        STREAM.replace("nn.Linear(hidden, ", "nn.LazyLinear("),
        [],
        2,
        "expected layers of known sizes, got one that finds its size",
    ),
    "batch mixed": (
        PLAIN + "return self.head(self.rnn(self.conv(x.permute(1, 2, 0))[0].permute(0, 2, 1))[0][:, -1])",
        [],
        2,
        "Net: forward: expected outputs for a sequence that do not depend on others of its batch, got .*batch_first=F",
    ),
    "not saved": (
        STREAM.replace("self.head = ", "self.shift = torch.randn(3)\n        self.head = "),
        [],
        2,
        r"Net: shift: expected a tensor of the state dict, .*use self\.register_buffer\('shift', \.\.\.\)",
    ),
    "not called": (
        PLAIN + "return self.head(x[0, :, :1].expand(-1, 8))",
        [],
        2,
        "Net: forward: expected a call of each recurrent layer",
    ),
    "no layer": (PLAIN.replace("Recurrent(cell, 6, hidden)", "None") + "return 0", [], 2, "expected a recurrent layer"),
    "state lost": (
        STREAM.replace("(c, h)\n", "h\n").replace("c, h = state or (None, None)", "c, h = None, state"),
        [],
        2,
        "Net: state: expected the same outputs in two parts of a sequence as in the whole",
    ),
    "state lost in float32": (
        STREAM.replace("c, h = state or (None, None)", "c, h = None, None").replace("x.permute", "x.float().permute"),
        [],
        2,
        "Net: state: expected the same outputs in two parts of a sequence as in the whole",
    ),
    "state not returned": (STREAM.replace(", (c, h)\n", "\n"), [], 2, r"Net: forward: expected \(y, state\)"),
    "start": (STREAM.replace('"sarnn"', '"skiprnn"'), [], 2, r"start from zeros or from the method initial_state"),
}


def test_a_streaming_network_may_make_float32_tensors_itself():
    model = trained(STREAM.replace("x.permute", "x.float().permute"))
    export_run(Path("run"))
    x = read_npz(Path("run/example.npz"), ("x",))["x"].swapaxes(0, 1)[:, :3]
    session = Session("run/model.onnx")
    for row in x:
        y = session.step(row)
    with torch.no_grad():
        np.testing.assert_allclose(y, model(torch.from_numpy(x))[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_network_is_refused_in_a_sentence_before_its_training(name, capsys):
    text, more, status, message = WRONG[name]
    if text is not None:
        Path("my_net.py").write_text(text)
    assert main(["train", "--task", "mine.npz", "--network", "my_net.py:Net", *more, *WORDS]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.match(f"edgernn: error: .*{message}", err), err
    assert not Path("runs/mine-Net/config.json").exists()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("y[-1] if y.sum() > 0 else y[0]", "cannot be exported: .*; use torch operators in place of Python branches"),
        ("torch.dropout(y[-1], 0.5, True)", "module: expected the same outputs in two calls, got others of Net"),
        ("y.reshape(14, -1, 8)[-1]", "expected any number of steps, but forward.. takes 14 and fails with 15"),
    ],
)
def test_a_network_that_cannot_be_exported_is_named(result, message):
    text = (
        PLAIN
        + f"y = self.rnn(self.conv(x.permute(1, 2, 0))[0].permute(2, 0, 1))[0]\n        return self.head({result})"
    )
    trained(text)
    with pytest.raises(EdgernnError, match=message):
        export_run(Path("run"))
    assert not Path("run/model.onnx").exists()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("x.shape[0] > 1", "any number of steps, but .* right for 2 or more alone"),
        ("x.shape[0] != 1", "any number of steps, but .* right for 2 or more alone"),
        ("x.shape[0] <= 150", "any number of steps, but .* right for 150 or fewer alone"),
        ("x.shape[1] > 3", "any number of sequences, but .* right for 4 or more alone"),
    ],
)
def test_a_network_that_branches_on_the_length_is_refused(condition, message):
    model = trained(STREAM.replace("y, c = self", f"x = x if {condition} else -x\n        y, c = self"))
    with pytest.raises(UsageError, match=message):
        export_own_network(model, Path("own.onnx"), torch.zeros(14, 5, 2))
    assert not Path("own.onnx").exists()


def test_a_file_says_by_which_name_to_open_it():
    from edgernn.export import to_onnx

    model = trained(STREAM)
    to_onnx(model.network, "other.onnx", torch.zeros(4, 2, 2), outputs=["y", "c", "h"])
    with pytest.raises(EdgernnError, match=r"open it with NetworkSession of edgernn.runtime"):
        Session("other.onnx")
    with pytest.raises(UsageError, match="expected a run with a cell, got one with the network Net"):
        load_model(Path("run"), allow_code=True)
