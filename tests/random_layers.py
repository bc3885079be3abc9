# SPDX-License-Identifier: Apache-2.0
"""Layers in float64 with small random weights and random states, to compare with the oracle."""

from unittest.mock import patch

import torch

from edgernn.export.layer_functions import weights_of
from edgernn.layer import LAST, RecurrentLayer
from edgernn.names import resolve


def layer_of(cell, rule, I, H, **options):
    cell_type, rule_type = resolve(cell, rule)
    layer = RecurrentLayer(cell_type(I, H, **options), rule_type(I, H)).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.5 / p.shape[-1] ** 0.5)
    # a random choice of rule with a fixed seed
    return layer.eval()


def op_parameters(layer):
    """Return the parameters as arrays, by the names of the op's inputs."""
    return {n.split(".")[-1]: p.detach().numpy() for n, p in weights_of(layer).items()}


def random_state(layer, B):
    """Draw the cell's states and the previous input; the rule's memories have their initial values."""
    start = dict(zip(layer.states, layer.initial_state(B, torch.zeros(1, dtype=torch.float64)), strict=True))
    drawn = (*layer.cell.states, LAST)
    return tuple(torch.randn(s.shape, dtype=torch.float64) if name in drawn else s for name, s in start.items())


def integral_of_surrogate(v, height, width):
    """Return the function with the derivative height · max(0, 1 - |v| / width), for finite differences."""
    near = v.clamp(-width, width)
    return height * (near - near * near.abs() / (2 * width))


# a step has no derivative that finite differences see
@patch("edgernn.cells.egru.event", integral_of_surrogate)
def assert_gradients_are_right(layer, I):
    names = [n for n, _ in layer.named_parameters()]
    x, state = torch.randn(4, 2, I, dtype=torch.float64, requires_grad=True), random_state(layer, 2)
    state = tuple(s.requires_grad_() for s in state)
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def f(x, *others):
        values = dict(zip(names, others[len(state) :], strict=True))
        y, last, _ = torch.func.functional_call(layer, values, (x, others[: len(state)]))
        return y, *last

    # along random directions of all inputs and outputs: single entries would take seconds per cell
    assert torch.autograd.gradcheck(f, (x, *state, *parameters), fast_mode=True)
