# SPDX-License-Identifier: Apache-2.0
"""Tables of the pages that compare models, from the results of sweeps."""

import importlib
from statistics import fmean

import pytest

from edgernn.training.statistics import mean_difference, spread


@pytest.fixture(scope="module")
def tables():
    return importlib.import_module("benchmarks.tables.sweeps")


def row(size, validation, test, work, *, rule="always", **settings):
    """The row of a chosen model in table.json; `test` is a dict from seed to accuracy."""
    return {
        "name": f"{rule}-{size}",
        "cell": "gru",
        "rule": rule,
        "settings": {"hidden_size": size, **settings},
        "seeds": list(test),
        "chosen": True,
        "front": [],
        "validation": {"mean": validation},
        "test": spread(list(test.values())),
        "skip_percent": {"mean": 0.0},
        "work": {"mean": work},
        "latency": {"mean": None},
        "bytes": {"mean": 1000.0},
    }


def report(rows):
    return {
        "command": "edgernn sweep x.toml",
        "task": "mnist-rows",
        "metric": "accuracy",
        "higher_is_better": True,
        "seeds": [0, 1, 2],
        "searched": ["lr"],
        "latency_machine": "a machine",
        "rows": rows,
    }


def lines(text):
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| gru")]


def test_the_first_row_is_the_model_that_others_are_compared_with(tables, monkeypatch):
    best = row(64, 98.0, {0: 97.0, 1: 98.0, 2: 98.5}, 200)
    # as good on the validation split, and cheaper
    small = row(32, 97.7, {0: 97.0, 1: 97.5, 2: 98.5}, 100)
    monkeypatch.setattr(tables, "read_report", lambda name: report([small, best]))
    first, second = lines(tables.rivals("x"))
    assert first[:3] == ["gru", "64", f"{fmean((97.0, 98.0, 98.5)):.1f}"]
    assert second[:2] == ["gru", "32"]
    assert second[2].startswith(f"{fmean((97.0, 97.5, 98.5)):.1f}, −0.2 ± ")


def test_a_dense_model_with_int8_weights_is_no_yardstick(tables, monkeypatch):
    float32 = row(64, 98.0, {0: 97.0, 1: 98.0, 2: 98.5}, 200)
    int8 = row(64, 98.3, {0: 97.2, 1: 98.1, 2: 98.5}, 200, weights="int8")
    monkeypatch.setattr(tables, "read_report", lambda name: report([int8, float32]))
    assert [cells[0] for cells in lines(tables.rivals("x"))] == ["gru", "gru, weights=int8"]


def test_int8_models_are_compared_with_the_same_model_in_float32(tables, monkeypatch, tmp_path):
    # the group size is the default one where a row does not name it
    exact = row(64, 98.0, {0: 97.0, 1: 98.0}, 200, rule="selective", group_size=1, skip=0.5, lr=0.1)
    other = row(64, 98.0, {0: 90.0, 1: 91.0}, 200, rule="selective", group_size=16, skip=0.5, lr=0.1)
    rounded = row(64, 98.0, {0: 96.0, 1: 97.5}, 200, rule="selective", weights="int8", skip=0.5, lr=0.2)
    monkeypatch.setattr(tables, "read_report", lambda name: report([other, exact, rounded]))
    monkeypatch.setattr(tables, "measured_sweeps", lambda folder, prefix: [tmp_path / "x.toml"] * (folder == "rivals"))
    text = tables.int8_pairs()
    (line,) = (line for line in text.splitlines() if line.startswith("| x"))
    low, high = mean_difference([96.0, 97.5], [97.0, 98.0], paired=True).interval
    assert line.endswith(f"| 97.5 | 96.8, −0.8 ± {(high - low) / 2:.1f} |")
    assert "Of the 1 pairs with a score in percent, 0 lose" in text


def test_models_are_paired_by_seed_where_some_failed(tables, monkeypatch):
    dense = row(64, 98.0, {0: 97.0, 1: 98.0}, 200)
    rival = row(64, 97.9, {1: 97.5, 0: 96.7, 2: 90.0}, 100, rule="selective")
    alone = row(64, 97.9, {2: 91.0}, 100, rule="skip")
    monkeypatch.setattr(tables, "read_report", lambda name: report([dense, rival, alone]))
    _, *others = lines(tables.rivals("x"))
    quality = {cells[0]: cells[2] for cells in others}
    low, high = mean_difference([96.7, 97.5], [97.0, 98.0], paired=True).interval
    assert quality["gru + selective"] == f"94.7, −0.4 ± {(high - low) / 2:.1f}"
    assert quality["gru + skip"] == "91.0"
    # one seed has a mean and no interval
    (cells,) = (cells for cells in lines(tables.signal("x", every=True)) if cells[0] == "gru + skip")
    assert cells[3] == "91"


def timed(size, validation, test, time, **settings):
    return row(size, validation, test, 100, **settings) | {"latency": {"mean": time}}


def test_a_model_that_skips_is_compared_with_the_best_dense_one_of_its_time(monkeypatch):
    skipping = importlib.import_module("benchmarks.tables.skipping")
    fast = timed(16, 90.0, {0: 89.0, 1: 90.0, 2: 91.0}, 1.0)
    # better on the test split, but not on the validation split
    lucky = timed(24, 89.0, {0: 99.0, 1: 99.0, 2: 99.0}, 1.5)
    slow = timed(64, 95.0, {0: 95.0, 1: 95.0, 2: 95.1}, 4.0)
    equal = timed(64, 90.0, {0: 89.1, 1: 89.9, 2: 91.0}, 2.0, rule="skip", skip=0.9)
    worse = timed(64, 90.0, {0: 80.0, 1: 80.5, 2: 81.0}, 5.0, rule="skip", skip=0.5)
    faster = timed(8, 80.0, {0: 85.0, 1: 92.0, 2: 93.0}, 0.5, rule="delta")
    # the best on the test split, and not chosen
    other = timed(48, 85.0, {0: 99.0, 1: 99.5, 2: 99.1}, 5.0, rule="skip", skip=0.7) | {"name": "other"}
    shown = report([fast, lucky, slow, equal, worse, faster, other])
    choice = {"name": "one", "cost": "latency", "within": 0.5, "rules": ["skip"]}
    shown["choices"] = [{**choice, "row": model["name"]} for model in (equal, worse, faster)]
    monkeypatch.setattr(skipping, "read_report", lambda name: shown)
    cells = {line[0] + line[1]: line[4:] for line in lines(skipping.equal_time("x"))}
    assert cells["gru + skip64, skip=0.9"][:2] == ["gru 16", "1"]
    assert cells["gru + skip64, skip=0.9"][3] == "equal"
    assert cells["gru + skip64, skip=0.5"][::3] == ["gru 64", "worse"]
    assert cells["gru + delta8"][::3] == ["gru 16", "undecided"]
    assert len(cells) == 3
    for files, ends in (([], ""), (["activity.toml"], skipping.equal_time("x"))):
        monkeypatch.setattr(skipping, "measured_sweeps", lambda *_, files=files: files)
        assert skipping.folds().startswith("### Activity") == bool(files)
        assert skipping.folds().endswith(ends)
    monkeypatch.setattr(skipping, "_reports", lambda: [shown])
    assert "| `gru + skip` 64, skip=0.9, 2 µs: " in skipping.use()
    assert skipping.use().splitlines()[2].endswith(" | the dense one |")
    assert "beside others of at most equal time: 1 equal, 1 undecided, 1 worse." in (
        " ".join(skipping.equal_time("x").split())
    )
