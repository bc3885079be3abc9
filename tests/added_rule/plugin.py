# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that adds the rule `tiring` to the rules, their table for C, and the oracles, before test collection.

EDGERNN_ADDED: Folder of the native libraries built with the rule.
"""

import json
import os

import edgernn.runtime
from edgernn.export.equation_tables import equation_tables
from edgernn.rules import RULES
from edgernn.runtime.firmware import equations
from tests import oracle_rules
from tests.added_rule import oracle
from tests.added_rule.tiring import Tiring
from tests.source_tree import generator

RULES[Tiring.name] = Tiring
oracle_rules.RULES[Tiring.name] = oracle.Tiring
edgernn.runtime.__path__.insert(0, os.environ["EDGERNN_ADDED"])
_TABLES = json.loads(equation_tables(generator()._projection))
equations._tables = lambda: _TABLES
