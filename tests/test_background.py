# SPDX-License-Identifier: Apache-2.0
"""Steps that a task marks as background, and their weight in the update budget."""

import json

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.model import SequenceModel
from edgernn.training import evaluate, train
from edgernn.training.plan import choose
from edgernn.training.tasks.adding import Adding
from tests.task_helpers import opened
from tests.training_helpers import SMALL

pytestmark = pytest.mark.usefixtures("no_pictures")


# budget and share


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True}, {"layers": 2}], ids=str)
@pytest.mark.parametrize("rule", ["selective", "skip"])
def test_budget_and_share_of_marked_steps(rule, settings):
    torch.manual_seed(0)
    model = SequenceModel("gru", 3, 8, rule=rule, **settings)
    if rule == "skip":
        for layer in model.recurrent_layers():
            layer.rule.force(0.4)
    x, background = torch.randn(9, 4, 3), torch.rand(9, 4) < 0.6
    with model.marked(background, 5.0):
        model(x)
    budget, counted, updated = 0.0, 0, 0
    for i, trace in enumerate(model.traces):
        u = trace.decisions.numpy().astype(float)
        marks = background.numpy()
        if settings.get("bidirectional") and i == 1:
            marks = marks[::-1]
        budget += (np.where(marks, 5.0, 1.0)[..., None] * u).mean((1, 2)).sum()
        counted += (~marks).sum() * 8
        updated += u[~marks].sum()
    assert model.budget.item() == pytest.approx(budget, rel=1e-6)
    assert model.foreground_rate == pytest.approx(updated / counted)
    assert model.foreground == pytest.approx(1 - background.numpy().mean())
    assert model.foreground_rate != model.update_rate
    model(x)
    assert (model.foreground, model.foreground_rate) == (1, model.update_rate)
    assert model.budget.item() == pytest.approx(sum(t.decisions.double().mean((1, 2)).sum() for t in model.traces))


def test_variable_weighs_its_distances():
    model = SequenceModel("gru", 3, 8, rule="variable", rule_options={"target": 0.2})
    with model.marked(torch.tensor([[True], [False], [True]]), 0.0):
        model(torch.zeros(3, 1, 3))
    # m is 1/2 with the initial weights
    assert model.budget.item() == pytest.approx(0.3)


def test_marks_of_another_shape_are_refused():
    model = SequenceModel("sarnn", 3, 8)
    error = pytest.raises(UsageError, match=r"background: expected shape \(T, B\) = \(5, 2\), got \(2, 5\)")
    with error, model.marked(torch.zeros(2, 5, dtype=torch.bool)):
        model(torch.zeros(5, 2, 3))


def test_evaluation_counts_foreground_steps_alike():
    torch.manual_seed(0)
    task = opened(Adding(T=9, silence=0.5, test_size=300))
    model = SequenceModel("sarnn", 2, 6, 1)
    metrics = evaluate(model, task, task.validation)
    x = task.validation.x.transpose(0, 1)
    with torch.no_grad():
        model(x)
    u, silent = model.traces[0].decisions.double(), (x == 0).all(-1)
    assert metrics["skip_percent_foreground"] == pytest.approx(100 * (1 - u[~silent].mean().item()))
    assert metrics["skip_percent"] == pytest.approx(100 * (1 - u.mean().item()))


# tasks


@pytest.mark.parametrize(("settings", "heard"), [({"silence": 0.7}, 6), ({"silence": 0.7, "markers": "halves"}, 6)])
def test_silence_is_one_stretch_without_values_and_markers(settings, heard):
    task = opened(Adding(T=20, **settings))
    batch = task.train.batch(3, 500)
    silent = task.background(batch)
    assert torch.equal(silent, (batch.x == 0).all(-1))
    assert (silent.sum(0) == 20 - heard).all()
    # the stretch is contiguous, and begins anywhere
    assert (silent.float().diff(dim=0).abs().sum(0) <= 2).all()
    assert len(set(silent.float().argmax(0).tolist())) == heard + 1
    assert (batch.x[..., 1].sum(0) == 2).all()
    torch.testing.assert_close((batch.x[..., 0] * batch.x[..., 1]).sum(0)[:, None], batch.target)


def test_without_silence_no_step_is_background():
    task = opened(Adding(T=20))
    assert not task.marks_background
    assert task.background(task.train.batch(0, 5)) is None


def test_two_steps_are_heard():
    with pytest.raises(
        UsageError, match=r"silence: expected at least 2 of the T=10 steps outside the silent stretch, got 1"
    ):
        Adding(T=10, silence=0.9)


def test_a_label_of_own_data_is_background(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=(40, 6))
    np.savez(tmp_path / "mine.npz", x=np.eye(3)[y] + rng.normal(size=(40, 6, 3)), y=y)
    settings = {"epochs": 2, "hidden_size": 4, "background_label": 1, "background": 4.0, "lambda": 0.1}
    result = train(str(tmp_path / "mine.npz"), "sarnn", out=tmp_path / "run", settings=settings)
    assert result["skip_percent_foreground"] != result["skip_percent"]
    np.savez(tmp_path / "last.npz", x=np.zeros((40, 6, 3)), y=y[:, 0])
    with pytest.raises(EdgernnError, match="expected one label per step with background_label=1"):
        train(str(tmp_path / "last.npz"), "sarnn", out=tmp_path / "last", settings=settings)


# training


@pytest.mark.parametrize(
    ("task", "rule", "settings", "message"),
    [
        (
            "adding",
            "selective",
            {},
            "expected a task that marks steps at which nothing happens, got adding",
        ),
        (
            "adding",
            "random",
            {"silence": 0.5},
            "expected an update rule with a penalty on updates, got random",
        ),
        ("char", "selective", {}, "background: expected a task that marks steps at which nothing happens, got char"),
    ],
)
def test_a_weight_without_effect_is_refused(task, rule, settings, message):
    with pytest.raises(UsageError, match=message):
        choose(task, "gru", rule, {"background": 2.0, **settings})


@pytest.mark.slow
def test_the_share_counts_foreground_steps(tmp_path):
    settings = {"T": 20, "silence": 0.5, "hidden_size": 16, "batch_size": 20, "test_size": 200, "stop_solved": False}
    settings |= {"steps": 600, "lr": 0.01, "eval_every": 20, "skip": 0.7}
    results = [
        train("adding", "sarnn", out=tmp_path / str(weight), settings={**settings, "background": weight})
        for weight in (0.0, 8.0)
    ]
    skipped = []
    for result in results:
        assert result["skip_missed"] is None
        assert result["skip_percent_validation"] == pytest.approx(70, abs=2)
        assert result["skip_percent_foreground"] == pytest.approx(70, abs=3)
        # half of the steps are background
        skipped.append(2 * result["skip_percent"] - result["skip_percent_foreground"])
    assert skipped[1] > skipped[0] + 15


def test_a_weight_of_1_changes_nothing(tmp_path):
    settings = {**SMALL, "silence": 0.5, "steps": 12, "lambda": 0.1}
    for name, extra in (("plain", {}), ("weighted", {"background": 1.0})):
        train("adding", "sarnn", out=tmp_path / name, settings={**settings, **extra})
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("plain", "weighted")
    )
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two])
