# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests of the GPU training kernels: interpreted layers in small tiles, and kernels compiled for a GPU."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from edgernn.kernels import gpu
from edgernn.kernels.kernel_form import KernelForm
from edgernn.layer import RecurrentLayer
from tests.fused import assert_equals_loop, whole_loss

ROOT = Path(__file__).resolve().parent.parent
# minimal tiles, so that three rows are two programs and nine columns are several blocks
RESIDENT, STREAMED = KernelForm(True, held=1, rows=2), KernelForm(False, rows=2, block=4, block_k=4)
# cases: one or two stages, biases of gates without x, own vectors, x in the point-wise part
SPINE = ["gru", "lstm", "decaynet", "irc-sru", "eins-from-x-forget"]
both_forms = pytest.mark.parametrize("form", [RESIDENT, STREAMED], ids=["resident", "streamed"])


def fused(layer: RecurrentLayer) -> RecurrentLayer:
    clone = copy.deepcopy(layer)
    clone.unroller = gpu.GpuUnroller(clone)
    return clone


def assert_same(layer: RecurrentLayer, T: int, B: int, loss: Callable[..., Tensor] = whole_loss) -> None:
    assert_equals_loop(layer, fused(layer), T, B, loss)


def use_form(form: KernelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "choose", lambda layout, precision, shared=0: form)


def compile_for_real(*words: str) -> list[dict[str, object]]:
    """Compile the kernels of layers for a GPU by `tests.triton_compile`, and return what it prints for each kernel."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.triton_compile", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]
