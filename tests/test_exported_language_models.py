# SPDX-License-Identifier: Apache-2.0
"""Exported language models: words as input of sessions, of `edgernn run` and of `edgernn bench`."""

import json

import numpy as np
import onnx
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.errors import UsageError
from edgernn.runtime import Session
from edgernn.store import load_model
from tests.language import AWD, run, write_text
from tests.tolerances import FLOAT32
from tests.training_helpers import without_pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory, folder):
    """Export a small run with every option of a language model; return the file and its model in torch."""
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        out = tmp_path_factory.mktemp("exported") / "run"
        settings = {**AWD, "tied": True, "steps": 3, "eval_every": 3}
        run(out, folder, "sarnn", **settings)
    assert main(["export", str(out)]) == 0
    return out, load_model(out)[0]


def test_exported_model_reads_words(exported):
    out, model = exported
    proto = onnx.load(out / "model.onnx")
    x = proto.graph.input[0].type.tensor_type
    assert (x.elem_type, [d.dim_param for d in x.shape.dim]) == (onnx.TensorProto.INT64, ["T", "B"])
    sizes = [w.name for w in proto.graph.initializer if model.vocabulary in w.dims]
    assert sizes == ["embedding.E", "head.b"]
    session = Session(out / "model.onnx")
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=(9, 4))
    with torch.no_grad():
        expected, _ = model(torch.from_numpy(tokens))
    np.testing.assert_allclose(session.run(tokens), expected, rtol=0, atol=FLOAT32)
    np.testing.assert_allclose(session.run(tokens[:, 0].tolist()), expected[:, 0], rtol=0, atol=FLOAT32)
    for row, y in zip(tokens.astype(np.uint16), expected, strict=True):
        np.testing.assert_allclose(session.step(row), y, rtol=0, atol=FLOAT32)
    session.reset()
    np.testing.assert_allclose(session.step(int(tokens[0, 0])), expected[0, 0], rtol=0, atol=FLOAT32)
    assert session.neurons == 7 + 7 + 6
    assert session.updates.shape == (1, 1)


def test_the_card_and_the_example_say_words(exported):
    out, model = exported
    card = (out / "model.md").read_text()
    assert "takes `x` (T, B), `layer0.h` (B, 7)" in card
    assert f"x is int64, words from 0 to {model.vocabulary - 1}." in card
    assert f"{model.vocabulary} words, I=6, H=7, 3 layers, the last one of 6" in card
    with np.load(out / "example.npz") as example:
        x, y = example["x"], example["y"]
    assert x.dtype == np.int64
    assert y.shape == (*x.shape, model.vocabulary)
    info = Session(out / "model.onnx").info
    assert (info["model"]["input"]["vocabulary"], info["model"]["last_size"], info["metric"]) == (
        model.vocabulary,
        6,
        "perplexity",
    )
    # neither the embedding nor the head
    assert info["parameters"] - info["cost"]["parameters"] == model.vocabulary * 7


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0, 99]], "x: expected word indices from 0 to 14, got 99 at index \\(0, 1\\)"),
        ([[0], [-1]], "x: expected word indices from 0 to 14, got -1 at index \\(1, 0\\)"),
        ([0.0, 1.0], r"x: expected whole numbers of shape \(T, B\), got dtype float64"),
        (np.zeros((2, 2, 6), int), r"x: expected shape \(T, B\), or without B, got \(2, 2, 6\)"),
    ],
)
def test_session_refuses_what_is_no_word(exported, x, message):
    with pytest.raises(UsageError, match=message):
        Session(exported[0] / "model.onnx").run(x)


def test_run_reads_words_from_files(exported, tmp_path):
    out, model = exported
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=(3, 8))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens.T))[0].transpose(0, 1).numpy()
    np.savez(tmp_path / "x.npz", x=tokens)
    np.savetxt(tmp_path / "x.csv", tokens[0], fmt="%d")
    for source, target, wanted in (("x.npz", "y.npz", expected), ("x.csv", "y.npy", expected[0])):
        words = [str(tmp_path / source), "--output", str(tmp_path / target)]
        assert main(["run", str(out / "model.onnx"), "--input", *words]) == 0
        got = np.load(tmp_path / target)
        np.testing.assert_allclose(got if target == "y.npy" else got["y"], wanted, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("x.npy", np.zeros((3, 8)), "x.npy: expected whole numbers, got dtype float64"),
        ("x.npy", np.zeros((3, 8, 6), int), "x.npy: expected x of shape (T,) or (N, T), got (3, 8, 6)"),
        ("x.npy", np.full((3, 8), 15), "x: expected word indices from 0 to 14, got 15 at index (0, 0)"),
        ("x.csv", np.full((3, 1), 0.5), "x.csv: expected one whole number in each row, the index of a word"),
        ("x.csv", np.zeros((3, 2)), "x.csv: expected one whole number in each row, the index of a word"),
    ],
)
def test_run_refuses_files_without_words(exported, tmp_path, capsys, name, x, message):
    path = tmp_path / name
    np.save(path, x) if name.endswith("npy") else np.savetxt(path, x, delimiter=",")
    options = ["--input", str(path), "--output", str(tmp_path / "y.npy")]
    assert main(["run", str(exported[0] / "model.onnx"), *options]) == 2
    assert message in capsys.readouterr().err


def test_bench_times_words(exported, tmp_path, capsys):
    out, _ = exported
    options = ["--rounds", "1", "--warmup", "0", "--steps", "4", "--out", str(tmp_path)]
    assert main(["bench", str(out / "model.onnx"), *options]) == 0
    assert "15 words, I=6, H=7, 3 layers, the last one of 6" in (tmp_path / "bench.md").read_text()
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["input"] == "example.npz"
    # 4 gates, one bias: 7 on 6, 7 on 7, 6 on 7
    assert report["costs"]["parameters_lstm"] == 4 * (7 * 14 + 7 * 15 + 6 * 14)
    # without an example the initial weights are random
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "model.onnx").write_bytes((out / "model.onnx").read_bytes())
    assert main(["bench", str(alone / "model.onnx"), *options]) == 0
    assert json.loads((tmp_path / "bench.json").read_text())["input"] == "random words"
