# SPDX-License-Identifier: Apache-2.0
"""Checks and weights that the training kernels of all devices share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import EdgernnError
from edgernn.rules import RULES, UpdateRule

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer


def _has_mask(rule: UpdateRule | type[UpdateRule]) -> bool:
    """Return True if kernels get the mask u from the step index, or from the rule's equations."""
    return rule.schedules or rule.has_equations()


# types of tensors whose memory kernels can read; others, such as fake or distributed tensors, are for torch's operators
PLAIN = (Tensor, nn.Parameter, nn.Buffer)
# rules with kernels for every cell, a user's own too, on every device
ANY_CELL = tuple(name for name, rule in RULES.items() if _has_mask(rule))
# all rules with kernels
FUSED = tuple(name for name, rule in RULES.items() if name in ANY_CELL or rule.by_hand)


@dataclass
class Saved:
    """Values that a forward pass of kernels keeps for the backward pass, beside the output y (T, B, H).

    Attributes:
        y: The output, if `tensors` were computed by an earlier forward pass; None if this pass is to keep them.
        tensors: The values.
        dry: True to allocate the values and all outputs without computing them.
    """

    y: Tensor | None = None
    tensors: list[Tensor] = field(default_factory=list)
    dry: bool = False


def are_plain(tensors: Iterable[Tensor | None], saved: Saved | None) -> bool:
    """Return True if kernels can read the memory of all tensors, or do not read it, as in a dry pass."""
    return (saved is not None and saved.dry) or all(t is None or type(t) in PLAIN for t in tensors)


def refusal(layer: "RecurrentLayer") -> str | None:
    """Return a reason why the training kernels of any device cannot run a layer; None if none is known.

    The kernels of one device may have further limits, which are not checked here.
    """
    if layer.imputer is not None:
        return f"there is no kernel for a layer with an imputer, here {layer.imputer.name}"
    rule = layer.rule
    if rule.by_hand and RULES.get(rule.name) is type(rule):
        # the kernels follow the decisions of the library's own rules, which have no equations
        return None
    if rule.by_hand:
        return (
            f"there is no kernel for this rule {rule.name}: of the kind {rule.kind}, kernels run the library's "
            "own rules only"
        )
    for name, memory in rule.memory.items():
        if memory.size != rule.memory_size:
            return (
                f"there is no kernel for the rule {rule.name}: its memory {name} has size {memory.size}, and kernels "
                f"need size {rule.memory_size}"
            )
    if not _has_mask(rule):
        return f"there is no kernel for the rule {rule.name}: it does not define its decisions by a method score()"
    return None


def check(layer: "RecurrentLayer", x: Tensor, state: State) -> None:
    """Check the shapes of a layer's input and state, because kernels read memory without bounds checks.

    Args:
        layer: The layer.
        x: Inputs, expected as (T, B, I).
        state: Initial state, expected as one tensor (B, width) for each entry of `layer.widths`.

    Raises:
        EdgernnError: A shape does not fit the layer.
    """
    if x.ndim != 3 or x.shape[0] < 1 or x.shape[2] != layer.input_size:
        raise EdgernnError(f"x: expected shape (T >= 1, B, {layer.input_size}), got {tuple(x.shape)}; reshape it")
    if len(state) != len(layer.widths):
        raise EdgernnError(
            f"state: expected {len(layer.widths)} tensors {layer.states}, got {len(state)}; start from "
            "layer.initial_state()"
        )
    for (name, width), tensor in zip(layer.widths.items(), state, strict=True):
        if tensor.shape != (x.shape[1], width):
            raise EdgernnError(
                f"state {name}: expected shape {(x.shape[1], width)}, got {tuple(tensor.shape)}; start from "
                "layer.initial_state()"
            )


def check_first_derivative(grads: Iterable[Tensor | None]) -> None:
    """Raise EdgernnError in a backward pass that needs a graph of its own, or many gradients at once, as by vmap."""
    batched = not all(grad is None or torch._C._has_storage(grad) for grad in grads)
    if torch.is_grad_enabled() or batched:
        got = "several gradients at once" if batched else "create_graph=True"
        raise EdgernnError(
            f"gradients: expected one first derivative at a time, got {got}; run the forward pass inside "
            "`with edgernn.layer.python_loop(module):`, whose gradients are those of torch's operators"
        )


def with_whole_weights(cell: Cell, constants: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiply out low-rank recurrent weights, because kernels read them as one matrix.

    Args:
        cell: The cell.
        constants: Result of `RecurrentLayer.constants`.

    Returns:
        `constants`; if the recurrent weights are a product R Q, with the product (rows, H) as "R". Autograd passes the
        gradient of the product on to R and Q.
    """
    return constants if cell.recurrent.rank is None else {**constants, "R": cell.R @ cell.Q}
