# SPDX-License-Identifier: Apache-2.0
"""What a network may do with a recurrent layer beside running it over whole sequences."""

import torch
from torch import Tensor

from edgernn.cells import Cell, ForgetBias, State
from edgernn.config import LayerConfig, ModelConfig
from edgernn.dropout import Runs
from edgernn.errors import UsageError
from edgernn.layer import Trace
from edgernn.settings import fields_of

# settings of a SequenceModel that are of none of its layers, and those of an imputer
NOT_OF_A_LAYER = frozenset(fields_of(ModelConfig).keys() - fields_of(LayerConfig).keys() - {"hidden_size"}) | {
    "imputer",
    "imputation",
}


def without_imputer(model: ModelConfig) -> ModelConfig:
    """The same. Raises UsageError for a cell that is meant to have an imputer before it."""
    if model.layer.imputer is not None:
        raise UsageError(f"cell: {model.layer.imputer} imputes what is missing, and nothing is missing here")
    return model


def check_in_parts(layer: LayerConfig) -> None:
    """Raises UsageError for a cell that needs its sequence whole, where a network runs it in parts."""
    cell_type, _ = layer.types
    if not cell_type(1, 1, **layer.cell.options).streaming:
        raise UsageError(f"cell: {cell_type.name} is run in parts here, so it must be told length=…")


@torch.no_grad()
def open_forget_gate(cell: Cell) -> None:
    """Let the bias of the gate f start at 1, so that the cell remembers from the beginning.

    Changes nothing where the gate has no bias, or has one with a start of its own (the option `forget_bias`).
    Source: Gers, Schmidhuber, Cummins, "Learning to Forget", 2000.
    """
    if isinstance(cell, ForgetBias):
        return
    row = 0
    for gate in cell.gates:
        if gate.bias:
            rows = cell.mid_size if gate.mid else cell.hidden_size
            if gate.name == "f":
                cell.b[row : row + rows] = 1.0
            row += rows


def run_to_length(layer: Runs, x: Tensor, state: State, lengths: Tensor) -> tuple[State, Trace]:
    """The state of each sequence after its own last step; the steps after it are not run, and count nowhere.

    x (T, B, I), padded; state (B, ·) each; lengths (B,) from 1 to T, falling. The budget of the Trace is a mean over
    the sequences, as that of a layer is.
    """
    steps = lengths.tolist()
    begin, finals, decisions, budgets = 0, list[State](), list[Tensor](), list[Tensor]()
    for end in sorted(set(steps)):
        active = sum(length >= end for length in steps)
        going_on = sum(length > end for length in steps)
        _, state, trace = layer(x[begin:end, :active], tuple(s[:active] for s in state))
        finals.append(tuple(s[going_on:] for s in state))
        budgets.append(trace.budget * (active / len(steps)))
        if trace.decisions is not None:
            decisions.append(trace.decisions.flatten(0, 1)[:, None])
        begin = end
    # the longest are the first
    last = tuple(torch.cat(parts) for parts in zip(*reversed(finals), strict=True))
    return last, Trace(torch.cat(decisions) if decisions else None, torch.stack(budgets).sum())
