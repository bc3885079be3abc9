# SPDX-License-Identifier: Apache-2.0
"""`make check-added-rule`: a rule added as one file and one line in the list runs everywhere.

Builds the native libraries from a copy of the sources with the header generated for `tests/added_rule/tiring.py`, and
runs the tests of every reader of rules for that rule in a separate process.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.added_rule.tiring import Tiring
from tests.kernel_builds import ISA, ROOT, build, need
from tests.source_tree import generator

READERS = (
    *("cells", "rules", "export", "imputers", "packed", "firmware"),
    *("native_op", "native_rules", "native_weights", "weight_types"),
    *("fused", "triton", "cuda"),
)
# in the generated list of rules: an existing line, and the line inserted before it
LINES = {
    '#include "rules/variable.h"\n': '#include "rules/tiring.h"\n',
    ", Selective,": ", Tiring",
}


def add_rule(sources: Path) -> None:
    """Copy the native sources and add the rule."""
    for folder in ("runtime/csrc", "runtime/firmware/engine", "tests/csrc", "cmake"):
        shutil.copytree(ROOT / folder, sources / folder)
    (sources / "edgernn").mkdir()
    for name in ("CMakeLists.txt", "edgernn/__init__.py"):
        shutil.copy(ROOT / name, sources / name)
    header = generator().rule_header(Tiring)
    (sources / "runtime" / "csrc" / "rules" / "tiring.h").write_text(header, encoding="utf-8")
    listed = sources / "runtime" / "csrc" / "rules" / "list.h"
    text = listed.read_text(encoding="utf-8")
    for place, line in LINES.items():
        assert text.count(place) == 1, place
        text = text.replace(place, line + place)
    listed.write_text(text, encoding="utf-8")


def passed_modules(report: Path) -> set[str | None]:
    """Return the modules that have a passed test in a report of pytest in the format of JUnit."""
    failed = ("failure", "error", "skipped")
    cases = ElementTree.parse(report).iter("testcase")
    return {case.get("classname") for case in cases if all(case.find(kind) is None for kind in failed)}


def test_readers_of_rules_equal_the_oracle_for_an_added_rule(tmp_path: Path) -> None:
    need("cmake")
    sources = tmp_path / "sources"
    add_rule(sources)
    # -O0 compiles far faster
    flags, targets = "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG", ("edgernn_ops", "edgernn_train")
    libraries = build(tmp_path / "build", flags, targets=targets, sources=sources)
    environment = os.environ | {
        "EDGERNN_ADDED": str(libraries),
        "EDGERNN_SOURCES": str(sources),
        "EDGERNN_ISA": ISA,
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",
    }
    words = ["-q", "-x", "-k", "tiring", "-p", "tests.added_rule.plugin", "-p", "no:cacheprovider"]
    report = tmp_path / "report.xml"
    files = [f"--junitxml={report}", *(f"tests/test_{name}.py" for name in READERS)]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]
    passed = passed_modules(report)
    lacking = [name for name in READERS if f"tests.test_{name}" not in passed]
    assert not lacking, f"no passed test of the rule in {lacking}: {process.stdout[-4000:]}"
