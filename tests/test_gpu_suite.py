# SPDX-License-Identifier: Apache-2.0
"""The GPU suite at a tiny size on the CPU: it detects errors, loses no measurement, and outlives its workers."""

import io
import os
import sys
import time

import pytest
import torch
from click.testing import CliRunner

import edgernn
from benchmarks import cudnn_training
from benchmarks.gpu_workers import drive, measure
from edgernn.kernels.common import FUSED

pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
from benchmarks import gpu_items, gpu_suite
from benchmarks.gpu_items import VARIANTS, grad, products, timed
from benchmarks.gpu_suite import SMALL, Report, Suite, table
from edgernn.cells import CELLS
from edgernn.kernels import gpu
from edgernn.kernels.kernel_form import KernelForm, precision
from tests.fake_gpu import TorchLibrary
from tests.source_tree import ROOT


def checked(cell="gru", rule="always", how="ieee", size=(2, 2, 3, 20)):
    return grad({"cell": cell, "rule": rule, "how": how, "size": size}, "cpu")


@pytest.mark.parametrize("rule", ["always", *VARIANTS])
def test_right_gradients_pass(rule):
    result = checked("gru", rule)
    assert result["passed"], result
    assert 0 < result["error"] < 1e-6


def test_wrong_gradient_is_found(monkeypatch):
    right = gpu._backward
    monkeypatch.setattr(gpu, "_backward", lambda *words: [g * 1.001 for g in right(*words)])
    result = checked("pru")
    assert not result["passed"]
    assert 5e-4 < result["error"] < 2e-3
    assert result["failure"].endswith(f": {result['error']:.1e}")


def test_a_check_does_not_depend_on_the_settings_of_torch(monkeypatch):
    used = []
    real = gpu.precision
    monkeypatch.setattr(gpu, "precision", lambda: used.append(real()) or used[-1])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        checked(how="tf32")
        checked(how="ieee")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(used[: len(used) // 2]) == {"tf32"}
    assert set(used[len(used) // 2 :]) == {"ieee"}


def test_products_sets_all_precisions():
    for how in ("bf16", "tf32", "ieee"):
        with products(how):
            assert precision() == how
    with products("tf32", "ieee"):
        assert (precision(), torch.get_float32_matmul_precision()) == ("tf32", "highest")


def test_parts_and_failures_are_timed():
    def fails(mark):
        raise RuntimeError("out of\n resources")

    def both(mark):
        mark()
        time.sleep(0.01)

    times = timed({"both": both, "fails": fails, "one": lambda mark: None}, "cpu", 3)
    assert times["fails"] == {"failure": "RuntimeError: out of resources"}
    assert times["both"]["backward"] >= 10 > times["both"]["forward"]
    assert set(times["one"]) == {"ms", "min", "max"}
    assert "failed: RuntimeError: out of resources" in "\n".join(gpu_suite._rows(times))


@pytest.fixture
def suite(tmp_path):
    return Suite(Report(tmp_path / "gpu.jsonl"), "cpu", SMALL, io.StringIO(), 0, "a library")


@pytest.fixture
def few(monkeypatch, suite):
    """Leave out all items but these, by a function of the item."""

    def few(keep):
        whole = suite._drive
        monkeypatch.setattr(suite, "_drive", lambda items, *words: whole([i for i in items if keep(i)], *words))

    return few


def entries_of(suite):
    return suite._report.entries


def test_checks_that_passed_are_not_repeated(suite, few):
    few(lambda item: (item["cell"], item["rule"]) == ("rnn", "always"))
    for _ in range(2):
        suite.run(["gradients"], 60, lambda line: None)
    assert [entry["item"]["how"] for entry in entries_of(suite)] == ["tf32", "ieee"]
    assert "gradients, ieee: 1 of 1 passed" in table(entries_of(suite))


def test_every_kind_of_rule_comes_first_for_every_family_of_cells(suite, monkeypatch):
    items = []
    monkeypatch.setattr(suite, "_drive", lambda some, *words: items.extend(some))
    suite.run(["gradients"], 60, lambda line: None)
    pairs = [(item["cell"], item["rule"]) for item in items]
    assert {cell for cell, _ in pairs} == set(CELLS)
    assert {rule for _, rule in pairs} == {*FUSED, *VARIANTS}
    # its layer runs all steps, because the cell reads the input before, and kernels do not hold a mean of inputs
    assert ("t-lstm", "periodic") not in pairs
    early = pairs[: len(pairs) // 2]
    assert {"gru", "lstm", "eins", "irc-gru"} <= {cell for cell, _ in early}
    assert {"always", "selective", "skip", "topk", "delta"} <= {rule for _, rule in early}


def test_steps_tell_times_and_resources(suite, few, monkeypatch):
    few(lambda item: item["name"] == "sarnn")
    # a form that did not fit
    monkeypatch.setattr(gpu, "choose", lambda layout, how, shared=0: KernelForm(True, held=3, rows=2))
    monkeypatch.setattr(gpu, "_SMALLER", {})
    real = gpu.kernels

    def kernels(key, resident, held):
        if held == 3:
            from triton.runtime.errors import OutOfResources

            raise OutOfResources(2, 1, "shared memory")
        return real(key, resident, held)

    monkeypatch.setattr(gpu, "kernels", kernels)
    suite.run(["steps"], 60, lambda line: None)
    entry = entries_of(suite)[-1]
    assert list(entry["times"]) == ["torch.nn.GRU", "sarnn, fused", "sarnn, fused bf16", "sarnn, loop"]
    assert {"ms", "forward", "backward"} <= set(entry["times"]["sarnn, fused"])
    smaller = entry["resources"]["tf32"]["smaller"]
    assert set(smaller) == {"forward", "backward"}
    assert "held=2" in smaller["forward"]
    assert not table(entries_of(suite)).endswith("kernels that needed a smaller form than planned: 0")


def test_kernels_of_the_library_are_checked_and_timed(suite, monkeypatch):
    library = TorchLibrary("gru other")
    monkeypatch.setattr(gpu_suite, "CudaCalls", lambda path: library)
    monkeypatch.setattr(gpu_items, "_library", lambda path, device: library)
    suite.run(["ops", "inference"], 60, lambda line: None)
    first, *checks, last = entries_of(suite)
    assert first["unknown"] == ["other"]
    assert [check["item"]["op"] for check in checks] == ["gru"]
    assert all(check["passed"] for check in checks)
    assert set(last["times"]) == {"torch.nn.GRU", "torch.nn.LSTM", "gru", "torch.nn.GRU, float32"}
    text = table(entries_of(suite))
    assert "CUDA ops: 1 of 1 passed, worst error" in text


def test_a_missing_library_stops_no_other_stage(suite, few, monkeypatch):
    def fails(seconds):
        raise edgernn.EdgernnError("nvcc is not installed")

    monkeypatch.setattr(gpu_suite, "find_or_build", fails)
    few(lambda item: item["do"] == "step" and item["name"] == "pru")
    suite._library = None
    suite.run(["ops", "steps"], 60, lambda line: None)
    failed, timed_step = entries_of(suite)
    assert failed == {"stage": "ops", "failure": "EdgernnError: nvcc is not installed"}
    assert "times" in timed_step


def test_a_cut_off_line_is_left_out(tmp_path):
    report = Report(tmp_path / "gpu.jsonl")
    report.tell("steps", {"item": {"do": "step"}, "passed": True})
    with (tmp_path / "gpu.jsonl").open("a") as file:
        file.write('{"stage": "st')
    assert report.entries == [{"stage": "steps", "item": {"do": "step"}, "passed": True}]


@pytest.mark.slow
def test_training_is_timed(suite):
    suite.run(["machine", "training"], 300, lambda line: None)
    machine, fused, cudnn, *_ = entries_of(suite)
    assert machine["versions"]["edgernn"] == edgernn.__version__
    for run in (fused, cudnn):
        assert run["status"] == 0, run
        assert run["evaluations"] == 2
        assert run["result"]["steps"] == 4
    assert cudnn["result"]["backend"] == "cudnn"
    assert "training, adding gru cudnn: " in table(entries_of(suite))


def test_cudnn_computes_our_gru():
    torch.manual_seed(0)
    model = edgernn.SequenceModel("gru", 3, 8)
    (layer,) = model.recurrent_layers()
    torch.nn.init.normal_(layer.cell.b)
    x = torch.randn(5, 2, 3)
    expected = model(x)
    assert cudnn_training.attach(model, "auto", "cpu") == "cudnn"
    torch.testing.assert_close(model(x), expected)
    other = edgernn.SequenceModel("sarnn", 3, 8)
    with pytest.raises(edgernn.UsageError, match="cell: expected gru without an update rule for cuDNN, got gru"):
        cudnn_training.attach(other, "auto", "cpu")


WORKER = """
import os, time
from benchmarks.gpu_workers import serve
def work(item):
    if item["how"] == "die":
        os._exit(7)
    if item["how"] == "hang":
        time.sleep(600)
    if item["how"] == "raise":
        raise ValueError("no")
    print("in the log")
    return {"process": os.getpid()}
serve({"work": work}, lambda: None)
"""


def test_a_worker_that_dies_or_hangs_costs_its_item_alone(tmp_path, monkeypatch):
    # the worker's imports are few, and need no further patience
    monkeypatch.setattr("benchmarks.gpu_workers.IMPORTS", 90.0)
    told = []
    items = [{"do": "work", "how": how} for how in ("run", "die", "run", "raise", "run")]
    command = [sys.executable, "-c", WORKER]
    with (tmp_path / "log").open("w") as log:
        drive(items, told.append, command, log, workers=1, seconds=60, end=time.monotonic() + 300)
        monkeypatch.setattr("benchmarks.gpu_workers.IMPORTS", 0.0)
        items = [{"do": "work", "how": how} for how in ("hang", "run")]
        drive(items, told.append, command, log, workers=1, seconds=60, end=time.monotonic() + 0.3)
    assert [entry.get("failure") for entry in told[:5]] == [
        None,
        "the worker died with status 7; see the log",
        None,
        "ValueError: no",
        None,
    ]
    # the same process goes on after an exception, and another one after a death
    assert told[0]["process"] != told[2]["process"] == told[4]["process"] != os.getpid()
    assert told[5]["failure"].startswith("no answer in 0 s")
    assert told[6]["left_out"] == "1 of 2 measurements: out of time"
    assert "in the log" in (tmp_path / "log").read_text()


def test_an_item_without_a_handler_is_a_failure():
    assert measure({}, {"do": "nothing"})["failure"] == "KeyError: 'nothing'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    result = CliRunner().invoke(gpu_suite.main, ["--out", str(tmp_path / "gpu.jsonl")])
    assert result.exit_code == 1
    assert result.output == "Error: torch finds no GPU; run this on a machine with a GPU and a CUDA build of torch\n"
    assert not list(tmp_path.iterdir())
    result = CliRunner().invoke(gpu_suite.main, ["--out", str(tmp_path / "gpu.jsonl"), "--device", "cpu"])
    assert result.output.startswith("Error: --device cpu: expected --small too")


def test_reports_of_a_gpu_are_read():
    for path in sorted((ROOT / "docs" / "results" / "gpu").glob("*.jsonl")):
        entries = Report(path).entries
        assert len(entries) == len(path.read_text().splitlines())
        assert "ms, ratio" in table(entries)
