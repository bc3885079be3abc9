# SPDX-License-Identifier: Apache-2.0
"""Trainings with a wanted share of skipped updates (the setting skip)."""

import json
import math

import pytest

from edgernn.errors import EdgernnWarning, UsageError
from edgernn.progress import Silent
from edgernn.steering import Steering, SteeringState
from edgernn.training import loop, train
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.plan import choose
from edgernn.training.tables.toml_settings import over
from tests.training_helpers import SMALL

pytestmark = pytest.mark.usefixtures("no_pictures")

SHORT = {"T": 10, "hidden_size": 16, "batch_size": 20, "test_size": 200, "stop_solved": False}
SHORT |= {"steps": 400, "lr": 0.01, "eval_every": 20}
MISSED = "ignore:skip. expected:edgernn.errors.EdgernnWarning"


@pytest.mark.parametrize("skip", [0.3, 0.9])
@pytest.mark.parametrize(
    ("rule", "options"),
    [("selective", {}), ("selective", {"group_size": 4}), ("skip", {}), ("delta", {})],
    ids=["selective", "groups", "skip", "delta"],
)
def test_a_training_reaches_the_share(tmp_path, rule, options, skip):
    settings = {**SHORT, **options, "skip": skip}
    result = train("adding", "gru", rule, out=tmp_path / "run", settings=settings)
    assert result["skip_percent_validation"] == pytest.approx(100 * skip, abs=2)
    assert result["skip_percent"] == pytest.approx(100 * skip, abs=3)
    assert result["skip_percent_wanted"] == 100 * skip
    assert result["skip_missed"] is None


@pytest.mark.filterwarnings(MISSED)
def test_delta_without_a_threshold_misses_the_share_and_says_why(tmp_path):
    """Without a threshold, all values of h that change at all are sent."""
    settings = {**SHORT, "theta_h": 0.0, "skip": 0.9}
    result = train("adding", "gru", "delta", out=tmp_path / "run", settings=settings)
    assert result["skip_percent_validation"] < 50
    assert "ended at its bound" in result["skip_missed"]
    assert "the rule cannot skip more on these data" in result["skip_missed"]


def test_without_steering_the_share_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(Steering, "weight", 0.0)
    with pytest.warns(EdgernnWarning, match="skip: expected 90 % of the updates skipped on the validation data"):
        result = train("adding", "gru", "selective", out=tmp_path / "run", settings={**SHORT, "skip": 0.9})
    assert result["skip_percent_validation"] < 80
    assert result["skip_missed"].startswith("skip: expected 90 %")


def test_metrics_and_progress_show_weight_and_share(tmp_path):
    class Figures(Silent):
        def __init__(self):
            self.steps, self.lines = [], []

        def update(self, step, line="", **figures):
            (self.lines if line else self.steps).append(line or figures)

    progress = Figures()
    settings = {**SHORT, "steps": 100, "skip": 0.6}
    with pytest.warns(EdgernnWarning):
        train("adding", "sarnn", out=tmp_path / "run", settings=settings, progress=progress)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [set(line) >= {"lambda", "skip_percent", "skip_percent_training"} for line in lines] == [True] * 5
    assert lines[0]["lambda"] != lines[-1]["lambda"]
    assert progress.steps[-1]["lambda"] == lines[-1]["lambda"]
    assert progress.steps[-1]["skip"] == f"{lines[-1]['skip_percent_training']:.1f} of 60 %"
    assert f"skip {lines[-1]['skip_percent']:.1f} of 60 %" in progress.lines[-1]


# the law of λ


def test_the_law_of_the_weight():
    steering = Steering(0.8, 100)
    assert steering.weight == 0
    steering.follow(1, loss=2.0, budget=5.0, share=0.6)
    scale = 1e-3 * 2.0 / 5.0
    assert (steering.weight, steering.skipped) == (0, pytest.approx(40))
    steering.follow(2, loss=9.0, budget=9.0, share=0.7)
    # the wanted share moves from 0.6 to 0.2 within 50 steps
    z = 0.5 * (0.7 - (0.6 - 0.4 * 2 / 50)) + 20 * 0.1 * (0.7 - 0.6)
    assert steering.weight == pytest.approx(scale * math.sinh(z))
    assert steering.skipped == pytest.approx(100 * (1 - 0.61))
    steering.follow(80, loss=9.0, budget=9.0, share=0.1)
    z += 0.5 * (0.1 - 0.2) + 20 * 0.1 * (0.1 - 0.61)
    assert steering.weight == pytest.approx(scale * math.sinh(z))
    assert steering.weight < 0


@pytest.mark.parametrize(("share", "bound"), [(1.0, math.sinh(10)), (0.0, -math.sinh(10))])
def test_the_weight_stops_at_its_bounds_and_leaves_them(share, bound):
    steering = Steering(0.5, 100, SteeringState(0.01, share, share))
    for step in range(1000):
        steering.follow(step, 1.0, 1.0, share)
    assert steering.weight == pytest.approx(0.01 * bound)
    steering.follow(1000, 1.0, 1.0, 0.5)
    assert abs(steering.weight) < 0.01 * abs(bound)


@pytest.mark.parametrize(
    ("state", "percent", "why"),
    [
        (SteeringState(1e-4, 0.5, 0.3, 10.0), 70.0, "ended at its bound, 1.1, and the rule cannot skip more"),
        (SteeringState(1e-4, 0.5, 0.1, -10.0), 90.0, "ended at its bound, -1.1, and the rule skips more by itself"),
        (SteeringState(1e-4, 0.5, 0.2, 1.0), 70.0, "it is 80.0 % on the training batches"),
        (SteeringState(1e-4, 0.5, 0.3, 1.0), 70.0, "still changing, 70.0 % in the last of 50 training steps"),
    ],
    ids=["most", "least", "data", "short"],
)
def test_a_missed_share_is_explained(state, percent, why):
    text = Steering(0.8, 50, state).why_missed(percent)
    assert text.startswith(f"skip: expected 80 % of the updates skipped on the validation data, got {percent:.1f} %: ")
    assert why in text
    assert Steering(0.8, 50, state).why_missed(81.9) is None


# the weights that a run keeps


def evaluations(monkeypatch, *pairs):
    """Let evaluations return these (mse, skip_percent), the last one for all that follow."""
    left = list(pairs)

    def evaluated(*_):
        mse, skip = left.pop(0) if len(left) > 1 else left[0]
        return {"mse": mse, "mae": mse, "skip_percent": skip}

    monkeypatch.setattr(loop, "evaluate", evaluated)


@pytest.mark.filterwarnings(MISSED)
@pytest.mark.parametrize(
    ("pairs", "best", "missed"),
    [
        # the warm-up lasts 5 of 10 steps
        ([(1, 80)] * 4 + [(5, 80), (4, 81.9), (3, 83), (2, 50), (6, 79), (7, 80)], 4, 0),
        ([(1, 80)] * 4 + [(5, 50), (6, 60), (7, 60), (1, 20), (5, 99), (4, 60)], 5, 17),
    ],
    ids=["near", "closest"],
)
def test_evaluations_with_the_share_compete(tmp_path, monkeypatch, pairs, best, missed):
    evaluations(monkeypatch, *pairs)
    settings = {**SMALL, "steps": 10, "eval_every": 1, "skip": 0.8, "stop_solved": False}
    result = train("adding", "sarnn", out=tmp_path / "run", settings=settings)
    state = json.loads((tmp_path / "run/state.json").read_text())
    assert (result["best_validation"], state["missed"]) == (best, missed)
    assert (tmp_path / "run/best.safetensors").exists()


@pytest.mark.filterwarnings(MISSED)
def test_a_run_is_solved_only_with_the_share(tmp_path, monkeypatch):
    evaluations(monkeypatch, (0, 80), (0, 80), (0, 80), (0, 60), (0, 70), (0, 79), (0, 80))
    settings = {**SMALL, "steps": 20, "eval_every": 2, "skip": 0.8}
    result = train("adding", "sarnn", out=tmp_path / "run", settings=settings)
    # the warm-up ends with step 10, the fifth evaluation
    assert (result["stopped"], result["steps"]) == ("solved", 12)


# settings


@pytest.mark.parametrize("rule", ["always", "random", "clockwork", "phased", "topk"])
def test_a_rule_without_a_budget_is_refused(rule):
    with pytest.raises(UsageError, match=f"got {rule}, which has none; use one of .*selective"):
        choose("adding", "gru", rule, {"skip": 0.5})


@pytest.mark.parametrize(("name", "value"), [("lambda", 0.001), ("skip_target", 80.0)])
def test_skip_excludes_other_settings(name, value):
    with pytest.raises(UsageError, match=f"skip, {name}: expected one of the two, got skip=0.5 {name}={value}"):
        choose("adding", "gru", "selective", {"skip": 0.5, name: value})
    assert over({name: value}, {"skip": 0.5}) == {"skip": 0.5}
    assert over({"skip": 0.5}, {name: value}) == {name: value}


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 80])
def test_skip_is_a_share(value):
    with pytest.raises(UsageError, match="skip: expected a number above 0 and below 1 or none"):
        choose("adding", "gru", "selective", {"skip": value})


def test_skip_replaces_defaults_of_the_task():
    config = choose("adding", "gru", "selective", {"skip": 0.5}).config
    assert (config.skip, config.lambda_, config.stop.skip_target, config.keep) == (0.5, 0.0, None, "best")
    assert choose("adding", "gru", "selective", {"skip": 0.5, "keep": "last"}).config.keep == "last"
    config = choose("adding", "gru", "selective", {"skip": None, "lambda": 0.1}).config
    assert (config.skip, config.lambda_, config.stop.skip_target, config.keep) == (None, 0.1, 85.0, "last")
    assert resolve_config({("skip",): 0.5}, {("lambda_",): 0.1}) == TrainConfig(epochs=20, lambda_=0.1)


def test_the_budget_of_variable_counts_updates():
    model = choose("adding", "gru", "variable", {"skip": 0.5}).model
    assert model.layer.rule.options == {"target": 0.0}
    model = choose("adding", "gru", "variable", {"skip": 0.5, "target": 0.2}).model
    assert model.layer.rule.options == {"target": 0.2}
