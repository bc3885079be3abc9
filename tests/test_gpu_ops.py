# SPDX-License-Identifier: Apache-2.0
"""The checks of the CUDA library's ops, on a fake library that runs torch: they pass correct ops and no others."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import build_cuda, gpu_ops
from benchmarks.build_cuda import find_or_build
from benchmarks.gpu_forms import GROUPS, forms
from benchmarks.gpu_ops import check, sanitize
from edgernn.cells import CELLS
from edgernn.errors import EdgernnError
from tests.fake_gpu import TorchLibrary

SHAPES = [(1, 1, 3, 5), (6, 3, 2, 7)]


@pytest.mark.parametrize(
    "op",
    [
        "lstm",
        "t-lstm",
        "gru+selective",
        GROUPS,
        "gru+skip",
        "gru-before+low-rank",
        "gru-before+topk",
        "gru+delta",
        "sru",
    ],
)
def test_right_ops_pass(op):
    record = check(TorchLibrary(forms()[op].kernel_name), op, forms()[op], SHAPES, "cpu")
    assert record["passed"], record
    assert 0 < record["error"] < 1e-6


@pytest.mark.parametrize(
    ("fault", "why"),
    [({"error": 2e-4}, "wrong by 2.0e-04"), ({"unwritten": 1}, "wrong by nan")],
    ids=["wrong", "not written"],
)
def test_wrong_ops_do_not(fault, why):
    record = check(TorchLibrary("gru", **fault), "gru", forms()["gru"], SHAPES, "cpu")
    assert not record["passed"]
    assert record["failure"] == why


@pytest.mark.slow
def test_wrong_counts_do_not(monkeypatch):
    library = TorchLibrary("gru+selective")
    right = library.run

    def run(*words, **named):
        right(*words, **named)
        # the last arguments before the stream are updates and macs
        ctypes.c_int64.from_address(words[9]).value += 1

    library.run = run
    record = check(library, "gru+selective", forms()["gru+selective"], SHAPES[:1], "cpu")
    assert record["failure"] == "its decisions differ in all draws"


@pytest.mark.slow
def test_every_op_has_a_layer_of_its_own():
    known = forms()
    assert {
        "gru",
        "gru+selective",
        "gru+skip",
        "eins-from-x with biases",
        "sru",
        "sru-projected",
        "irc-lstm+low-rank",
    } <= set(known)
    assert set(gpu_ops.SMALL) | set(gpu_ops.TIMED) <= set(known)
    for form in known.values():
        layer = form.layer(6, 6 if form.square else 7)
        assert layer.kernel_name == form.kernel_name
        assert layer.cell.biases == CELLS[layer.cell.name](6, 7).biases + form.biases


@torch.no_grad()
def test_thresholds_of_delta_let_some_values_through():
    layer, x = forms()["gru+delta"].layer(3, 24), torch.randn(300, 4, 3)
    trace = layer(x)[2]
    for sent in (trace.decisions, trace.sent_inputs):
        assert 0.2 < sent[100:].float().mean() < 0.6


def test_the_command_checks_a_few(capsys):
    assert gpu_ops.main(TorchLibrary("gru lstm+skip"), "cpu") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["gru", "lstm+skip"]
    assert gpu_ops.main(TorchLibrary("gru", error=1.0), "cpu") == 1


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A function that adds a program to an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def test_without_nvcc_it_is_said_how_to_build(tools, monkeypatch):
    monkeypatch.setattr(build_cuda, "library_missing", lambda device="cpu": "it is not installed; build it so")
    with pytest.raises(EdgernnError, match="it is not installed; build it so"):
        find_or_build(1)


@pytest.mark.slow
def test_the_library_is_built_and_laid_beside_the_other(tools, monkeypatch, tmp_path):
    output, ran = tmp_path / "said", []
    monkeypatch.setattr(build_cuda, "library_missing", lambda device="cpu": None if device == "cpu" else "missing")
    monkeypatch.setattr(build_cuda, "library_path", lambda: str(tmp_path / "libedgernn_ops.so"))
    monkeypatch.setattr(build_cuda, "cuda_library_path", lambda: str(tmp_path / "libedgernn_cuda.so"))
    tools("nvcc", "exit 0")
    tools("cmake", "exit 0")

    def run(words, **named):
        ran.append(words)
        folder = Path(words[words.index("-B") + 1] if "-B" in words else words[2])
        assert folder.parts[-2:] == ("build", "cuda")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(build_cuda.subprocess, "run", run)
    monkeypatch.setattr(build_cuda.shutil, "copy2", lambda source, target: output.write_text(f"{source} {target}"))
    assert find_or_build(1) == str(tmp_path / "libedgernn_cuda.so")
    assert "-DEDGERNN_CUDA=ON" in ran[0]
    assert ran[1][-2:] == ["--target", "edgernn_cuda"]
    assert output.read_text().endswith(f"build/cuda/libedgernn_cuda.so {tmp_path}/libedgernn_cuda.so")


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo no >&2; exit 3", "failed: no"), ("exec /bin/sleep 9", "did not finish within the time limit of 1 s")],
)
def test_a_build_that_fails_is_named(tools, monkeypatch, script, message):
    monkeypatch.setattr(build_cuda, "library_missing", lambda device="cpu": "missing")
    tools("nvcc", "exit 0")
    tools("cmake", script)
    with pytest.raises(EdgernnError, match=message):
        find_or_build(0.2 if "sleep" not in script else 1)


def test_the_sanitizer_runs_the_small_checks(tools):
    with pytest.raises(EdgernnError, match="expected the program compute-sanitizer in PATH, got none"):
        sanitize("memcheck", 5)
    tools("compute-sanitizer", 'echo "$*" "$PYTORCH_NO_CUDA_MEMORY_CACHING"')
    record = sanitize("memcheck", 5)
    assert record["passed"]
    assert record["said"].startswith("--tool memcheck --error-exitcode 9 ")
    assert record["said"].endswith("-m benchmarks.gpu_ops 1\n")
    tools("compute-sanitizer", "exit 9")
    assert not sanitize("memcheck", 5)["passed"]
    tools("compute-sanitizer", "exec /bin/sleep 9")
    with pytest.raises(EdgernnError, match="stopped at the time limit of"):
        sanitize("memcheck", 0.2)


def test_calls_are_those_that_are_timed():
    timed = gpu_ops.calls(TorchLibrary("gru gru+skip other"), "cpu", 3, 2, 8)
    assert list(timed) == ["torch.nn.GRU", "torch.nn.LSTM", "gru", "gru+skip"]
    for call in timed.values():
        call()
