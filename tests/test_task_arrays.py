# SPDX-License-Identifier: Apache-2.0
"""A user's own arrays."""

import gzip
import io
import json
import math
import re
import zipfile
from types import NoneType, SimpleNamespace
from typing import get_type_hints

import numpy as np
import polars as pl
import pytest
import torch
from torch.utils.data import TensorDataset

from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.npz import read_npz
from edgernn.runtime import Session
from edgernn.runtime.run_file import run_file
from edgernn.settings import fields_of
from edgernn.store import load_model, load_weights
from edgernn.training import find_task, train
from edgernn.training.config import Settings, TrainConfig
from edgernn.training.evaluate import evaluate, open_task, scorer
from edgernn.training.evaluate_model import evaluate_model
from edgernn.training.run_directory import BEST, RunDirectory
from edgernn.training.tasks.arrays import Arrays, save_data, stacked
from edgernn.training.tasks.keywords import OwnWords
from edgernn.training.tasks.tables import Tables
from tests.task_helpers import Trained, accuracy, mean_squared_error, opened, parts
from tests.training_helpers import Stop, snapshot, without_pictures

# the task of a path


def test_a_path_is_an_npz_file_or_a_folder(tmp_path):
    path = save(tmp_path, x=inputs())
    assert find_task(str(path)) == (Arrays, path)
    assert find_task(str(tmp_path)) == (Tables, tmp_path)
    table = tmp_path / "mine.CSV"
    table.write_text("1\n")
    assert find_task(str(table)) == (Tables, table)
    other = table.rename(tmp_path / "mine.xls")
    with pytest.raises(UsageError, match=r"the name of a task, an \.npz, \.csv or \.parquet file, a folder of such"):
        find_task(str(other))
    for name in ("data.csv", str(tmp_path / "none.npz"), "some/where", "nowhere/", "x.npy"):
        with pytest.raises(EdgernnError, match=f"task: no such file or folder: {name}"):
            find_task(name)
    with pytest.raises(UsageError, match="unknown task 'adings': did you mean 'adding'"):
        find_task("adings")


def test_an_unknown_word_for_what_is_predicted():
    for task in (Arrays, Tables):
        with pytest.raises(UsageError, match="predict: expected targets or next, got 'y'"):
            task(predict="y")


# arrays


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def inputs(N=40, T=5, I=3):
    return np.random.default_rng(0).normal(3.0, 2.0, (N, T, I))


KINDS = {
    "labels": (np.arange(40) % 4, "last", 4, (7,), "accuracy"),
    "bools": (np.arange(40) % 2 == 0, "last", 2, (7,), "accuracy"),
    "numbers": (np.linspace(0, 1, 40), "last", 1, (7, 1), "mse"),
    "vectors": (np.ones((40, 2), np.float32), "last", 2, (7, 2), "mse"),
    "labels-a-step": (np.arange(200).reshape(40, 5) % 3, "all", 3, (5, 7), "accuracy"),
    "vectors-a-step": (np.ones((40, 5, 2)), "all", 2, (5, 7, 2), "mse"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_y_decides_the_task(tmp_path, kind):
    y, output, size, shape, metric = KINDS[kind]
    task = opened(Arrays(), save(tmp_path, x=inputs(), y=y))
    assert (task.output, task.output_size, task.input_size, task.objective.metric) == (output, size, 3, metric)
    batch = task.train.batch(0, 7)
    assert batch.x.shape == (5, 7, 3)
    assert batch.target.shape == shape
    assert [len(part) for part in (task.train, task.validation, task.test)] == [32, 4, 4]


def test_an_npz_file_may_name_its_classes(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    y = np.arange(40) % 2
    path = save(tmp_path, x=inputs(), y=y, classes=["still", "مشي"])
    train(path, "gru", out=tmp_path / "run", settings={"steps": 2, "hidden_size": 4})
    assert json.loads((tmp_path / "run/config.json").read_text())["task"]["classes"] == ["still", "مشي"]
    assert main(["export", str(tmp_path / "run")]) == 0
    assert Session(tmp_path / "run/model.onnx").info["classes"] == ["still", "مشي"]
    new = tmp_path / "new.npz"
    np.savez(new, x=inputs(N=8), y=y[:8])
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(new)]) == 0
    np.savez(new, x=inputs(N=8), y=y[:8], classes=["مشي", "still"])
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(new)]) == 1
    assert "expected the classes still, مشي of the training, got مشي, still; correct" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("classes", "y", "message"),
    [
        (["a"], None, "y: expected labels from 0 to 0, one for each of the classes, got 1; correct y or classes"),
        (["a", "a"], None, "classes: expected different texts of shape (C,), got a, a; correct classes"),
        (["a", ""], None, "classes: expected different texts of shape (C,), got a, ; correct classes"),
        ([["a", "b"]], None, "classes: expected different texts of shape (C,), got <U1 of shape (1, 2); correct"),
        ([0, 1], None, "classes: expected different texts of shape (C,), got int64 of shape (2,); correct classes"),
        (["a", "b"], np.linspace(0, 1, 40), "classes: expected labels in y for them, got none; leave classes out"),
    ],
)
def test_names_that_do_not_fit_the_labels_are_refused(classes, y, message, tmp_path):
    path = save(tmp_path, x=inputs(), y=np.arange(40) % 2 if y is None else y, classes=classes)
    with pytest.raises(EdgernnError, match=re.escape(message)):
        opened(Arrays(), path)


def test_labels_a_step_may_be_as_many_as_there_are_steps(tmp_path):
    y = np.arange(40 * 50).reshape(40, 50)
    assert opened(Arrays(), save(tmp_path, x=inputs(T=50), y=y)).output_size == 2000


def test_x_and_y_stay_together_and_parts_apart(tmp_path):
    x = np.arange(40.0).repeat(5).reshape(40, 5, 1)
    task = opened(Arrays(), save(tmp_path, x=x, y=np.arange(40.0)))
    seen = []
    for part in (task.train, task.validation, task.test):
        for batch in part.chunks():
            assert torch.equal(batch.x[0], batch.target)
            seen += batch.target.flatten().tolist()
    assert sorted(seen) == list(range(40))


def test_given_parts_are_used(tmp_path):
    x, y = inputs(), np.arange(40) % 2
    path = save(tmp_path, x=x, y=y, x_val=inputs(6) + 1, y_val=y[:6], x_test=inputs(3, T=9), y_test=np.array([2, 0, 1]))
    with pytest.warns(EdgernnWarning, match="no sequence for training has the class 2; labels count from 0"):
        task = opened(Arrays(), path)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [40, 6, 3]
    assert task.output_size == 3
    task = opened(Arrays(), save(tmp_path, x=x, y=y, x_test=inputs(3) + 1, y_test=y[:3]))
    assert [len(part) for part in (task.train, task.validation, task.test)] == [36, 4, 3]


def test_standardisation_is_that_of_the_training_part(tmp_path):
    x = inputs()
    x[:, :, 1] = 7.1
    with pytest.warns(EdgernnWarning, match=r"constant in float32 in all sequences for training: x\[\.\.\., 1\]"):
        task = opened(Arrays(), save(tmp_path, x=x, y=np.zeros(40)))
    part = task.train.x.double()
    assert np.allclose(task.mean, part.mean((0, 1)), rtol=1e-6)
    assert task.std[1] == 1.0
    assert task.std[0] == pytest.approx(part[..., 0].std(correction=0).item(), rel=1e-6)


def test_a_channel_that_is_a_time_is_named(tmp_path):
    x, lengths = inputs(), np.full(40, 5)
    x[:, :, 0], x[:, :, 2] = 115958 + np.arange(5) // 2 * 4042, np.arange(5)
    x[3, 4:], lengths[3] = 0, 4
    with pytest.warns(
        EdgernnWarning, match=r"rises from step to step .*, as a time does: x\[\.\.\., 0\], x\[\.\.\., 2\]"
    ):
        opened(Arrays(), save(tmp_path, x=x, y=np.zeros(40), lengths=lengths))


def test_a_changed_file_has_another_fingerprint(tmp_path):
    one = opened(Arrays(), save(tmp_path, x=inputs(), y=np.zeros(40))).fingerprint
    assert one != opened(Arrays(), save(tmp_path, x=inputs(), y=np.ones(40))).fingerprint


def with_value(value, index):
    x = inputs()
    x[index] = value
    return x


ZEROS = np.zeros(40, int)
BAD_NPZ = {
    "no-x": ({"X": inputs(), "y": ZEROS}, "expected arrays x and y, got no x"),
    "no-y": ({"x": inputs()}, "expected arrays x and y, got no y; to predict the next step.* predict=next"),
    "nothing": ({}, "expected arrays x and y, got no x and y; add the arrays$"),
    "no-y-val": ({"x": inputs(), "y": ZEROS, "x_val": inputs()}, "expected arrays x_val and y_val, got no y_val"),
    "no-x-test": ({"x": inputs(), "y": ZEROS, "y_test": ZEROS}, "got no x_test"),
    "rank": ({"x": inputs()[:, :, 0], "y": ZEROS}, r"x: expected shape \(N, T, I\) .*got \(40, 5\); .*x\[:, :, None\]"),
    "rank-4": ({"x": inputs()[None], "y": ZEROS}, r"x: expected shape \(N, T, I\) .*got \(1, 40, 5, 3\)"),
    "empty": (
        {"x": inputs(T=0), "y": ZEROS},
        r"x: expected at least one sequence, step and channel, got shape \(40, 0, 3\)",
    ),
    "text": ({"x": inputs().astype(str), "y": ZEROS}, "x: expected numbers, got the type <U"),
    "complex": ({"x": inputs() + 1j, "y": ZEROS}, "x: expected numbers, got the type complex128"),
    "text-y": ({"x": inputs(), "y": ZEROS.astype(str)}, "y: expected numbers, got text"),
    "nan": ({"x": with_value(np.nan, (3, 2, 1)), "y": ZEROS}, r"x: expected finite .*, got nan at index \(3, 2, 1\)"),
    "inf": ({"x": with_value(-np.inf, (0, 4, 2)), "y": ZEROS}, r"got -inf at index \(0, 4, 2\)"),
    "overflow": ({"x": with_value(1e300, (1, 0, 0)), "y": ZEROS}, r"got 1e\+300 at index \(1, 0, 0\)"),
    "nan-y": ({"x": inputs(), "y": np.full(40, np.nan)}, r"y: expected finite .*, got nan at index \(0,\)"),
    "length": ({"x": inputs(), "y": ZEROS[:39]}, r"y: expected shape .* with N=40, T=5, got \(39,\)"),
    "length-float": ({"x": inputs(), "y": np.zeros((39, 2))}, r"y: expected shape .* with N=40, T=5, got \(39, 2\)"),
    "steps": ({"x": inputs(), "y": np.zeros((40, 4), int)}, r"y: expected shape .*whole numbers.*, got \(40, 4\)"),
    "steps-float": ({"x": inputs(), "y": np.zeros((40, 4, 1))}, r"y: expected shape .*, got \(40, 4, 1\)"),
    "scalar": ({"x": inputs(), "y": np.array(1.0)}, r"y: expected shape .*, got \(\)"),
    "negative": ({"x": inputs(), "y": ZEROS - 1}, r"y: expected labels of at least 0, got -1 at index \(0,\)"),
    "years": ({"x": inputs(), "y": ZEROS + 2024}, "numbered from 0, got labels up to 2024; .*store y as float"),
    "too-large": ({"x": inputs(), "y": ZEROS.astype(np.uint64) + np.uint64(2**63)}, "labels of at most 2147483647"),
    "few": ({"x": inputs(2), "y": ZEROS[:2]}, "expected at least 3 training sequences, .* got 2"),
    "channels": (
        {"x": inputs(), "y": ZEROS, "x_val": inputs(4, I=2), "y_val": ZEROS[:4]},
        "x_val: expected 3 channels as in x, got 2",
    ),
    "other-y": (
        {"x": inputs(), "y": ZEROS, "x_val": inputs(4), "y_val": np.zeros(4)},
        "y_val: expected torch.int64",
    ),
    "objects": ({"x": np.array([[[None]]]), "y": ZEROS}, "got arrays of Python objects, which are never read"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_arrays_are_named(tmp_path, case):
    arrays, message = BAD_NPZ[case]
    path = save(tmp_path, **arrays)
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Arrays(), path)
    assert str(path) in str(caught.value)


def truncate(content):
    return content[: len(content) // 2]


def flip_bits(content):
    # within the stored x
    at = content.index(b"\x93NUMPY") + 400
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def bad_member(content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00 nothing")
        archive.writestr("y.npy", b"")
    return out.getvalue()


@pytest.mark.parametrize("damage", [truncate, flip_bits, bad_member, lambda _: b"", lambda _: b"text", gzip.compress])
def test_corrupt_npz_is_named(tmp_path, damage):
    path = save(tmp_path, x=inputs(), y=ZEROS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EdgernnError, match=r"expected an (npz archive|array in the npy format|npy header)") as caught:
        opened(Arrays(), path)
    assert str(path) in str(caught.value)


# the next step


def test_the_next_step_is_the_target(tmp_path):
    x = inputs()
    path = save(tmp_path, x=x, y=np.array(["not", "read"]), x_test=x[:4] + 1)
    task = opened(Arrays(predict="next"), path)
    assert (task.output, task.input_size, task.output_size, task.objective.metric) == ("all", 3, 3, "mse")
    assert [len(part) for part in parts(task)] == [36, 4, 4]
    rows = x.astype(np.float32)
    for part in (task.train, task.validation):
        for inputs_, targets in zip(part.x.numpy(), part.y.numpy(), strict=True):
            (i,) = np.flatnonzero((rows[:, 0] == inputs_[0]).all(1))
            assert np.array_equal(inputs_, rows[i, :4])
            assert np.array_equal(targets, rows[i, 1:])
    batch = next(task.test.chunks())
    assert batch.x.shape == batch.target.shape == (4, 4, 3)
    assert torch.equal(batch.x[1:], batch.target[:-1])


def test_the_next_step_needs_two(tmp_path):
    path = save(tmp_path, x=inputs(), x_val=inputs(T=1))
    with pytest.raises(
        EdgernnError, match=r"mine\.npz: validation part: expected sequences of at least 2 steps .*, got 1"
    ):
        opened(Arrays(predict="next"), path)
    with pytest.raises(EdgernnError, match=r"expected arrays x, got no x; add the arrays$"):
        opened(Arrays(predict="next"), save(tmp_path, y=ZEROS))


# from a file to a result


TRAINED = {
    "labels": ({"y": np.arange(40) % 3}, {}, "accuracy", accuracy),
    "labels-a-step": ({"y": np.arange(200).reshape(40, 5) % 3}, {}, "accuracy", accuracy),
    "numbers": ({"y": np.arange(80.0).reshape(40, 2)}, {}, "mse", mean_squared_error),
    "next": ({}, {"predict": "next"}, "mse", mean_squared_error),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_a_few_steps_train_and_the_metric_is_right(tmp_path, monkeypatch, kind):
    without_pictures(monkeypatch)
    y, settings, metric, computed = TRAINED[kind]
    source = save(tmp_path, x=inputs(), **y)
    trained = Trained(tmp_path / "run", str(source), **settings)
    test = opened(Arrays(**settings), source).test
    assert trained.result["metric"] == metric
    assert trained.result[metric] == pytest.approx(computed(trained.outputs(test.x), test.y.numpy()), rel=1e-5)
    assert trained.config["task"]["classes"] is None


def test_a_run_is_scored_again_from_what_its_config_says(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    monkeypatch.chdir(tmp_path)
    # a path may be named as a task
    (tmp_path / "adding").mkdir()
    name = str(save(tmp_path, x=inputs()).rename("adding/adding.npz"))
    settings = {"predict": "next", "steps": 3, "hidden_size": 4}
    result = train(name, "gru", settings=settings, seed=3, out="run", device="cpu")
    model, config = load_model(tmp_path / "run")
    assert config["source"] == name
    del config["command"]
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    value, higher_is_better = scorer(tmp_path / "run")(model)
    assert value == pytest.approx(result["mse"])
    assert not higher_is_better
    for key, damaged in (("task", None), ("task", {"name": "adding"}), ("seed", "0"), ("source", 5), ("folder", [])):
        (tmp_path / "run/config.json").write_text(json.dumps({**config, key: damaged}))
        with pytest.raises(EdgernnError, match=r"config\.json: expected the task, data and seed of a run, got none;"):
            scorer(tmp_path / "run")(model)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((8, 1), int), r"got \(8, 1\); use y\[:, 0\]"),
        (np.eye(8, 3, dtype=int) + np.eye(8, 3, -3, dtype=int) + np.eye(8, 3, -6, dtype=int), r"use y\.argmax\(1\)"),
        (np.zeros(5, int), r"got \(5,\); if x is \(T, N, I\), use x\.transpose\(1, 0, 2\)"),
        (np.array(["a", "b"] * 4), r"y: expected numbers, got text; number the classes: np\.unique\(y, return_inverse"),
    ],
)
def test_an_error_says_how_to_mend_targets(tmp_path, y, message):
    np.savez(tmp_path / "d.npz", x=np.ones((8, 5, 2)), y=y)
    with pytest.raises(EdgernnError, match=message):
        Arrays().open(tmp_path / "d.npz", 0)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            np.arange(20) % 2 * 1.0,
            r"y: whole numbers of a floating-point type are predicted as numbers; for class labels",
        ),
        (np.eye(3)[np.arange(20) % 3], r"y: rows with a single 1 .* for class labels, store y\.argmax\(-1\)"),
        (np.zeros(20, int), "y: every label is 0, so there is nothing to tell apart"),
        (
            np.linspace(0, 1, 100).reshape(20, 5),
            r"y: 5 numbers for each .*, as many as its steps; .* y\[\.\.\., None\]",
        ),
        (np.arange(20) % 2 + 1, "no sequence for training has the class 0; labels count from 0"),
    ],
)
def test_doubtful_targets_are_warned_of(tmp_path, y, message):
    np.savez(tmp_path / "d.npz", x=inputs(20), y=y)
    with pytest.warns(EdgernnWarning, match=message):
        Arrays().open(tmp_path / "d.npz", 0)


def test_copies_and_arrays_that_are_not_read_are_named(tmp_path):
    x, y = inputs(30), np.arange(30) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x[:4], y_test=y[:4], y_valid=y)
    with pytest.warns(EdgernnWarning) as warned:
        Arrays().open(tmp_path / "d.npz", 0)
    messages = [str(w.message).partition(": ")[2] for w in warned]
    assert messages[0].startswith("not read: y_valid; the arrays that are have the names classes, lengths, ")
    assert messages[1].startswith("the same numbers in train and test (")


def test_equal_sequences_of_few_numbers_are_no_copies(tmp_path):
    x, y = np.eye(4)[np.arange(30 * 5).reshape(30, 5) % 4], np.arange(30) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    Arrays().open(tmp_path / "d.npz", 0)


def test_a_dict_may_have_numbers_that_are_no_sequences(tmp_path):
    path = save_data({"x": [np.ones((2, 1)), np.ones((3, 1))], "y": [0, 1], "rate": 50}, tmp_path)
    arrays = read_npz(path)
    assert arrays["rate"] == 50
    assert arrays["lengths"].tolist() == [2, 3]


def test_a_file_without_its_extension_is_named(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.ones((8, 5, 2)), y=np.arange(8) % 2)
    with pytest.raises(UsageError, match=r"mine; to train on your file, give --task .*mine\.npz"):
        find_task(str(tmp_path / "mine"))


def test_training_keeps_the_best_weights_reports_evaluations_and_warns_of_overfitting(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    rng = np.random.default_rng(0)
    # nothing to learn: labels are random
    path = save(tmp_path, x=inputs(N=80), y=rng.integers(2, size=80))
    settings = {"steps": 240, "eval_every": 12, "hidden_size": 24, "lr": 0.02, "patience": "none"}
    reported = []
    with pytest.warns(EdgernnWarning, match="cross_entropy of the validation part was lowest at step .* overfits"):
        result = train(path, "gru", out=tmp_path / "run", settings=settings, on_epoch=reported.append)
    assert reported == [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    most = max(line["accuracy"] for line in reported)
    least = min(line["cross_entropy"] for line in reported if line["accuracy"] == most)
    task = open_task(tmp_path / "run")
    model, _ = load_model(tmp_path / "run")
    calibrated = evaluate(model, task, task.validation)
    load_weights(model, tmp_path / "run", BEST)
    kept = evaluate(model, task, task.validation)
    assert result["best_validation"] == most == kept["accuracy"] == calibrated["accuracy"]
    assert kept["cross_entropy"] == pytest.approx(least)
    assert calibrated["cross_entropy"] < least
    stopped = train(path, "gru", out=tmp_path / "early", settings={**settings, "patience": 2})
    assert stopped["stopped"] == "patience"


def test_a_training_goes_on_while_the_cross_entropy_falls(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x = inputs(N=80)
    levels = x[..., 0].mean(1)
    path = save(tmp_path, x=x, y=(levels > np.median(levels)).astype(int))
    run = train(path, "gru", out=tmp_path / "run", steps=200, eval_every=2, hidden_size=8, lr=0.01, patience=2)
    best, lowest, stale = (-1.0, 0.0), float("inf"), []
    for line in run.history:
        score, entropy = (line["accuracy"], -line["cross_entropy"]), line["cross_entropy"]
        stale.append(0 if score > best or entropy < lowest else stale[-1] + 1)
        best, lowest = max(best, score), min(lowest, entropy)
    assert run["stopped"] == "patience"
    assert stale.index(2) == len(stale) - 1
    # the accuracy alone would have ended it
    accuracies = [line["accuracy"] for line in run.history]
    assert accuracies.index(max(accuracies)) < len(accuracies) - 3


# sequences of unequal lengths


def unequal(N=60, T=9, seed=0):
    """Return sequences with garbage in their padding, the sign of their first channel as labels, and their lengths."""
    rng = np.random.default_rng(seed)
    x, lengths = rng.normal(size=(N, T, 2)), rng.integers(2, T + 1, N)
    y = (x[..., 0] > 0.5).astype(np.int64)
    y[rng.random((N, T)) < 0.1] = -1
    padding = np.arange(T) >= lengths[:, None]
    x[padding], y[padding] = np.nan, 77
    return {"x": x, "y": y, "lengths": lengths}


def test_sequences_of_unequal_lengths_from_file_to_packed_model(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    path = save(tmp_path, **unequal(), classes=["low", "high"])
    settings = {"steps": 30, "hidden_size": 6, "batch_size": 8, "lr": 0.05, "checkpoint_every": 4, "balance": True}
    result = train(path, "sarnn", out=tmp_path / "whole", settings=settings)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(path, "sarnn", out=tmp_path / "cut", settings=settings, progress=Stop(10))
    train(path, "sarnn", out=tmp_path / "cut", settings=settings, resume=True)
    assert snapshot(tmp_path / "cut") == snapshot(tmp_path / "whole")
    table = (tmp_path / "whole/confusion.csv").read_text().splitlines()
    assert table[0].startswith("true class,low,high,precision,recall,f1,precision_low,precision_high,")
    (a, b), (c, d) = (map(int, line.split(",")[1:3]) for line in table[1:])
    assert result["accuracy"] == pytest.approx((a + d) / (a + b + c + d))
    shares = [a / (a + c), a / (a + b), 2 * a / (2 * a + b + c)]
    assert table[1].split(",")[3:6] == [f"{share:.4f}" for share in shares]

    new = unequal(N=20, seed=1)
    right, labels, updates = 0, 0, []
    model, _ = load_model(tmp_path / "whole")
    for x, y, length in zip(*new.values(), strict=True):
        scores = model(torch.from_numpy(x[:length, None]).float())[0][:, 0]
        counted = y[:length] >= 0
        right += int((scores.argmax(-1).numpy() == y[:length])[counted].sum())
        labels += int(counted.sum())
        updates += [model.update_rate] * int(length)
    np.savez(tmp_path / "new.npz", **new, classes=["low", "high"])
    scored = evaluate_model(tmp_path / "whole", data=tmp_path / "new.npz")["metrics"]
    assert scored["accuracy"] == pytest.approx(right / labels)
    assert scored["accuracy"] > 0.8
    assert scored["skip_percent"] == pytest.approx(100 * (1 - np.mean(updates)))
    assert result["macs_executed"] < result["macs"]
    test = open_task(tmp_path / "whole").test
    assert result["steps_a_sequence"] == pytest.approx(test.lengths.double().mean().item())

    assert main(["export", str(tmp_path / "whole")]) == 0
    session = Session(tmp_path / "whole/model.onnx")
    clean = np.nan_to_num(new["x"]).astype(np.float32).transpose(1, 0, 2)
    y = session.run(clean, new["lengths"])
    expected = model.outputs(torch.from_numpy(clean), torch.from_numpy(new["lengths"])).detach().numpy()
    present = np.arange(9)[:, None] < new["lengths"]
    np.testing.assert_allclose(y[present], expected[present], rtol=0, atol=1e-5)
    answers = run_file(tmp_path / "whole/model.onnx", tmp_path / "new.npz")["y"]
    for b, length in enumerate(new["lengths"]):
        np.testing.assert_allclose(answers[b], y[:length, b], rtol=0, atol=1e-6)


def test_padding_changes_neither_statistics_nor_class_weights(tmp_path):
    arrays = unequal()
    task = opened(Arrays(balance=True), save(tmp_path, **arrays))
    train_part = task.train
    steps = [train_part.x[i, :n] for i, n in enumerate(train_part.lengths)]
    assert task.mean == pytest.approx(torch.cat(steps).double().mean(0).tolist(), rel=1e-6)
    counts = torch.bincount(train_part.y[train_part.y >= 0])
    assert task.class_weights == pytest.approx((counts.sum() / (2 * counts)).tolist())
    y, target = torch.randn(4, 2), torch.tensor([0, 1, 1, -1])
    entropy = -y.log_softmax(-1)[torch.arange(3), target[:3]]
    weighted = (entropy * torch.tensor(task.class_weights)[target[:3]]).sum() / 3
    assert task.objective.loss(y, target).item() == pytest.approx(weighted.item(), rel=1e-6)
    assert not task.divides
    after = opened(Arrays(predict="next"), save(tmp_path, **arrays))
    batch = after.train.batch(0, 5)
    for i, length in enumerate(batch.lengths):
        assert torch.equal(batch.target[: length - 1, i], batch.x[1:length, i])
        assert batch.target[length:, i].isnan().all()


def test_numbers_to_ignore_are_nan(tmp_path):
    y = np.random.default_rng(1).normal(size=(40, 5, 2))
    y[:, 0] = np.nan
    task = opened(Arrays(), save(tmp_path, x=inputs(), y=y))
    assert task.train.batch(0, 4).target[0].isnan().all()
    (mean,) = task.baselines().values()
    known = task.test.y[:, 1:].double()
    expected = (known - task.train.y[:, 1:].double().mean((0, 1))).square().mean()
    assert mean["mse"] == pytest.approx(expected.item(), rel=1e-5)


def numbers(count=80):
    """Return sequences (N, T, 2) and two target numbers of each, which are means of its channels."""
    x = np.random.default_rng(2).normal(np.linspace(-2, 2, count)[:, None, None], 0.3, (count, 6, 2))
    return x, x.mean(1)


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.first, self.gru = nn.Linear(input_size, output_size), nn.GRU(output_size, 6)
        self.head = nn.Linear(6, output_size)

    def forward(self, x):
        return self.head(self.gru(self.first(x))[0])[-1]

class Bounded(Net):
    def forward(self, x):
        return super().forward(x).tanh()
"""


@pytest.mark.parametrize("network", [None, "Net"])
def test_the_unit_of_target_numbers_does_not_matter(network, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)
    x, y = numbers()
    unit, zero = np.array([2.0**14, 2.0**-10]), np.array([2.0**17, 3.0])
    cell = ("gru", None) if network is None else (None, None)
    options = {"network": network and f"net.py:{network}", "epochs": 8, "lr": 0.02, "batch_size": 16}
    options |= {} if network else {"hidden_size": 6}
    plain, scaled = (
        train((x, values), *cell, out=name, **options) for name, values in (("a", y), ("b", y * unit + zero))
    )
    np.testing.assert_allclose((scaled.predict(x).y - zero) / unit, plain.predict(x).y, atol=0.02)
    assert scaled["training_loss"] == pytest.approx(plain["training_loss"], rel=1e-2)
    # the metrics and the exported file are in the unit of the data
    assert scaled["mse"] == pytest.approx(scaled.evaluate()["mse"])
    answers = Session(scaled.export()).run(x.swapaxes(0, 1).astype(np.float32))
    np.testing.assert_allclose(answers, scaled.predict(x).y, rtol=1e-4)
    error = ((scaled.predict(x).y - (y * unit + zero)) ** 2).mean(0)
    assert (error < 0.5 * unit**2 * y.var(0)).all()
    if network is None:
        # a trained model goes on in the unit of its data
        further = train((x, y * unit + zero), *cell, out="c", **{**options, "epochs": 1, "start_run": "b"})
        assert further.history[0]["loss"] < 2 * scaled["training_loss"]


def test_a_network_without_a_linear_output_is_warned_of_far_targets(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)
    x, y = numbers()
    with pytest.warns(EdgernnWarning, match=r"targets: means up to 1e\+03 .* end the network with such a layer"):
        train((x, y + 1000), network="net.py:Bounded", out="far", steps=2)
    run = train((x, y), network="net.py:Bounded", out="near", steps=2)
    assert np.abs(run.predict(x).y).max() < 1
    labels = (x[:, :, 0].mean(1) > 0).astype(int)
    calibrated = [train((x, labels), network=f"net.py:{name}", out=name, steps=2) for name in ("Net", "Bounded")]
    assert ["temperature" in run for run in calibrated] == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.ones(59, int)}, "lengths: expected whole numbers of shape (60,), one for each sequence of x"),
        ({"lengths": np.ones(60)}, "lengths: expected whole numbers of shape (60,), one for each sequence of x, got f"),
        ({"lengths": np.arange(60) % 9}, "lengths: expected numbers of steps from 1 to 9, those of x, got 0 at index "),
        ({"y": np.full((60, 9), -1)}, "train part: expected a target, got none that counts; add targets"),
        ({"y": np.full((60, 9), -2)}, "y: expected labels of at least 0, or -1 at steps to ignore, got -2 at index"),
    ],
)
def test_wrong_lengths_and_labels_are_refused(changes, message, tmp_path):
    with pytest.raises(EdgernnError, match=re.escape(message)):
        opened(Arrays(), save(tmp_path, **unequal() | changes))


@pytest.mark.parametrize(
    ("cell", "settings", "message"),
    [("lstm", {"norm": "recurrent-batch"}, "use norm=layer"), ("decaynet", {}, "set its option length")],
)
def test_models_that_cannot_leave_padding_out_are_refused(cell, settings, message, tmp_path):
    path = save(tmp_path, **unequal())
    with pytest.raises(UsageError, match=message):
        train(path, cell, out=tmp_path / "run", settings={"steps": 1, **settings})
    assert not (tmp_path / "run").exists()


def test_each_sequence_is_tested_in_one_fold(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    x = inputs(N=23)
    path = save(tmp_path, x=x, y=np.arange(23) % 2)
    tasks = [opened(Arrays(folds=4), path, seed) for seed in range(5)]
    names = [[{row.numpy().tobytes() for row in part.x} for part in parts(task)] for task in tasks]
    assert names[0][2] == names[4][2]
    assert all(len(set.union(*fold)) == sum(map(len, fold)) == 23 for fold in names)
    tests = [fold[2] for fold in names[:4]]
    assert sum(map(len, tests)) == len(set.union(*tests)) == 23
    # each fold has about equally many sequences of each class
    assert all(2 <= int((task.test.y == label).sum()) <= 3 for task in tasks for label in (0, 1))
    # with a test part of its own, each sequence is validated in one fold
    (tmp_path / "given").mkdir()
    given = save(tmp_path / "given", x=x, y=np.arange(23) % 2, x_test=x[:5] + 1, y_test=np.arange(5) % 2)
    folds = [opened(Arrays(folds=4), given, seed) for seed in range(4)]
    validated = [{row.numpy().tobytes() for row in task.validation.x} for task in folds]
    assert sum(map(len, validated)) == len(set.union(*validated)) == 23
    assert all(torch.equal(task.test.x, folds[0].test.x) for task in folds)
    words = ["--cell", "gru", "--out", str(tmp_path / "cv"), "--folds", "3", "steps=2", "hidden_size=4"]
    assert main(["train", "--task", str(path), *words]) == 0
    out, _ = capsys.readouterr()
    results = [json.loads((tmp_path / f"cv/fold-{i}/result.json").read_text()) for i in range(3)]
    values = [result["accuracy"] for result in results]
    mean, half = np.mean(values), 4.302653 * np.std(values, ddof=1) / 3**0.5
    interval = f"{mean - half:.4g} to {mean + half:.4g}"
    assert out.startswith(f"accuracy over 3 folds: test {mean:.4g}, 95 % interval {interval}; validation ")
    assert [result["seed"] for result in results] == [0, 1, 2]


# data in memory


def waves(count=60, seed=0):
    """Return sequences of unequal lengths around 0 or 2, and the names of their classes."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(2.0 * (i % 2), 0.3, (int(rng.integers(4, 9)), 2)) for i in range(count)]
    return x, ["low", "high"] * (count // 2)


def test_lists_of_arrays_become_a_trained_run_that_predicts_classes(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x, y = waves()
    settings = {"hidden_size": 6, "steps": 40, "lr": 0.02}
    run = train((x, y), "gru", out=tmp_path / "run", **settings)
    assert run["accuracy"] == 1 == run.evaluate()["accuracy"]
    assert [line["step"] for line in run.history] == [line["step"] for line in RunDirectory(run.path).metrics()]
    new, names = waves(10, seed=1)
    answers = run.predict(new)
    assert answers.classes.tolist() == names
    assert answers.probabilities.sum(1) == pytest.approx(1)
    for sequence, y_of_list in zip(new, answers.y, strict=True):
        np.testing.assert_allclose(run.predict(sequence).y, y_of_list, rtol=0, atol=1e-5)
    assert run.evaluate((new, names))["accuracy"] == 1
    labels = np.array([name == "low" for name in names], int)
    coarse = [torch.from_numpy(rows).bfloat16() for rows in new]
    assert run.evaluate({"x": coarse, "y": labels, "classes": ["high", "low"]})["accuracy"] == 1
    # data of the training keep their split
    assert run.evaluate((x, y)) == run.evaluate()
    assert Session(run.export()).info["classes"] == ["high", "low"]
    # the same arrays from a file, a Dataset and after a stop are the same training
    padded, lengths = stacked("x", x)
    file = save(tmp_path, x=padded, y=[i % 2 == 0 for i in range(len(y))], lengths=lengths, classes=["high", "low"])
    again = train(file, "gru", out=tmp_path / "again", **settings)
    resumed = train((x, y), "gru", out=run.path, resume=True, **settings)
    same = train(list_dataset(x, y), "gru", out=tmp_path / "dataset", **settings)
    objects = np.array(x, object), np.array(y, object)
    np.testing.assert_equal(*(dict(np.load(save_data(data, tmp_path))) for data in ((x, y), objects)))
    assert again["cross_entropy"] == resumed["cross_entropy"] == same["cross_entropy"] == run["cross_entropy"]
    with pytest.raises(UsageError, match=r"fingerprint: the run in .* has '\w+', got '\w+'"):
        train((x[1:], y[1:]), "gru", out=run.path, resume=True, **settings)


def test_messages_about_data_in_memory_name_the_caller_and_no_file(tmp_path, recwarn):
    x, y = waves()
    with pytest.raises(EdgernnError, match=r"^x: expected finite numbers .*, got nan"):
        train(([*x[:-1], np.full((4, 2), np.nan)], y), "gru", out=tmp_path / "run", steps=1)
    train((x, [0] * len(y)), "gru", out=tmp_path / "run", hidden_size=2, steps=1)
    warning = next(entry for entry in recwarn if "every label is 0" in str(entry.message))
    assert (str(warning.message)[:3], warning.filename) == ("y: ", __file__)


def test_a_class_for_each_step_of_unequal_sequences(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x, _ = waves(40)
    y = [["high" if value > 1 else "low" for value in rows[:, 0]] for rows in x]
    run = train((x, y), "gru", out=tmp_path / "run", hidden_size=6, steps=40, lr=0.05)
    answers = run.predict(x[:6])
    assert [[name for name in row if name] for row in answers.classes.tolist()] == y[:6]
    padding = answers.classes == ""
    assert np.isnan(answers.y[padding]).all()
    assert answers.probabilities[~padding].sum(1) == pytest.approx(1)
    for wrong in ("new.csv", np.zeros(3), [["a"]]):
        with pytest.raises(UsageError, match=r"x: expected numbers \(T, I\) or \(N, T, I\)"):
            run.predict(wrong)


def test_a_number_for_each_step_of_unequal_sequences(tmp_path):
    x, _ = waves(40)
    y = [rows[:, 0] for rows in x]
    by_content = {rows.astype(np.float32).tobytes(): numbers for rows, numbers in zip(x, y, strict=True)}
    for data in ((x, y), {"x": x, "y": y}):
        task = opened(Arrays(), save_data(data, tmp_path))
        assert (task.output, task.output_size) == ("all", 1)
        for rows, numbers, length in zip(task.train.x, task.train.y, task.train.lengths, strict=True):
            expected = by_content[rows[:length].numpy().tobytes()]
            np.testing.assert_allclose(numbers[:length, 0], expected, rtol=1e-6)
            assert numbers[length:].isnan().all()


def test_names_of_classes_may_be_strings_of_numpy(tmp_path):
    x, y = waves()
    names = np.array(y, np.dtypes.StringDType())
    np.testing.assert_equal(*(dict(np.load(save_data((x, classes), tmp_path))) for classes in (y, names)))


def test_a_run_of_data_in_memory_may_be_moved(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x, y = waves()
    run = train((x, y), "gru", out=tmp_path / "run", hidden_size=4, steps=6)
    moved = run.path.rename(tmp_path / "moved")
    # other data take the place of its own
    train((x[10:], y[10:]), "gru", out=tmp_path / "run", hidden_size=4, steps=6)
    assert evaluate_model(moved)["metrics"]["cross_entropy"] == pytest.approx(run["cross_entropy"])
    assert main(["train", "--resume", "--out", str(moved)]) == 0


def list_dataset(x, y):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index], y[index]

    return Pairs()


class Column(list):
    """A column of a DataFrame of pandas, as far as it is read."""

    def tolist(self):
        return list(self)

    def isna(self):
        return Column(cell is None or cell != cell for cell in self)


class PandasFrame(dict):
    """A DataFrame of pandas, as far as it is read: it is not installed here."""

    # rows that were selected from a larger frame
    index = SimpleNamespace(names=[None], dtype=np.dtype(int))
    columns = property(list)


class NamesTwice(PandasFrame):
    columns = property(lambda self: ["u", "u"])


class NamesOfLevels(PandasFrame):
    columns = property(lambda self: [("u", "x"), ("u", "y")])


def test_a_frame_is_read_as_a_table(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x, y = waves()
    columns = {
        "recording": np.repeat(np.arange(len(x)), [len(rows) for rows in x]).tolist(),
        "u": np.concatenate(x)[:, 0].tolist(),
        "v": np.concatenate(x)[:, 1].tolist(),
        "kind": [name for rows, name in zip(x, y, strict=True) for _ in rows],
    }
    columns["kind"][0] = None
    results = []
    frames = {"polars": pl.DataFrame(columns), "pandas": PandasFrame({n: Column(c) for n, c in columns.items()})}
    for name, frame in frames.items():
        run = train(frame, "gru", out=tmp_path / name, hidden_size=6, steps=30, lr=0.02)
        results.append(run["cross_entropy"])
        assert run.evaluate(frame.lazy() if name == "polars" else frame)["accuracy"] == run["accuracy"] == 1
    assert results[0] == results[1]
    # data of the training keep their split, in any format and order of columns
    pl.DataFrame(columns).select(list(columns)[::-1]).write_csv(tmp_path / "again.csv")
    again = evaluate_model(run.path, data=tmp_path / "again.csv")
    assert (again["data"], again["metrics"]) == (None, run.evaluate())
    # channels are taken by their names, and arrays by place, in any form
    swapped, array = pl.DataFrame(x[0], schema=["u", "v"]).select("v", "u"), x[0].astype(">f4")
    expected = run.predict(x[0]).y
    for form in (swapped, swapped.with_columns(label=1), array, array[::-1][::-1], array.astype(np.longdouble)):
        np.testing.assert_allclose(run.predict(form).y, expected, atol=1e-5)
    with pytest.raises(UsageError, match="x: expected each of the columns u, v once, got v; add or rename 'u'"):
        run.predict([swapped.select("v")])
    with pytest.raises(EdgernnError, match=r"x: expected finite numbers .*, got nan at index \(0, 0\)"):
        run.predict(x[0] * math.nan)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (3, r"task: expected the name of a task, a path, a pair \(x, y\), .*, got int"),
        (([np.zeros((3, 2)), np.zeros((4, 1))], [0, 1]), r"x: expected arrays .*, got the shapes \(3, 2\), \(4, 1\)"),
        (([np.zeros((3, 2)), np.zeros(4)], [0, 1]), "x: expected arrays that differ in their number of steps alone"),
        ((np.zeros((3, 2)), [0, 1, 0]), r"^x: expected shape \(N, T, I\)"),
        ({"x": np.zeros((9, 2, 1))}, "expected arrays x and y, got no y"),
        (([], []), "x: expected at least one sequence, got none"),
        ({"x": np.zeros((9, 2, 1)), "y": None}, "y: expected an array, got None; leave it out"),
        ((np.zeros((9, 2, 1)), 3), r"y: expected shape \(N,\) or \(N, T\) of whole numbers .*, got \(\)"),
        (
            (np.ma.masked_array(np.zeros((9, 2, 1)), mask=np.eye(9)[:, :2, None]), None),
            "x: .* got a masked array; fill them",
        ),
        ({"x": [[[1.0], [2.0, 3.0]]] * 9}, "x: expected an array, got list .*; pass an array"),
        # targets of other lengths than their sequences
        (
            ([np.zeros((3, 1)), np.zeros((4, 1))], [[0, 1, 0, 1], [0, 1, 0]]),
            "y: expected a target for each of the 3 steps of sequence 0, got 4",
        ),
        (
            {"x": np.zeros((2, 4, 1)), "y": [[0, 1, 0, 1], [0, 1, 0]]},
            "y: expected a target for each of the 4 steps of sequence 1, got 3",
        ),
        (
            {"x": np.zeros((2, 4, 1)), "y": [[0, 1, 0, 1], [0, 1, 0]], "lengths": [4, 2]},
            "y: expected a target for each of the 2 steps of sequence 1, got 3",
        ),
        (
            {"lengths": [3, 3], "x": [np.zeros((3, 1)), np.zeros((4, 1))], "y": [0, 1]},
            "lengths: expected those of the sequences in x, which differ, got others; leave lengths out",
        ),
        ((np.zeros((2, 4, 1)), ["a", ""]), "y: expected a class for each sequence, got '' at index 1"),
        ((np.zeros((2, 4, 1)), [math.nan, "b"]), "y: expected texts alone, or numbers alone, got nan among texts"),
        ((np.zeros((2, 4, 1)), np.array(["a", math.nan], object)), "y: expected texts alone, .*, got nan among texts"),
        ((np.zeros((2, 2, 1)), [["a", "b"], ["b", math.nan]]), "y: expected texts alone, .*, got nan among texts"),
        (
            ([PandasFrame(u=Column([1.0]), v=Column([2.0])), PandasFrame(v=Column([2.0]), u=Column([1.0]))], [0, 1]),
            "x: expected the columns u, v in this order in each table, got v, u; select them in one order",
        ),
        ((np.zeros((2, 4, 1)), [b"a", b"b"]), r"y: expected numbers or texts \(str\), got bytes"),
        ((np.zeros((2, 4, 1)), [{}, {}]), r"y: expected numbers or texts \(str\), got dict"),
        (([torch.zeros(4, 1, device="meta")] * 2, [0, 1]), "x: expected a tensor of numbers, got another"),
        ({1: np.zeros((2, 4, 1))}, "task: expected arrays with names such as x and y, got the name 1"),
        (list_dataset([], []), r"task: expected pairs \(x, y\) in the Dataset, got none"),
        (TensorDataset(torch.zeros(3, 4, 1)), r"task: expected pairs .*, got tuple of 1 at index 0"),
        (torch.utils.data.Dataset(), "task: expected a Dataset with a length, got Dataset"),
        (NamesTwice(u=Column([1.0])), "task: expected columns of different names, got 'u' twice"),
        (NamesOfLevels(), r"task: expected one name for each column, got \('u', 'x'\)"),
        (PandasFrame(u=Column([1j])), "task: column u: expected numbers, text or times, got complex"),
    ],
)
def test_data_in_memory_that_do_not_fit_are_refused(task, message, tmp_path):
    with pytest.raises(EdgernnError, match=message):
        train(task, "gru", out=tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_settings_and_seeds(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    x, y = waves()
    runs = [
        train((x, y), "gru", out=tmp_path / type(seed).__name__, hidden_size=size, steps=2, lr=lr, seed=seed)
        for size, lr, seed in ((4, 0.5, 1), (np.int64(4), np.float32(0.5), np.int8(1)))
    ]
    assert runs[0]["cross_entropy"] == runs[1]["cross_entropy"]
    with pytest.raises(UsageError, match=r"seed: expected a whole number .*, got None"):
        train((x, y), "gru", out=tmp_path / "none", seed=None)


def test_settings_are_typed_for_editors():
    owners = (TrainConfig, ModelConfig, Arrays, Tables, OwnWords)
    fields = {name: setting for owner in owners for name, setting in fields_of(owner).items()}
    hints = get_type_hints(Settings)
    assert {name.rstrip("_") for name in hints} == fields.keys()
    kinds = (int, float, bool, str, NoneType)
    for name, hint in hints.items():
        default = fields[name.rstrip("_")].default
        assert isinstance(default, kinds)
        assert isinstance(default, hint)
