# SPDX-License-Identifier: Apache-2.0
"""Costs (parameters, multiply-adds) of every cell, and of every pair that has a name of its own.

Such a pair is a cell with an update rule or with an imputer, which fills in missing input values. Examples: sarnn is
the cell gru with the rule selective; rits is the cell lstm with the imputer of the same name.
"""

from collections.abc import Sequence
from typing import Any

import torch

from edgernn.cell_files import is_cell_file, why_portable
from edgernn.cells import CELLS, COMPILED
from edgernn.costs import model_cost
from edgernn.model import SequenceModel
from edgernn.names import COMBINATIONS, IMPUTING, parts
from edgernn.runtime.library import native_kernels


def cell_costs(input_size: int, hidden_size: int, custom: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Compute the cost of every cell and of every named pair, such as sarnn: the cell gru with the rule selective.

    A pair is a cell with an update rule, or with an imputer, which fills in missing values. The cost is that of one
    step of one sequence that updates every neuron.

    Args:
        input_size: I. With an imputer, I is the number of features, and the model's input has 3 I channels: I values,
            I masks (1: observed, 0: missing), and I times since the last observation.
        hidden_size: H, the number of neurons.
        custom: Custom cells as FILE.py:CLASS, listed last.

    Returns:
        A list with a JSON-compatible dict for each name. First come the cells, then the pairs of a cell with an update
        rule, the pairs of a cell with an imputer, and `custom`. The keys are name; cell, rule and imputer, the names of
        the parts, where imputer may be None; params, the number of parameters; macs, the number of multiply-adds;
        flops_paper, the number of multiplications plus additions, as the SA-RNN paper counts them; native, True if the
        native library can run the model on a CPU; portable, True because all models can run as standard ONNX operators;
        streaming, True if a sequence may be processed in parts; and paper, the source.
    """
    native = native_kernels()
    return [_entry(name, input_size, hidden_size, native) for name in [*CELLS, *COMBINATIONS, *IMPUTING, *custom]]


def _entry(name: str, input_size: int, hidden_size: int, native: set[str]) -> dict[str, Any]:
    with torch.device("meta"):
        model = SequenceModel(name, input_size * (3 if name in IMPUTING else 1), hidden_size)
    cost = model_cost(model)
    imputer, rule = model.imputer_type, model.rule_type
    is_custom = is_cell_file(name)
    paper = model.cell_type.paper if name in CELLS or is_custom else rule.paper if imputer is None else imputer.paper
    return {
        "name": model.cell_type.name if is_custom else name,
        "cell": model.cell_type.name,
        "rule": rule.name,
        "imputer": None if imputer is None else imputer.name,
        "params": cost.parameters,
        "macs": cost.macs,
        "flops_paper": cost.flops_paper,
        "native": _kernel(model, input_size, hidden_size) in native,
        "portable": True,
        "streaming": model.streaming,
        "paper": paper,
    }


def _kernel(model: SequenceModel, input_size: int, hidden_size: int) -> str:
    """Return the name of the kernel that runs a model in the native library, or "" if there cannot be one."""
    layer = model.recurrent_layers()[0]
    if model.cell_type in COMPILED.values():
        return layer.kernel_name
    return "" if why_portable(model.cell_type, {}, input_size, hidden_size) else layer.kernel_name_of("*")


def table(entries: list[dict[str, Any]]) -> str:
    """Format the result of `cell_costs` as a Markdown table with one row for each name."""
    lines = [
        "| name | made of | parameters | macs a step | flops_paper | kernel on a CPU | source |",
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
