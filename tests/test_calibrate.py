# SPDX-License-Identifier: Apache-2.0
"""Calibration of a trained dense model: the search, the command, and the page's commands."""

import dataclasses
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
from edgernn.config import ModelConfig, RuleConfig
from edgernn.export import to_onnx
from edgernn.progress import Silent
from edgernn.runtime import Session
from edgernn.runtime.weights import read_weights
from edgernn.settings import load, record
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate, calibrate_output, with_thresholds
from edgernn.training.calibration.threshold_search import search_thresholds
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


@pytest.mark.slow
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


def stored_thresholds(path):
    """Return the thresholds of x and h of each layer in an exported file."""
    weights = read_weights(path)
    names = [name.removesuffix(".rule_theta_x") for name in weights if name.endswith(".rule_theta_x")]
    return {name: [float(weights[f"{name}.rule_theta_{key}"].values[0]) for key in "xh"] for name in names}


def test_each_layer_keeps_thresholds_of_its_own(tmp_path):
    """In an exported file, and in a model that is stored and loaded."""
    model, x = edgernn.SequenceModel("gru", 3, 16, 2, layers=2, bidirectional=True, output="all").eval(), smooth()
    thresholds = [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8)]
    calibrated = with_thresholds(model, thresholds)
    loaded = edgernn.SequenceModel(load(ModelConfig, record(calibrated.config), "config.json")).eval()
    loaded.load_state_dict(calibrated.state_dict())
    for layer, (theta_x, theta_h) in zip(loaded.recurrent_layers(), thresholds, strict=True):
        assert (float(layer.rule.rule_theta_x), float(layer.rule.rule_theta_h)) == pytest.approx((theta_x, theta_h))
    with torch.no_grad():
        torch.testing.assert_close(loaded(x)[0], calibrated(x)[0], rtol=0, atol=0)
    to_onnx(calibrated, tmp_path / "m.onnx")
    names = ("layer0", "layer0.reverse", "layer1", "layer1.reverse")
    stored = stored_thresholds(tmp_path / "m.onnx")
    assert list(stored) == list(names)
    for name, pair in zip(names, thresholds, strict=True):
        assert stored[name] == pytest.approx(pair)


def test_units_are_the_mean_changes_of_the_first_layer():
    model, x = edgernn.SequenceModel("gru", 3, 16, layers=2, output="all").eval(), smooth()
    calibration = calibrate_output(model, x, loss=0.05)
    with torch.no_grad():
        h = model.recurrent_layers()[0](x)[0]
    units = [float(value.diff(dim=0).abs().mean()) for value in (x, h)]
    for point in calibration.curve:
        for pair, scales in zip(point.thresholds, point.scales, strict=True):
            assert pair == pytest.approx([scale * unit for scale, unit in zip(scales, units, strict=True)])


def test_options_of_layers_are_those_of_all_layers():
    config = ModelConfig.of("gru", 3, 8, rule="delta", layers=2)
    rule = RuleConfig("delta", {"theta_x": 0.5}, [{"theta_h": 0.1}, {"theta_h": 0.2}])
    config = dataclasses.replace(config, layer=dataclasses.replace(config.layer, rule=rule))
    rules = [layer.rule for layer in edgernn.SequenceModel(config).recurrent_layers()]
    assert [(float(r.rule_theta_x), float(r.rule_theta_h)) for r in rules] == [
        (0.5, pytest.approx(0.1)),
        (0.5, pytest.approx(0.2)),
    ]
    with pytest.raises(
        edgernn.UsageError, match=r"rule.layers: expected options for each of the 3 recurrent layers, go"
    ):
        edgernn.SequenceModel(dataclasses.replace(config, layers=3))


def searched(limit, costs, sensitivities):
    """Search thresholds of layers whose work falls with 1 / (1 + θ), and whose loss is the weighted sum of all θ."""

    def measure(scales):
        work = sum(c / (1 + x) + c / (1 + h) for c, (x, h) in zip(costs, scales, strict=True)) / (2 * sum(costs))
        return work, sum(s * (x + h) for s, (x, h) in zip(sensitivities, scales, strict=True))

    return search_thresholds(measure, len(costs), lambda value: value <= limit, limit, 0.0, Silent())


def test_layers_are_raised_one_by_one():
    best, curve = searched(1.0, (1.0, 1.0), (0.2, 0.001))
    assert best.value <= 1.0
    assert best.scales[1][0] > best.scales[0][0]
    assert best.executed == min(point.executed for point in curve if point.value <= 1.0)
    # no point with the same multiples in all layers is as good
    same = [p for p in curve if len(set(p.scales)) == 1 and p.value <= 1.0]
    assert best.executed < min(point.executed for point in same)
    assert len({point.scales for point in curve}) == len(curve) <= 8 + 3 + 6 + 12
    single, curve = searched(1.0, (1.0,), (0.2,))
    assert single.value <= 1.0
    assert len(curve) <= 8 + 3 + 6


@pytest.mark.slow
def test_a_run_of_two_layers_is_exported_with_thresholds_for_each(tmp_path, capsys):
    train("adding", "gru", out=tmp_path / "run", settings=SMALL | {"epochs": 3, "layers": 2})
    assert main(["calibrate", str(tmp_path / "run"), "--loss", "50", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [layer["name"] for layer in result["layers"]] == ["layer0", "layer1"]
    assert result["chosen"] in result["curve"]
    thresholds = {layer["name"]: [layer["theta_x"], layer["theta_h"]] for layer in result["layers"]}
    assert list(thresholds.values()) == result["chosen"]["thresholds"]
    stored = stored_thresholds(Path(result["model"]))
    for name, pair in thresholds.items():
        assert stored[name] == pytest.approx(pair)


def test_a_rule_of_another_kind_is_refused(run):
    model = edgernn.SequenceModel("sarnn", 3, 8)
    with pytest.raises(edgernn.UsageError, match=r"model: expected one with the rule 'always', .* got the rule 'sel"):
        with_thresholds(model, [(0.1, 0.1)])
    with pytest.raises(edgernn.UsageError, match="loss: expected above 0, got 0"):
        calibrate_output(edgernn.SequenceModel("gru", 3, 8), smooth(), loss=0)


def test_a_loss_that_no_thresholds_reach_is_refused():
    with pytest.raises(edgernn.EdgernnError, match="loss: expected thresholds that lose at most 1e-09, found none"):
        calibrate_output(edgernn.from_torch(torch.nn.GRU(3, 16)), smooth(), loss=1e-9)


@pytest.mark.slow
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
