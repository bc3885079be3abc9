# SPDX-License-Identifier: Apache-2.0
"""Sweeps: their runs and reports; neither kills nor a full disk lose finished runs."""

import errno
import os
import re
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.locks import hold_folder
from edgernn.training.sweep import sweep
from edgernn.training.sweep.plan import load_sweep
from edgernn.training.sweep.run import _export
from edgernn.training.sweep.table import markdown
from edgernn.training.tables.jobs import TRIES, Job, Outcome, Workers, attempt, run_missing
from edgernn.training.tables.table import trained
from tests.training_helpers import leftovers, snapshot, without_pictures

SWEEP = """task = "adding"
cells = ["gru", "sarnn"]
seeds = 2
[settings]
T = 8
hidden_size = 4
batch_size = 10
steps = 12
eval_every = 6
skip_target = "none"
[vary]
lambda = [0.0, 0.5]
[search]
lr = [0.01, 0.001]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path / "sweep.toml"


def say(file, old, new):
    assert old in SWEEP
    file.write_text(SWEEP.replace(old, new))


# the sweep file


def test_a_share_to_skip_is_left_out_for_rules_without_a_budget(file, tmp_path):
    say(file, "lambda = [0.0, 0.5]", "skip = [0.5, 0.8]")
    plan = load_sweep(file, tmp_path / "runs")
    rows = [
        "gru-lr=0.01",
        "gru-lr=0.001",
        *(f"sarnn-skip={skip},lr={lr}" for skip in (0.5, 0.8) for lr in (0.01, 0.001)),
    ]
    assert [row.name for row in plan.rows] == rows
    assert [row.jobs[0].settings.get("skip") for row in plan.rows] == [None, None, 0.5, 0.5, 0.8, 0.8]
    say(
        file,
        'skip_target = "none"\n[vary]\nlambda = [0.0, 0.5]',
        "skip = 0.6\nbackground = 2.0\nsilence = 0.5\n[vary]\nhidden_size = [2, 3]",
    )
    file.write_text(file.read_text().replace("hidden_size = 4\n", ""))
    plan = load_sweep(file, tmp_path / "runs")
    assert [row.jobs[0].settings.get("skip") for row in plan.rows] == [None] * 4 + [0.6] * 4
    assert [row.jobs[0].settings.get("background") for row in plan.rows] == [None] * 4 + [2.0] * 4


def test_every_combination_is_a_row_and_every_seed_a_run(file, tmp_path):
    plan = load_sweep(file, tmp_path / "runs")
    assert [row.name for row in plan.rows] == [
        # λ has no effect under rules that never skip
        "gru-lr=0.01",
        "gru-lr=0.001",
        *(f"sarnn-lambda={weight},lr={lr}" for weight in (0.0, 0.5) for lr in (0.01, 0.001)),
    ]
    assert [row.rivals for row in plan.rows] == [0, 0, 2, 2, 3, 3]
    assert [job.out.name for job in plan.rows[1].jobs] == ["gru-lr=0.001-seed0", "gru-lr=0.001-seed1"]
    assert [job.seed for job in plan.rows[1].jobs] == [0, 1]
    job = plan.rows[-1].jobs[-1]
    assert job.settings["lambda"] == 0.5
    assert job.settings["lr"] == 0.001
    assert job.settings["skip_target"] is None


def test_all_first_seeds_are_trained_first(file, tmp_path):
    workers = Pretended(lambda job, n: Outcome())
    with trained(load_sweep(file, tmp_path / "runs").rows, tmp_path / "runs", workers) as failures:
        assert not failures
    assert [job.seed for job in workers.begun] == [0] * 6 + [1] * 6


def test_two_names_of_one_model_are_one_row(file, tmp_path):
    say(file, 'cells = ["gru", "sarnn"]', 'cells = ["gru", "sarnn"]\nrules = ["selective", "always"]')
    assert len(load_sweep(file, tmp_path).rows) == 6
    say(file, "seeds = 2", "seeds = [7, 3, 7]")
    assert load_sweep(file, tmp_path).seeds == (7, 3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cells =", "cell =", "unknown key"),
        ("seeds = 2", 'seeds = 2\nrule = ["skip"]', "unknown key 'rule': did you mean 'rules'"),
        ("[vary]", "[vari]", "unknown key 'vari': did you mean 'vary'"),
        ("steps = 12", "stepps = 12", "unknown setting 'stepps': did you mean 'steps'"),
        ("lambda =", "lamda =", "unknown setting 'lamda': did you mean 'lambda'"),
        ("[0.01, 0.001]", "[0.01, -1]", "lr: expected a number above 0, got -1"),
        ("[0.01, 0.001]", "0.01", "search.lr: expected a list of values, got 0.01"),
        ("lr =", "T =", "T: expected in only one of"),
        ('"sarnn"]', '"sarn"]', "unknown cell 'sarn': did you mean 'sarnn'"),
        ('["gru", "sarnn"]', "[]", "cells: expected a list of names"),
        ("seeds = 2", "seeds = 0", "seeds: expected a count of at least 1, or a list of numbers, got 0"),
        ("seeds = 2", "seeds = [0, -1]", "seeds: expected"),
        ('task = "adding"', 'task = "ading"', "unknown task 'ading'"),
        ("seeds = 2", "seeds = ", "expected valid TOML, got a mistake"),
    ],
)
def test_mistakes_in_the_file_are_named_before_anything_starts(file, tmp_path, capsys, old, new, said):
    say(file, old, new)
    assert main(["sweep", "sweep.toml"]) in (1, 2)
    error = capsys.readouterr().err
    assert re.search(f"^edgernn: error: sweep.toml: .*{re.escape(said)}", error), error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.toml"]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="sweep: no such file"):
        sweep(tmp_path / "none.toml")


# results


# failing workers


class Pretended(Workers):
    """Ends each job as how(job, attempt) says: it performs side effects and returns the outcome."""

    slots = 2

    def __init__(self, how):
        self.how, self.begun, self.running = how, [], []

    def start(self, job):
        self.begun.append(job)
        self.running.append(job)
        assert len(self.running) <= self.slots

    def ended(self, seconds):
        job = self.running.pop(0)
        return [(job, self.how(job, self.begun.count(job)))]

    @contextmanager
    def __call__(self, count):
        yield self


def jobs_of(tmp_path, count=4):
    settings = {"T": 5, "hidden_size": 4, "batch_size": 5, "steps": 2, "test_size": 5}
    return [Job("adding", "gru", None, seed, settings, tmp_path / f"seed{seed}") for seed in range(count)]


def test_a_job_whose_worker_dies_is_gone_on_with(tmp_path, capsys):
    dies = {0: 1, 2: 99}
    workers = Pretended(
        lambda job, n: Outcome("its worker died", lost=True) if n <= dies.get(job.seed, 0) else Outcome()
    )
    failed = run_missing(jobs_of(tmp_path), workers)
    assert failed == {tmp_path / "seed2": "its worker died"}
    assert [workers.begun.count(job) for job in jobs_of(tmp_path)] == [2, 1, TRIES, 1]
    assert capsys.readouterr().err.count("resuming it") == 1 + TRIES - 1


def test_a_full_disk_stops_all(tmp_path):
    workers = Pretended(lambda job, n: Outcome("No space left on device", full=True) if job.seed == 1 else Outcome())
    output = "seed1: No space left on device: 1 of 4 runs finished and kept; free some space"
    with pytest.raises(EdgernnError, match=output):
        run_missing(jobs_of(tmp_path), workers)
    assert [job.seed for job in workers.begun] == [0, 1, 2]


def test_what_fails_says_why(tmp_path, monkeypatch):
    (job,) = jobs_of(tmp_path, 1)
    monkeypatch.setattr("edgernn.training.api.train", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError("by 0")))
    assert attempt(job, None, "cpu") == Outcome("ZeroDivisionError: by 0")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "state.safetensors")

    monkeypatch.setattr("edgernn.training.api.train", full)
    assert attempt(job, None, "cpu") == Outcome("state.safetensors: No space left on device", full=True)
    assert not leftovers(tmp_path)


def test_half_a_result_is_none(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    (job,) = jobs_of(tmp_path, 1)
    assert attempt(job, None, "cpu") == Outcome()
    result, state = job.out / "result.json", job.out / "state.safetensors"
    whole, before = snapshot(job.out), state.stat().st_mtime_ns
    for damage in (result.read_text()[:40], "", "[]", "{}"):
        result.write_text(damage)
        assert job.result() is None
        assert attempt(job, None, "cpu") == Outcome()
        assert snapshot(job.out) == whole
    # no run was trained
    assert state.stat().st_mtime_ns == before


# the results table


class Here(Workers):
    """Trains in this process, sequentially."""

    slots = 1

    def __init__(self):
        self.ends = []

    def start(self, job):
        self.ends.append((job, attempt(job, None, "cpu")))

    def ended(self, seconds):
        return [self.ends.pop()]


@pytest.fixture
def train_here(file, monkeypatch):
    @contextmanager
    def pool(count, **_):
        yield Here()

    without_pictures(monkeypatch)
    monkeypatch.setattr("edgernn.training.sweep.run.processes", pool)
    return file


def test_a_table_before_anything_is_trained(train_here, capsys):
    assert main(["sweep", "sweep.toml", "--table-only"]) == 0
    assert capsys.readouterr().out.count("not run") == 6
    table = sweep(train_here, run=False)
    assert table["metric"] is None
    assert not any(row["front"] or row["chosen"] for row in table["rows"])
    assert [path.rpartition("/")[2] for path in table["files"]] == ["table.json", "table.md"]
    with pytest.raises(EdgernnError, match="expected a finished run to export, got none"):
        sweep(train_here, run=False, export=True)


@pytest.mark.slow
def test_models_of_the_front_are_complete_after_any_stop(train_here, monkeypatch):
    say(train_here, "seeds = 2", "seeds = 1")
    report = sweep(train_here, latency=False, export=True)
    run, name = next((Path(row["best"]), row["name"]) for row in report["rows"] if row["front"])
    copy = Path("runs/sweep/front") / name
    # killed between the model and its card; or between the model and a newer card
    for stop in (Path.unlink, lambda path: os.utime(path, ns=(0, 0))):
        stop(run / "model.md")
        sweep(train_here, latency=False, export=True)
        assert (run / "model.md").stat().st_mtime_ns >= (run / "model.onnx").stat().st_mtime_ns
        assert (copy / "model.md").read_bytes() == (run / "model.md").read_bytes()

    # a model of an earlier call that is not on a front any more
    other = copy.parent / "other"
    other.mkdir()
    for name in ("model.onnx", "model.md", "example.npz"):
        (other / name).write_bytes(b"old")
    users = copy.parent / "users"
    users.mkdir()
    (users / "notes.txt").touch()
    sweep(train_here, latency=False, export=True)
    assert not other.exists()
    assert (users / "notes.txt").exists()

    (copy / "model.onnx").write_bytes(b"old")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        _export(report, Path("runs/sweep"))
    assert (copy / "model.onnx").read_bytes() == b"old"
    assert not leftovers(copy)


@pytest.mark.slow
def test_choices_are_made_on_the_validation_split(train_here, tmp_path):
    table = sweep(train_here, latency=False)
    rows = {row["name"]: row for row in table["rows"]}
    assert len(rows) == 6
    assert all(row["latency"]["n"] == 0 and row["test"]["n"] == 2 for row in rows.values())
    for prefix in ("gru-", "sarnn-lambda=0.0,", "sarnn-lambda=0.5,"):
        rivals = [row for name, row in rows.items() if name.startswith(prefix)]
        assert len(rivals) == 2
        best = min(rivals, key=lambda row: row["validation"]["mean"])
        assert [row["chosen"] for row in rivals] == [row is best for row in rivals]
    chosen = [row for row in rows.values() if row["chosen"]]
    for row in chosen:
        beaten = any(
            other["work"]["mean"] < row["work"]["mean"] and other["validation"]["mean"] < row["validation"]["mean"]
            for other in chosen
        )
        assert ("work" in row["front"]) != beaten
    page = markdown(table)
    assert page.endswith("\n")
    assert "(Student's t)" in page
    assert page.count("not chosen") == 3
    row = rows["sarnn-lambda=0.5,lr=0.01"]
    low, high = row["test"]["interval"]
    line = next(line for line in page.splitlines() if line.startswith("| sarnn | selective | 0.5 | 0.01 |"))
    assert line.split(" | ")[4:6] == [
        f"{row['test']['mean']:.4g} ± {row['test']['sd']:.2g}",
        f"{low:.4g} to {high:.4g}",
    ]
    mean, marker = table["baselines"]
    assert (mean["seeds"], mean["settings"]) == ([0, 1], {})
    line = next(line for line in page.splitlines() if line.startswith(f"| *{mean['name']}* |"))
    assert line.split(" | ")[4].startswith(f"{mean['columns']['mse']['mean']:.4g} ± ")
    assert line.count("|") == next(line for line in page.splitlines() if line.startswith("| cell")).count("|")
    assert f"| *{marker['name']}* |" in page
    # seeds are added to the existing ones
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/sweep/*/result.json")}
    say(train_here, "seeds = 2", "seeds = 3")
    assert all(row["test"]["n"] == 3 for row in sweep(train_here, latency=False)["rows"])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    say(train_here, "T = 8", "T = 9")
    with pytest.raises(UsageError, match="holds a run with other settings: T=8, now it is 9"):
        sweep(train_here)


def test_a_run_that_fails_is_told_and_the_others_go_on(train_here, capsys):
    say(train_here, "lr = [0.01, 0.001]", "lr = [0.01, 1e30]")
    assert main(["sweep", "sweep.toml", "--no-latency"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"error: \d+ runs failed, see runs/sweep/table.json; the first error is: .*diverged", error)
    table = sweep(train_here, run=False)
    assert {row["test"]["n"] for row in table["rows"] if row["settings"]["lr"] == 0.01} == {2}
    page = (train_here.parent / "runs/sweep/table.md").read_text()
    assert page.count("not run") == 3
    assert main(["sweep", "sweep.toml", "--part", "1/1"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"error: \d+ runs failed; the first error is: .*diverged", error)


def test_another_sweep_in_the_same_folder_is_refused(train_here):
    output = r"runs/sweep: in use by process \d+ on .*; wait until it ends, or name another place with --out"
    with hold_folder(train_here.parent / "runs/sweep"):
        with pytest.raises(UsageError, match=output):
            sweep(train_here)
        # a table of the finished runs may be printed meanwhile
        assert not any(row["seeds"] for row in sweep(train_here, run=False)["rows"])


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "-1/3", "a/b"])
def test_what_is_no_part_is_refused(train_here, part):
    with pytest.raises(UsageError, match=r"part: expected K/N, such as 3/10 for the third of ten parts, got"):
        sweep(train_here, part=part)


def test_parts_train_what_a_whole_sweep_would(train_here, tmp_path):
    say(train_here, "seeds = 2", "seeds = 2\nsearch-seeds = 1")

    def finished():
        return {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("runs/sweep/*/result.json")}

    # neither part waits for the other, nor for a whole sweep
    with hold_folder(tmp_path / "runs/sweep"):
        with pytest.raises(UsageError, match="export: expected a whole sweep, got its part 1/2; leave export or part"):
            sweep(train_here, part="1/2", export=True)
        assert sweep(train_here, part="1/2")["files"] == []
        assert len(finished()) == 3
        with hold_folder(tmp_path / "runs/sweep/.part-1-of-2"):
            with pytest.raises(UsageError, match="part-1-of-2: in use by"):
                sweep(train_here, part="1/2")
            # the second part ends the search, and so begins the further seeds of the rows that it chose
            sweep(train_here, part="2/2")
        assert 6 < len(finished()) < 9
        report = sweep(train_here, part="1/2")
    # parts that end together would write the same files
    assert not list(tmp_path.glob("runs/sweep/table.*")) + list(tmp_path.glob("runs/sweep/front*"))
    before = finished()
    assert len(before) == 9
    assert [row["seeds"] for row in report["rows"] if row["chosen"]] == [[0, 1]] * 3
    assert sweep(train_here, latency=False)["rows"] == report["rows"]
    assert finished() == before
