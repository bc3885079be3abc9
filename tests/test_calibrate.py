# SPDX-License-Identifier: Apache-2.0
"""Calibration of a trained dense model: the search, the command, and the page's commands."""

import json
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.runtime import Session
from edgernn.training import train
from edgernn.training.calibrate import calibrate, calibrate_output, with_thresholds
from tests.training_helpers import SMALL

PAGE = (Path(__file__).resolve().parent.parent / "docs/how-to/calibrate.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dense"
    train("adding", "gru", out=folder, settings=SMALL | {"epochs": 3})
    return folder


def smooth(steps=60, batch=4, size=3):
    generator = torch.Generator().manual_seed(0)
    return 0.1 * torch.randn(steps, batch, size, generator=generator).cumsum(0)


@pytest.mark.parametrize("module", [torch.nn.GRU(3, 16), torch.nn.LSTM(3, 16, num_layers=2)], ids=["gru", "lstm"])
def test_a_module_of_torch_is_made_cheaper_without_labels(module):
    model, x = edgernn.from_torch(module), smooth()
    calibration = calibrate_output(model, x, loss=0.05)
    assert calibration.point.executed < 0.8
    assert calibration.point.value <= 0.05
    with torch.no_grad():
        expected, y = model(x)[0], calibration.model(x)[0]
    assert float((y - expected).square().mean().sqrt()) <= 0.05 * float(expected.square().mean().sqrt())
    shares = [point.executed for point in calibration.curve]
    assert shares == sorted(shares, reverse=True)
    for (name, weight), (other, copied) in zip(
        model.state_dict().items(), calibration.model.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(weight, copied)


def test_a_run_is_exported_within_the_loss(run, tmp_path):
    result = calibrate(run, tmp_path / "m.onnx", loss=20.0)
    assert result["validation"]["executed"] < 1
    assert result["validation"][result["metric"]] <= 1.2 * result["dense"]
    session = Session(tmp_path / "m.onnx", backend="native")
    with np.load(tmp_path / "example.npz") as example:
        y = session.run(example["x"].swapaxes(0, 1))
        np.testing.assert_allclose(y, example["y"], rtol=0, atol=1e-4)
    assert session.macs is not None
    assert (tmp_path / "m.md").is_file()


def test_a_rule_of_another_kind_is_refused(run):
    model = edgernn.SequenceModel("sarnn", 3, 8)
    with pytest.raises(edgernn.UsageError, match=r"model: expected one with the rule 'always', .* got the rule 'sel"):
        with_thresholds(model, [(0.1, 0.1)])
    with pytest.raises(edgernn.UsageError, match="loss: expected above 0, got 0"):
        calibrate_output(edgernn.SequenceModel("gru", 3, 8), smooth(), loss=0)


def test_a_loss_that_no_thresholds_reach_is_refused():
    with pytest.raises(edgernn.EdgernnError, match="loss: expected thresholds that lose at most 1e-09, found none"):
        calibrate_output(edgernn.from_torch(torch.nn.GRU(3, 16)), smooth(), loss=1e-9)


def test_the_commands_of_the_page_run(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = [f"{name}={value}" for name, value in SMALL.items()] + ["epochs=3"]
    with warnings.catch_warnings():
        # of torch.onnx
        warnings.simplefilter("ignore")
        for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(code, "calibrate.md", "exec"), {"__name__": "page"})
    assert Session("gru-delta.onnx").backend == "native"
    for line in re.findall(r"^ {4}edgernn (.*)$", PAGE, re.MULTILINE):
        words = shlex.split(line)
        words += {"train": short, "bench": ["--rounds", "1"]}.get(words[0], [])
        # a training of a second loses more
        words = [{"5": "50"}.get(word, word) for word in words]
        capsys.readouterr()
        assert main(words) == 0, line
        out = capsys.readouterr().out
        if words[0] == "calibrate":
            assert len(re.findall(r"^ +\S+ +\S+ +\d\.\d{3}  \S+  <- chosen$", out, re.MULTILINE)) == 1
    assert json.loads(Path("runs/dense/result.json").read_text())["rule"] == "always"
    assert Path("net-delta.onnx").is_file()
