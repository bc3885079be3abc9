# SPDX-License-Identifier: Apache-2.0
"""Evaluation of trained models with other settings of their task: `edgernn evaluate`."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.card import _interface_rows
from edgernn.export.exported_model import read_exported
from edgernn.export.rounding import rounded
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.evaluate import open_task, scorer
from edgernn.training.evaluate_model import evaluate_model
from edgernn.training.run_directory import RunDirectory
from tests.models import write_alone
from tests.training_helpers import SMALL, without_pictures
from tests.words import tone, write_arabic, write_wav

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


def test_a_room_of_the_validation_part_has_its_own_words_and_noise(run, data, tmp_path, capsys):
    last = RunDirectory(run).metrics()[-1]
    result, _ = stored(run)
    evaluated = evaluate_model(run, part="validation")
    assert evaluated["metrics"]["accuracy"] == pytest.approx(last["accuracy"])
    assert evaluated["metrics"]["room_hours"] == pytest.approx(result["room_hours"], rel=1e-2)
    assert evaluated["series"]["room_hits"] != evaluate_model(run)["series"]["room_hits"]
    task = open_task(run, None, {})
    heard = {part: {w.tobytes() for w in room.clips.samples} for part, room in task._rooms.items()}
    assert heard["validation"].isdisjoint(heard["test"])
    assert main(["evaluate", str(run), "--part", "validation"]) == 0
    assert "validation sequence" in capsys.readouterr().out


def test_a_model_of_the_zoo_is_tested_by_the_command_in_its_entry(run, data, tmp_path, monkeypatch, capsys):
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
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    assert main(["evaluate", "words"]) == 1
    assert main(["evaluate", "words", "--data", str(other)]) == 1
    assert "expected data with its classes" in capsys.readouterr().err
    assert main(["evaluate", "words", "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == metrics
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
    write_alone(rounded(model, weights), tmp_path / "m.onnx", weights)
    loaded, _ = read_exported(tmp_path / "m.onnx")
    x = torch.randn(20, 4, 3)
    with torch.no_grad():
        difference = (loaded(x)[0] - model(x)[0]).abs().max().item()
    assert difference == 0 if weights == "float32" else 0 < difference < 0.1


@pytest.fixture(scope="module")
def bits(tmp_path_factory):
    """A short training on generated data, with an entry as models of the zoo have it."""
    path = tmp_path_factory.mktemp("runs") / "bits"
    settings = {"hidden_size": 4, "batch_size": 10, "steps": 2, "train_size": 20, "test_size": 20}
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        train("memorization", "gru", out=path, settings=settings)
    return path


def entry_of(run, folder, change=lambda command: None):
    """Write an entry.json with the changed command of a run, and an exported file beside it; return the file."""
    command = json.loads((run / "config.json").read_text())["command"]
    change(command)
    folder.mkdir(exist_ok=True)
    (folder / "entry.json").write_text(json.dumps({"command": command, "files": {}}))
    model, _ = load_model(run)
    write_alone(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 1}, r"output_size: expected 2, as in the training, got 1; leave out bits, or train again"),
        ({"noise": 4, "bits": 3}, r"output_size: expected 2, .* got 3; leave out noise, bits, or train again"),
    ],
)
def test_settings_that_change_the_outputs_are_refused(bits, settings, message):
    with pytest.raises(UsageError, match=message):
        evaluate_model(bits, settings)


def test_clips_and_streams_do_not_replace_each_other(run, data, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="output: expected all, as in the training, got last; leave out stream"):
        evaluate_model(run, {"stream": 0})
    without_pictures(monkeypatch)
    settings = {"hidden_size": 4, "steps": 1, "batch_size": 4, "hop": 160}
    train("keywords", "gru", out=tmp_path / "clips", data=data, settings=settings)
    with pytest.raises(UsageError, match="output: expected last, as in the training, got all; leave out stream"):
        evaluate_model(tmp_path / "clips", {"stream": 3, "room": 0.02})


def test_inputs_of_another_size_are_refused(bits, monkeypatch):
    monkeypatch.setattr("edgernn.training.papers.tasks.memorization.Memorization.input_size", 7)
    with pytest.raises(UsageError, match=r"input_size: expected 1, .* got 7; give the data set of the training"):
        evaluate_model(bits)
    monkeypatch.setattr("edgernn.training.papers.tasks.memorization.Memorization.input_size", 1)
    monkeypatch.setattr("edgernn.training.papers.tasks.memorization.Memorization.vocabulary", 9)
    with pytest.raises(UsageError, match=r"vocabulary: expected None, .* got 9"):
        evaluate_model(bits)


def set_option(name, value):
    def change(command):
        command[command.index(name) + 1] = value

    return change


def without_option(name):
    def change(command):
        index = command.index(name)
        del command[index : index + 2]

    return change


BROKEN = {
    "words": (lambda c: c.clear(), r"a list of the words of `edgernn train`, got \[\]"),
    "numbers": (lambda c: c.append(3), "a list of the words of `edgernn train`"),
    "no task": (without_option("--task"), "the option --task, got none"),
    "no cell": (without_option("--cell"), "the option --cell, got none"),
    "no value": (lambda c: c.__setitem__(slice(2, None), ["--task"]), "a value after --task, got none"),
    "seed": (set_option("--seed", "one"), "a whole number after --seed, got 'one'"),
    "long seed": (set_option("--seed", "9" * 5000), "a whole number after --seed, got '999"),
    "negative seed": (
        set_option("--seed", "-1"),
        r"command: seed: expected a whole number from 0 to 2\^63 - 1, got -1",
    ),
    "task": (set_option("--task", "memorisation"), "command: unknown task 'memorisation'"),
    "setting": (lambda c: c.append("bitz=2"), "command: unknown setting 'bitz'"),
    "no setting": (lambda c: c.append("bits"), "command: settings: expected KEY=VALUE"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_command_in_an_entry_is_refused(case, bits, tmp_path):
    change, message = BROKEN[case]
    model = entry_of(bits, tmp_path / "m", change)
    with pytest.raises(EdgernnError, match=rf"entry\.json: command: .*{message.removeprefix('command: ')}"):
        evaluate_model(model)


@pytest.mark.parametrize("content", [{"files": {}}, [], {"command": None}, {"command": "edgernn train"}])
def test_an_entry_without_a_command_is_refused(content, bits, tmp_path):
    model = entry_of(bits, tmp_path / "m")
    (tmp_path / "m/entry.json").write_text(json.dumps(content))
    with pytest.raises(EdgernnError, match=r"entry\.json: command: expected a list of the words of `edgernn train`"):
        evaluate_model(model)


@pytest.mark.parametrize("option", ["--cell", "--rule"])
def test_an_entry_executes_no_python_file(option, bits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("open('executed', 'w').close()\n")

    def change(command):
        command[2:2] = ["--rule", "always"]
        set_option(option, "x.py:A")(command)

    model = entry_of(bits, tmp_path / "m", change)
    with pytest.raises(UsageError, match=r"entry\.json: expected an? (cell|update rule) of edgernn, got 'x\.py:A'"):
        evaluate_model(model)
    assert not Path("executed").exists()


@pytest.mark.parametrize("key", ["test_size", "task.test_size"])
def test_a_setting_replaces_that_of_the_entry_under_each_of_its_names(key, bits, tmp_path):
    result = evaluate_model(entry_of(bits, tmp_path / "m"), {key: "40"})
    assert (result["settings"]["test_size"], result["settings"]["train_size"]) == (40, 20)
    assert result["metrics"] == pytest.approx(evaluate_model(bits, {"test_size": 40})["metrics"], rel=1e-5)


@pytest.mark.slow
def test_the_task_of_a_run_has_the_length_of_its_steps(run):
    """Calibration and int8 export open the task and score models by these functions."""
    task = open_task(run)
    assert (task.input_size, next(task.test.chunks()).x.shape[-1]) == (160, 160)
    result, _ = stored(run)
    assert scorer(run)(load_model(run)[0]) == (pytest.approx(result["accuracy"]), True)


def test_a_run_without_audio_is_tested_too(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    result = train("adding", "sarnn", out=tmp_path / "run", settings={**SMALL, "steps": 20, "test_size": 60})
    metrics = evaluate_model(tmp_path / "run")["metrics"]
    assert metrics["mse"] == pytest.approx(result["mse"])
    assert load_model(tmp_path / "run")[1]["task"]["settings"]["test_size"] == 60
    assert evaluate_model(tmp_path / "run", {"test_size": 40})["metrics"]["mse"] != metrics["mse"]


def recordings(folder, classes, seed, count=3, header="a,b"):
    """Write files for each class, whose channel a rises for "up" and falls for others."""
    rng = np.random.default_rng(seed)
    for name in classes:
        for i in range(count):
            a = np.linspace(0, 1 if name == "up" else -1, 6)[:, None] + 0.1 * rng.normal(size=(6, 2))
            rows = np.c_[a[:, 0], rng.normal(size=6)]
            folder.joinpath(name).mkdir(parents=True, exist_ok=True)
            text = "\n".join(",".join(map(str, row[:: 1 if header == "a,b" else -1])) for row in rows)
            (folder / name / f"{i}.csv").write_text(f"{header}\n{text}\n")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run that was trained on csv files of two classes."""
    folder = tmp_path_factory.mktemp("own")
    recordings(folder / "data", ("down", "up"), 0, count=10)
    settings = {"hidden_size": 8, "epochs": 60, "lr": 0.05}
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        train(str(folder / "data"), "gru", out=folder / "run", settings=settings)
    return folder


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_new_files_are_tested_with_the_classes_and_channels_of_the_training(own, tmp_path, capsys):
    # one class of two, and the columns in another order
    recordings(tmp_path / "new", ("up",), 1, header="b,a")
    result = evaluate_model(own / "run", data=tmp_path / "new")
    assert (result["metrics"]["accuracy"], result["sequences"], result["data"]) == (1.0, 3, str(tmp_path / "new"))
    (tmp_path / "new/up").rename(tmp_path / "new/down")
    assert evaluate_model(own / "run", data=tmp_path / "new")["metrics"]["accuracy"] == 0.0
    assert main(["evaluate", str(own / "run"), "--data", str(tmp_path / "new")]) == 0
    assert f"3 test sequences of {tmp_path / 'new'}" in capsys.readouterr().out
    (tmp_path / "new/down").rename(tmp_path / "new/left")
    with pytest.raises(EdgernnError, match=r"new: expected the classes down, up of the training, got left; correct"):
        evaluate_model(own / "run", data=tmp_path / "new")


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_data_of_the_training_keep_their_split(own, tmp_path):
    # a copy is found by its content
    shutil.copytree(own / "data", tmp_path / "copy")
    metrics = evaluate_model(own / "run")["metrics"]
    for data in (own / "data", tmp_path / "copy"):
        result = evaluate_model(own / "run", data=data)
        assert (result["metrics"], result["sequences"], result["data"]) == (metrics, 2, None)


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_the_hash_of_files_that_earlier_versions_wrote_is_accepted(own, tmp_path):
    run = shutil.copytree(own / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    files = sorted((own / "data").glob("*/*.csv"))
    hashes = [(path.relative_to(own / "data"), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    lines = "".join(f"{path.as_posix()} {value}\n" for path, value in hashes)
    config["task"]["fingerprint"] = hashlib.sha256(lines.encode()).hexdigest()
    (run / "config.json").write_text(json.dumps(config))
    for data in (None, own / "data"):
        assert evaluate_model(run, data=data)["metrics"] == evaluate_model(own / "run")["metrics"]
    assert main(["train", "--resume", "--out", str(run)]) == 0


def test_a_relative_path_of_data_counts_from_the_folder_of_the_training(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    (tmp_path / "began").mkdir()
    monkeypatch.chdir(tmp_path / "began")
    np.savez("data.npz", x=np.random.default_rng(0).normal(size=(20, 5, 1)), y=np.arange(20) % 2)
    run = train("data.npz", "gru", out=tmp_path / "run", settings={"hidden_size": 4, "steps": 2})
    # other data of the same relative path
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.zeros((20, 5, 1)), y=np.arange(20) % 2)
    assert evaluate_model(Path("run"))["metrics"]["cross_entropy"] == pytest.approx(run["cross_entropy"])
    assert main(["train", "--resume", "--out", "run"]) == 0
    # the folder of the training was moved, too
    (tmp_path / "began").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert evaluate_model(tmp_path / "run")["metrics"]["cross_entropy"] == pytest.approx(run["cross_entropy"])
    Path("data.npz").unlink()
    with pytest.raises(
        EdgernnError, match=r"file or folder: data\.npz, .* relative to .*began: restore the data, or run"
    ):
        evaluate_model(tmp_path / "run")


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_data_that_changed_after_the_training_have_no_test_part(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(own / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"source": "data", "folder": str(tmp_path)}))
    shutil.copytree(own / "data", "data")
    assert evaluate_model(run)["metrics"] == evaluate_model(own / "run")["metrics"]
    recordings(Path("data"), ("up",), 1, count=1)
    for function in (evaluate_model, scorer(run)):
        with pytest.raises(EdgernnError, match=r"run: expected the data of its training in .*data, got others, and"):
            function(run)


def test_data_of_another_kind_are_refused(own, tmp_path):
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 6, 2)), y=np.zeros(2, int))
    with pytest.raises(UsageError, match=r"data: expected data of the same kind as .*data of the training, got .*npz"):
        evaluate_model(own / "run", data=tmp_path / "new.npz")
    with pytest.raises(EdgernnError, match="data: no such file or folder: nowhere; check the path"):
        evaluate_model(own / "run", data=Path("nowhere"))
    # a run with a relative path, in another folder
    run = shutil.copytree(own / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    del config["folder"]
    (run / "config.json").write_text(json.dumps(config | {"source": "data"}))
    with pytest.raises(EdgernnError, match=r"no such file or folder: data, .* relative to the folder of the training"):
        evaluate_model(run)


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_new_arrays_have_labels_of_the_training_or_their_own_test_part(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(20, 5, 1)), "y": np.arange(20) % 3}
    np.savez(tmp_path / "data.npz", **arrays)
    train(str(tmp_path / "data.npz"), "gru", out=tmp_path / "run", settings={"hidden_size": 4, "steps": 2})
    # those of the training in another file
    np.savez_compressed(tmp_path / "again.npz", **arrays)
    assert evaluate_model(tmp_path / "run", data=tmp_path / "again.npz")["data"] is None
    x, y = rng.normal(size=(12, 7, 1)).astype(np.float32), np.arange(12) % 2
    np.savez(tmp_path / "new.npz", x=x, y=y)
    model, _ = load_model(tmp_path / "run")
    with torch.no_grad():
        right = model(torch.from_numpy(x).transpose(0, 1))[0].argmax(-1).numpy() == y
    assert evaluate_model(tmp_path / "run", data=tmp_path / "new.npz")["metrics"]["accuracy"] == np.mean(right)
    np.savez(tmp_path / "parts.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    result = evaluate_model(tmp_path / "run", data=tmp_path / "parts.npz")
    assert (result["metrics"]["accuracy"], result["sequences"]) == (np.mean(right[:5]), 5)
    np.savez(tmp_path / "new.npz", x=x, y=y + 2)
    with pytest.raises(EdgernnError, match=r"new\.npz: expected labels from 0 to 2, as in the training, got 3"):
        evaluate_model(tmp_path / "run", data=tmp_path / "new.npz")


@pytest.mark.parametrize("trained", ["labels", "numbers"])
def test_new_targets_of_another_kind_are_not_scored(trained, tmp_path, monkeypatch):
    # both fill the two outputs of the model
    without_pictures(monkeypatch)
    rng = np.random.default_rng(0)
    targets = {"labels": np.arange(20) % 2, "numbers": rng.normal(size=(20, 2))}
    for name, y in targets.items():
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 5, 1)), y=y)
    train(str(tmp_path / f"{trained}.npz"), "gru", out=tmp_path / "run", settings={"hidden_size": 4, "steps": 2})
    (tmp_path / f"{trained}.npz").unlink()
    (other,) = targets.keys() - {trained}
    with pytest.raises(UsageError, match=f"expected {trained} .*, as in the training, got {other} .*; correct"):
        evaluate_model(tmp_path / "run", data=tmp_path / f"{other}.npz")


@pytest.mark.filterwarnings("ignore::edgernn.errors.EdgernnWarning")
def test_new_sounds_are_tested_with_the_words_of_the_training(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    for word in ("left", "stop"):
        for i in range(4):
            write_wav(tmp_path / "words" / word / f"{i}.wav", tone(word, i))
    settings = {"hidden_size": 8, "steps": 40, "batch_size": 8, "lr": 0.02, "silence": 0}
    train(str(tmp_path / "words"), "gru", out=tmp_path / "run", settings=settings)
    for i in range(3):
        write_wav(tmp_path / "new/stop" / f"{i}.wav", tone("stop", 20 + i))
    result = evaluate_model(tmp_path / "run", data=tmp_path / "new")
    assert (result["metrics"]["accuracy"], result["sequences"]) == (1.0, 3)
    (tmp_path / "new/stop").rename(tmp_path / "new/go")
    with pytest.raises(EdgernnError, match="named after the classes left, stop of the training, got go"):
        evaluate_model(tmp_path / "run", data=tmp_path / "new")


def test_the_card_says_what_the_model_is_for(own, run):
    assert main(["export", str(own / "run")]) == 0
    card = (own / "run/model.md").read_text()
    assert "| channels of x | a, b |\n" in card
    assert "| classes of y | `down`, `up` |\n" in card
    assert f"| licence of the data | that of {(own / 'data').name} |\n" in card
    assert "| intended use | Predict the targets of data such as data, from inputs that are recorded" in card
    assert "false alarms" not in card
    # a model that detects words in recordings
    card, (result, _) = (run / "model.md").read_text(), stored(run)
    assert (
        "| licence of the data | Arabic Speech Commands, 40 words, 12,000 recordings of one second: CC BY 4.0 |" in card
    )
    assert "`_silence_`" in card
    found = re.search(r"\| false alarms an hour in (\S+) h of recordings, threshold 0\.5 \| (\S+) \|", card)
    assert float(found[1]) == pytest.approx(result["room_hours"], rel=0.05)
    assert float(found[2]) == pytest.approx(result["room_false_alarms_an_hour"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "cell"), [("a|b", "`a\\|b`"), ("\n", '`"\\n"`'), (" ", '`" "`'), ("_unknown_", "`_unknown_`")]
)
def test_names_of_classes_do_not_break_the_table_of_a_card(name, cell):
    model = edgernn.SequenceModel("gru", 2, 3, 2)
    assert _interface_rows(model, {"classes": [name, "b"]})[1] == ("classes of y", f"{cell}, `b`")
    assert _interface_rows(model, {"classes": ["c"] * 300})[1][1].endswith(" and 200 more")
