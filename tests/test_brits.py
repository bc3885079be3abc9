# SPDX-License-Identifier: Apache-2.0
"""BRITS: series with gaps both ways, loss and metrics compared with plain loops, and runs of the task."""

import json
import math

import numpy as np
import pytest
import torch

from edgernn import SequenceModel
from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.costs import executed_macs
from edgernn.errors import UsageError
from edgernn.export.run import export_run
from edgernn.runtime import Session
from edgernn.store import load_model
from edgernn.training.config import TrainConfig
from edgernn.training.evaluate import evaluate
from edgernn.training.loop import train_step
from edgernn.training.papers.gaps import backwards, with_gaps
from edgernn.training.papers.networks.brits import BRITS
from edgernn.training.papers.tasks.brits import Mortality, roc_auc
from tests.stays import F, deltas, write_stays
from tests.task_helpers import opened
from tests.tolerances import FLOAT32, FLOAT64
from tests.training_helpers import without_pictures, words

TINY = {"hidden_size": 6, "batch_size": 8, "steps": 3}
both = pytest.mark.parametrize("direction", ["forward", "both"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_stays(folder / "physionet2012")
    return folder


def test_another_direction_is_refused():
    with pytest.raises(UsageError, match="direction: expected forward or both, got 'backward'"):
        Mortality(direction="backward")


# series with gaps


def series(T, B, F, seed=0):
    """Draw values with gaps (T, B, F) in float64, and uneven times (T,)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(T, B, F))
    values[rng.random((T, B, F)) < 0.5] = np.nan
    return values, np.cumsum(rng.uniform(0.1, 3, T))


@pytest.mark.parametrize(("T", "B", "F"), [(1, 1, 1), (2, 1, 3), (33, 3, 5)], ids=str)
def test_times_of_either_direction_follow_the_recurrence(T, B, F):
    values, times = series(T, B, F)
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    for direction, table, clock in (
        (x, values, times),
        # masks and values reversed in time; the clock runs from the end
        (backwards(x), values[::-1], times[-1] - times[::-1]),
    ):
        masks = ~np.isnan(table)
        expected = np.stack([deltas(masks[:, b], clock) for b in range(B)], 1)
        np.testing.assert_array_equal(direction[..., :F], np.where(masks, table, 0))
        np.testing.assert_array_equal(direction[..., F : 2 * F], masks)
        np.testing.assert_allclose(direction[..., 2 * F :], expected, rtol=0, atol=FLOAT64)
    torch.testing.assert_close(backwards(backwards(x)), x, rtol=0, atol=FLOAT64)


def brits_of(cell="lstm", F=3, **options):
    return BRITS(cell=cell, input_size=3 * F, hidden_size=5, output_size=1, imputer="rits", **options).double()


@pytest.mark.parametrize("cell", ["lstm", "eins", "sarnn"])
def test_reversed_time_swaps_the_two_models(cell):
    values, times = series(9, 4, 3)
    model = brits_of(cell, mean=0.5, std=2.0)
    other = brits_of(cell)
    other.ahead.load_state_dict(model.behind.state_dict())
    other.behind.load_state_dict(model.ahead.state_dict())
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    y, filled = model(x)
    swapped, refilled = other(backwards(x))
    assert not torch.allclose(y[0], y[1])
    torch.testing.assert_close(swapped, y.flip(0), rtol=0, atol=FLOAT64)
    torch.testing.assert_close(refilled, filled.flip(0, 1), rtol=0, atol=FLOAT64)
    torch.testing.assert_close(other.imputation_loss, model.imputation_loss, rtol=0, atol=FLOAT64)


def test_both_models_are_those_that_run_alone():
    values, times = series(9, 4, 3)
    model = brits_of()
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    back = with_gaps(torch.from_numpy(values[::-1].copy()), torch.from_numpy(times[-1] - times[::-1])[:, None, None])
    y, filled = model(x)
    # the forward model cannot know later values, the backward model earlier ones
    alone = model.ahead(x)[0], model.behind(back)[0]
    torch.testing.assert_close(y, torch.stack(alone), rtol=0, atol=FLOAT64)
    seen = torch.from_numpy(values)
    for one in filled:
        torch.testing.assert_close(one[~seen.isnan()], seen[~seen.isnan()])


def test_a_network_without_an_imputer_is_refused():
    with pytest.raises(UsageError, match="imputer: expected gru-d or rits, got none"):
        BRITS(cell="lstm", input_size=9, hidden_size=5)


# loss and metrics


def network(task, cell="lstm", **options):
    options = {"hidden_size": 6, "mean": task.mean, "std": task.std, **options}
    model = ModelConfig.of(cell, task.input_size, output_size=1, **options)
    return task.build_network(task.adapted(model))


def models_in(model):
    return [model] if isinstance(model, SequenceModel) else [model.ahead, model.behind]


def draw_answers(model, x):
    """Draw logits (D, B), imputed values (D, T, B, F), imputation loss and budget, as a network returns them."""
    logits, filled, loss, budget = [], [], 0.0, 0.0
    with torch.no_grad():
        for i, (one, series) in enumerate(zip(models_in(model), (x, backwards(x)), strict=False)):
            y, _ = one(series)
            imputed = one.traces[0].imputed
            logits.append(y[:, 0].double().numpy())
            filled.append((imputed.flip(0) if i else imputed).double().numpy())
            loss += float(one.traces[0].imputation_loss)
            budget += float(one.traces[0].budget)
    return np.stack(logits), np.stack(filled), loss, budget


@both
@pytest.mark.parametrize("cell", ["lstm", "sarnn"])
def test_a_step_adds_every_part_of_the_loss_once(data, cell, direction):
    task = opened(Mortality(direction=direction, consistency=0.7, label_weight=1.3, positive_weight=4.0), data)
    model = network(task, cell)
    batch = task.train.batch(0, 11)
    logits, filled, imputation, budget = draw_answers(model, batch.x)
    label = batch.target[0, :, -1].numpy()
    p = 1 / (1 + np.exp(-logits))
    entropy = -(4.0 * label * np.log(p) + (1 - label) * np.log(1 - p)).mean(1).sum()
    distance = np.abs(filled[0] - filled[-1]).mean()
    config = TrainConfig(imputation=0.3, lambda_=0.01)
    value, _ = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), batch, task, config)
    assert imputation > 1
    assert (distance > 0.01) == (direction == "both")
    assert (budget > 0) == (cell == "sarnn")
    assert value == pytest.approx(1.3 * entropy + 0.3 * imputation + 0.7 * distance + 0.01 * budget, rel=1e-5)


@both
@pytest.mark.parametrize(("cell", "chunk"), [("lstm", 250), ("sarnn", 13)])
def test_metrics_are_those_of_the_whole_split(data, monkeypatch, direction, cell, chunk):
    task = opened(Mortality(direction=direction), data)
    model = network(task, cell)
    split = task.train
    chunks = split.chunks
    monkeypatch.setattr(split, "chunks", lambda: chunks(chunk))
    metrics = evaluate(model, task, split)
    logits, filled, *_ = draw_answers(model, split.x.transpose(0, 1))
    updates = [layer.decisions.double().mean() for one in models_in(model) for layer in one.traces if cell == "sarnn"]
    p = (1 / (1 + np.exp(-logits))).mean(0)
    label = split.y[:, 0, -1].numpy()
    errors, sizes = [], []
    for n, t, f in np.argwhere(~np.isnan(split.y[..., :F].numpy())):
        truth = (float(split.y[n, t, f]) - task.mean[f]) / task.std[f]
        errors.append(abs(filled[:, t, n, f].mean() - truth))
        sizes.append(abs(truth))
    expected = {
        "auc": pairs(p, label),
        "mae": sum(errors) / len(errors),
        "mre": sum(errors) / sum(sizes),
        "accuracy": ((p > 0.5) == label).mean(),
        "cross_entropy": -np.where(label > 0, np.log(p), np.log(1 - p)).mean(),
        "skip_percent": 100 * (1 - np.mean(updates or [1.0])),
        # of all sequences at once: whether kept sums pay is decided for the rates of a chunk
        "macs_executed": pytest.approx(executed_macs(model), rel=1e-3),
    }
    assert metrics.keys() == expected.keys()
    assert metrics.pop("macs_executed") == expected.pop("macs_executed")
    assert metrics == pytest.approx(expected, rel=1e-5)


def pairs(score, label):
    """AUC by definition: the fraction of pairs in which the positive is scored above the negative; ties count half."""
    total = [(a > b) + (a == b) / 2 for a in score[label > 0] for b in score[label == 0]]
    return sum(total) / len(total)


@pytest.mark.parametrize("levels", [1, 2, 7, 10**9], ids="{} levels".format)
@pytest.mark.parametrize(("count", "positives"), [(2, 1), (60, 1), (60, 59), (90, 20)])
def test_auc_equals_the_count_of_pairs(levels, count, positives):
    rng = np.random.default_rng(levels + count)
    score = rng.integers(levels, size=count) / levels
    label = rng.permutation(np.arange(count) < positives)
    assert roc_auc(score, label) == pytest.approx(pairs(score, label), abs=1e-12)


def test_a_sure_model_has_finite_metrics(data):
    task = opened(Mortality(direction="both"), data)
    model = network(task)
    with torch.no_grad():
        model.ahead.head.bias.fill_(1e4)
        model.behind.head.bias.fill_(1e4)
    metrics = evaluate(model, task, task.test)
    assert metrics["cross_entropy"] == pytest.approx(5 / 7 * 1e4, rel=1e-3)
    assert 0 <= metrics["auc"] <= 1


# runs


def test_the_imputer_is_rits_unless_another_is_named():
    task = Mortality()
    for cell, imputer, expected in (
        ("lstm", None, "rits"),
        ("eins", "gru-d", "gru-d"),
        ("gru-d", None, "gru-d"),
        ("rits", None, "rits"),
    ):
        model = ModelConfig.of(cell, task.input_size, imputer=imputer)
        assert task.adapted(model).layer.imputer == expected


# the rows of the paper's tables 3 and 5: the parameters are those of the cells
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("both", 2)])
@pytest.mark.parametrize(("cell", "parameters"), [("lstm", 68_400), ("eins", 44_870)])
def test_the_papers_rows(direction, count, cell, parameters):
    task = Mortality(direction=direction)
    task.mean, task.std = (0.0,), (1.0,)
    model = network(task, cell, mean=0.0, std=1.0, hidden_size=task.defaults["hidden_size"])
    cells = [layer.cell for layer in model.recurrent_layers()]
    assert [sum(p.numel() for p in c.parameters()) for c in cells] == [parameters] * count


def run(data, out, *args, **settings):
    command = ["train", "--task", "brits", "--out", str(out), "--data", str(data), "--device", "cpu", *args]
    return main([*command, *words({**TINY, **settings})])


@both
@pytest.mark.parametrize("cell", ["sarnn", "gru-d"])
def test_any_cell_trains_from_the_command_line(data, tmp_path, monkeypatch, cell, direction):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", cell, direction=direction) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metric"] == "auc"
    assert result["steps"] == 3
    assert all(math.isfinite(result[name]) for name in ("auc", "mae", "mre", "cross_entropy"))
    assert (result["skip_percent"] > 0) == (cell == "sarnn")


def test_a_layer_both_ways_is_refused(data, tmp_path, capsys):
    assert run(data, tmp_path / "run", "--cell", "lstm", bidirectional="true") != 0
    assert "bidirectional: the network of the task brits has no such setting" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rits_run_becomes_a_file_that_equals_torch(data, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", "eins") == 0
    process = export_run(tmp_path / "run", tmp_path / "m.onnx")
    assert [check["backend"] for check in process["checks"]] == ["portable", "native"]
    model, _ = load_model(tmp_path / "run")
    x = opened(Mortality(), data).test.x.transpose(0, 1).contiguous()
    with torch.no_grad():
        y = model(x)[0].numpy()
    for backend in ("portable", "native"):
        np.testing.assert_allclose(
            Session(tmp_path / "m.onnx", backend=backend).run(x.numpy()), y, rtol=0, atol=FLOAT32
        )


def test_a_run_both_ways_cannot_become_a_file(data, tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", "lstm", direction="both") == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.onnx")]) != 0
    assert "network: expected a SequenceModel, got a BRITS" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()
