# SPDX-License-Identifier: Apache-2.0
"""From the names that a user writes to cells, rules and imputers."""

from edgernn.cells import CELLS, Cell
from edgernn.errors import nearest
from edgernn.imputers import IMPUTERS, Imputer
from edgernn.rules import RULES, UpdateRule

# a paper's name: (cell, rule)
COMBINATIONS = {
    "sarnn": ("gru", "selective"),
    "skiprnn": ("gru", "skip"),
    "cwrnn": ("rnn", "clockwork"),
    "phasedlstm": ("lstm", "phased"),
    "vcrnn": ("gru", "variable"),
}
# a paper's name: (cell, imputer)
IMPUTING = {
    "gru-d": ("gru-before", "gru-d"),
    "rits": ("lstm", "rits"),
}


def resolve(cell: str | type[Cell], rule: str | type[UpdateRule] | None = None) -> tuple[type[Cell], type[UpdateRule]]:
    """The cell and the rule that a name stands for; a rule given overrides the one that the name implies.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    default = "always"
    if isinstance(cell, str):
        if cell in COMBINATIONS:
            cell, default = COMBINATIONS[cell]
        if cell in IMPUTING:
            cell, _ = IMPUTING[cell]
        if cell not in CELLS:
            raise nearest("cell", cell, [*CELLS, *COMBINATIONS, *IMPUTING])
        cell = CELLS[cell]
    rule = default if rule is None else rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise nearest("rule", rule, RULES)
        rule = RULES[rule]
    return cell, rule


def resolve_imputer(cell: str | type[Cell], imputer: str | type[Imputer] | None = None) -> type[Imputer] | None:
    """The imputer that is meant, or None; one that is given overrides the one that the cell's name implies.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    if imputer is None and isinstance(cell, str) and cell in IMPUTING:
        _, imputer = IMPUTING[cell]
    if isinstance(imputer, str):
        if imputer not in IMPUTERS:
            raise nearest("imputer", imputer, IMPUTERS)
        imputer = IMPUTERS[imputer]
    return imputer
