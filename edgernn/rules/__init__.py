# SPDX-License-Identifier: Apache-2.0
"""The update rules: which neurons change at a step. To add one: its file, a line in RULES, a row in the table of
oracles, and `make docs`, which writes the header of its native kernels (CONTRIBUTING.md).

Saves: the work of the neurons that keep their value. The native kernels do not multiply their rows, and `skip` does not
even read x. What a rule decides by itself costs a vector (`skip`), a number a neuron and an input (`variable`) or a
matrix (H, I) (`selective`); `random`, `clockwork` and `phased` decide from the step alone.
Choose `selective` where different neurons are needed at different times, `skip` where whole steps carry nothing,
`variable` where some steps need much and some little; `clockwork` or `phased` where the data have known periods;
`random` to see what a learned rule is worth. The weight λ of the budget moves a learned rule between exact and cheap.
"""

from edgernn.rules.always import Always
from edgernn.rules.base import Decision, Kind, Memory, UpdateRule
from edgernn.rules.fixed import Clockwork, Random
from edgernn.rules.phased import Phased
from edgernn.rules.selective import Selective
from edgernn.rules.skip import Skip
from edgernn.rules.variable import Variable

RULES: dict[str, type[UpdateRule]] = {
    rule.name: rule
    for rule in (
        Always,
        Random,
        Clockwork,
        Phased,
        Skip,
        Variable,
        Selective,
    )
}

__all__ = [
    "RULES",
    "Always",
    "Clockwork",
    "Decision",
    "Kind",
    "Memory",
    "Phased",
    "Random",
    "Selective",
    "Skip",
    "UpdateRule",
    "Variable",
]
