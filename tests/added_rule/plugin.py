# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that adds the rule `tiring` to the list of rules and to the oracles before test collection.

EDGERNN_ADDED: Folder of the native libraries built with the rule.
"""

import os

import edgernn.runtime
from edgernn.rules import RULES
from tests import oracle_rules
from tests.added_rule import oracle
from tests.added_rule.tiring import Tiring

RULES[Tiring.name] = Tiring
oracle_rules.RULES[Tiring.name] = oracle.Tiring
edgernn.runtime.__path__.insert(0, os.environ["EDGERNN_ADDED"])
