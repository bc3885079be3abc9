# SPDX-License-Identifier: Apache-2.0
"""What the kernels of all devices have in common."""

from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import EdgernnError
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES as ALL_RULES

RULES = tuple(name for name, rule in ALL_RULES.items() if not rule.masks)


def refusal(layer: RecurrentLayer) -> str | None:
    """Why no kernels can run a layer, or None where some may."""
    if layer.imputer is not None:
        return f"an imputer ({layer.imputer.name}) stands before the cell"
    rule = layer.rule
    for name, memory in rule.memory.items():
        if memory.size != rule.kind.size:
            return f"the memory {name} of the rule {rule.name} has the size {memory.size}, not {rule.kind.size}"
    if rule.group_size > 1:
        return f"there are no kernels for groups of neurons: the rule {rule.name} has group_size={rule.group_size}"
    if rule.masks:
        return f"there are no kernels for the rule {rule.name}, which masks what the cell reads"
    return None


def check(layer: RecurrentLayer, x: Tensor, state: State) -> None:
    """The kernels read plain memory: raises EdgernnError for tensors of other shapes than the layer's."""
    if x.ndim != 3 or x.shape[0] < 1 or x.shape[2] != layer.input_size:
        raise EdgernnError(f"x: expected shape (T >= 1, B, {layer.input_size}), got {tuple(x.shape)}")
    if len(state) != len(layer.widths):
        raise EdgernnError(f"state: expected {len(layer.widths)} tensors {layer.states}, got {len(state)}")
    for (name, width), given in zip(layer.widths.items(), state, strict=True):
        if given.shape != (x.shape[1], width):
            raise EdgernnError(f"state {name}: expected shape {(x.shape[1], width)}, got {tuple(given.shape)}")
