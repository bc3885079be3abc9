# SPDX-License-Identifier: Apache-2.0
"""What `edgernn run` prints: classes with probabilities, numbers, csv and JSON."""

import io
import json

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.export import to_onnx
from edgernn.random_models import random_model
from edgernn.runtime import Session

# names that are not in the order of the alphabet, and one with a space
CLASSES = ["walk", "sit down", "run", "fall"]


def model_file(folder, metadata, **sizes):
    path = folder / "model.onnx"
    to_onnx(random_model("gru", 2, 5, output_size=4, **sizes), path, metadata=metadata)
    return path


def run(words, capsys):
    assert main(["run", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def x(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 5, 2)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    return x


def softmax(y):
    exponents = np.exp(np.float64(y))
    return exponents / exponents.sum(-1, keepdims=True)


def test_a_row_has_the_likeliest_classes_with_their_probabilities(tmp_path, x, capsys):
    model = model_file(tmp_path, {"classes": CLASSES, "metric": "macro_f1"})
    expected = softmax(Session(model).run(x.swapaxes(0, 1)))
    header, *rows, shape = run([model, "--input", tmp_path / "x.npz"], capsys).splitlines()
    assert header.split() == ["sequence", "class", *["probability", "next"] * 2, "probability"]
    for i, row in enumerate(rows):
        cells = [cell for cell in row.split("  ") if cell.strip()]
        order = np.argsort(-expected[i])[:3]
        assert [cell.strip() for cell in cells[1::2]] == [CLASSES[k] for k in order]
        assert [float(cell) for cell in cells[2::2]] == pytest.approx(expected[i][order], abs=6e-4)
        assert int(cells[0]) == i
    assert (len(rows), shape.startswith("y (6, 4) (")) == (6, True)


def test_json_and_csv_have_all_values(tmp_path, x, capsys):
    model = model_file(tmp_path, {"classes": CLASSES, "metric": "accuracy"})
    y = Session(model).run(x.swapaxes(0, 1))
    result = json.loads(run([model, "--input", tmp_path / "x.npz", "--json"], capsys))
    assert (result["output"], result["axes"], result["classes"]) == (None, ["sequence"], CLASSES)
    np.testing.assert_allclose(result["y"], y, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result["probabilities"], softmax(y), rtol=0, atol=1e-6)
    printed = run([model, "--input", tmp_path / "x.npz", "--output", "-"], capsys)
    np.testing.assert_allclose(np.loadtxt(io.StringIO(printed), delimiter=","), y, rtol=0, atol=1e-6)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["model.onnx", "x.npz"]
    result = json.loads(run([model, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npy", "--json"], capsys))
    assert (result["shape"], "y" in result) == ([6, 4], False)


def test_each_step_has_a_row_and_numbers_have_no_probabilities(tmp_path, x, capsys):
    model = model_file(tmp_path, {"metric": "mse"}, output="all")
    y = Session(model).run(x.swapaxes(0, 1)).swapaxes(0, 1)
    header, *rows, _ = run([model, "--input", tmp_path / "x.npz"], capsys).splitlines()
    assert header.split() == ["sequence", "step", "y[0]", "y[1]", "y[2]", "y[3]"]
    values = np.array([[float(cell) for cell in row.split()] for row in rows])
    np.testing.assert_array_equal(values[:, :2], [(i, t) for i in range(6) for t in range(5)])
    np.testing.assert_allclose(values[:, 2:], y.reshape(30, 4), rtol=1e-5, atol=1e-6)
    assert main(["run", str(model), "--input", str(tmp_path / "x.npz"), "--output", "-"]) == 2
    assert (
        "-: expected a table or one sequence for csv, got y of shape (6, 5, 4), with 6 sequences of steps; write npz"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("metric", ["mse", "accuracy"])
def test_steps_after_the_end_of_a_sequence_have_no_answer(metric, tmp_path, x, capsys):
    model, lengths = model_file(tmp_path, {"metric": metric, "classes": None}, output="all"), [5, 2, 4, 1, 3, 5]
    np.savez(tmp_path / "x.npz", x=x, lengths=lengths)
    _, *rows, _ = run([model, "--input", tmp_path / "x.npz"], capsys).splitlines()
    places = [tuple(map(int, row.split()[:2])) for row in rows]
    assert places == [(i, t) for i, length in enumerate(lengths) for t in range(length)]
    result = json.loads(run([model, "--input", tmp_path / "x.npz", "--json"], capsys))
    for i, length in enumerate(lengths):
        np.testing.assert_allclose(result["y"][i], Session(model).run(x[i, :length]), rtol=0, atol=1e-6)
    assert main(["run", str(model), "--input", str(tmp_path / "x.npz"), "--output", "-"]) == 2
    run([model, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz"], capsys)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["lengths"], lengths)
    # one sequence is a table
    np.savez(tmp_path / "x.npz", x=x[1:2], lengths=[2])
    table = np.loadtxt(io.StringIO(run([model, "--input", tmp_path / "x.npz", "--output", "-"], capsys)), delimiter=",")
    np.testing.assert_allclose(table, result["y"][1], rtol=0, atol=1e-6)
    run([model, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.csv"], capsys)
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "y.csv", delimiter=","), table)


def test_classes_without_names_are_numbered(tmp_path, x, capsys):
    model = model_file(tmp_path, {"classes": None, "metric": "accuracy"})
    np.save(tmp_path / "one.npy", x[0])
    result = json.loads(run([model, "--input", tmp_path / "one.npy", "--json"], capsys))
    assert (result["axes"], result["classes"]) == ([], ["0", "1", "2", "3"])
    best = np.argmax(Session(model).run(x[0]))
    assert run([model, "--input", tmp_path / "one.npy"], capsys).splitlines()[1].split()[0] == str(best)
