# SPDX-License-Identifier: Apache-2.0
"""Sweeps whose search is decided with fewer seeds than the rows of the table have."""

import json
import re
from contextlib import contextmanager

import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.training.sweep import run as run_sweep
from edgernn.training.sweep.plan import load_sweep
from edgernn.training.tables.jobs import Outcome
from edgernn.training.tables.table import trained
from tests.test_sweep import SWEEP, Here, Pretended
from tests.training_helpers import without_pictures


def write(folder, text):
    (folder / "sweep.toml").write_text(text)
    return folder / "sweep.toml"


def test_further_seeds_are_trained_for_the_chosen_rows_alone(tmp_path):
    file = write(tmp_path, SWEEP.replace("seeds = 2", "seeds = 3\nsearch-seeds = 1"))
    workers = Pretended(lambda job, n: Outcome())
    out = tmp_path / "runs"
    plan = load_sweep(file, out)
    searching = plan.narrowed(())
    with trained(searching.rows, out, workers):
        assert [job.seed for job in workers.begun] == [0] * 6
    # the higher lr of the first group and the lower ones of the others are better
    better = {"gru-lr=0.01", "sarnn-lambda=0.0,lr=0.001", "sarnn-lambda=0.5,lr=0.001"}
    for row in plan.rows:
        row.__dict__["results"] = {0: {"higher_is_better": False}, 1: {"higher_is_better": False}}
        # the value of the second seed does not count
        row.__dict__["validation"] = {0: 1.0 if row.name in better else 2.0, 1: 3.0 if row.name in better else 0.0}
    assert plan.chosen() == better
    with trained(plan.narrowed(better).rows, out, workers):
        later = workers.begun[6:]
    assert [job.seed for job in later] == [0] * 6 + [1] * 3 + [2] * 3
    assert {job.out.name for job in later if job.seed} == {f"{name}-seed{n}" for name in better for n in (1, 2)}


CHOICES = """
[[choices]]
name = "smallest"
cost = "bytes"
within = 0.5
[[choices]]
name = "skipping"
cost = "latency"
within = 2
rules = ["skip", "delta"]
"""


def record(name, rule, validation, test, size, time):
    costs = {"bytes": {"mean": size}, "latency": {"mean": time}}
    return {"name": name, "rule": rule, "seeds": [0], "validation": {"mean": validation}, "test": test, **costs}


def test_a_choice_takes_the_cheapest_of_the_good_on_the_validation_split(tmp_path):
    plan = load_sweep(write(tmp_path, SWEEP + CHOICES), tmp_path / "runs")
    smallest, skipping = plan.choices
    records = [
        record("best", "always", 90.0, 1.0, 4000, 3.0),
        record("good", "always", 89.6, 2.0, 2000, 2.0),
        record("bad", "always", 89.4, 99.0, 1000, 1.0),
        record("skips", "skip", 80.0, 3.0, 4000, 1.5),
        record("skips more", "skip", 77.9, 99.0, 4000, 0.5),
        record("without a time", "delta", 79.0, 99.0, 4000, None),
    ]
    assert smallest.among(records, 1) == "good"
    assert skipping.among(records, 1) == "skips"
    # an error is better if it is lower
    assert smallest.among(records, -1) == "skips more"
    assert skipping.among([], 1) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"bytes"', '"byte"', "choices: table 1"),
        ("within = 2", "within = -2", "within: expected a number of at least 0, got -2"),
        ('"delta"', '"detla"', "choices: skipping: unknown rule 'detla': did you mean 'delta'"),
    ],
)
def test_mistakes_in_choices_are_named(old, new, message, tmp_path):
    assert old in CHOICES
    with pytest.raises(EdgernnError, match=re.escape(message)):
        load_sweep(write(tmp_path, SWEEP + CHOICES.replace(old, new)), tmp_path / "runs")


@pytest.mark.slow
def test_a_run_that_fails_in_the_search_and_finishes_later_may_be_chosen(tmp_path, monkeypatch):
    text = SWEEP.replace("seeds = 2", "seeds = 2\nsearch-seeds = 1")
    file = write(tmp_path, text.replace("lr = [0.01, 0.001]", "lr = [0.01, 1e-9]"))
    failed = set()

    class Failing(Here):
        def start(self, job):
            if job.out.name.endswith("lr=0.01-seed0") and job.out not in failed:
                failed.add(job.out)
                self.ends.append((job, Outcome("out of memory")))
            else:
                super().start(job)

    @contextmanager
    def pool(count, **_):
        yield Failing()

    without_pictures(monkeypatch)
    monkeypatch.setattr(run_sweep, "processes", pool)
    report = run_sweep.sweep(file, out=tmp_path / "runs", latency=False)
    chosen = [row for row in report["rows"] if row["chosen"]]
    assert [row["settings"]["lr"] for row in chosen] == [0.01] * 3
    assert [row["seeds"] for row in chosen] == [[0, 1]] * 3
    assert len(failed) == 3
    assert all(row["failed"] == {} for row in report["rows"])


@pytest.mark.slow
def test_the_table_says_how_many_seeds_decided(tmp_path):
    file = write(tmp_path, SWEEP.replace("seeds = 2", "seeds = 2\nsearch-seeds = 1"))
    assert main(["sweep", str(file), "--out", str(tmp_path / "runs"), "--no-latency", "--jobs", "2"]) == 0
    report = json.loads((tmp_path / "runs" / "table.json").read_text())
    assert (report["seeds"], report["search_seeds"]) == ([0, 1], 1)
    assert sorted(len(row["seeds"]) for row in report["rows"]) == [1, 1, 1, 2, 2, 2]
    assert all(row["chosen"] == (len(row["seeds"]) == 2) for row in report["rows"])
    assert "with 1 of the 2 seeds" in (tmp_path / "runs" / "table.md").read_text()
    for old, new, message in (
        ("search-seeds = 1", "search-seeds = 3", "expected at most 2, the number of seeds, got 3"),
        ("[search]\nlr = [0.01, 0.001]", "", r"expected a table \[search\], too, got none"),
    ):
        file.write_text(SWEEP.replace("seeds = 2", "seeds = 2\nsearch-seeds = 1").replace(old, new))
        with pytest.raises(EdgernnError, match=f"search-seeds: {message}"):
            load_sweep(file, tmp_path / "other")
