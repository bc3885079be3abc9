# SPDX-License-Identifier: Apache-2.0
"""Layers in float64 with random weights, and their results from the oracle."""

from typing import Any

import torch
from torch import Tensor

from edgernn.cells import Cell
from edgernn.cells.recurrent import DENSE, Recurrent
from edgernn.export.layer_functions import weights_of
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from tests import oracle


def layer_of(cell: str, rule: str, I: int, H: int, recurrent: Recurrent = DENSE, **options: Any) -> RecurrentLayer:
    """Make a layer in float64 with the rule's options; zero-initialised weights of the rule become random."""
    cell_type, rule_type = resolve(cell, rule)
    layer = RecurrentLayer(cell_type(I, H, recurrent=recurrent), rule_type(I, H, **options)).double()
    for parameter in layer.rule.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def oracle_run(cell: str, layer: RecurrentLayer, x: Tensor, state: tuple[Tensor, ...] | None = None) -> oracle.Result:
    state = layer.initial_state(x.shape[1], x) if state is None else state
    parameters = {n: w.detach().numpy() for part in (layer.cell, layer.rule) for n, w in weights_of(part).items()}
    return oracle.run(cell, layer.rule.name, parameters, x.numpy(), [s.detach().numpy() for s in state])


def gru_step(cell: Cell, read_x: Tensor, read_h: Tensor, h: Tensor) -> Tensor:
    """The new h (B, H) of a gru, whose products read `read_x` (B, I) and `read_h` (B, H) in place of x and h."""
    r, z, n = (cell.W @ read_x.T).T.chunk(3, -1)
    r_h, z_h, k = (cell.R @ read_h.T).T.chunk(3, -1)
    b_r, b_z, b_n, b_k = cell.b.chunk(4)
    r, z = torch.sigmoid(r + r_h + b_r), torch.sigmoid(z + z_h + b_z)
    return (1 - z) * torch.tanh(n + b_n + r * (k + b_k)) + z * h
