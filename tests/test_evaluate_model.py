# SPDX-License-Identifier: Apache-2.0
"""Evaluation of trained models with other settings of their task: `edgernn evaluate`."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.export import to_onnx
from edgernn.export.exported_model import read_exported
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.evaluate_model import evaluate_model
from tests.training_helpers import SMALL, without_pictures
from tests.words import write_arabic

WORDS = {"hidden_size": 8, "steps": 20, "batch_size": 4, "hop": 160, "stream": 3.0, "room": 0.02, "talk": 0.2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_arabic(folder / "arabic-speech-commands", train=6, held_out=3)
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A short training with steps of another length than the default."""
    path = tmp_path_factory.mktemp("runs") / "words"
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        train("keywords", "gru", "delta", out=path, data=data, settings={**WORDS, "theta_x": 0.1, "theta_h": 0.05})
    assert main(["export", str(path)]) == 0
    return path


def stored(run):
    return json.loads((run / "result.json").read_text()), json.loads((run / "series.json").read_text())


def test_a_run_and_its_file_have_the_metrics_of_the_training(run, capsys):
    result, series = stored(run)
    evaluated = evaluate_model(run)
    assert evaluated["metrics"] == {name: pytest.approx(result[name]) for name in evaluated["metrics"]}
    assert evaluated["series"]["room_hits"] == pytest.approx(series["room_hits"], rel=1e-4)
    assert main(["evaluate", str(run / "model.onnx"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["metrics"] == {name: pytest.approx(result[name], abs=1e-3) for name in printed["metrics"]}
    assert (printed["cell"], printed["rule"], printed["task"]) == ("gru", "delta", "keywords")


def test_settings_of_the_test_replace_those_of_the_training(run, capsys):
    assert main(["evaluate", str(run), "room=0.05", "threshold=0.9"]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    result, _ = stored(run)
    assert float(lines["room_hours"]) == pytest.approx(0.05, rel=1e-3)
    assert float(lines["room_words"]) > 2 * result["room_words"]
    # isolated words do not depend on the room
    assert evaluate_model(run, {"room": 0.05})["metrics"]["accuracy"] == result["accuracy"]


def test_a_model_of_the_zoo_is_tested_by_the_command_in_its_entry(run, data, tmp_path, monkeypatch):
    zoo = tmp_path / "models"
    (zoo / "words").mkdir(parents=True)
    shutil.copy(run / "model.onnx", zoo / "words")
    command = json.loads((run / "config.json").read_text())["command"]
    (zoo / "words/entry.json").write_text(json.dumps({"command": command, "files": {}}))
    monkeypatch.setenv("EDGERNN_MODELS", str(zoo))
    result, _ = stored(run)
    metrics = evaluate_model(Path("words"), data=data)["metrics"]
    assert metrics == {name: pytest.approx(result[name], abs=1e-3) for name in metrics}
    with pytest.raises(UsageError, match="unknown setting 'lr'"):
        evaluate_model(Path("words"), {"lr": 0.1}, data=data)
    other = tmp_path / "other"
    write_arabic(other / "arabic-speech-commands", words=("left", "stop"), train=6, held_out=3)
    with pytest.raises(EdgernnError, match=r"expected data with its classes left, right, .* got left, stop"):
        evaluate_model(Path("words"), data=other)
    (zoo / "words/entry.json").unlink()
    with pytest.raises(UsageError, match=r"expected a file beside a run's config\.json"):
        evaluate_model(zoo / "words/model.onnx", data=data)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"cell": "sarnn"},
        {"cell": "lstm", "layers": 2, "bidirectional": True, "output": "all"},
        {"cell": "gru", "rule": "delta", "rule_options": {"theta_x": 0.1, "theta_h": 0.1}},
    ],
    ids=["sarnn", "lstm", "delta"],
)
def test_a_file_becomes_the_model_that_it_was_made_of(options, weights, tmp_path):
    torch.manual_seed(0)
    options = dict(options)
    model = edgernn.SequenceModel(options.pop("cell"), 3, 8, 2, **options).eval()
    to_onnx(model, tmp_path / "m.onnx", weights=weights)
    loaded, _ = read_exported(tmp_path / "m.onnx")
    x = torch.randn(20, 4, 3)
    with torch.no_grad():
        difference = (loaded(x)[0] - model(x)[0]).abs().max().item()
    assert difference == 0 if weights == "float32" else 0 < difference < 0.1


def test_a_model_whose_file_has_other_tensors_is_refused(tmp_path):
    model = edgernn.SequenceModel("gru", 3, 8, 2, block="linear")
    to_onnx(model.eval(), tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match="the file has it in another form; name the run directory instead"):
        read_exported(tmp_path / "m.onnx")


def test_a_run_without_audio_is_tested_too(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    result = train("adding", "sarnn", out=tmp_path / "run", settings={**SMALL, "steps": 20, "test_size": 60})
    metrics = evaluate_model(tmp_path / "run")["metrics"]
    assert metrics["mse"] == pytest.approx(result["mse"])
    assert load_model(tmp_path / "run")[1]["task"]["settings"]["test_size"] == 60
    assert evaluate_model(tmp_path / "run", {"test_size": 40})["metrics"]["mse"] != metrics["mse"]
