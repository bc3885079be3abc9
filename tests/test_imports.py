# SPDX-License-Identifier: Apache-2.0
"""The import contracts in pyproject.toml: the sources keep them, and a forbidden import is found."""

import ast
import re
import shutil
from graphlib import TopologicalSorter
from pathlib import Path

import edgernn
from tests.source_tree import ROOT, python_without_editable_install

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(package, status=0):
    words = ["-c", LINT, "--no-cache", "--no-logo", "--config", ROOT / "pyproject.toml"]
    return python_without_editable_install(*words, path=package, status=status, cwd=package)


def test_every_contract_is_kept():
    output = lint(ROOT)
    assert "folders import downwards KEPT" in output
    assert " 0 broken." in output


# a file, an import inside one of its functions, and the expected message
FORBIDDEN = [
    ("runtime/stream.py", "torch", "edgernn.runtime is not allowed to import torch"),
    ("bench/report.py", "edgernn.costs", "edgernn.bench.report is not allowed to import torch"),
    ("cli/run.py", "edgernn.training.tables.jobs", "edgernn.cli.run is not allowed to import pydantic"),
    ("model.py", "edgernn.runtime.session", "edgernn.model is not allowed to import edgernn.runtime"),
    ("rules/base.py", "edgernn.export.graph", "edgernn.rules is not allowed to import edgernn.export"),
    ("export/graph.py", "edgernn.training.tasks", "edgernn.export is not allowed to import edgernn.training"),
    ("training/loop.py", "edgernn.bench.measure", "edgernn.training is not allowed to import edgernn.bench"),
    ("files.py", "edgernn.locks", "edgernn.files is not allowed to import edgernn.locks"),
    ("training/optim.py", "edgernn.training.loop", "No cycles are allowed in edgernn.training."),
    ("mine.py", "edgernn.errors", "edgernn.mine"),
]


def test_forbidden_imports_inside_functions_are_found(tmp_path):
    """Tests all of them at once, as reading the sources takes seconds."""
    shutil.copytree(ROOT / "edgernn", tmp_path / "edgernn", ignore=shutil.ignore_patterns("csrc", "js", "__pycache__"))
    for file, imported, _ in FORBIDDEN:
        with (tmp_path / "edgernn" / file).open("a") as source:
            source.write(f"\n\ndef lazy():\n    import {imported}\n")
    report = lint(tmp_path, status=1)
    for file, imported, output in FORBIDDEN:
        assert output in report, output
        module = "edgernn." + file.removesuffix(".py").replace("/", ".")
        # each by its direct import, not through another module
        cycle = "- .optim -> .loop (1 import)" in report
        assert file == "mine.py" or (cycle if "cycles" in output else f"{module} -> {imported} (l." in report), file


def test_public_names_are_listed_and_declared_for_type_checkers():
    source = Path(edgernn.__file__).read_text(encoding="utf-8")
    (block,) = [node for node in ast.parse(source).body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    declared = [alias.asname for line in block.body for alias in line.names]
    assert sorted([*declared, "__version__"]) == sorted(edgernn.__all__)
    assert set(edgernn.__all__) <= set(dir(edgernn))
    assert not {"find_spec", "importlib"} & set(dir(edgernn))
    assert all(hasattr(edgernn, name) for name in edgernn.__all__)


def test_folders_of_native_code_do_not_include_each_other_in_a_circle():
    folders = [path for path in (ROOT / "runtime" / "csrc").iterdir() if path.is_dir()]
    included = {
        folder.name: {
            name
            for path in folder.iterdir()
            if path.suffix in (".h", ".cc", ".cu")
            for name in re.findall(r'^#include "(\w+)/', path.read_text(encoding="utf-8"), re.MULTILINE)
            if name != folder.name
        }
        for folder in folders
    }
    assert included["common"] == set()
    assert included["op"] >= {"cpu", "selectors"}
    # raises CycleError for a circle
    tuple(TopologicalSorter(included).static_order())
