# SPDX-License-Identifier: Apache-2.0
"""The documentation page on user-defined cells, run verbatim."""

import json
import re
import shlex
from pathlib import Path

import pytest

from edgernn.cell_files import KEPT
from edgernn.cli.frame import main
from edgernn.runtime import Session

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "how-to" / "add-a-cell.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "my_cells.py").read_text(encoding="utf-8")


def test_the_page_shows_the_example():
    (code,) = re.findall(r"```python\n# my_cells.py\n(.*?)```", PAGE, re.DOTALL)
    assert code == EXAMPLE
    body = EXAMPLE[EXAMPLE.index("class ") :]
    assert len([line for line in body.splitlines() if line]) <= 12


@pytest.mark.slow
def test_the_page_leads_from_a_class_to_a_packed_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_cells.py").write_text(EXAMPLE, encoding="utf-8")
    printed = []
    for command in re.findall(r"^    edgernn (.*)$", PAGE, re.MULTILINE):
        assert main(shlex.split(command)) == 0, command
        printed.append((command.split()[0], capsys.readouterr().out))
    assert [verb for verb, _ in printed] == ["cells", "train", "train", "plot", "export", "bench", "pack", "bench"]
    assert "| janet | janet |" in printed[0][1].splitlines()[-1]
    assert "native, portable" in printed[0][1].splitlines()[-1]
    result = json.loads(Path("runs/adding-JANET-selective/result.json").read_text())
    assert result["solved"]
    assert result["skip_percent"] > 30
    for verb, out in printed:
        if verb == "bench":
            assert re.search(r"^\| edgernn native \|", out, re.MULTILINE)
    assert Path("janet.edgernn").stat().st_size < 20_000
    # the rest needs no user file
    Path("my_cells.py").unlink()
    Path("runs/adding-JANET-selective", KEPT).unlink()
    assert Session("runs/adding-JANET-selective/model.onnx").backend == "native"
