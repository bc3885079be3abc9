# SPDX-License-Identifier: Apache-2.0
"""What the documents show is what is."""

import re
import subprocess
import sys
from pathlib import Path

from edgernn.listing import listing, table

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.onnx").is_file()


def test_readme_cell_table_is_generated():
    (shown,) = re.findall(r"<!-- cells -->\n(.*?)\n<!-- /cells -->", README, re.DOTALL)
    assert shown == table(listing(2, 128))


def test_readme_files_exist():
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_version_has_a_changelog_entry():
    import edgernn

    assert f"## {edgernn.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
