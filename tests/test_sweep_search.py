# SPDX-License-Identifier: Apache-2.0
"""Sweeps whose search is decided with fewer seeds than the rows of the table have."""

import json
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
    def on_ray(count, **_):
        yield Failing()

    without_pictures(monkeypatch)
    monkeypatch.setattr(run_sweep, "on_ray", on_ray)
    monkeypatch.setattr(run_sweep, "load", lambda address: None)
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
