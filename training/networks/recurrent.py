# SPDX-License-Identifier: Apache-2.0
"""What a network may do with a recurrent layer beside running it over whole sequences."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.dropout import Runs
from edgernn.errors import UsageError
from edgernn.layer import Trace
from edgernn.names import resolve, resolve_imputer
from edgernn.spec import LayerSpec

# settings of TrainConfig that are of a SequenceModel, but of none of its layers, or of an imputer
NOT_OF_A_LAYER = frozenset(
    {
        "layers",
        "last_size",
        "bidirectional",
        "imputer",
        "imputation",
        "tied",
        "dropout_embedding",
        "dropout_input",
        "dropout_hidden",
        "dropout_output",
        "weight_drop",
        "weight_drop_input",
    }
)


def layer_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a LayerSpec, from the arguments of a SequenceModel.

    Raises UsageError for a cell that is meant to have an imputer before it.
    """
    if resolve_imputer(given["cell"]) is not None:
        raise UsageError(f"cell: {given['cell']} imputes what is missing, and nothing is missing here")
    return {field.name: given[field.name] for field in fields(LayerSpec)}


def check_in_parts(given: Mapping[str, Any]) -> None:
    """Raises UsageError for a cell that needs its sequence whole, where a network runs it in parts.

    given: the arguments of a SequenceModel.
    """
    cell_type, _ = resolve(given["cell"])
    if not cell_type(1, 1, **given["cell_options"]).streaming:
        raise UsageError(f"cell: {given['cell']} is run in parts here, so it must be told length=…")


@torch.no_grad()
def open_forget_gate(cell: Cell) -> None:
    """Let the bias of the gate f start at 1, where the cell has one, so that it remembers from the beginning.

    Source: Gers, Schmidhuber, Cummins, "Learning to Forget", 2000.
    """
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
