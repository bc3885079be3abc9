# SPDX-License-Identifier: Apache-2.0
"""Look-up of the classes of cells, update rules and imputers (which fill in missing values) by their names."""

from edgernn.cell_files import is_cell_file, load_cell
from edgernn.cells import CELLS, Cell
from edgernn.errors import UsageError, nearest
from edgernn.imputers import IMPUTERS, Imputer
from edgernn.rules import RULES, UpdateRule

# name in the literature: (cell, rule)
COMBINATIONS = {
    "sarnn": ("gru", "selective"),
    "skiprnn": ("gru", "skip"),
    "cwrnn": ("rnn", "clockwork"),
    "phasedlstm": ("lstm", "phased"),
    "vcrnn": ("gru", "variable"),
    "deltagru": ("gru", "delta"),
    "d-gru": ("gru", "topk"),
}
# rule of a cell whose name implies none
DEFAULT_RULE = "always"
# name in the literature: (cell, imputer)
IMPUTING = {
    "gru-d": ("gru-before", "gru-d"),
    "rits": ("lstm", "rits"),
}


def resolve(cell: str | type[Cell], rule: str | type[UpdateRule] | None = None) -> tuple[type[Cell], type[UpdateRule]]:
    """Look up the classes of a cell and an update rule by their names.

    Args:
        cell: A class, a name, or FILE.py:CLASS, which is loaded with `load_cell`.
        rule: A class or a name. Default: the rule that the cell's name implies, else "always".

    Returns:
        The cell class and the rule class.

    Raises:
        UsageError: The name is unknown; the message suggests the nearest known one.
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


def check_built_in(where: str, cell: str, rule: str | None = None, imputer: str | None = None) -> None:
    """Check that names from a file that is not trusted are those of classes of edgernn.

    Call it before `resolve`, which executes the Python file that FILE.py:CLASS names.

    Args:
        where: Path of the file that has the names, for the error message.
        cell: Name of the cell.
        rule: Name of the update rule, or None.
        imputer: Name of the imputer, or None.

    Raises:
        UsageError: A name is none of edgernn's.
    """
    for kind, name, known in (
        ("a cell", cell, [*CELLS, *COMBINATIONS, *IMPUTING]),
        ("an update rule", rule, [None, *RULES]),
        ("an imputer", imputer, [None, *IMPUTERS]),
    ):
        if name not in known:
            raise UsageError(
                f"{where}: expected {kind} of edgernn, got {name!r:.50}, whose Python file is not in the exported "
                "file; name the run directory instead"
            )


def parts(cell: str, rule: str | None, imputer: str | None = None) -> list[str]:
    """List the names of a layer's imputer, cell and update rule, except None and a rule that updates every neuron."""
    implied = rule in RULES and RULES[rule].is_dense()
    return [name for name in (imputer, cell, None if implied else rule) if name is not None]


def combined_name(cell: str, rule: str) -> str:
    """Return the name of a cell together with an update rule.

    Some pairs have names of their own: "sarnn" is the cell gru with the rule selective. Otherwise the rule follows the
    cell, as in "gru + random". The rule named "always" is left out, as in "gru".
    """
    names = {pair: name for name, pair in COMBINATIONS.items()}
    return names.get((cell, rule)) or " + ".join(parts(cell, rule))


def resolve_imputer(cell: str | type[Cell], imputer: str | type[Imputer] | None = None) -> type[Imputer] | None:
    """Look up the class of an imputer, which fills in missing values, by its name.

    Args:
        cell: Cell class or name.
        imputer: A class or a name. Default: the imputer that the cell's name implies, if any.

    Returns:
        The imputer class, or None if neither argument names one.

    Raises:
        UsageError: The name is unknown; the message suggests the nearest known one.
    """
    if imputer is None and isinstance(cell, str) and cell in IMPUTING:
        _, imputer = IMPUTING[cell]
    if isinstance(imputer, str):
        if imputer not in IMPUTERS:
            raise nearest("imputer", imputer, IMPUTERS)
        imputer = IMPUTERS[imputer]
    return imputer
