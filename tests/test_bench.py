# SPDX-License-Identifier: Apache-2.0
"""The benchmark: what it verifies and counts, and complete reports. No test asserts times."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import edgernn
from benchmarks import load, step_graphs, training_steps
from benchmarks.compare_libraries import main as compare_libraries
from benchmarks.large_layers import main as large_layers
from benchmarks.skip_curve import GROUP_SIZES, SKIPS
from benchmarks.skip_curve import main as skip_curve
from benchmarks.skip_streams import SKIPS as STREAM_SKIPS
from benchmarks.skip_streams import main as skip_streams
from benchmarks.skip_streams import table as streams_table
from benchmarks.suite import CASES, OWN_CASES
from edgernn.bench import Settings, bench, markdown, save
from edgernn.bench.baseline import parameters
from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.names import COMBINATIONS, IMPUTING
from edgernn.random_models import random_model
from edgernn.rules import RULES, PerColumn
from edgernn.runtime import Session, library_path, timing
from edgernn.runtime.firmware.equations import kind_of_rule
from edgernn.runtime.info import update_words
from edgernn.runtime.timing import Rounds
from edgernn.settings import fields_of
from tests.models import exported, named_cost, write, write_alone
from tests.test_step_graph import small_file
from tests.use_mutants import MODELS

RESULTS = Path(__file__).parent.parent / "docs/results/performance.json"
QUICK = Settings(rounds=2, warmup=0, block_ms=1, steps=20)


@pytest.fixture(autouse=True)
def few_cold_calls(monkeypatch):
    monkeypatch.setattr("edgernn.bench.measure._COLD_CALLS", 2)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_baseline_with_our_weights_computes_our_function(cell):
    path = exported(cell, layers=2, bidirectional=True, output="all")[1]
    verified = bench(path, QUICK)["verified"]
    assert verified["native against portable"] < 1e-5
    assert verified[f"against ONNX Runtime {cell.upper()}"] < 1e-5


@pytest.mark.parametrize("name", ["both-directions", "words"])
def test_weights_of_fewer_bytes_are_measured(name):
    verified = bench(MODELS / f"{name}.onnx", QUICK)["verified"]
    assert ("against ONNX Runtime LSTM" in verified) == (name == "words")
    assert max(verified.values()) < 1e-5


def test_calls_at_a_rate_are_due_one_period_apart_after_other_memory_was_written(monkeypatch):
    now, called, written = [100.0], [], []

    class Clock:
        perf_counter = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds):
            # 5 ms of the period went into the memory
            written.append(seconds)
            now[0] += seconds

    class Memory:
        def __iadd__(self, _):
            now[0] += 0.005
            return self

    monkeypatch.setattr(timing, "time", Clock)
    monkeypatch.setattr(timing.np, "zeros", lambda size, dtype: Memory())

    def call():
        called.append(now[0])
        now[0] += 0.25e-3

    assert timing.at_rate(call, 50.0, 3) == pytest.approx([0.25e-3] * 3)
    assert called == pytest.approx([100.02, 100.04, 100.06])
    assert written == pytest.approx([0.015, 0.01475, 0.01475])


def test_a_step_is_timed_at_the_rate_of_its_sensor():
    step = bench(exported("gru")[1], QUICK)["step"]
    assert (step["rate"], min(step.values()) > 0) == (50, True)
    assert bench(exported("gru")[1], replace(QUICK, rate=400.0))["step"]["rate"] == 400
    whole = bench(exported("lstm", layers=2, bidirectional=True, output="all")[1], QUICK)
    assert whole["step"] is None
    assert "Session.step" not in markdown(whole)
    heard = bench(RESULTS.parents[2] / "models/english-room-delta/model.onnx", QUICK)
    assert heard["step"]["rate"] == 50
    assert "| 50 calls a second; 64 MB of other memory are written" in markdown(heard)


def test_report_holds_every_figure(tmp_path):
    _, path = exported("gru", "selective", layers=2)
    report = bench(path, Settings(rounds=2, warmup=0, block_ms=1, steps=20, batch=3))
    assert set(report["timings"]) == {"edgernn native", "edgernn portable", "ONNX Runtime GRU", "ONNX Runtime LSTM"}
    for t in report["timings"].values():
        assert 0 < t["us_per_step_q1"] <= t["us_per_step"] <= t["us_per_step_q3"]
        assert t["call_p50_us"] <= t["call_p90_us"] <= t["call_p99_us"]
        assert t["steps_per_second"] > 0
    assert report["timings"]["ONNX Runtime GRU"]["times_faster_than_gru"] == 1
    costs = report["costs"]
    rate = 1 - report["skip_percent"] / 100
    expected = named_cost("gru", "selective", 3, 33, layers=2, update_rate=rate)
    assert costs["parameters"] == expected.parameters
    assert costs["flops_paper"] == pytest.approx(expected.flops_paper)
    assert costs["macs"] == expected.macs
    assert costs["macs_executed_by"] == "native"
    assert costs["macs_executed"] < costs["macs"]
    assert costs["parameters_saved_percent_lstm"] == pytest.approx(
        100 * (1 - expected.parameters / named_cost("lstm", None, 3, 33, layers=2).parameters)
    )
    files = save(report, tmp_path)
    assert json.loads(files[0].read_text()) == report
    text = files[1].read_text()
    assert text == markdown(report)
    for word in ("macs_executed (native)", "flops_paper", "neurons skipped", "against LSTM", "edgernn portable"):
        assert word in text
    report["info"]["model"]["layer"]["rule"]["name"] = "delta"
    assert f"| values of h not sent | {report['skip_percent']:.1f} % |" in markdown(report)
    # a user's own rule
    report["info"]["model"]["layer"]["rule"]["name"] = "mine"
    assert f"| updates skipped | {report['skip_percent']:.1f} % |" in markdown(report)


def test_the_kind_of_a_rule_says_what_it_skips():
    for name, rule in RULES.items():
        # known without torch, too
        assert kind_of_rule(name) == rule.kind
        skipped = "values of h not sent" if issubclass(rule, PerColumn) else "neurons skipped"
        assert update_words(rule.kind).skipped == skipped


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("sizes", [(3, 8, 1, False, None), (5, 4, 3, False, 6), (2, 7, 2, True, None)], ids=str)
def test_parameters_of_operators_are_those_of_our_cells(kind, sizes):
    input_size, *others = sizes
    layers = dict(zip(("hidden_size", "layers", "bidirectional", "last_size"), others, strict=True))
    info = {"model": {"input": {"size": input_size}, **layers}}
    assert parameters(kind, info) == named_cost(kind, None, input_size, **layers).parameters


def test_example_beside_the_model_is_the_input(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(exported("gru")[1].read_bytes())
    np.savez(tmp_path / "example.npz", x=np.ones((2, 7, 3), np.float32))
    report = bench(path, Settings(rounds=1, warmup=0, block_ms=1))
    assert (report["input"], report["settings"]["steps"], report["settings"]["batch"]) == ("example.npz", 7, 1)
    with pytest.raises(edgernn.UsageError, match=r"x: expected shape \(T, B, 3\), got \(7, 2, 4\)"):
        bench(path, QUICK, x=np.ones((7, 2, 4), np.float32))
    np.savez(tmp_path / "example.npz", x=np.ones((2, 7, 4), np.float32))
    with pytest.raises(edgernn.UsageError, match=r"example\.npz: x: expected shape .*; it is of another model in this"):
        bench(path, QUICK)


def test_wrong_code_is_not_timed(tmp_path):
    """The node of the file has other weights than the portable function, so their outputs differ."""
    proto = onnx.load(exported("gru")[1])
    function = proto.functions[0]
    scan = next(n for n in function.node if n.op_type == "Scan")
    tanh = next(n for n in scan.attribute if n.name == "body")
    next(n for n in tanh.g.node if n.op_type == "Tanh").op_type = "Sigmoid"
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(
        edgernn.EdgernnError,
        match=r"not timed: the native library and the standard ONNX operators disagree: the largest error ",
    ):
        bench(tmp_path / "m.onnx", QUICK)


def test_without_the_library_the_report_says_so(monkeypatch):
    def missing():
        raise edgernn.EdgernnError("the native library libedgernn_ops is not installed")

    monkeypatch.setattr("edgernn.runtime.library.library_path", missing)
    report = bench(exported("gru")[1], QUICK)
    assert "edgernn native" not in report["timings"]
    assert "**Not native**" in markdown(report)


@pytest.mark.parametrize("skip", [0.0, 0.5, 0.9, 1.0])
def test_random_model_skips_what_was_asked(skip, tmp_path):
    session = Session(write_alone(random_model("sarnn", 2, 64, skip=skip), tmp_path / "m.onnx"))
    session.run(np.random.default_rng(1).standard_normal((400, 2, 2)))
    assert 1 - session.updates.mean() / 64 == pytest.approx(skip, abs=0.05)
    if 0 < skip < 1:
        assert session.updates.std() > 0


def test_wrong_settings_are_named():
    with pytest.raises(edgernn.UsageError, match="rounds: expected at least 1, got 0"):
        Settings(rounds=0)
    with pytest.raises(edgernn.UsageError, match="updates every neuron"):
        random_model("gru", 2, 8, skip=0.5)
    with pytest.raises(edgernn.UsageError, match="skip: expected between 0 and 1"):
        random_model("sarnn", 2, 8, skip=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMBINATIONS, *IMPUTING])
def test_every_papers_combination_is_measured_at_a_forced_rate(name, tmp_path):
    skip = 0.0 if name in IMPUTING else 0.9
    report = bench(write(random_model(name, 6, 32, skip=skip), tmp_path / "m.onnx"), QUICK)
    assert report["native_missing"] is None
    assert report["skip_percent"] == pytest.approx(100 * skip, abs=10)
    costs = report["costs"]
    assert costs["macs_executed"] < 0.25 * costs["macs"] if skip else costs["macs_executed"] == costs["macs"]


def test_sparse_and_low_rank_weights_are_measured(tmp_path):
    for options in ({"density": 0.25}, {"rank": 4}):
        report = bench(write(random_model("gru", 2, 32, **options), tmp_path / "m.onnx"), QUICK)
        assert report["native_missing"] is None
        assert report["costs"]["macs_executed"] < 0.5 * named_cost("gru", None, 2, 32).macs


def test_words_of_bench_are_those_of_train(tmp_path, capsys):
    words = ["bench", "--cell", "irc-lstm", "--rounds", "1", "--warmup", "0", "--steps", "3", "--out", str(tmp_path)]
    assert (
        main(
            [
                *words,
                "rank=4",
                "layers=2",
                "norm=recurrent-batch",
                "layer.norm.steps=7",
                "cell.forget_bias=1.0",
                "hidden_size=16",
            ]
        )
        == 0
    )
    model = json.loads((tmp_path / "bench.json").read_text())["info"]["model"]
    assert model["hidden_size"] == 16
    assert model["layers"] == 2
    assert model["input"]["size"] == 2
    assert model["layer"]["recurrent"]["rank"] == 4
    assert model["layer"]["norm"]["steps"] == 7
    assert model["layer"]["cell"] == {"name": "irc-lstm", "options": {"forget_bias": 1.0}}
    capsys.readouterr()
    for word, message in {
        "rankk=4": "unknown setting 'rankk': did you mean 'rank'",
        "hidden_size=0": "hidden_size: expected a whole number of at least 1, got '0'",
        "input_size=3": "unknown setting 'input_size'",
        "m.onnx": "expected KEY=VALUE, such as lr=0.01, got 'm.onnx'",
    }.items():
        assert main(["bench", "--cell", "gru", word]) == 2
        assert message in capsys.readouterr().err


def test_help_of_bench_lists_the_settings_of_a_model(capsys):
    assert main(["bench", "--cell", "phasedlstm", "--help"]) == 0
    listed = re.findall(r"^  (\w+)=\S+ ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted([*fields_of(ModelConfig), "open", "leak", "shortest", "longest"])


def test_names_of_cases_stay():
    saved = {case["name"] for case in json.loads(RESULTS.read_text())["cases"]}
    assert {case.name for case in CASES} == saved
    saved = {case["name"] for case in json.loads(RESULTS.with_name("own-cell.json").read_text())["cases"]}
    assert {case.name for case in OWN_CASES} == saved


@pytest.fixture
def _without_portable_functions(monkeypatch):
    """Write the files that only kernels run without portable functions."""
    monkeypatch.setattr("benchmarks.skip_curve.to_onnx", write_alone)


@pytest.mark.usefixtures("_without_portable_functions")
def test_the_curve_holds_every_share_and_group_size(tmp_path):
    words = ["--steps", "30", "--rounds", "1", "--layers", "1", "--out", str(tmp_path)]
    skip_curve(words, standalone_mode=False)
    report = json.loads((tmp_path / "skip-curve.json").read_text())
    (layer,) = report["layers"]
    assert (layer["cell"], layer["I"], layer["H"]) == ("gru", 2, 128)
    points = {(point["group_size"], point["skip"]): point for point in layer["points"]}
    assert set(points) == {(size, skip) for size in GROUP_SIZES for skip in SKIPS}
    for (size, skip), point in points.items():
        assert abs(point["skipped"] - skip) < 0.1
        # the decisions of single neurons take 3 of 390 multiply-adds of a neuron
        decisions = 3 / 390 if size == 1 else (8 * 3 + 128) / (128 * 390)
        assert point["needed"] == pytest.approx(1 - point["skipped"] + decisions)
        assert point["time"] > 0
    assert (tmp_path / "skip-curve.png").stat().st_size > 10_000


@pytest.mark.usefixtures("_without_portable_functions")
def test_the_table_of_streams_has_a_speed_for_every_batch_and_share(tmp_path):
    skip_streams(["--rounds", "1", "--batches", "1", "--out", str(tmp_path)], standalone_mode=False)
    report = json.loads((tmp_path / "skip-streams.json").read_text())
    for layer in report["layers"]:
        assert [(result["B"], result["T"]) for result in layer["results"]] == [(8, 1), (8, 100)]
        for result in layer["results"]:
            points = [(point["group_size"], point["skip"]) for point in result["points"]]
            assert points == [(size, skip) for size in GROUP_SIZES for skip in STREAM_SKIPS]
    rows = [line for line in streams_table(report).splitlines() if line.startswith("| gru")]
    assert len(rows) == len(report["layers"]) * len(GROUP_SIZES)
    assert all(row.count("(4.5)") == 2 for row in rows)


@pytest.mark.parametrize("case", ["gru (2, 128), T=500, int8", "gru (2, 128), T=1, from C", "gru (2, 128), load"])
def test_two_libraries_are_timed_in_one_process(tmp_path, capsys, case):
    other = tmp_path / "other.so"
    shutil.copy(library_path(), other)
    compare_libraries(
        [str(other), "--only", case, "--rounds", "3", "--out", str(tmp_path / "report.json")], standalone_mode=False
    )
    (entry,) = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert entry["name"] == case
    assert entry["this_us"] > 0
    assert entry["ratio_q1"] <= entry["ratio"] <= entry["ratio_q3"]
    assert f"ratio {entry['ratio']:.3f}" in capsys.readouterr().out


def test_load_time_is_that_of_a_session_alone(monkeypatch):
    def run_once(calls, settings):
        def fail(*arguments):
            raise AssertionError("the model is built again")

        for module in ("operator", "onnx_runtime"):
            monkeypatch.setattr(f"benchmarks.peers.{module}.operator_model", fail)
        sessions.extend(call() for call in calls.values())
        return {name: [[1e-3]] for name in calls}

    sessions = []
    monkeypatch.setattr(load, "interleaved", run_once)
    (case,) = (case for case in CASES if case.group == load.GROUP)
    load.measure_load(case, Rounds(1, 0, 1.0))
    ours, theirs = sessions
    assert ours.backend == "native"
    assert [value.name for value in theirs.get_inputs()] == ["x", "h"]
    assert theirs.get_inputs()[0].shape == [1, 1, 2]


def test_a_missing_model_of_the_other_library_is_named(tmp_path):
    words = [library_path(), "--only", "gru (2, 128), T=1, from C", "--models", str(tmp_path)]
    with pytest.raises(edgernn.EdgernnError, match=r"gru-2-128-t-1-from-c\.edgernn: no such file"):
        compare_libraries(words, standalone_mode=False)


def test_training_steps_are_timed_with_low_rank_weights(tmp_path):
    words = ["gru", "--rank", "2", "--steps", "3", "--batch", "2", "--hidden-size", "4", "--threads", "1"]
    result = CliRunner().invoke(training_steps.main, [*words, "--repeats", "1", "--out", str(tmp_path / "times.json")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "times.json").read_text())
    assert report["sizes"] == {"T": 3, "B": 2, "I": 2, "H": 4, "rank": 2}
    assert set(report["ms"]) == {"torch.nn.GRU", "gru, loop", "gru, fused"}
    assert all(time > 0 for time in report["ms"].values())
    result = CliRunner().invoke(training_steps.main, ["mingru", "--rank", "2"])
    assert result.exit_code == 2
    assert "mingru has no recurrent weights to factorise" in result.output


def test_a_file_of_another_tool_is_refused_on_a_gpu(tmp_path, capsys):
    assert main(["bench", str(small_file(tmp_path)), "--device", "cuda"]) == 2
    assert "small.onnx: expected a file that edgernn exported with --device cuda; leave" in capsys.readouterr().err


def test_packed_networks_are_timed_in_python_and_c_and_missing_files_named(monkeypatch, tmp_path, capsys):
    path = small_file(tmp_path)
    np.savez(tmp_path / "ref.npz", x=np.random.default_rng(0).standard_normal((20, 1, 1, 3), np.float32))
    files = {name: step_graphs.Network(name, ("ref.npz", "x"), 20) for name in (path.name, "other.onnx")}
    monkeypatch.setattr(step_graphs, "FILES", files)
    step_graphs.main([str(tmp_path), "--rounds", "1", "--out", str(tmp_path)], standalone_mode=False)
    assert f"left out, as they are not in {tmp_path}: other.onnx" in capsys.readouterr().out
    report = json.loads((tmp_path / "step-graphs.json").read_text())
    times = report["files"][path.name]
    assert times["float32"]["error"] < 1e-5 < times["int8"]["error"] < 0.1
    for weights in ("float32", "int8"):
        assert min(*times[weights]["step"].values(), *times[weights]["from_c"]["step"].values()) > 0
    text, streams = step_graphs.table(report), times["float32"]["from_c"]["streams"]
    assert "| small.onnx | 167 | " in text
    assert f"| small.onnx | 20 ms | {streams:,.1f} | {20_000 / streams:,.0f} | " in text
    assert (tmp_path / "step-graphs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_large_layers_stand_beside_the_dense_one_of_equal_time(tmp_path):
    words = ["--rounds", "1", "--sizes", "64", "--weights", "float32", "--out", str(tmp_path / "large.json")]
    large_layers(words, standalone_mode=False)
    (layer,) = json.loads((tmp_path / "large.json").read_text())["layers"]
    assert [dense["H"] for dense in layer["dense"]] == [4, 8, 16, 24, 32, 48, 64]
    rows = {(row["rule"], row["period"]): row for row in layer["rules"]}
    assert len(rows) == 10
    for (rule, period), row in rows.items():
        assert abs(row["updated"] - 1 / period) < (1e-9 if rule in ("skip", "periodic") else 0.06)
        assert row["updated"] <= row["work"] + 0.01 < 0.6
        assert 4 <= row["equal_H"] <= 64
