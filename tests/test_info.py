# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn info`: descriptions of files, run directories and trained models, without running them."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.export.run import export_run
from edgernn.model import SequenceModel
from edgernn.runtime import Session
from edgernn.runtime.describe import describe_file
from edgernn.runtime.packed import pack
from edgernn.store import load_model
from edgernn.training import train
from tests.training_helpers import SMALL, without_pictures

CLASSES = ["walk", "run", "\x1b[2Jsit", "ﬁ"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("info") / "model.onnx"
    model = SequenceModel("lstm", 3, 5, 4, layers=2, rule="selective", output="all")
    metadata = {"classes": CLASSES, "channels": ["ax", "ay", "az"], "task": "mine", "metric": "accuracy"}
    to_onnx(model, path, metadata={**metadata, "metric_value": 0.875, "skip_percent": 12.5, "seed": 7}, weights="int8")
    return path


def described(*words, capsys):
    assert main(["info", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_exported_file_names_channels_classes_states_and_sizes(file, capsys):
    result = described(file, capsys=capsys)
    assert result["input"] == {"size": 3, "vocabulary": None}
    assert result["channels"] == ["ax", "ay", "az"]
    assert result["output"] == {"size": 4, "at": "all"}
    assert result["classes"] == CLASSES
    assert result["layers"] == [5, 5]
    assert (result["cell"], result["rule"], result["seed"]) == ("lstm", "selective", 7)
    session = Session(file)
    assert list(result["states"]) == session.state_names
    assert result["states"]["layer1.c"] == 5
    assert result["bytes"] == file.stat().st_size
    assert main(["info", str(file)]) == 0
    out = capsys.readouterr().out
    assert "  channels of x          ax, ay, az\n" in out
    assert "  test metric            accuracy 0.875\n" in out
    # a name in a file cannot control the terminal
    assert "walk, run, ?[2Jsit, ﬁ\n" in out
    assert "\x1b" not in out


def test_a_packed_model_names_its_kernels_and_classes(file, tmp_path, capsys):
    packed = pack(file.read_bytes(), file, names=True)
    (tmp_path / "m.edgernn").write_bytes(packed)
    result = described(tmp_path / "m.edgernn", capsys=capsys)
    assert result["kernels"] == ["lstm+selective"] * 2
    assert result["classes"] == CLASSES
    assert result["channels"] == ["ax", "ay", "az"]
    assert (result["input"]["size"], result["output"]["size"]) == (3, 4)
    for damaged in (packed[:20], packed[:-1], packed[:200] + b"?" + packed[201:], packed + b"0"):
        (tmp_path / "m.edgernn").write_bytes(damaged)
        with pytest.raises(EdgernnError, match=r"m\.edgernn: the packed model is damaged"):
            describe_file(tmp_path / "m.edgernn")


def test_a_run_directory_says_how_it_was_trained_and_executes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)
    result = train("adding", "sarnn", out="run", settings={**SMALL, "steps": 3})
    config = json.loads(Path("run/config.json").read_text())
    config["cell_file"] = {"class": "Mine", "sha256": "0"}
    Path("run/config.json").write_text(json.dumps(config))
    Path("run/cell.py").write_text("open('executed', 'w')")
    shown = described("run", capsys=capsys)
    assert shown["state"] == "finished"
    assert shown["value"] == result["mse"]
    assert shown["command"].startswith("edgernn train --task adding --cell sarnn --out run")
    assert shown["code"] == "cell.py, executed when the model is used"
    Path("run/result.json").unlink()
    assert described("run", capsys=capsys)["state"] == "not finished"
    assert not Path("executed").exists()
    with pytest.raises(EdgernnError, match=r"run: expected a model file, got a folder .* edgernn export run"):
        Session("run")


def test_an_exported_file_has_the_work_that_the_test_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)
    result = train("adding", "sarnn", out="run", settings={**SMALL, "steps": 3})
    export_run(Path("run"))
    shown = described("run/model.onnx", capsys=capsys)
    assert shown["macs_executed"] == result["macs_executed"] < shown["macs"] == result["macs"]
    to_onnx(SequenceModel("gru", 2, 4, 1, rule="selective"), Path("plain.onnx"))
    assert described("plain.onnx", capsys=capsys)["macs_executed"] is None


def test_a_trained_model_is_known_by_its_name_in_python_too(file, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(file.read_bytes())
    entry = {"command": ["edgernn", "train", "--task", "a b"], "data": [{"title": "Own", "terms": "CC0"}, 3]}
    (folder / "entry.json").write_text(json.dumps(entry))
    monkeypatch.setenv("EDGERNN_MODELS", str(tmp_path / "models"))
    result = described("mine", capsys=capsys)
    assert result["command"] == "edgernn train --task 'a b'"
    assert result["data"] == [{"title": "Own", "terms": "CC0"}]
    x = np.ones((4, 1, 3), np.float32)
    np.testing.assert_array_equal(Session("mine").run(x), Session(file).run(x))
    with pytest.raises(EdgernnError, match="unknown model 'mien': did you mean 'mine'"):
        Session("mien")


def test_a_file_of_another_program_lists_inputs_outputs_and_operators(tmp_path, capsys):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, producer_name="somebody"), tmp_path / "f.onnx")
    result = described(tmp_path / "f.onnx", capsys=capsys)
    assert result["input"] == {"x": ["T", 3]}
    assert result["operators"] == {"Relu": 1}
    assert result["producer"] == "somebody"
    assert main(["info", str(tmp_path / "absent.onnx")]) == 1
    assert "absent.onnx: no such file" in capsys.readouterr().err


def test_sizes_of_a_run_are_compared_before_memory_is_allocated(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    train("adding", "gru", out=tmp_path / "run", settings={**SMALL, "steps": 1})
    config = json.loads((tmp_path / "run/config.json").read_text())
    for size, message in (
        ({"hidden_size": 10**7}, r"model\.safetensors: .*: expected \(30000000, 2\), got"),
        ({"hidden_size": 10**12}, r"config\.json: model: expected sizes that a model can have"),
        ({"layers": 10**12}, r"layers: .* 1000"),
    ):
        (tmp_path / "run/config.json").write_text(json.dumps({**config, "model": config["model"] | size}))
        with pytest.raises(EdgernnError, match=message):
            load_model(tmp_path / "run")


def test_external_data_are_checked_but_not_read(tmp_path):
    size = 1 << 26
    (tmp_path / "weights.bin").touch()
    os.truncate(tmp_path / "weights.bin", size)
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[size], data_location=1)
    tensor.external_data.add(key="location", value="weights.bin")
    y = helper.make_tensor_value_info("y", TensorProto.INT8, [size])
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [y], [tensor])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    tracemalloc.start()
    try:
        described = describe_file(path)
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()
    assert described["operators"] == {"Identity": 1}
    os.truncate(tmp_path / "weights.bin", size - 1)
    with pytest.raises(EdgernnError, match="expected 67,108,864 bytes at 0, got a file of 67,108,863"):
        describe_file(path)
