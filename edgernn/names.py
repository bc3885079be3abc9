# SPDX-License-Identifier: Apache-2.0
"""From the names that a user writes to cells and rules."""

from edgernn.cells import CELLS, Cell
from edgernn.errors import nearest
from edgernn.rules import RULES, UpdateRule

# a paper's name: (cell, rule)
COMBINATIONS = {
    "sarnn": ("gru", "selective"),
    "skiprnn": ("gru", "skip"),
    "cwrnn": ("rnn", "clockwork"),
}


def resolve(cell: str | type[Cell], rule: str | type[UpdateRule] | None = None) -> tuple[type[Cell], type[UpdateRule]]:
    """The cell and the rule that a name stands for; a rule given overrides the one that the name implies.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    default = "always"
    if isinstance(cell, str):
        if cell in COMBINATIONS:
            cell, default = COMBINATIONS[cell]
        if cell not in CELLS:
            raise nearest("cell", cell, [*CELLS, *COMBINATIONS])
        cell = CELLS[cell]
    rule = default if rule is None else rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise nearest("rule", rule, RULES)
        rule = RULES[rule]
    return cell, rule
