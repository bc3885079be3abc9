# SPDX-License-Identifier: Apache-2.0
"""The part of fused training that rules of the kind COLUMN need on a CPU and on a GPU, such as delta."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.layer import RecurrentLayer, Trace
from edgernn.rules import UpdateRule
from edgernn.rules.delta import threshold_grad

# number of the rule's own states that products read: values of x and of h
SENT_COUNT = 2


def inputs_of_products(rule: UpdateRule, inputs: Tensor, last: Tensor, sent: Tensor) -> Tensor:
    """Return the values that products read in place of x at all steps, with their gradients to x and the threshold Θ_x.

    Args:
        rule: A rule of the kind COLUMN.
        inputs: Inputs of the cell (T, B, columns of W).
        last: The values that products read before the first step (B, columns of W).
        sent: The values that products read at each step (T, B, columns of W), without gradients.

    Returns:
        The values (T, B, columns of W).
    """
    # decisions about x do not depend on h
    no_state = inputs.new_zeros(*inputs.shape[:-1], 0)
    operands = rule.decide(inputs, (no_state,), (_shifted(last.detach(), sent), no_state)).operands
    assert operands is not None
    return operands[0]


def finish(
    layer: RecurrentLayer,
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
    start, y = states
    h = (_shifted(start, y),)
    decision = rule.decide(inputs, h, tuple(map(_shifted, memory, sent)))
    if torch.is_grad_enabled():
        # once more, with the gradients of the values that products read at the step before
        assert decision.sent is not None
        decision = rule.decide(inputs, h, tuple(map(_shifted, memory, decision.sent)))
    assert decision.u is not None
    assert decision.sent is not None
    assert decision.operands is not None
    last_x, last_h = (values[-1] for values in decision.sent)
    read_x, read_h = (values[-1] for values in decision.operands)
    sums = cell.joined_sums(cell.sums(cell.project(read_x), read_h, constants))
    age = (memory[SENT_COUNT] + (steps - 1)) % rule.period
    last = replace(decision, sent=(last_x, last_h), sums=sums)
    after = rule.remember(last, (y[-1],), (*memory[:SENT_COUNT], age, *memory[SENT_COUNT + 1 :]))
    budget = rule.budget(decision.u.to(y.dtype), decision.likelihood, layer.step_weights)
    return after, Trace(decision.u, budget, sent_inputs=decision.sent_inputs)


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
