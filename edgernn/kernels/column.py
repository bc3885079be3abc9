# SPDX-License-Identifier: Apache-2.0
"""The part of fused training that rules of the kind COLUMN need on a CPU and on a GPU, such as delta."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.layer_trace import Trace
from edgernn.rules import PerColumn
from edgernn.rules.decision import StraightThrough
from edgernn.rules.delta import threshold_grad

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

# number of the rule's own states that products read: values of x and of h
SENT_COUNT = 2


def inputs_of_products(rule: PerColumn, inputs: Tensor, last: Tensor, sent: Tensor) -> Tensor:
    """Return the values that products read in place of x at all steps, with their gradients to x and the threshold Θ_x.

    If they are not straight-through, gradients of kept values go to `last`, too.

    Args:
        rule: The rule.
        inputs: Inputs of the cell (T, B, columns of W).
        last: The values that products read before the first step (B, columns of W).
        sent: The values that products read at each step (T, B, columns of W), without gradients.

    Returns:
        The values (T, B, columns of W).
    """
    # decisions about x do not depend on h
    no_state = inputs.new_zeros(*inputs.shape[:-1], 0)
    lasts = _shifted(last, _with_grads(rule, inputs, last, sent))
    return rule.decide(inputs, (no_state,), (lasts, no_state)).operands[0]


def finish(
    layer: "RecurrentLayer",
    inputs: Tensor,
    states: Sequence[Tensor],
    memory: State,
    sent: Sequence[Tensor],
    constants: dict[str, Tensor],
) -> tuple[State, Trace]:
    """Compute the rule's own states after a sequence and the trace, from what the kernels returned.

    For autograd, the values that matrix products read in place of x and h are constants that the kernels return. Here
    `UpdateRule.decide` computes them again, so that the penalty and the returned states have gradients.
    `threshold_grads` computes the gradients of thresholds through the products.

    Args:
        layer: The layer, with a rule of the kind COLUMN.
        inputs: Inputs of the cell (T, B, columns of W).
        states: The first state of the cell, h, before the first step (B, H), and after each step (T, B, H).
        memory: The rule's own states before the first step.
        sent: The values (T, B, columns of W) and (T, B, H) that products read in place of x and h.
        constants: Result of `RecurrentLayer.constants`.

    Returns:
        The rule's own states after the last step, and the trace.
    """
    rule, cell, steps = layer.rule, layer.cell, len(inputs)
    assert isinstance(rule, PerColumn)
    start, y = states
    h = _shifted(start, y)
    sent = [_with_grads(rule, *values) for values in zip((inputs, h), memory, sent, strict=False)]
    decision = rule.decide(inputs, (h,), tuple(map(_shifted, memory, sent)))
    assert decision.u is not None
    last_x, last_h = (values[-1] for values in decision.sent)
    read_x, read_h = (values[-1] for values in decision.operands)
    sums = cell.joined_sums(cell.sums(cell.project(read_x), read_h, constants))
    age = (memory[SENT_COUNT] + (steps - 1)) % rule.period
    last = replace(decision, sent=(last_x, last_h), sums=sums)
    after = rule.remember(last, (y[-1],), (*memory[:SENT_COUNT], age, *memory[SENT_COUNT + 1 :]))
    budget = rule.budget(decision.u.to(y.dtype), decision.likelihood, layer.step_weights)
    return after, Trace(decision.u, budget, sent_inputs=decision.sent_inputs)


def kept_grads(grads: Tensor, kept: Tensor) -> Tensor:
    """Sum the gradients of values over the steps at which they are kept.

    G_t = g_t + k_{t+1} ⊙ G_{t+1}

    The sums of 1, 2, 4, ... steps are computed from each other: ⌈log2 T⌉ rounds of tensor operations.

    Args:
        grads: g, the gradients of the values at each step (T, B, N).
        kept: k, a mask that is True where a value is that of the step before (T, B, N).

    Returns:
        G (T, B, N).
    """
    total, linked, steps = grads, kept, 1
    while steps < len(grads):
        # total sums up to `steps` steps; linked is True where a value is that of `steps` steps before
        total = torch.cat([total[:-steps] + torch.where(linked[steps:], total[steps:], 0), total[-steps:]])
        linked = torch.cat([linked[:steps], linked[steps:] & linked[:-steps]])
        steps *= 2
    return total


class SendOrKeep(torch.autograd.Function):
    """Returns `sent`, the values that products read at all steps, with the gradients of x or h and of the start.

    A value that is sent passes its gradient to `values` (T, B, N), and one that is kept passes it to the step before.
    The gradient of a value that is still kept at the first step goes to `start` (B, N).
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, start: Tensor, sent: Tensor) -> Tensor:
        ctx.save_for_backward(start, sent)
        return sent.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        start, sent = ctx.saved_tensors
        # a value that is sent differs from the last one by more than a threshold of at least 0
        kept = sent == _shifted(start, sent)
        total = kept_grads(grads[0], kept)
        return total.masked_fill(kept, 0), total[0] * kept[0], None


def _with_grads(rule: PerColumn, values: Tensor, start: Tensor, sent: Tensor) -> Tensor:
    """Return `sent` (T, B, N) with the gradients that `UpdateRule.decide` gives it step by step."""
    if rule.straight_through:
        straight: Tensor = StraightThrough.apply(sent, values)  # type: ignore[no-untyped-call]
        return straight
    held: Tensor = SendOrKeep.apply(values, start, sent)  # type: ignore[no-untyped-call]
    return held


def threshold_grads(
    slope: float, inputs: Mapping[str, Any], y: Tensor, sent: Sequence[Tensor], grads: Sequence[Tensor]
) -> Iterator[Tensor]:
    """Compute the gradients of the thresholds Θ_x and Θ_h through the matrix products of a sequence.

    Args:
        slope: Slope of the surrogate derivative (`UpdateRule.slope`).
        inputs: Inputs of the call: "x", the thresholds "rule_params", the first states "start" and "memory".
        y: h after each step (T, B, H).
        sent: The values (T, B, columns of W) and (T, B, H) that products read in place of x and h.
        grads: Gradients of `sent` through the products.

    Yields:
        The gradient of Θ_x (1,), then that of Θ_h (1,).
    """
    values = inputs["x"], _shifted(inputs["start"][0], y)
    lasts = map(_shifted, inputs["memory"], sent)
    for value, last, theta, grad in zip(values, lasts, inputs["rule_params"], grads, strict=True):
        yield threshold_grad(grad, value - last, theta, slope)


def _shifted(first: Tensor, values: Tensor) -> Tensor:
    """Return `first` (B, N), followed by all but the last of `values` (T, B, N)."""
    return torch.cat([first[None], values[:-1]])
