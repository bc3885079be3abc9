# SPDX-License-Identifier: Apache-2.0
"""What there is: the cells, alone and under the papers' rules, as a list of plain values and as a Markdown table."""

from typing import Any

from edgernn.cells import CELLS
from edgernn.costs import named_cost
from edgernn.names import COMBINATIONS, resolve
from edgernn.runtime.library import native_ops


def listing(input_size: int, hidden_size: int) -> list[dict[str, Any]]:
    """One entry a name, at a size; costs are of a step with every neuron updated."""
    native = native_ops()
    entries = []
    for name in [*CELLS, *COMBINATIONS]:
        cell, rule = resolve(name)
        cost = named_cost(name, None, input_size, hidden_size)
        entries.append(
            {
                "name": name,
                "cell": cell.name,
                "rule": rule.name,
                "parameters": cost.parameters,
                "macs": cost.macs,
                "flops_paper": cost.flops_paper,
                "native": rule.prefix + cell.op in native,
                "portable": True,
                "streaming": True,
                "paper": rule.paper or cell.paper,
            }
        )
    return entries


def table(entries: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [
        "| name | cell + rule | parameters | macs a step | flops_paper | kernel | source |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for e in entries:
        kernel = "native, portable" if e["native"] else "portable"
        lines.append(
            f"| {e['name']} | {e['cell']} + {e['rule']} | {e['parameters']:,} | {e['macs']:,} "
            f"| {e['flops_paper']:,.0f} | {kernel} | {e['paper']} |"
        )
    return "\n".join(lines)
