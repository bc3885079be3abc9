# SPDX-License-Identifier: Apache-2.0
"""Recorded loops: when a recording is reused, when the loop runs instead, and what may be recorded."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import edgernn
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.kernels.graphs import GraphUnroller
from edgernn.layer import RecurrentLayer
from edgernn.training import api
from edgernn.training.plan import make_plan
from tests.fused import inputs, make, run, whole_loss
from tests.training_helpers import without_pictures


def test_recorded_loops_are_kept_for_a_shape_and_left_where_they_would_be_wrong() -> None:
    recorded = []

    def capture(steps: torch.nn.Module, arguments: tuple[Tensor, ...]) -> torch.nn.Module:
        recorded.append(tuple(arguments[0].shape))
        steps(*arguments)
        return steps

    layer = make("gru", "selective", 3, 5)
    graphs = GraphUnroller(capture, "cpu")
    layer.unroller = graphs
    plain = copy.deepcopy(layer)
    assert plain.unroller is not graphs
    plain.unroller = None
    x, state = inputs(layer, 4, 2)
    *_, grads = run(plain, x, state, whole_loss)
    *_, gradients = run(layer, x, state, whole_loss)
    for name, grad in grads.items():
        torch.testing.assert_close(gradients[name], grad)
    assert recorded == [(4, 2, 3)]
    # the same shape again, another shape, and another slope
    for piece in (x, x[:2], x[:2]):
        layer(piece, state)[0].sum().backward()
    layer.rule.anneal(80)
    layer(x, state)[0].sum().backward()
    assert recorded == [(4, 2, 3), (4, 2, 3), (2, 2, 3), (4, 2, 3)]
    # before the first call's backward its buffers are in use
    y = layer(x, state)[0]
    assert graphs(layer, x, state) is None
    y.sum().backward()
    assert graphs(layer, x, state) is not None
    graphs._close()
    layer.step_weights = torch.ones(4, 2)
    assert graphs(layer, x, state) is None
    layer.step_weights = None
    with torch.no_grad():
        assert graphs(layer, x, state) is None
    stand_in = {"cell.R": layer.cell.R * 2}
    y = torch.func.functional_call(layer, stand_in, (x, state))[0]
    torch.testing.assert_close(y, torch.func.functional_call(plain, stand_in, (x, state))[0])
    assert len(recorded) == 4


@pytest.mark.parametrize("rule", ["always", "skip", "delta"])
def test_a_replay_has_the_masks_of_the_loop(rule: str) -> None:
    def capture(steps: torch.nn.Module, arguments: tuple[Tensor, ...]) -> torch.nn.Module:
        return steps

    layer = make("gru", rule, 3, 5)
    x, state = inputs(layer, 4, 2)
    expected = layer(x, state)[2]
    layer.unroller = GraphUnroller(capture, "cpu")
    trace = layer(x, state)[2]
    for mask, expected_mask in ((trace.decisions, expected.decisions), (trace.sent_inputs, expected.sent_inputs)):
        assert (mask is None) == (expected_mask is None)
        assert mask is None or torch.equal(mask, expected_mask)
    assert (trace.sent_inputs is not None) == (rule == "delta")


@pytest.mark.parametrize("norm", ["layer", "recurrent-batch"])
@pytest.mark.parametrize("rule", ["always", "selective", "skip", "delta"])
def test_a_normalised_loop_can_be_recorded(norm: str, rule: str) -> None:
    """A recording cannot hold what Python reads off a tensor: tensors without values show that nothing is."""
    steps = {"norm_steps": 3} if norm == "recurrent-batch" else {}
    model = edgernn.SequenceModel("lstm", 3, 4, rule=rule, norm=norm, **steps)
    (layer,) = model.recurrent_layers()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.randn(5, 6, 3)
        y, _, _ = layer(x, layer.initial_state(6, x))
        y.sum().backward()
    assert layer.cell.R.grad is not None


def test_recording_leaves_the_averages_of_a_normalisation_alone() -> None:
    def capture(steps: torch.nn.Module, given: tuple[Tensor, ...]) -> torch.nn.Module:
        for _ in range(3):
            steps(*given)
        return steps

    # fewer steps have averages of their own than a sequence has
    model = edgernn.SequenceModel("lstm", 3, 4, norm="recurrent-batch", norm_steps=3)
    (layer,) = model.recurrent_layers()
    plain = copy.deepcopy(layer)
    plain.unroller = None
    layer.unroller = GraphUnroller(capture, "cpu")
    x = torch.randn(5, 6, 3)
    for _ in range(2):
        for each in (layer, plain):
            each(x, each.initial_state(6, x))[0].sum().backward()
    assert dict(layer.named_buffers())
    for (name, ours), (_, theirs) in zip(layer.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name
        assert not torch.equal(ours, torch.full_like(ours, float("var" in name)))
    # a batch that is shared with other processes
    for module in layer.modules():
        if isinstance(module, RecurrentBatchNorm):
            module.total = lambda value: value
    assert layer.unroller(layer, x, layer.initial_state(6, x)) is None


SMALL = {"hidden_size": 4, "batch_size": 10}
# task, cell, settings, and whether a recording can be replayed at every training step
TRAININGS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("adding", "gru", {"T": 5}, True),
    ("adding", "sarnn", {"T": 5, "silence": 0.2, "background": 2.0}, False),
    ("adding", "gru", {"T": 5, "weight_drop": 0.1}, False),
    ("adding", "gru", {"T": 5, "weight_drop_input": 0.1}, False),
    ("brits", "gru", {}, True),
    ("ptb", "lstm", {}, True),
    ("ptb", "lstm", {"layers": 2}, True),
    ("ptb", "lstm", {"bptt": 30, "vary_bptt": True}, False),
    ("sentence-vae", "gru", {"weight_drop": 0.0}, False),
    ("draw", "gru", {"images": "mnist", "glimpses": 3}, False),
    ("l2l", "lstm", {"unroll": 3, "run_steps": 6}, False),
]


@pytest.mark.parametrize(("task", "cell", "settings", "replays"), TRAININGS, ids=str)
def test_a_plan_knows_whether_recordings_can_be_replayed(
    task: str, cell: str, settings: dict[str, Any], replays: bool, small_data: Path
) -> None:
    size = {} if task == "l2l" else SMALL
    plan = make_plan(task, cell, None, {**size, **settings}, data=small_data)
    assert plan.replays == replays
    # count what the plan's answer rests on: the layers' runs in a training step, and the numbers of steps
    model, runs, steps = plan.network(), dict[RecurrentLayer, int](), set[int]()
    for layer in model.recurrent_layers():
        layer.register_forward_hook(lambda layer, *_: runs.update({layer: runs.get(layer, 0) + 1}))
    plan.task.loss(model, plan.task.train.batch(0, plan.config.batch_size), None)
    for step in range(min(12, plan.steps_per_epoch)):
        steps.add(len(plan.task.train.batch(step, plan.config.batch_size).x))
    assert (max(runs.values()) > 1) == plan.task.repeats_layers
    assert (len(steps) > 2) == plan.task.train.varies_steps


def test_a_training_says_whether_recordings_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attach(model: torch.nn.Module, backend: str, device: str, replays: bool) -> str:
        asked.append(replays)
        return "torch"

    monkeypatch.setattr(api, "attach", attach)
    without_pictures(monkeypatch)
    for rate in (0.0, 0.1):
        settings = {"T": 5, "steps": 1, "weight_drop": rate, **SMALL}
        api.train("adding", "gru", out=tmp_path / str(rate), settings=settings)
    assert asked == [True, False]
