# SPDX-License-Identifier: Apache-2.0
"""From the names that a user writes to cells, rules and imputers."""

from edgernn.cell_files import is_cell_file, load_cell
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
# the rule of a cell whose name implies none
DEFAULT_RULE = "always"
# a paper's name: (cell, imputer)
IMPUTING = {
    "gru-d": ("gru-before", "gru-d"),
    "rits": ("lstm", "rits"),
}


def resolve(cell: str | type[Cell], rule: str | type[UpdateRule] | None = None) -> tuple[type[Cell], type[UpdateRule]]:
    """The cell and the rule that a name stands for; a rule given overrides the one that the name implies.

    cell: A class, a name, or FILE.py:CLASS, which is loaded as `load_cell` does.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    default = DEFAULT_RULE
    if is_cell_file(cell):
        cell = load_cell(str(cell), [*CELLS, *COMBINATIONS, *IMPUTING])
    if isinstance(cell, str):
        if cell in COMBINATIONS:
            cell, default = COMBINATIONS[cell]
        if cell in IMPUTING:
            cell, _ = IMPUTING[cell]
        if cell not in CELLS:
            raise nearest("cell", cell, [*CELLS, *COMBINATIONS, *IMPUTING])
        cell = CELLS[cell]
    name_or_type = default if rule is None else rule
    if not isinstance(name_or_type, str):
        return cell, name_or_type
    if name_or_type not in RULES:
        raise nearest("rule", name_or_type, RULES)
    return cell, RULES[name_or_type]


def parts(cell: str, rule: str | None, imputer: str | None = None) -> list[str]:
    """The names that tell a layer apart: of its imputer, its cell and its rule. A rule that is implied is left out."""
    implied = rule in RULES and RULES[rule].implied
    return [name for name in (imputer, cell, None if implied else rule) if name is not None]


def combined_name(cell: str, rule: str) -> str:
    """The name of a cell with a rule as a user writes it, where it has one: sarnn, or gru, or gru + random."""
    names = {pair: name for name, pair in COMBINATIONS.items()} | {(cell, DEFAULT_RULE): cell}
    return names.get((cell, rule), f"{cell} + {rule}")


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
