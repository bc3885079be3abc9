# SPDX-License-Identifier: Apache-2.0
"""The pairs of a built-in cell and an update rule that run together: topk needs a cell with an update gate."""

from edgernn.cells import CELLS
from edgernn.rules import RULES


def fits(cell: str, rule: str) -> bool:
    return RULES[rule].refusal(CELLS[cell]) is None


PAIRS = [(cell, rule) for cell in CELLS for rule in RULES if fits(cell, rule)]
