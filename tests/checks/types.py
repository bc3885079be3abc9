# SPDX-License-Identifier: Apache-2.0
"""`make check-types`: the package passes mypy in strict mode."""

import os
import sys

from tests.source_tree import ROOT, run


def test_types_of_the_package_are_strict(tmp_path):
    words = ["--cache-dir", tmp_path / "cache", "-p", "edgernn"]
    run(sys.executable, "-m", "mypy", *words, env=os.environ | {"MYPYPATH": str(ROOT)}, cwd=ROOT)
