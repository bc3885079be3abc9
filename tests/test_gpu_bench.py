# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark on a machine with a fake GPU: complete reports, and no times of wrong kernels."""

import contextlib
import json

import numpy as np
import pytest
import torch

from benchmarks.gpu_cases import cases, run_cases
from edgernn.bench import Settings, gpu_times
from edgernn.bench.case import EDGERNN, Case
from edgernn.bench.gpu_cases import bench_on_gpu, gpu_page
from edgernn.bench.gpu_times import COPIED, CPU, torch_layers
from edgernn.bench.measure import GRU, LSTM
from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime import Session
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.runtime.weights import Weight, read_weights
from tests import fake_gpu
from tests.models import exported
from tests.test_docs import generator

SHORT = Rounds(rounds=2, warmup=1, block_ms=0.5)


@pytest.fixture
def machine(fake, monkeypatch):
    fake_gpu.install(monkeypatch, fake)


class Stopwatch:
    """Replaces the stream's clock: counts the timed calls, each of which takes ten milliseconds."""

    name = "CUDA events"

    class Stream:
        cuda_stream = 77

        def synchronize(self):
            pass

    def __init__(self):
        self.stream, self.calls = self.Stream(), 0

    def __call__(self, call, count):
        for _ in range(count):
            call()
        self.calls += count
        return count * 1e-2


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}], ids=["one layer", "both directions"])
def test_torchs_layers_with_our_weights_compute_our_function(cell, options):
    _, path = exported(cell, output="all", **options)
    session, x = Session(path, backend="portable"), np.random.default_rng(0).standard_normal((7, 2, 3), np.float32)
    weights = read_weights(path)
    with torch.no_grad():
        y = torch_layers(cell, session.info, weights)(torch.from_numpy(x))[0].numpy()
    y = y @ weights["head.W.T"].floats.T + weights["head.b"].floats
    np.testing.assert_allclose(y, session.run(x), rtol=0, atol=1e-5)


def test_a_report_holds_every_contender(machine, monkeypatch, tmp_path):
    clock, sessions = Stopwatch(), []

    class Recorded(fake_gpu.Gpu):
        def __init__(self, *words, **named):
            super().__init__(*words, **named)
            sessions.append(self)

    monkeypatch.setattr(fake_gpu.FakeRuntime, "InferenceSession", Recorded)
    monkeypatch.setattr(gpu_times, "clock", lambda: clock)
    # torch's GPU device is replaced by the CPU
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    for kind in (torch.Tensor, torch.nn.Module):
        monkeypatch.setattr(kind, "cuda", lambda self: self)
    chosen = [case for case in cases("gru (2, 128), T=500") if case.batch == 1]
    report = run_cases(tmp_path / "cuda.json", chosen, SHORT, command="python -m benchmarks.suite --device cuda")
    assert report == json.loads((tmp_path / "cuda.json").read_text())
    (case,) = report["cases"]
    assert set(case["contenders"]) == {EDGERNN, COPIED, CPU, GRU, LSTM, "torch.nn.GRU", "torch.nn.LSTM"}, case
    assert case["left_out"] == {}
    # runs that do not wait have options, and ONNX Runtime aborts unless a last run waits
    unsynchronised = [session.runs for session in sessions if any(session.runs)]
    assert len(unsynchronised) == 3
    assert all(runs[-1] is None for runs in unsynchronised)
    assert case["contenders"]["torch.nn.GRU"]["error"] < 1e-5
    assert case["contenders"][EDGERNN]["us"] == pytest.approx(20)
    assert clock.calls > 0
    assert case["contenders"][EDGERNN]["error"] < 1e-5
    assert case["contenders"][GRU]["error"] < 1e-5
    assert case["contenders"][LSTM]["error"] is None
    (target,) = case["targets"]
    assert (target["against"], target["limit"], target["met"]) == (GRU, 0.5, False)
    text = gpu_page(report)
    assert "unknown GPU, driver unknown; " in text
    assert "The clock is: CUDA events. Calls follow one another" in text
    # ten milliseconds are long beside the CPU's time
    assert "Our kernel on the CPU is faster than ours on the GPU in: gru (2, 128), T=500." in text
    assert f"| gru (2, 128), T=500 | {GRU} | 1 | 0.5 | **no** |" in text
    page = generator().performance(tmp_path)
    assert "None of it is measured yet: neither target" not in page
    assert "### One sequence on a GPU" in page.split("## On a GPU")[1].split("## Training")[0]


def test_a_model_is_measured_where_it_lies(machine, tmp_path):
    path = exported("gru", "selective", layers=2)[1]
    settings = Settings(steps=9, batch=2, rounds=2, warmup=0, block_ms=1)
    report = bench_on_gpu(path, tmp_path, settings)
    assert report["files"] == [str(tmp_path / name) for name in ("cuda.json", "cuda.md")]
    (case,) = report["cases"]
    assert case["name"] == "sarnn (3, 33), T=9, B=2"
    assert case["clock"] == "the processor's clock, synchronous calls"
    assert case["left_out"] == dict.fromkeys(
        ("torch.nn.GRU", "torch.nn.LSTM"),
        "EdgernnError: torch finds no GPU; install a torch with CUDA to time its layers",
    )
    assert report["input"] == "standard normal"
    assert (tmp_path / "cuda.md").read_text() == gpu_page(report)


def test_audio_models_are_compared_with_operators_behind_a_front_end(machine, tmp_path):
    audio = {"frontend": "logmel", "window_size": 320, "hop": 160, "bands": 8, "input_size": 160}
    path = exported("gru", **audio)[1]
    report = bench_on_gpu(path, tmp_path, Settings(steps=9, batch=2, rounds=2, warmup=0, block_ms=1))
    (case,) = report["cases"]
    assert set(case["contenders"]) == {EDGERNN, COPIED, CPU, GRU, LSTM}
    # the operator has the weights of the model
    assert case["contenders"][GRU]["error"] < 1e-5
    assert case["contenders"][LSTM]["error"] is None
    assert set(case["left_out"]) == {"torch.nn.GRU", "torch.nn.LSTM"}
    assert all("torch's layers have no audio front end" in reason for reason in case["left_out"].values())


def test_wrong_code_is_not_timed(machine, monkeypatch, tmp_path):
    right = Session.run_from

    def wrong(self, x, state):
        y, last = right(self, x, state)
        return (y + 1e-3 * (self.device == "cuda" and len(x) > 1)), last

    monkeypatch.setattr(Session, "run_from", wrong)
    report = run_cases(tmp_path / "cuda.json", [Case("One", ModelConfig.of("gru", 2, 8), 60)], SHORT)
    assert "the largest error of y is 0.001" in report["cases"][0]["failed"]
    assert "is 0.001, expected at most" in gpu_page(report)


def test_a_peer_that_is_wrong_is_left_out(machine, monkeypatch, tmp_path):
    right = gpu_times.baseline

    def wrong(kind, info, weights, source):
        return right(kind, info, {name: Weight(1.5 * weight.floats) for name, weight in weights.items()}, source)

    monkeypatch.setattr(gpu_times, "baseline", wrong)
    report = run_cases(tmp_path / "cuda.json", [Case("One", ModelConfig.of("gru", 2, 8), 20)], SHORT)
    assert "EdgernnError: not timed: y of this runtime differs from the" in report["cases"][0]["left_out"][GRU]
    # the lstm is not affected
    assert LSTM in report["cases"][0]["contenders"]


def test_without_a_gpu_nothing_is_measured(tmp_path, capsys):
    assert main(["bench", "--device", "cuda", "--cell", "gru", "--out", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("edgernn: error: device cuda: ")
    assert output.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_page_says_what_is_not_measured(tmp_path):
    page = generator().performance(tmp_path)
    assert "None of it is measured yet: neither target is known to be met or missed." in page


def test_without_the_cuda_library_nothing_is_measured(monkeypatch):
    fake_gpu.install(monkeypatch, None)
    with pytest.raises(EdgernnError, match="CUDA library libedgernn_cuda is not installed"):
        gpu_times.require()


def test_the_command_line_prints_the_table(machine, tmp_path, capsys):
    words = ["bench", "--device", "cuda", "--cell", "gru", "hidden_size=8", "--steps", "6", "--rounds", "1"]
    assert main([*words, "--warmup", "0", "--out", str(tmp_path)]) == 0
    assert "gru (2, 8), T=6" in capsys.readouterr().out


def test_cases_are_those_of_the_targets():
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) == 16
    aimed = [(case.batch, case.sizes[1], case.targets[0].limit) for case in cases() if case.targets]
    assert aimed == [(1, 128, 0.5), (1, 128, 0.5), (256, 128, 1.0), (256, 128, 1.0), (256, 256, 1.0)]
    with pytest.raises(UsageError, match="only: expected a part of a benchmark case's name"):
        cases("no such case")


def test_events_are_of_the_stream_that_does_the_work(monkeypatch):
    output = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            output.append(stream)

        def synchronize(self):
            output.append("wait")

        def elapsed_time(self, end):
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "stream")
    assert gpu_times.Events()(lambda: output.append("call"), 2) == pytest.approx(0.003)
    assert output == ["stream", "call", "call", "stream", "wait"]


def test_a_clock_of_its_own_times_a_call():
    clock = Stopwatch()
    times = interleaved({"a": lambda: None, "b": lambda: None}, SHORT, clocks={"a": clock})
    assert {second for block in times["a"] for second in block} == {1e-2}
    assert max(times["b"][0]) < 1e-2


def test_report_of_a_case_without_the_cpus_library(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(
        gpu_times, "library_missing", lambda device="cpu": "it was not built" if device == "cpu" else None
    )
    report = run_cases(tmp_path / "cuda.json", [Case("One", ModelConfig.of("gru", 2, 8), 6)], SHORT)
    assert report["cases"][0]["left_out"][CPU] == "it was not built"
    assert "Our kernel on the CPU was not measured." in gpu_page(report)
