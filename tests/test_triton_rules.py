# SPDX-License-Identifier: Apache-2.0
"""The GPU training kernels of the rules delta and topk, interpreted and compared with the layer's loop in float64."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from edgernn.cells import Cell, Gate, Gates, UpdateGate
from edgernn.cells.base import State
from edgernn.cells.recurrent import BlockSparse, LowRank
from edgernn.layer import RecurrentLayer
from edgernn.rules import Delta, TopK
from tests.fused import COLUMN_AND_GATE, inputs, make, run, whole_loss

pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
from edgernn.kernels.kernel_form import KernelForm
from edgernn.kernels.send import send
from edgernn.kernels.triton_source import load
from edgernn.kernels.writer import HEADER, padded
from tests.triton_layers import RESIDENT, SPINE, STREAMED, assert_same, both_forms, fused, use_form

# test_triton.py has the cases of `make quick`
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1 is not set: the kernels need a GPU"
    ),
]
THETA = {"theta_x": 0.4, "theta_h": 0.1}
# a slope other than the default, to detect code that ignores it
LEARNED = {**THETA, "learn_thresholds": True, "slope": 2.0}
OPTIONS: dict[str, dict[str, Any]] = {"delta": THETA, "topk": {"k": 2}}
PAIRS = [(cell, rule) for cell, rule in COLUMN_AND_GATE if cell == "gru-before" or cell in SPINE]
OTHERS = [pair for pair in COLUMN_AND_GATE if pair not in PAIRS]


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@both_forms
@pytest.mark.parametrize(("cell", "rule"), PAIRS, ids=map("-".join, PAIRS))
def test_both_forms_equal_the_loop(cell: str, rule: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(form, monkeypatch)
    assert_same(make(cell, rule, 3, 5, **OPTIONS[rule]), 3, 3)


@both_forms
@pytest.mark.parametrize(
    ("cell", "rule"), [("lstm", "always"), ("irc-gru", "selective"), ("gru", "delta"), ("gru", "topk")]
)
def test_low_rank_weights_equal_the_loop(
    cell: str, rule: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    assert_same(make(cell, rule, 5, 5, recurrent=LowRank(2), **OPTIONS.get(rule, {})), 3, 3)


@pytest.mark.parametrize(("cell", "rule"), OTHERS, ids=map("-".join, OTHERS))
def test_every_other_cell_equals_the_loop(cell: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # neighbouring cells have different forms
    use_form((RESIDENT, STREAMED)[OTHERS.index((cell, rule)) % 2], monkeypatch)
    assert_same(make(cell, rule, 5, 5, **OPTIONS[rule]), 2, 3)


@both_forms
@pytest.mark.parametrize("cell", ["lstm", "gru-before"])
@pytest.mark.parametrize("straight", [True, False])
def test_learned_thresholds_equal_the_loop(
    cell: str, straight: bool, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    layer = make(cell, "delta", 2, 5, **LEARNED, straight_through=straight)
    layer.step_weights = 3 * torch.rand(4, 3)
    assert_same(layer, 4, 3)


@both_forms
@pytest.mark.parametrize("cell", SPINE)
def test_kept_values_pass_their_gradients_as_in_the_loop(
    cell: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    assert_same(make(cell, "delta", 3, 5, **THETA, straight_through=False), 4, 3)


# values that change are sent at once, or never
@pytest.mark.parametrize("theta", [0.0, 1e9])
def test_extreme_thresholds_equal_the_loop(theta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", "delta", 3, 5, theta_x=theta, theta_h=theta)
    assert_same(layer, 3, 3)
    x, state = inputs(layer, 3, 3)
    _, last, trace = fused(layer)(x, state)
    assert trace.decisions is not None
    assert trace.sent_inputs is not None
    sends = theta == 0
    for sent in (trace.decisions, trace.sent_inputs):
        assert bool(sent.all()) == bool(sent.any()) == sends
    assert torch.equal(last[1], x[-1] if sends else state[1])


@pytest.mark.parametrize("k", [1, 5])
@both_forms
def test_one_neuron_and_all_neurons_equal_the_loop(k: int, form: KernelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(form, monkeypatch)
    assert_same(make("gru-before", "topk", 2, 5, k=k), 3, 3)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "last": lambda y, last, trace: last[0].sin().sum(),
    "sent": lambda y, last, trace: sum((s.sin().sum() for s in last[1:]), torch.zeros(())),
    "budget": lambda y, last, trace: trace.budget * 2,
    "y": lambda y, last, trace: y[1].sin().sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_any_part_of_the_result_may_be_left_out_of_the_loss(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    assert_same(make("lstm", "delta", 3, 5, **LEARNED), 3, 2, LOSSES[loss])


@pytest.mark.parametrize("loss", ["last", "y"])
def test_a_choice_has_no_gradient_of_its_own(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", "topk", 3, 5)
    layer.step_weights = 3 * torch.rand(3, 2)
    assert_same(layer, 3, 2, LOSSES[loss])
    x, state = inputs(layer, 3, 2)
    expected, trace = layer(x, state)[2], fused(layer)(x, state)[2]
    assert not trace.budget.requires_grad
    torch.testing.assert_close(trace.budget, expected.budget)


@both_forms
@pytest.mark.parametrize(("cell", "rule"), [("gru", "delta"), ("gru-before", "topk")])
def test_without_gradients_results_equal_the_loop(
    cell: str, rule: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    layer = make(cell, rule, 3, 5, **(LEARNED if rule == "delta" else {}))
    x, state = inputs(layer, 4, 3)
    with torch.no_grad():
        y, last, trace = fused(layer)(x, state)
        expected_y, expected_last, expected = layer(x, state)
    torch.testing.assert_close((y, *last, trace.budget), (expected_y, *expected_last, expected.budget))
    assert trace.decisions is not None
    assert torch.equal(trace.decisions, expected.decisions)
    assert (trace.sent_inputs is None) == (expected.sent_inputs is None) == (rule == "topk")
    if trace.sent_inputs is not None:
        assert torch.equal(trace.sent_inputs, expected.sent_inputs)


@pytest.mark.parametrize("frozen", ["rule_theta_x", "rule_theta_h"])
def test_one_threshold_may_have_no_gradient(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", "delta", 3, 5, **LEARNED)
    x, state = inputs(layer, 3, 2)
    *_, grads = run(fused(layer), x, state, whole_loss)
    layer.rule.weights[frozen].requires_grad_(False)
    half = fused(layer)
    whole_loss(*half(x, state)).backward()
    for name, parameter in half.named_parameters():
        if name.endswith(frozen):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, grads[name])
    # the kernels were chosen while it was frozen
    half.zero_grad()
    half.rule.weights[frozen].requires_grad_()
    *_, again = run(half, x, state, whole_loss)
    torch.testing.assert_close(again, grads)


@pytest.mark.parametrize("rule", ["delta", "topk"])
def test_block_sparse_weights_equal_the_loop(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", rule, 3, 18, BlockSparse(0.5), **(LEARNED if rule == "delta" else {}))
    layer.cell.threshold(hold=True)
    assert_same(layer, 2, 2)


class Leaking(Cell):
    """A user's own cell, which names its update gate."""

    name = "leaking"
    gates = (Gate("a", bias=False), Gate("keep", x=False))
    update_gate = UpdateGate("keep", -1)

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        keep = torch.sigmoid(p.keep)
        return (keep * h + (1 - keep) * torch.tanh(p.a),)


@both_forms
@pytest.mark.parametrize("rule", [Delta(3, 5, **LEARNED), TopK(3, 5, k=2)], ids=["delta", "topk"])
def test_cell_of_a_user_equals_the_loop(rule: Delta | TopK, form: KernelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(form, monkeypatch)
    assert_same(RecurrentLayer(Leaking(3, 5), rule), 3, 3)


PICK = (
    HEADER
    + '''

@triton.jit
def pick(scores_ptr, k_ptr, u_ptr, B, H: tl.constexpr, HP: tl.constexpr):
    """Write the update mask u (B, H)."""
    row, col = tl.arange(0, 64)[:, None], tl.arange(0, HP)[None, :]
    at, mask = row * H + col, (row < B) & (col < H)
    tl.store(u_ptr + at, largest(tl.load(scores_ptr + at, mask, 0.0), mask, tl.load(k_ptr)), mask)
'''
)


@pytest.mark.parametrize(("H", "k"), [(7, 1), (7, 3), (16, 15), (16, 16), (33, 8)])
def test_the_largest_scores_are_those_of_the_rule_with_ties_and_all_kinds_of_numbers(H: int, k: int) -> None:
    rule = TopK(3, H, k=k)
    few = torch.tensor([-torch.inf, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, torch.inf, torch.nan])
    scores = torch.cat([few[torch.randint(0, len(few), (20, H))], torch.randn(5, H), torch.randn(5, H) * 1e30])
    scores = torch.cat([scores, *(torch.full((1, H), value) for value in few.tolist())])
    u = torch.empty(scores.shape, dtype=torch.bool)
    load(PICK).pick[(1,)](scores, rule.rule_k, u, len(scores), H, padded(H))
    expected = rule.decide(scores, (), ()).u
    assert expected is not None
    assert torch.equal(u, expected)
    assert (u.sum(-1) == k).all()


def test_values_of_x_are_sent_as_the_rule_sends_them_with_all_kinds_of_numbers() -> None:
    # more values than one program has
    rule = Delta(40, 4, theta_x=0.5)
    x = torch.randn(9, 5, 40).cumsum(0)
    x[2, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    last = torch.randn(5, 40)
    sent = send(x, last, rule.rule_theta_x)
    zeros = torch.zeros(5, 4)
    for x_t, sent_t in zip(x, sent, strict=True):
        decision = rule.decide(x_t, (zeros,), (last, zeros))
        assert decision.sent is not None
        assert torch.equal(sent_t, decision.sent[0])
        last = decision.sent[0]
    assert send(x[:, :0], last[:0], rule.rule_theta_x).shape == (9, 0, 40)


def test_an_empty_batch_gives_empty_results(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(STREAMED, monkeypatch)
    for rule in ("delta", "topk"):
        layer = fused(make("gru", rule, 3, 5))
        y, last, trace = layer(torch.zeros(4, 0, 3))
        assert (y.shape, last[0].shape) == ((4, 0, 5), (0, 5))
        assert trace.decisions is not None
        assert trace.decisions.shape == (4, 0, 5)
