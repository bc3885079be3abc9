# SPDX-License-Identifier: Apache-2.0
"""The documents agree with the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from edgernn.cells import CELLS
from edgernn.imputers import IMPUTERS
from edgernn.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_example_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "model.onnx").is_file()


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documents_are_what_the_code_says():
    for path, text in generator().generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: make docs"


def test_every_cell_and_rule_has_its_section():
    script = generator()
    pages = "".join(script.page(name) for name in script.PAGES)
    for name in [*CELLS, *RULES, *IMPUTERS]:
        assert f"\n## {name}\n" in pages or name == "always", name


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_linked_files_exist(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), target


def test_version_has_a_changelog_entry():
    import edgernn

    assert f"## {edgernn.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
