# SPDX-License-Identifier: Apache-2.0
"""The tutorial on networks of one's own, run verbatim: its Python blocks and commands, in their order."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgernn.cli.frame import main
from tests.source_tree import ROOT
from tests.training_helpers import without_pictures

PAGE = (ROOT / "docs" / "tutorials" / "own-network.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:skip. |.*trained on clips:edgernn.errors.EdgernnWarning")
def test_page_trains_exports_and_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```|^    (edgernn [^\n]*)$", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    without_pictures(monkeypatch)
    Path("my_net.py").write_text(blocks[0][0])
    names: dict[str, Any] = {"__name__": "page"}
    for block, command in blocks[1:]:
        if command:
            assert main(shlex.split(command)[1:]) == 0, command
        else:
            exec(compile(block, "own-network.md", "exec"), names)
    assert names["accuracy"] > 0.9
    # an int8 file is smaller, and calibration finds thresholds
    sizes = [Path("runs", name).stat().st_size for name in ("tones-Net/model-int8.onnx", "tones-Net/model.onnx")]
    assert sizes == sorted(sizes)
    assert Path("runs/dense/model-delta.onnx").is_file()
    printed = capsys.readouterr().out
    assert float(re.search(r"tones, Net: accuracy (\S+)", printed)[1]) > 0.9
    assert "on fused kernels" in printed
    assert "['1'] {}" in printed
    assert "rising" in printed.partition("tones, Stream")[2]
    assert names["scores"].shape == (3, 2)
    # the streamed file continues where it stopped
    x = names["x"][:, :2]
    with torch.no_grad():
        whole, _ = names["stream"](x)
    np.testing.assert_allclose(names["parts"][-1], whole, rtol=0, atol=1e-5)
