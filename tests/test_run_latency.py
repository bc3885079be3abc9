# SPDX-License-Identifier: Apache-2.0
"""Latencies of the models of a table, from a small recipe to the results page."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.machine import processor
from edgernn.npz import read_npz
from edgernn.runtime import Session
from edgernn.runtime.library import instruction_set
from edgernn.training.papers import recipe as recipes
from edgernn.training.papers import run_latency
from edgernn.training.papers.paper_table import markdown
from edgernn.training.papers.reproduce import reproduce
from edgernn.training.tables.table_latency import latencies, measured
from tests.training_helpers import without_pictures

pytestmark = pytest.mark.slow

TABLE = """title = "Two sums"
paper = "A paper, Table 9"
task = "adding"
columns = ["mse"]
seeds = 2
latency = true
[settings]
T = 8
hidden_size = 6
batch_size = 10
steps = 2
eval_every = 2
[rows.gru-before]
stands-for = "GRU"
cell = "gru-before"
[rows.sarnn]
stands-for = "SA-RNN"
cell = "gru-before"
rule = "selective"
[rows.twice]
stands-for = "a model that needs whole sequences"
cell = "gru"
settings.bidirectional = true
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of a table's recipes and of its runs; the first two rows are trained and timed."""
    folder = tmp_path_factory.mktemp("timed")
    (folder / "recipes").mkdir()
    (folder / "recipes/sums.toml").write_text(TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "RECIPES", folder / "recipes")
        without_pictures(patch)
        reproduce("sums", out=folder / "runs", jobs=1, measure=True, rows=["gru-before", "sarnn"])
    return folder


@pytest.fixture
def table(runs, monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", runs / "recipes")
    return runs / "runs"


@pytest.mark.slow
def test_times_are_those_of_the_test_sequences(table):
    for row in ("gru-before", "sarnn"):
        for seed in (0, 1):
            record = json.loads((table / f"{row}-seed{seed}/latency.json").read_text())
            assert record["machine"] == processor()
            assert record["instruction_set"] == instruction_set()
            assert record["reference"] == "gru"
            assert (record["sequences"], record["steps"]) == (16, 8)
            assert 0.1 < record["microseconds"] < 1e4
            assert record["ratio"] > 0
            session = Session(table / f"{row}-seed{seed}/model.onnx", backend="native")
            session.run(read_npz(table / f"{row}-seed{seed}/example.npz", ("x",))["x"].swapaxes(0, 1))
            if row == "sarnn":
                skip = 100 * (1 - session.updates.mean() / 6)
                assert 0 < skip < 100
                assert record["skip_percent"] == pytest.approx(skip)
                # W x of r of all neurons where any changes, z and n of those that change, and the coordinator: I = 2,
                # H = 6; R h of r is kept from step to step
                updates = session.updates
                macs = 6 * 2 + 6 + np.where(updates > 0, 6 * 2, 0) + updates * 2 * 8
                sparse = updates <= 0.75 * 6
                assert record["macs_executed"] >= (macs * sparse).sum() / updates.size
                assert record["macs_executed"] <= 6 * 2 + 6 + 3 * 6 * 8
            else:
                assert (record["skip_percent"], record["macs_executed"]) == (0, 3 * 6 * 8)


def test_a_ratio_is_the_median_over_rounds(table, tmp_path, monkeypatch):
    run = Path(shutil.copytree(table / "sarnn-seed0", tmp_path / "run"))
    # a sequence of the model takes 2, 4 and 9 s, one of the reference 1, 4 and 3 s
    seconds = {"model": ([2], [4], [9]), "reference": ([1], [4], [3])}
    blocks = {name: [[16 * second for second in block] for block in rounds] for name, rounds in seconds.items()}
    monkeypatch.setattr(run_latency, "interleaved", lambda calls, rounds: {name: blocks[name] for name in calls})
    run_latency.measure_latency([run])
    record = json.loads((run / "latency.json").read_text())
    assert (record["microseconds"], record["reference_microseconds"], record["ratio"]) == (4e6, 3e6, 2)


def test_a_table_has_times_and_ratios(table):
    report = reproduce("sums", out=table, run=False)
    assert report["command"] == "edgernn reproduce sums --measure-latency"
    records = [json.loads((table / f"sarnn-seed{seed}/latency.json").read_text()) for seed in (0, 1)]
    row = report["rows"][1]["latency"]
    for name in ("microseconds", "reference_microseconds", "ratio", "macs_executed", "skip_percent"):
        assert row[name]["values"] == [each[name] for each in records]
    assert row["machines"] == [f"{processor()}, {instruction_set()}"]
    assert report["rows"][2]["latency"] is None
    page = (table / "table.md").read_text()
    head, _, *lines = (line.split(" | ") for line in page.splitlines() if line.startswith("| "))
    first = head.index("multiply-adds executed a step")
    assert head[first : first + 3] == ["multiply-adds executed a step", "µs a sequence", "of a dense gru's time"]
    assert lines[0][first] == "144"
    assert lines[1][first + 2].startswith(f"{row['ratio']['mean']:.4g} ± ")
    assert lines[2][first : first + 3] == ["", "not measured", ""]
    assert "16 test sequences streamed step by step through the exported model, called from C, batch 1, one " in page


def test_all_models_of_a_sweep_are_timed_in_turns(table, tmp_path):
    models = {row: table / f"{row}-seed0" for row in ("gru-before", "sarnn")}
    # calls with whole sequences from Python, as an earlier version timed them
    earlier = {"machine": processor(), "models": {row: str(run) for row, run in models.items()}, "errors": {}}
    (tmp_path / "latency.json").write_text(json.dumps({**earlier, "microseconds": dict.fromkeys(models, 1e6)}))
    assert measured(tmp_path)["call"] == "a call with one test sequence from Python"
    report = latencies(tmp_path, models)
    assert report["call"] == "test sequences streamed step by step, called from C"
    assert {row: 0.01 < time < 1e3 for row, time in report["microseconds"].items()} == dict.fromkeys(models, True)
    assert report["errors"] == {}
    assert json.loads((tmp_path / "latency.json").read_text()) == report
    assert latencies(tmp_path, models) == measured(tmp_path) == report
    # with other weights, or another native library, every model is timed again
    for key, value in (("hashes", dict.fromkeys(models, "0")), ("library", None)):
        stale = {**report, key: value, "microseconds": dict.fromkeys(models, 1e6)}
        (tmp_path / "latency.json").write_text(json.dumps(stale))
        assert max(latencies(tmp_path, models)["microseconds"].values()) < 1e3
    # without a new measurement, models with other weights have no time
    hashes = {**report["hashes"], "sarnn": "0"}
    (tmp_path / "latency.json").write_text(json.dumps({**report, "hashes": hashes}))
    assert measured(tmp_path)["microseconds"].keys() == {"gru-before"}


def test_models_are_timed_again_only_when_asked(table, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in table.glob("*/latency.json")}
    models = {path: path.stat().st_mtime_ns for path in table.glob("*/model.onnx")}
    assert len(before) == len(models) == 4
    reproduce("sums", out=table, run=False)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    reproduce("sums", out=table, run=False, measure=True, seeds=1, rows=["sarnn"])
    again = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert again == {table / "sarnn-seed0/latency.json"}
    assert models == {path: path.stat().st_mtime_ns for path in models}


def test_a_model_that_cannot_be_streamed_says_why(runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(recipes, "RECIPES", runs / "recipes")
    without_pictures(monkeypatch)
    words = ["reproduce", "sums", "--seeds", "1", "--rows", "twice", "--measure-latency", "--out", str(tmp_path)]
    assert main(words) == 0
    record = json.loads((tmp_path / "twice-seed0/latency.json").read_text())
    assert "got one that needs whole sequences" in record["error"]
    assert "| not measured |" in capsys.readouterr().out
    report = latencies(tmp_path, {"twice": tmp_path / "twice-seed0"})
    assert report["microseconds"] == {}
    assert "got one that needs whole sequences" in report["errors"]["twice"]


def test_a_table_that_was_never_timed_says_so(table):
    report = reproduce("sums", out=table, run=False)
    for row in report["rows"]:
        row["latency"] = None
    assert "Time a sequence: not measured. `--measure-latency` measures the runs" in markdown(report)
    # as in a report written before latencies were measured
    del report["latency"]
    assert "a sequence" not in markdown(report)
    assert run_latency.summary([None, None]) is None
