# SPDX-License-Identifier: Apache-2.0
"""`make check-types`: the package passes mypy in strict mode."""

import os
import sys

from tests.source_tree import ROOT, run


def test_types_of_the_package_are_strict(tmp_path):
    words = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache"]
    options = {"env": os.environ | {"MYPYPATH": str(ROOT)}, "cwd": ROOT}
    run(*words, "-p", "edgernn", **options)
    code = "import edgernn\nreveal_type(edgernn.SequenceModel)\nreveal_type(edgernn.export.to_onnx)\nedgernn.no_such"
    report = run(*words, "-c", code, status=1, **options)
    assert 'Revealed type is "def (' in report.splitlines()[0]
    assert "edgernn.model.SequenceModel" in report.splitlines()[0]
    assert "edgernn.export.check.Check" in report.splitlines()[1]
