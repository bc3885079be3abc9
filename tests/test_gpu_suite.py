# SPDX-License-Identifier: Apache-2.0
"""The GPU suite at a tiny size on the CPU: it detects errors, and its report is complete."""

import json

import pytest
import torch
from click.testing import CliRunner

from edgernn.errors import EdgernnError
from edgernn.files import write_json

pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
from benchmarks import gpu_ops, gpu_suite
from benchmarks.gpu_suite import VARIANTS, SuiteSizes, check, run, table
from edgernn.training.kernels import gpu
from edgernn.training.kernels.kernel_form import KernelForm
from tests.fake_gpu import TorchLibrary

TINY = SuiteSizes(
    check=(2, 2, 3, 5),
    timed=(2, 2, 2, 4),
    widths=(6,),
    wide_steps=2,
    rounds=1,
    training=("--task", "adding", "--cell", "sarnn", "T=4", "hidden_size=4", "steps=2", "test_size=20"),
    workers=0,
    minutes=1,
)


@pytest.fixture(autouse=True)
def _no_library(monkeypatch):
    """Do not build the CUDA library."""

    def prepare(seconds):
        raise EdgernnError("they were not built")

    monkeypatch.setattr(gpu_ops, "prepare", prepare)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gpu, "choose", lambda layout, precision, shared=0: KernelForm(True, rows=2))


@pytest.mark.slow
def test_report_is_whole_and_fits_json(tmp_path, monkeypatch):
    monkeypatch.setitem(VARIANTS, "selective/4", {"group_size": 4})
    rules = ["always", "selective", "selective/4", "delta", "delta/kept", "topk"]
    report = run("cpu", TINY, ["gru"], rules, ["sarnn"])
    assert len(report["checks"]) == 12
    assert all(record["passed"] for record in report["checks"]), report["checks"]
    assert set(report["throughput"]) == {"torch.nn.GRU", "torch.nn.LSTM", "sarnn, loop", "sarnn, fused"}
    assert set(report["widths"]["6"]) == {"torch.nn.GRU", "gru, loop", "gru, fused"}
    assert report["training"]["metric"] == "mse", report["training"]
    write_json(tmp_path / "gpu.json", report)
    text = table(json.loads((tmp_path / "gpu.json").read_text()))
    assert "gradients, ieee: 6 of 6 within 1e-05" in text
    assert report["ops"] is None
    assert "left out: the CUDA ops of exported models: they were not built" in text
    assert "stopped: steps, 2 steps" in text


@pytest.mark.slow
def test_ops_are_in_the_report(monkeypatch, tmp_path):
    fake_library = TorchLibrary("gru lstm+selective other")
    monkeypatch.setattr(
        gpu_ops, "prepare", lambda seconds: gpu_ops.Prepared("", [{"tool": "memcheck", "passed": True}], [])
    )
    monkeypatch.setattr(gpu_ops, "CudaLibrary", lambda path: fake_library)
    monkeypatch.setattr(gpu_ops, "SHAPES", ((3, 2, 3, 5),))
    monkeypatch.setattr(gpu_ops, "TIMES", ((3, 1, 8),))
    report = run("cpu", TINY, ["gru"], ["always"], [])
    write_json(tmp_path / "gpu.json", report)
    text = table(json.loads((tmp_path / "gpu.json").read_text()))
    assert "CUDA ops: 3 of 4 within 0.0001 of torch, worst error" in text
    assert "  failed: other, EdgernnError: other: unknown op: the library is of another edgernn version" in text
    assert "compute-sanitizer's memcheck: passed" in text
    assert set(report["ops"]["timed"]["T=3 B=1 H=8"]) == {"torch.nn.GRU", "torch.nn.LSTM", "gru"}
    # this machine has no CUDA provider
    assert "left out: exported files in ONNX Runtime: device cuda: " in text


def test_wrong_gradient_is_found(monkeypatch):
    right = gpu.sequence_backward
    monkeypatch.setattr(gpu, "sequence_backward", lambda *words: [g * 1.001 for g in right(*words)])
    record = check("cpu", (2, 2, 3, 5), "pru", "always", "ieee")
    assert not record["passed"]
    assert 5e-4 < record["error"] < 2e-3


def test_failure_of_a_contender_is_told():
    def fails():
        raise RuntimeError("out of resources")

    record = gpu_suite._measure({"good": lambda: None, "bad": fails}, 3, "cpu")
    assert record["bad"] == {"failure": "RuntimeError: out of resources"}
    assert record["good"]["ms"] >= 0
    assert "failed: RuntimeError: out of resources" in "\n".join(gpu_suite._rows(record))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    result = CliRunner().invoke(gpu_suite.main, ["--out", str(tmp_path / "gpu.json")])
    assert result.exit_code == 1
    assert result.output == "Error: torch finds no GPU; run this on a machine with a GPU and a CUDA build of torch\n"
    assert not list(tmp_path.iterdir())
