# SPDX-License-Identifier: Apache-2.0
"""Training under the rule delta: learned thresholds, gradients of kept values, in the loop and in the kernels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import edgernn
from edgernn.export import to_onnx
from edgernn.kernels import column
from edgernn.layer import RecurrentLayer
from edgernn.random_models import random_model
from edgernn.rules import Delta
from edgernn.runtime import Session
from edgernn.steering import Steering
from edgernn.training import train
from tests.fused import COLUMN_AND_GATE, LOSSES, assert_equals_loop, fused, inputs, make, run, whole_loss
from tests.layers import gru_step
from tests.models import contractive
from tests.training_helpers import SMALL, Stop, snapshot

pytestmark = pytest.mark.usefixtures("training_library", "no_pictures")

THETA = {"theta_x": 0.4, "theta_h": 0.1}
# a slope other than the default, to detect code that ignores it
LEARNED = {**THETA, "learn_thresholds": True, "slope": 2.0}
CELLS = [cell for cell, rule in COLUMN_AND_GATE if rule == "delta"]
NAMES = ("rule_theta_x", "rule_theta_h")
MISSED = "ignore:skip. expected:edgernn.errors.EdgernnWarning"


def thresholds(folder: Path) -> dict[str, float]:
    return {
        name[-7:]: float(value) for name, value in load_file(folder / "model.safetensors").items() if "theta" in name
    }


def straight(forward: Tensor, *backward: Tensor) -> Tensor:
    """Return `forward` with the sum of the gradients of `backward`."""
    return forward.detach() + sum(b - b.detach() for b in backward)


@pytest.mark.parametrize("straight_through", [True, False])
def test_gradients_are_those_of_the_equations(straight_through: bool) -> None:
    slope, H = 3.0, 5
    options = {"theta_x": 0.3, "theta_h": 0.2, "learn_thresholds": True, "straight_through": straight_through}
    layer = make("gru", "delta", 3, H, slope=slope, **options).double()
    cell, rule = layer.cell, layer.rule
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    parameters = [x, cell.W, cell.R, rule.rule_theta_x, rule.rule_theta_h]
    y, _, trace = layer(x)
    assert 0 < trace.decisions.double().mean() < 1
    got = torch.autograd.grad(y.sin().sum() + 2 * trace.budget, parameters)

    h = last_h = torch.zeros(2, H, dtype=torch.float64)
    last_x, outputs, budget = torch.zeros(2, 3, dtype=torch.float64), [], torch.zeros(())

    def send(value: Tensor, last: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x̂ or ĥ as the rule keeps it, as products read it, and its costs."""
        change = (value - last).detach()
        kept = torch.where(change.abs() > theta, value, last)
        kept = straight(kept, value) if straight_through else kept
        soft = torch.sigmoid(slope * (change.abs() - theta))
        return (
            kept,
            straight(kept, kept, soft * change),
            straight((kept - last).abs(), (kept - last).abs(), soft * change.abs()),
        )

    for x_t in x:
        last_x, read_x, cost_x = send(x_t, last_x, rule.rule_theta_x)
        last_h, read_h, cost_h = send(h, last_h, rule.rule_theta_h)
        budget = budget + (cost_x.sum() + cost_h.sum()) / (2 * H)
        h = gru_step(cell, read_x, read_h, h)
        outputs.append(h)
    torch.testing.assert_close(trace.budget, budget)
    expected = torch.autograd.grad(torch.stack(outputs).sin().sum() + 2 * budget, parameters)
    torch.testing.assert_close(got, expected)


def test_gradients_of_x_and_weights_are_those_of_fixed_thresholds() -> None:
    learned = make("lstm", "delta", 3, 5, **LEARNED)
    fixed = RecurrentLayer(learned.cell, Delta(3, 5, **THETA))
    x, state = inputs(learned, 6, 4)

    def loss(y: Tensor, last: tuple[Tensor, ...], trace: Any) -> Tensor:
        return y.sin().sum()

    *_, grads = run(learned, x, state, loss)
    learned.zero_grad()
    *_, expected = run(fixed, x, state, loss)
    for name, grad in expected.items():
        assert grad is None or torch.equal(grads[name], grad), name


@pytest.mark.parametrize("size", [(1, 1, 3, 5), (7, 3, 5, 11), (6, 10, 20, 50)], ids=str)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("straight", [True, False])
def test_kernels_equal_the_loop(cell: str, size: tuple[int, int, int, int], straight: bool) -> None:
    T, B, I, H = size
    layer = make(cell, "delta", I, H, **LEARNED, straight_through=straight)
    assert_equals_loop(layer, fused(layer), T, B)


@pytest.mark.parametrize("loss", ["last", "budget", "y", "whole"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("straight", [True, False])
def test_any_part_of_the_loss_equals_the_loop(loss: str, weighted: bool, straight: bool) -> None:
    layer = make("irc-sru", "delta", 6, 6, **LEARNED, straight_through=straight)
    layer.step_weights = 3 * torch.rand(5, 3) if weighted else None
    assert_equals_loop(layer, fused(layer), 5, 3, LOSSES[loss])


@pytest.mark.parametrize("loss", ["whole", "y"])
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "irc-gru", "decaynet"])
def test_kept_values_pass_their_gradients_as_in_the_loop(cell: str, loss: str) -> None:
    layer = make(cell, "delta", 5, 11, theta_x=0.8, theta_h=0.1, straight_through=False)
    assert_equals_loop(layer, fused(layer), 9, 3, LOSSES[loss])


def test_kept_values_pass_their_gradients_if_x_needs_none() -> None:
    loop = make("gru", "delta", 5, 11, theta_x=0.8, theta_h=0.1, straight_through=False)
    x, state = inputs(loop, 4, 3)
    results = []
    for layer in (loop, fused(loop)):
        starts = tuple(s.detach().clone().requires_grad_() for s in state)
        layer(x.detach(), starts)[0].sin().sum().backward()
        results.append([s.grad for s in starts if s.grad is not None])
    assert len(results[0]) == 3
    for got, expected in zip(*reversed(results), strict=False):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("T", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_gradients_of_kept_values_are_summed_over_the_steps(T: int, share: float) -> None:
    grads, kept = torch.randn(T, 2, 50, dtype=torch.float64), torch.rand(T, 2, 50) < share
    expected = grads.clone()
    for t in reversed(range(T - 1)):
        expected[t] += torch.where(kept[t + 1], expected[t + 1], 0)
    torch.testing.assert_close(column.kept_grads(grads, kept), expected)


@pytest.mark.parametrize("frozen", NAMES)
def test_input_and_one_threshold_may_have_no_gradient(frozen: str) -> None:
    layer = fused(make("gru", "delta", 4, 9, **LEARNED))
    x, state = inputs(layer, 6, 5)
    *_, grads = run(layer, x, state, whole_loss)
    layer.zero_grad()
    layer.rule.weights[frozen].requires_grad_(False)
    whole_loss(*layer(x, state)).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is None if name.endswith(frozen) else torch.equal(parameter.grad, grads[name]), name


def test_threads_agree() -> None:
    layer = fused(make("gru", "delta", 7, 50, **LEARNED))
    x, state = inputs(layer, 40, 37)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            layer.zero_grad()
            *_, grads = run(layer, x, state, whole_loss)
            results.append([grads[f"rule.{name}"] for name in NAMES])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


# trainings


def test_without_the_option_thresholds_are_constants() -> None:
    fixed, learned = Delta(2, 4), Delta(2, 4, learn_thresholds=True)
    assert not list(fixed.parameters())
    assert not fixed.state_dict()
    assert list(fixed.weights) == list(learned.weights) == list(NAMES)


@pytest.mark.parametrize("slope", [0.0, -1.0, float("inf")])
def test_a_slope_without_a_gradient_is_refused(slope: float) -> None:
    with pytest.raises(edgernn.UsageError, match=f"slope: expected a finite number above 0, got {slope}"):
        Delta(2, 4, learn_thresholds=True, slope=slope)


@pytest.mark.filterwarnings(MISSED)
@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_a_penalty_raises_thresholds_and_a_reward_lowers_them_to_zero(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, skipped = {}, {}
    settings = {**SMALL, "steps": 60, "lr": 0.01, "skip": 0.5, "backend": backend, "learn_thresholds": True}
    for weight in (-3.0, 0.0, 3.0):
        monkeypatch.setattr(Steering, "weight", weight)
        result = train("adding", "gru", "delta", out=tmp_path / str(weight), settings={**settings, "keep": "last"})
        ends[weight], skipped[weight] = thresholds(tmp_path / str(weight)), result["skip_percent"]
    assert ends[-3.0] == {"theta_x": 0.0, "theta_h": 0.0}
    assert all(ends[3.0][name] > max(0.3, ends[0.0][name]) for name in ("theta_x", "theta_h"))
    assert skipped[3.0] > skipped[0.0] > skipped[-3.0]


def test_both_backends_train_alike(tmp_path: Path) -> None:
    ends = []
    for backend in ("torch", "fused"):
        settings = {**SMALL, "steps": 20, "lambda": 1e-2, "backend": backend, "learn_thresholds": True}
        train("adding", "lstm", "delta", out=tmp_path / backend, settings=settings)
        ends.append(thresholds(tmp_path / backend))
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)
    assert all(abs(theta - 0.1) > 1e-3 for theta in ends[0].values())


@pytest.mark.filterwarnings(MISSED)
@pytest.mark.parametrize("extra", [{"skip": 0.8}, {"lambda": 1e-2, "weights": "int8"}], ids=["skip", "int8"])
def test_a_run_stopped_and_resumed_equals_whole(extra: dict[str, Any], tmp_path: Path) -> None:
    settings = {**SMALL, "steps": 20, "checkpoint_every": 3, "eval_every": 5, "learn_thresholds": True, **extra}
    train("adding", "gru", "delta", out=tmp_path / "whole", settings=settings)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train("adding", "gru", "delta", out=tmp_path / "run", settings=settings, progress=Stop(10))
    train("adding", "gru", "delta", out=tmp_path / "run", settings=settings, resume=True)
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")
    assert all(theta != pytest.approx(0.1) for theta in thresholds(tmp_path / "run").values())


def test_a_share_beyond_fixed_thresholds_is_reached(tmp_path: Path) -> None:
    """With the same start, fixed thresholds miss the share, see test_steering."""
    settings = {"T": 10, "hidden_size": 16, "batch_size": 20, "test_size": 200, "stop_solved": False}
    settings |= {"steps": 400, "lr": 0.01, "eval_every": 20, "theta_h": 0.0, "skip": 0.9, "learn_thresholds": True}
    result = train("adding", "gru", "delta", out=tmp_path / "run", settings=settings)
    assert result["skip_percent_validation"] == pytest.approx(90, abs=2)
    assert result["skip_missed"] is None


def test_a_run_starts_from_fixed_or_learned_thresholds(tmp_path: Path) -> None:
    base = {**SMALL, "steps": 1, "lr": 1e-9}
    train("adding", "gru", "delta", out=tmp_path / "fixed", settings={**base, "theta_h": 0.3})
    learned = {**base, "learn_thresholds": True}
    settings = {**learned, "theta_h": 0.25, "start_run": str(tmp_path / "fixed")}
    train("adding", "gru", "delta", out=tmp_path / "learned", settings=settings)
    assert thresholds(tmp_path / "fixed") == {}
    assert thresholds(tmp_path / "learned") == pytest.approx({"theta_x": 0.1, "theta_h": 0.25})
    settings = {**learned, "start_run": str(tmp_path / "learned")}
    train("adding", "gru", "delta", out=tmp_path / "next", settings=settings)
    assert thresholds(tmp_path / "next") == pytest.approx({"theta_x": 0.1, "theta_h": 0.25})
    weights = load_file(tmp_path / "fixed/model.safetensors")
    for name, value in load_file(tmp_path / "next/model.safetensors").items():
        assert "theta" in name or torch.allclose(weights[name], value, atol=1e-6), name


def test_other_starts_of_weights_keep_the_thresholds(tmp_path: Path) -> None:
    for start in ({"start": "normal", "start_biases": False}, {"start": "uniform"}):
        settings = {**SMALL, "steps": 1, "lr": 1e-9, "learn_thresholds": True, **start}
        train("adding", "gru", "delta", out=tmp_path / start["start"], settings=settings)
        assert thresholds(tmp_path / start["start"]) == pytest.approx({"theta_x": 0.1, "theta_h": 0.1})


# exported files


def test_exported_files_have_the_thresholds_as_those_of_fixed_ones(tmp_path: Path) -> None:
    learned = contractive("gru", "delta", rule_options=LEARNED)
    fixed = contractive("gru", "delta", rule_options=THETA)
    with torch.no_grad():
        for model in (learned, fixed):
            for name, theta in zip(NAMES, (0.3, 0.2), strict=True):
                model.recurrent_layers()[0].rule.weights[name].fill_(theta)
    fixed.load_state_dict({k: v for k, v in learned.state_dict().items() if "theta" not in k})
    x = torch.randn(20, 2, learned.config.features)
    for name, model in (("learned", learned), ("fixed", fixed)):
        to_onnx(model, tmp_path / f"{name}.onnx")
    for backend in ("native", "portable"):
        y, expected = (Session(tmp_path / f"{n}.onnx", backend=backend).run(x.numpy()) for n in ("learned", "fixed"))
        np.testing.assert_array_equal(y, expected)
    with torch.no_grad():
        np.testing.assert_allclose(y, learned.eval()(x)[0].numpy(), rtol=0, atol=1e-5)


def test_random_models_reach_a_share() -> None:
    model = random_model("gru", 4, 16, rule="delta", skip=0.7, rule_options={"learn_thresholds": True}, output="all")
    with torch.no_grad():
        model(torch.randn(50, 8, 4))
    assert model.update_rate == pytest.approx(0.3, abs=0.05)
