# SPDX-License-Identifier: Apache-2.0
"""Tables: the runs that they need, parallel jobs, and the printed comparison."""

import copy
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import statistics

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.training.papers import recipe as recipes
from edgernn.training.papers.agreement import Reported, agreement
from edgernn.training.papers.overview import overview
from edgernn.training.papers.paper_table import markdown
from edgernn.training.papers.reproduce import reproduce
from edgernn.training.tables import worker_processes
from edgernn.training.tables.jobs import Job, Outcome
from edgernn.training.tables.table_text import figure
from edgernn.training.tables.worker_processes import processes
from tests.training_helpers import SMALL, command_line, leftovers, wait_until

# every test trains the runs of a table
pytestmark = pytest.mark.slow

TABLE = """title = "Two sums"
paper = "A paper, Table 9"
task = "adding"
columns = ["mse", "skip_percent", "flops"]
series = ["loss"]
seeds = 2
paper-seeds = 50
note = "A note."
interval = "± is a guess"
[settings]
T = 8
hidden_size = 4
batch_size = 10
steps = 12
eval_every = 6
skip_target = "none"
[vary]
layers = [1, 2]
[quick]
steps = 3
eval_every = 3
[[claims]]
text = "GRU errs more"
column = "mse"
rows = ["gru", "sarnn"]
variant = "layers=1"
[rows.gru]
stands-for = "row gru"
cell = "gru"
settings.lambda = 0.5
reported.mse = { mean = 0.25, interval = 0.01 }
[rows.sarnn]
stands-for = "row sarnn"
cell = "sarnn"
settings.lambda = 0.5
"""


def write_table(recipes_folder):
    recipes_folder.mkdir(parents=True)
    path = recipes_folder / "sums.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes")
    return write_table(tmp_path / "recipes")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_table(folder / "recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "RECIPES", folder / "recipes")
        return folder / "runs", reproduce("sums", out=folder / "runs", jobs=2)


@pytest.fixture
def finished(table, trained, tmp_path):
    """A table with finished runs, which the test may change."""
    runs, report = trained
    shutil.copytree(runs, tmp_path / "runs")
    return copy.deepcopy(report)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A quick table of one row, named twice, whose figures cannot be compared."""
    folder = tmp_path_factory.mktemp("quick")
    reported = "reported.mse = { mean = 0.25, interval = 0.01 }\n"
    path = write_table(folder / "recipes")
    path.write_text(TABLE.replace(reported, "reported.mse = 0.25\nnot-comparable.mse = 'other data'\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "RECIPES", folder / "recipes")
        return folder / "runs", reproduce("sums", quick=True, out=folder / "runs", rows=["gru", "gru"], jobs=1)


def test_a_table_holds_what_its_runs_measured(finished, tmp_path):
    assert [(row["name"], row["variant"]["layers"]) for row in finished["rows"]] == [
        ("gru", 1),
        ("gru", 2),
        ("sarnn", 1),
        ("sarnn", 2),
    ]
    for row in finished["rows"]:
        runs = [tmp_path / f"runs/{row['name']}-layers={row['variant']['layers']}-seed{seed}" for seed in (0, 1)]
        results = [json.loads((run / "result.json").read_text()) for run in runs]
        ours = row["columns"]["mse"]
        values = [result["mse"] for result in results]
        assert ours["values"] == values
        assert values[0] != values[1]
        assert ours["mean"] == pytest.approx(sum(values) / 2)
        assert ours["sd"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        printed = {"mean": 0.25, "rounding": 0.01, "interval": 0.01, "sd": None}
        assert ours["paper"] == (printed if row["name"] == "gru" else None)
        assert ours["agreement"] == (agreement(Reported(**printed), ours) if row["name"] == "gru" else None)
        assert row["columns"]["flops"]["values"] == [8 * result["flops_paper"] for result in results]
        assert row["parameters"] == results[0]["parameters"]
        assert row["seeds"] == [0, 1]
        assert not row["failed"]
        assert row["seconds"] == pytest.approx(statistics.mean(result["seconds"] for result in results))
    saved = json.loads((tmp_path / "runs/table.json").read_text())
    assert saved == {key: value for key, value in finished.items() if key != "files"}
    assert not leftovers(tmp_path / "runs")


def test_a_page_shows_paper_and_ours_side_by_side(finished, tmp_path):
    page = (tmp_path / "runs/table.md").read_text()
    head = next(line for line in page.splitlines() if line.startswith("| row"))
    assert head.split(" | ")[1:4] == ["layers", "MSE: paper", "ours"]
    line = next(line for line in page.splitlines() if line.startswith("| gru | 1"))
    ours = finished["rows"][0]["columns"]["mse"]
    half = (ours["interval"][1] - ours["interval"][0]) / 2
    assert line.startswith(f"| gru | 1 | 0.25 ± 0.01 | {ours['mean']:.4g} ± {half:.2g}, {ours['agreement']} |")
    assert "The paper has 50 runs a row." in page
    assert "Paper: ± is a guess." in page
    counts = finished["agreement"]
    assert sum(counts.values()) == 2
    assert f"Of 2 printed figures that were measured: {counts['within']} within" in page
    assert "not comparable" in page


def test_a_claim_stands_with_its_test(finished, tmp_path):
    (claim,) = finished["claims"]
    runs = {row: next(r for r in finished["rows"] if r["name"] == row) for row in ("gru", "sarnn")}
    differences = [
        a - b for a, b in zip(*(runs[row]["columns"]["mse"]["values"] for row in claim["rows"]), strict=True)
    ]
    assert claim["result"]["value"] == pytest.approx(statistics.mean(differences))
    page = (tmp_path / "runs/table.md").read_text()
    assert (
        f"- Claim: GRU errs more (layers=1). **{claim['result']['verdict'].capitalize()}**: MSE, gru less sarnn is"
        in page
    )
    assert "(paired t-test, 2 seeds, p = " in page


def test_reasons_why_figures_cannot_be_compared_stand_under_the_table(quick):
    _, report = quick
    assert report["rows"][0]["columns"]["mse"]["agreement"] == "not comparable: other data"
    page = markdown(report)
    assert re.search(r"^\| gru \| 1 \| 0\.25 \| [0-9.e-]+ \(1\) \|", page, re.MULTILINE)
    assert "\n1. Not comparable: other data.\n" in page
    assert "2. Not comparable" not in page


def test_a_quick_table_says_that_it_is_one(quick):
    runs, report = quick
    assert report["quick"]
    assert "cut-down version" in markdown(report)
    assert json.loads((runs / "gru-layers=1-seed0/result.json").read_text())["steps"] == 3
    # the table also has the rows that were not trained
    assert [row["seeds"] for row in report["rows"]] == [[0], [0], [], []]


def test_a_row_named_twice_is_trained_once(quick):
    runs, report = quick
    assert len(list(runs.glob("gru-*"))) == 2
    assert [row["failed"] for row in report["rows"]] == [{}] * 4


def test_a_page_says_what_it_does_not_do(finished, tmp_path):
    page = (tmp_path / "runs/table.md").read_text()
    assert "A note." in page
    assert "cut-down" not in page


def test_what_is_finished_is_not_trained_again(finished, table, tmp_path, capfd):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
    again = reproduce("sums", out=tmp_path / "runs", seeds=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again["rows"][2]["columns"]["mse"]["values"] == finished["rows"][2]["columns"]["mse"]["values"][:1]
    assert again["rows"][2]["columns"]["mse"]["sd"] is None
    assert capfd.readouterr().err == ""


def test_rows_that_cannot_train_say_why(table, tmp_path):
    row = 'cell = "gru"\nsettings.lambda = '
    table.write_text(TABLE.replace("T = 8\n", "").replace(f"{row}0.5", f'task = "mnist-rows"\n{row}0.0'))
    (tmp_path / "empty").mkdir()
    report = reproduce("sums", out=tmp_path / "runs", seeds=1, data=tmp_path / "empty", jobs=1)
    gru, sarnn = report["rows"][0], report["rows"][2]
    assert "train-images-idx3-ubyte" in gru["failed"][0]
    assert gru["columns"]["mse"]["mean"] is None
    assert "not run" in next(line for line in markdown(report).splitlines() if line.startswith("| gru"))
    assert sarnn["columns"]["mse"]["mean"] > 0
    assert not sarnn["failed"]


def test_nothing_is_trained_for_the_table_alone(table, tmp_path):
    report = reproduce("sums", out=tmp_path / "runs", run=False)
    assert all(row["columns"]["mse"]["mean"] is None and row["seeds"] == [] for row in report["rows"])
    assert markdown(report).count("not run") == 12


def test_bad_words_are_refused_before_anything_runs(table, tmp_path):
    with pytest.raises(UsageError, match="unknown row 'grru': did you mean 'gru'"):
        reproduce("sums", out=tmp_path / "runs", rows=["grru"])
    with pytest.raises(UsageError, match="unknown table 'sum'"):
        reproduce("sum", out=tmp_path / "runs")
    with pytest.raises(UsageError, match="jobs: expected at least 1, got 0"):
        reproduce("sums", out=tmp_path / "runs", jobs=0)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden_size = 4", "hidden_size = 5", "holds a run with other settings: hidden_size=4, now it is 5; delete"),
        ("T = 8", "T = 9", "holds a run with other settings: T=8, now it is 9"),
        ("steps = 12", "stepps = 12", "unknown setting 'stepps'"),
    ],
)
def test_runs_of_other_settings_are_not_taken(finished, table, tmp_path, old, new, said):
    table.write_text(TABLE.replace(old, new))
    with pytest.raises(UsageError, match=said):
        reproduce("sums", out=tmp_path / "runs", seeds=1)


def test_known_runs_are_not_trained_again(finished, table, tmp_path):
    known = tmp_path / "known.json"
    saved = json.loads((tmp_path / "runs/table.json").read_text())
    known.write_text(json.dumps(saved))
    # all runs are known, none is here
    report = reproduce("sums", out=tmp_path / "empty", known=known)
    assert {key: value for key, value in report.items() if key != "files"} == saved
    assert not [path for path in (tmp_path / "empty").iterdir() if path.is_dir()]
    # one run is missing; it is trained, to the same bits, and the table is whole again
    del saved["rows"][0]["runs"]["1"]
    known.write_text(json.dumps(saved))
    report = reproduce("sums", out=tmp_path / "one", known=known)
    assert [path.name for path in (tmp_path / "one").iterdir() if path.is_dir()] == ["gru-layers=1-seed1"]
    assert report["rows"][0]["columns"]["mse"] == finished["rows"][0]["columns"]["mse"]
    assert report["rows"][0]["seeds"] == [0, 1]
    # the run directory goes before a known result
    saved["rows"][0]["runs"]["0"]["mse"] = 7.0
    known.write_text(json.dumps(saved))
    report = reproduce("sums", out=tmp_path / "runs", known=known, run=False)
    assert report["rows"][0]["columns"]["mse"] == finished["rows"][0]["columns"]["mse"]


def test_known_runs_of_other_settings_are_trained_again(finished, table, tmp_path):
    known = tmp_path / "runs/table.json"
    table.write_text(TABLE.replace("steps = 12", "steps = 6"))
    with pytest.warns(EdgernnWarning, match=r"the runs of 4 rows have .*: gru: steps=12, now it is 6"):
        report = reproduce("sums", out=tmp_path / "new", known=known, run=False)
    assert [row["seeds"] for row in report["rows"]] == [[]] * 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": "other"}, "known: expected a table.json of sums, got one of other"),
        ({"settings": None}, "got a damaged one (TypeError"),
        ({"rows": [{"name": "gru"}]}, "got a damaged one (KeyError: 'runs')"),
    ],
)
def test_a_file_without_known_runs_is_refused(finished, tmp_path, capsys, change, said):
    known = tmp_path / "runs/table.json"
    known.write_text(json.dumps(json.loads(known.read_text()) | change))
    assert main(["reproduce", "sums", "--known", str(known), "--out", str(tmp_path / "new")]) in (1, 2)
    assert said in capsys.readouterr().err
    known.write_text("[]")
    assert main(["reproduce", "sums", "--known", str(known)]) == 1
    assert "expected a table.json of `edgernn reproduce`, got a JSON file without" in capsys.readouterr().err


def test_the_overview_says_how_far_a_table_is(finished, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (line,) = overview()
    assert (line["state"], line["seeds"]["most"], line["agreement"]) == ("not run", 0, None)
    folder = tmp_path / "runs/sums"
    folder.mkdir()
    shutil.copy(tmp_path / "runs/table.json", folder)
    (line,) = overview()
    assert (line["state"], line["rows"], line["results"]) == ("measured", 4, "runs/sums/table.json")
    assert line["seeds"] == {"asked": 2, "fewest": 2, "most": 2}
    assert line["agreement"] == finished["agreement"]
    assert main(["reproduce", "--list"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.startswith("| sums | Two sums | A paper, Table 9 | measured | 4 | 2 of 2 | ")
    # a row added later is not measured
    table.write_text(table.read_text() + '[rows.rnn]\nstands-for = "row rnn"\ncell = "rnn"\n')
    (line,) = overview()
    assert (line["state"], line["rows"], line["seeds"]["fewest"]) == ("partly", 6, 0)
    # with --results only that folder counts
    (tmp_path / "results").mkdir()
    assert main(["reproduce", "--list", "--results", "results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not run"
    (tmp_path / "results/sums.json").write_text('{"rows": [{"name": "gru"}]}')
    assert main(["reproduce", "--list", "--results", "results"]) == 1
    assert "results/sums.json: expected a table of `edgernn reproduce`" in capsys.readouterr().err
    for words in (["sums", "--list"], [], ["sums", "--results", "results"]):
        assert main(["reproduce", *words]) == 2


def test_the_score_of_the_paper_is_a_geometric_mean():
    result = {"accuracy": 0.816, "skip_percent": 76.0}
    # Table 1 of the SA-RNN paper prints 78.8 for 81.6 % and 76 %
    assert figure(result, "gmean") == pytest.approx(78.8, abs=0.1)
    assert figure(result, "accuracy") == pytest.approx(81.6)
    assert figure({**result, "solved": None}, "solved") is None
    assert figure({"macs_executed": 10.5, "block_macs": 4}, "work") == 14.5
    # as in a run of an earlier version
    assert figure({"macs_executed": 10.5}, "work") == 10.5
    with pytest.raises(EdgernnError, match="auc: expected a run that measures it"):
        figure(result, "auc")


def test_an_interrupted_table_goes_on(tmp_path):
    words = ["reproduce", "sarnn-4", "--quick", "--rows", "gru,sarnn-0", "--jobs", "2", "--out", str(tmp_path / "runs")]
    process = command_line(*words, cwd=tmp_path, start_new_session=True)
    state = tmp_path / "runs/gru-seed0/metrics.jsonl"
    wait_until(state.exists)
    # SIGINT of a terminal reaches the workers too
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    process = command_line(*words, "--jobs", "1", "--json", cwd=tmp_path)
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    trained = {row["name"]: row["columns"]["mse"]["mean"] for row in json.loads(out)["rows"] if row["seeds"]}
    assert trained.keys() == {"gru", "sarnn-0"}
    assert all(np.isfinite(value) for value in trained.values())


def test_a_killed_worker_is_replaced(tmp_path):
    """The pool starts again, and a run whose worker was killed is lost, and so resumed."""
    outcomes = []
    with processes(2, 1, 1, None, "cpu") as pool:
        for number in range(2):
            job = Job("adding", "gru", None, number, {**SMALL, "steps": 10_000}, tmp_path / str(number))
            pool.start(job)
            wait_until((tmp_path / str(number) / "config.json").exists)
            (worker,) = multiprocessing.active_children()
            os.kill(worker.pid, signal.SIGKILL)
            outcomes += wait_until(lambda: pool.ended(1.0))
    assert [outcome.lost for _, outcome in outcomes] == [True, True]
    assert outcomes[0][1].error == "its process was killed; it may have run out of memory"


@pytest.mark.parametrize(("device", "slots"), [("cpu", 4), ("cuda", 1)])
def test_one_training_at_a_time_has_a_gpu_by_default(monkeypatch, device, slots):
    monkeypatch.setattr(worker_processes, "choose_device", lambda name: name)
    monkeypatch.setattr(worker_processes.os, "cpu_count", lambda: 8)
    with processes(9, None, 2, None, device) as pool:
        assert pool.slots == slots
    with processes(9, 3, 2, None, device) as pool:
        assert pool.slots == 3


def test_the_death_of_a_worker_does_not_end_the_others(tmp_path):
    runs = [
        Job("adding", "gru", None, n, {**SMALL, "steps": steps}, tmp_path / str(n))
        for n, steps in ((0, 10**6), (1, 40))
    ]
    with processes(2, 2, 1, None, "cpu") as pool:
        pool.start(runs[0])
        (first,) = multiprocessing.active_children()
        pool.start(runs[1])
        os.kill(first.pid, signal.SIGKILL)
        outcomes = {}
        while len(outcomes) < 2:
            outcomes |= {job.seed: outcome for job, outcome in wait_until(lambda: pool.ended(1.0))}
    assert (outcomes[0].lost, outcomes[1]) == (True, Outcome())
    assert runs[1].result() is not None
