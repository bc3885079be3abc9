# SPDX-License-Identifier: Apache-2.0
"""Helpers of networks that are built around recurrent layers: checks, a forget bias, padded sequences."""

import torch
from torch import Tensor

from edgernn.cells import Cell, ForgetBias, State
from edgernn.config import LayerConfig, ModelConfig
from edgernn.dropout import Runs
from edgernn.errors import UsageError
from edgernn.layer import Trace
from edgernn.settings import fields_of

# settings of a SequenceModel beyond those of a layer, and the settings of an imputer
NOT_OF_A_LAYER = frozenset(fields_of(ModelConfig).keys() - fields_of(LayerConfig).keys() - {"hidden_size"}) | {
    "imputer",
    "imputation",
}


def without_imputer(model: ModelConfig) -> ModelConfig:
    """Return a model's configuration unchanged, or raise UsageError if it has an imputer, which fills in gaps."""
    if model.layer.imputer is not None:
        raise UsageError(
            "cell: expected one that implies no imputer, as this task has no missing values, got one with the imputer "
            f"{model.layer.imputer}; choose another cell"
        )
    return model


def check_in_parts(layer: LayerConfig) -> None:
    """Raise UsageError if a cell depends on the length of the whole sequence and its option `length` is not set.

    The networks that call this function run a sequence in parts, so that they cannot tell the cell its length.
    """
    cell_type, _ = layer.types
    if not cell_type(1, 1, **layer.cell.options).streaming:
        raise UsageError(
            f"length: expected the number of steps of a whole sequence, as {cell_type.name} depends on it, got none; "
            "set it, because this task runs sequences in parts"
        )


@torch.no_grad()
def open_forget_gate(cell: Cell) -> None:
    """Set the bias of the forget gate `f` to 1, so that the cell remembers from the beginning.

    The cell is left unchanged if the gate has no bias, or if its class has the option `forget_bias`, which sets this
    bias instead.
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
    """Run a layer over padded sequences, each up to its own last step.

    Args:
        layer: The layer.
        x: Inputs (T, B, I), padded.
        state: Initial state, tensors (B, ·).
        lengths: Lengths (B,) from 1 to T, in descending order.

    Returns:
        The state of each sequence after its last step, and a `Trace`. The trace covers the N steps of all sequences
        together, without padding. `decisions`, the mask of updated neurons, is (N, 1, H); None if every neuron is
        updated at every step. `budget`, the penalty on updates, is a mean over the sequences.
    """
    steps = lengths.tolist()
    begin, finals, decisions, budgets = 0, list[State](), list[Tensor](), list[Tensor]()
    for end in sorted(set(steps)):
        active = sum(length >= end for length in steps)
        longer = sum(length > end for length in steps)
        _, state, trace = layer(x[begin:end, :active], tuple(s[:active] for s in state))
        finals.append(tuple(s[longer:] for s in state))
        budgets.append(trace.budget * (active / len(steps)))
        if trace.decisions is not None:
            decisions.append(trace.decisions.flatten(0, 1)[:, None])
        begin = end
    # the longest sequences come first
    last = tuple(torch.cat(parts) for parts in zip(*reversed(finals), strict=True))
    return last, Trace(torch.cat(decisions) if decisions else None, torch.stack(budgets).sum())
