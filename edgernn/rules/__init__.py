# SPDX-License-Identifier: Apache-2.0
"""The update rules. To add one: its file, a line in RULES."""

from edgernn.rules.always import Always
from edgernn.rules.base import Decision, UpdateRule
from edgernn.rules.fixed import Clockwork, Random
from edgernn.rules.selective import Selective
from edgernn.rules.skip import Skip

RULES: dict[str, type[UpdateRule]] = {
    rule.name: rule
    for rule in (
        Always,
        Random,
        Clockwork,
        Skip,
        Selective,
    )
}

__all__ = ["RULES", "Always", "Clockwork", "Decision", "Random", "Selective", "Skip", "UpdateRule"]
