# SPDX-License-Identifier: Apache-2.0
"""The pairs of a cell and an update rule that run together, and samples of them and of other products of cases."""

from collections.abc import Collection, Sequence
from itertools import combinations, product
from typing import Any

from edgernn.cells import CELLS
from edgernn.rules import RULES


def fits(cell: str, rule: str) -> bool:
    """Return whether the cell has what the rule needs: topk needs an update gate."""
    return RULES[rule].refusal(CELLS[cell]) is None


PAIRS = [(cell, rule) for cell in CELLS for rule in RULES if fits(cell, rule)]


def covering(pairs: Collection[tuple[str, str]], whole: Collection[str], count: int = 2) -> list[tuple[str, str]]:
    """Choose all rules of some cells, and `count` rules of each other cell, which follow in turn.

    For what does not depend on a cell and a rule together, while another test has all pairs.
    """
    chosen = []
    for place, cell in enumerate(dict.fromkeys(cell for cell, _ in pairs)):
        rules = [rule for name, rule in pairs if name == cell]
        number = len(rules) if cell in whole else count
        turns = {(place + turn * len(rules) // number) % len(rules) for turn in range(number)}
        chosen += [(cell, rules[turn]) for turn in sorted(turns)]
    return chosen


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose few members of a product, in which each value of a factor meets each value of each other factor."""
    rows = [tuple(enumerate(row)) for row in product(*(range(len(factor)) for factor in factors))]
    missing = {pair for row in rows for pair in combinations(row, 2)}
    chosen = []
    while missing:
        row = max(rows, key=lambda row: len(missing.intersection(combinations(row, 2))))
        missing.difference_update(combinations(row, 2))
        chosen.append(tuple(factors[factor][value] for factor, value in row))
    return chosen
