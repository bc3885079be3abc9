# SPDX-License-Identifier: Apache-2.0
"""The update rules. To add one: its file, a line in RULES."""

from edgernn.rules.always import Always
from edgernn.rules.base import Decision, UpdateRule
from edgernn.rules.selective import Selective

RULES: dict[str, type[UpdateRule]] = {
    rule.name: rule
    for rule in (
        Always,
        Selective,
    )
}

__all__ = ["RULES", "Always", "Decision", "Selective", "UpdateRule"]
