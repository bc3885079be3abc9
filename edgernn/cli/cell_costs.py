# SPDX-License-Identifier: Apache-2.0
"""Costs of every cell, alone, under the papers' rules and behind imputers, as plain values and as a Markdown table."""

from collections.abc import Sequence
from typing import Any

import torch

from edgernn.cell_files import is_cell_file, why_portable
from edgernn.cells import CELLS
from edgernn.costs import model_cost
from edgernn.model import SequenceModel
from edgernn.names import COMBINATIONS, IMPUTING, parts
from edgernn.runtime.library import native_kernels


def cell_costs(input_size: int, hidden_size: int, own: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List every name with the cost of a step in which every neuron is updated.

    Args:
        input_size: I; for a name with an imputer the number of features, and the input is three times as wide.
        hidden_size: H.
        own: Cells of the user's own, as FILE.py:CLASS, after the others.
    """
    native = native_kernels()
    return [_entry(name, input_size, hidden_size, native) for name in [*CELLS, *COMBINATIONS, *IMPUTING, *own]]


def _entry(name: str, input_size: int, hidden_size: int, native: set[str]) -> dict[str, Any]:
    with torch.device("meta"):
        model = SequenceModel(name, input_size * (3 if name in IMPUTING else 1), hidden_size)
    cost = model_cost(model)
    imputer, rule = model.imputer_type, model.rule_type
    own = is_cell_file(name)
    paper = model.cell_type.paper if name in CELLS or own else rule.paper if imputer is None else imputer.paper
    return {
        "name": model.cell_type.name if own else name,
        "cell": model.cell_type.name,
        "rule": rule.name,
        "imputer": None if imputer is None else imputer.name,
        "params": cost.parameters,
        "macs": cost.macs,
        "flops_paper": cost.flops_paper,
        "native": _kernel(name, model, input_size, hidden_size) in native,
        "portable": True,
        "streaming": model.streaming,
        "paper": paper,
    }


def _kernel(name: str, model: SequenceModel, input_size: int, hidden_size: int) -> str:
    """The kernel of a model's layer as the library lists it; "" for a cell of the user's own without a program."""
    layer = model.recurrent_layers()[0]
    if not is_cell_file(name):
        return layer.kind
    return "" if why_portable(model.cell_type, {}, input_size, hidden_size) else layer.kind_of("*")


def table(entries: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [
        "| name | made of | parameters | macs a step | flops_paper | kernel | source |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for e in entries:
        made_of = " + ".join(parts(e["cell"], e["rule"], e["imputer"]))
        kernel = "native, portable" if e["native"] else "portable"
        lines.append(
            f"| {e['name']} | {made_of} | {e['params']:,} | {e['macs']:,} "
            f"| {e['flops_paper']:,.0f} | {kernel} | {e['paper']} |"
        )
    return "\n".join(lines)
