# SPDX-License-Identifier: Apache-2.0
"""The tutorial on networks of one's own, run verbatim."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "tutorials" / "own-network.md").read_text(encoding="utf-8")


def test_page_trains_exports_and_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = "\n".join(blocks)
    assert len([line for line in code.splitlines() if line.strip()]) <= 70
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "own-network.md", "exec"), names)
    assert names["accuracy"] > 0.9
    printed = capsys.readouterr().out
    assert "on fused kernels" in printed
    assert "['1'] {}" in printed
    assert names["scores"].shape == (3, 2)
    # the streamed file continues where it stopped
    x = names["x"]
    with torch.no_grad():
        whole, *_ = names["Stream"](names["net"])(x, torch.zeros(len(x), 1, 4), torch.zeros(1, len(x), 32))
    np.testing.assert_allclose(np.concatenate(names["parts"], 1), whole, rtol=0, atol=1e-5)
