# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that adds the rule `tiring` to the rules, their table for C, and the oracles, before test collection.

EDGERNN_ADDED: Folder of the native libraries built with the rule.
"""

# ruff: noqa: E402
import json
import os

from edgernn.rules import RULES
from tests.added_rule.tiring import Tiring

# before other modules list the rules
RULES[Tiring.name] = Tiring

import edgernn.runtime
from edgernn.export.equation_tables import equation_tables
from edgernn.runtime.firmware import equations
from tests import oracle_rules
from tests.added_rule import oracle
from tests.source_tree import generator

oracle_rules.RULES[Tiring.name] = oracle.Tiring
edgernn.runtime.__path__.insert(0, os.environ["EDGERNN_ADDED"])
_TABLES = json.loads(equation_tables(generator()._projection))
equations._tables = lambda: _TABLES
