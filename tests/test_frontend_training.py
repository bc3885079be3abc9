# SPDX-License-Identifier: Apache-2.0
"""Training, export and benchmark of a model with a front end, from the command line, on own data of raw audio."""

import json

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.runtime import Session

HOP = 80
SETTINGS = ["frontend=logmel", f"hop={HOP}", "window_size=200", "sample_rate=8000", "bands=16", "normalise=floor"]


@pytest.fixture
def audio(tmp_path):
    """Write clips of noise, half of them with a tone (label 1), at any level."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 20, HOP)) * 10 ** random.uniform(-3, -1, (60, 1, 1))
    y = np.arange(60) % 2
    tone = np.sin(0.7 * np.arange(10 * HOP)).reshape(10, HOP)
    x[y == 1, 10:] += 4 * x[y == 1].std((1, 2), keepdims=True) * tone
    path = tmp_path / "clips.npz"
    np.savez(path, x=x.astype(np.float32), y=y)
    return path


@pytest.mark.slow
def test_a_run_trains_on_samples_and_exports_what_streams_them(audio, tmp_path, capsys):
    run, model = tmp_path / "run", tmp_path / "model.onnx"
    train = ["train", "--task", str(audio), "--cell", "sarnn", "--out", str(run), *SETTINGS, "steps=60"]
    assert main([*train, "hidden_size=8", "batch_size=16", "lr=0.01"]) == 0
    config, result = (json.loads((run / name).read_text()) for name in ("config.json", "result.json"))
    assert config["model"]["frontend"]["name"] == "logmel"
    # statistics of the 16 features
    assert len(config["model"]["input"]["mean"]) == 16
    assert result["accuracy"] > 0.9
    assert result["frontend_macs"] > 2000
    assert main(["export", str(run), "--out", str(model)]) == 0
    assert "multiply-adds a step, front end" in (tmp_path / "model.md").read_text()
    capsys.readouterr()
    assert main(["bench", str(model), "--steps", "20", "--rounds", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["costs"]["frontend_macs"] == result["frontend_macs"]
    assert set(report["timings"]) >= {"edgernn native", "edgernn portable"}
    example = np.load(tmp_path / "example.npz")
    session = Session(model)
    for x_t in example["x"][0]:
        y = session.step(x_t)
    np.testing.assert_allclose(y, example["y"][0], atol=1e-4)


def test_a_hop_that_differs_from_the_data_is_refused(audio, tmp_path, capsys):
    words = ["train", "--task", str(audio), "--cell", "gru", "--out", str(tmp_path / "run"), "frontend=logmel"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "hop: expected the size of the input, 80" in error
    assert not (tmp_path / "run").exists()


def test_a_task_with_another_network_is_refused(tmp_path, capsys):
    words = ["train", "--task", "draw", "--cell", "lstm", "--out", str(tmp_path / "run"), "frontend=logmel"]
    assert main(words) == 2
    assert "frontend: the network of the task draw has no such setting; leave it out" in capsys.readouterr().err
