# SPDX-License-Identifier: Apache-2.0
"""What a model costs, from its sizes alone.

macs            multiply-adds of all matrix-vector products of a step, nothing skipped; a diagonal coordinator counts H
macs_executed   what is left when rows of neurons that are not updated are skipped
flops_paper     the SA-RNN paper's convention: a row of n inputs costs 2n - 1 operations (n multiplications, n - 1
                additions), a gate's row spans input and state together, times the share of neurons updated, plus what
                the rule and an imputer cost; biases and point-wise work are free
"""

from dataclasses import dataclass
from typing import Any

import torch

from edgernn.cells.base import Cell
from edgernn.imputers import Imputer
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.rules.base import UpdateRule


@dataclass(frozen=True)
class Cost:
    """Of one step of one sequence, without the head unless it says so."""

    parameters: int
    weight_bytes: int
    macs: int
    macs_executed: float
    flops_paper: float


def cost(
    cell: Cell,
    rule: UpdateRule,
    update_rate: float = 1.0,
    busy_rate: float | None = None,
    imputer: Imputer | None = None,
) -> Cost:
    """Cost of a step when `update_rate` of the neurons change.

    busy_rate: as in UpdateRule.executed_macs.
    """
    mid, update = cell.macs()
    # a gate with neither x nor m is the recurrent part of another one's row (the candidate of gru)
    rows = sum(cell.mid_size if g.mid else cell.hidden_size for g in cell.gates if g.x or g.m or g.mid)
    rows += cell.recurrent.rank or 0
    modules = [module for module in (cell, rule, imputer) if module is not None]
    parameters = sum(p.numel() for module in modules for p in module.parameters()) - cell.held_zeros()
    before = 0 if imputer is None else imputer.macs()
    return Cost(
        parameters=parameters,
        weight_bytes=4 * parameters,
        macs=mid + update + rule.macs() + before,
        macs_executed=rule.executed_macs(cell, update_rate, busy_rate) + before,
        flops_paper=update_rate * (2 * (mid + update) - rows)
        + rule.flops_paper()
        + (0 if imputer is None else imputer.flops_paper()),
    )


def named_cost(
    cell: str,
    rule: str | None,
    input_size: int,
    hidden_size: int,
    *,
    update_rate: float = 1.0,
    **settings: Any,
) -> Cost:
    """The cost of a stack without a head, by the names of its cell and rule; settings: as of SequenceModel.

    Raises:
        UsageError: An unknown name or a bad setting.
    """
    with torch.device("meta"):
        model = SequenceModel(cell, input_size, hidden_size, rule=rule, **settings)
    return model_cost(model, update_rate)


def model_cost(model: RecurrentModel, update_rate: float = 1.0) -> Cost:
    """The sum over a model's layers; `parameters` and `weight_bytes` include the head and whatever else it has."""
    parts = [cost(layer.cell, layer.rule, update_rate, None, layer.imputer) for layer in model.recurrent_layers()]
    zeros = sum(layer.cell.held_zeros() for layer in model.recurrent_layers())
    parameters = sum(p.numel() for p in model.parameters()) - zeros
    return Cost(
        parameters=parameters,
        weight_bytes=4 * parameters,
        macs=sum(p.macs for p in parts),
        macs_executed=sum(p.macs_executed for p in parts),
        flops_paper=sum(p.flops_paper for p in parts),
    )
