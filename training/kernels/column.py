# SPDX-License-Identifier: Apache-2.0
"""The part of fused training on the CPU that rules of the kind COLUMN need, such as delta."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.layer import RecurrentLayer, Trace

# number of the rule's own states that products read: values of x and of h
SENT = 2


def finish(
    layer: RecurrentLayer,
    inputs: Tensor,
    states: Sequence[Tensor],
    memory: State,
    sent: Sequence[Tensor],
    constants: dict[str, Tensor],
) -> tuple[State, Trace]:
    """Compute the rule's own states after a sequence and the trace, from what the native library returned.

    The library returns no gradients through the values that matrix products read in place of x and h. Here these values
    get the gradients that `UpdateRule.decide` gives them.

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
    last_x, last_h = (values[-1] for values in decision.sent)
    sums = cell.joined_sums(cell.sums(cell.project(last_x), last_h, constants))
    age = (memory[SENT] + (steps - 1)) % rule.period
    last = replace(decision, sent=(last_x, last_h), sums=sums)
    after = rule.remember(last, (y[-1],), (*memory[:SENT], age, *memory[SENT + 1 :]))
    budget = rule.budget(decision.u.to(y.dtype), decision.likelihood, layer.step_weights)
    return after, Trace(decision.u, budget, sent_inputs=decision.sent_inputs)


def _shifted(first: Tensor, values: Tensor) -> Tensor:
    """Return `first` (B, N), followed by all but the last of `values` (T, B, N)."""
    return torch.cat([first[None], values[:-1]])
