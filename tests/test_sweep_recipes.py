# SPDX-License-Identifier: Apache-2.0
"""The sweeps that are kept in benchmarks/sweeps/signals and benchmarks/sweeps/rivals, and parts of a sweep file."""

import re
import tomllib
from pathlib import Path

import pytest
from matplotlib import image

from edgernn.errors import EdgernnError
from edgernn.training import pictures
from edgernn.training.pictures import Point, fronts, shown_front
from edgernn.training.sweep.plan import load_sweep
from tests.source_tree import ROOT

SWEEPS = sorted((ROOT / "benchmarks" / "sweeps" / "signals").glob("*.toml"))
RIVALS = sorted((ROOT / "benchmarks" / "sweeps" / "rivals").glob("*.toml"))
LONGER = sorted((ROOT / "benchmarks" / "sweeps" / "longer").glob("*.toml"))
BETWEEN = sorted((ROOT / "benchmarks" / "sweeps" / "between").glob("*.toml"))
SKIPPING = sorted((ROOT / "benchmarks" / "sweeps" / "skipping").glob("*.toml"))
KINDS = {("gru", None), ("lstm", None), ("pru", None), ("gru", "skip"), ("gru", "selective"), ("lstm", "selective")}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_kept_sweep_searches_alike_for_every_row(path, tmp_path):
    sweep = load_sweep(path, tmp_path)
    assert sweep.task == path.stem
    assert {(row.cell, row.rule) for row in sweep.rows} >= KINDS
    # the trainings of ecg and keywords are long
    sizes = {None, 1, 16} if path.stem in ("ecg", "keywords") else {None, 1, 8, 16}
    assert {row.settings.get("group_size") for row in sweep.rows} == sizes
    assert len({row.settings["hidden_size"] for row in sweep.rows}) >= 2
    # topk and egru have a share of their own
    assert all("skip" in row.settings for row in sweep.rows if row.rule and row.rule != "topk" and row.cell != "egru")
    assert any("rank" in row.settings for row in sweep.rows)
    assert any("density" in row.settings for row in sweep.rows)
    assert tomllib.loads(path.read_text(encoding="utf-8"))["settings"]["keep"] == "best"
    assert {row.rule for row in sweep.rows if row.settings.get("weights") == "int8"} >= {None, "selective"}
    rivals = {}
    for row in sweep.rows:
        rivals.setdefault(row.rivals, []).append(tuple(row.settings[name] for name in sweep.searched))
    assert len({tuple(tried) for tried in rivals.values()}) == 1
    assert len(sweep.seeds) >= 3
    assert runs_in_head(path) == runs(sweep)


def runs_in_head(path) -> int:
    """Return the number of runs that the head of a sweep file states."""
    return int(
        re.search(
            r"^# (\d+) runs: about \d+ (?:hours|minutes) on one core", path.read_text(encoding="utf-8"), re.MULTILINE
        )[1]
    )


def runs(sweep) -> int:
    """Return the number of trainings of a sweep: the search, and the other seeds of the chosen rows."""
    groups = len({row.rivals for row in sweep.rows})
    return len(sweep.rows) * sweep.search_seeds + groups * (len(sweep.seeds) - sweep.search_seeds)


@pytest.mark.parametrize("path", RIVALS, ids=lambda path: path.stem)
def test_rivals_get_the_same_search(path, tmp_path):
    sweep = load_sweep(path, tmp_path)
    assert sweep.task == path.stem
    assert {row.cell for row in sweep.rows} >= {"gru", "lstm", "pru", "fastgrnn", "mingru", "minlstm", "lru", "egru"}
    assert {row.rule for row in sweep.rows} >= {None, "skip", "selective", "delta", "topk"}
    assert any(row.settings.get("weights") == "int8" for row in sweep.rows)
    assert max(row.settings["skip"] for row in sweep.rows if row.rule == "selective") >= 0.9
    assert tomllib.loads(path.read_text(encoding="utf-8"))["settings"]["keep"] == "best"
    searched = {}
    for row in sweep.rows:
        searched.setdefault(row.rivals, []).append(tuple(row.settings[name] for name in sweep.searched))
    assert len({tuple(values) for values in searched.values()}) == 1
    assert len(sweep.seeds) == 3
    assert runs_in_head(path) == runs(sweep)


@pytest.mark.parametrize("path", LONGER, ids=lambda path: path.stem)
def test_longer_sweeps_compare_a_dense_cell_with_rules(path, tmp_path):
    sweep = load_sweep(path, tmp_path)
    assert sweep.task == path.stem
    assert {row.rule for row in sweep.rows} >= {None, "skip", "selective"}
    assert {row.cell for row in sweep.rows} == {"gru"}
    assert len(sweep.seeds) == 3
    assert runs_in_head(path) == runs(sweep)


@pytest.mark.parametrize("path", SKIPPING, ids=lambda path: path.stem)
def test_sweeps_about_skipping_declare_what_they_choose(path, tmp_path):
    sweep = load_sweep(path, tmp_path)
    assert sweep.task == path.stem
    # nothing is searched, all models share the folds, and a fixed period stands beside what is learned
    assert not sweep.searched
    assert all(row.jobs[0].settings["folds"] == len(sweep.seeds) for row in sweep.rows)
    assert {row.rule for row in sweep.rows} >= {None, "periodic", "skip", "selective", "delta"}
    assert len({row.settings["hidden_size"] for row in sweep.rows if row.cell == "gru" and row.rule is None}) >= 4
    assert {choice.cost for choice in sweep.choices} == {"latency"}
    assert runs_in_head(path) == runs(sweep)


@pytest.mark.parametrize("path", BETWEEN, ids=lambda path: path.stem)
def test_sweeps_between_train_as_the_sweep_of_their_signal(path, tmp_path):
    sweep, signal = load_sweep(path, tmp_path), load_sweep(path.parents[1] / "signals" / path.name, tmp_path)
    assert sweep.seeds == signal.seeds
    trained = [{**row.jobs[0].settings, "hidden_size": 0} for row in signal.rows if row.name.startswith("gru-hidden")]
    assert all({**row.jobs[0].settings, "hidden_size": 0} in trained for row in sweep.rows if row.rule is None)
    assert not {row.name for row in sweep.rows} & {row.name for row in signal.rows}
    assert any(row.rule == "periodic" for row in sweep.rows)
    assert runs_in_head(path) == runs(sweep)


def test_there_is_a_sweep_for_each_signal():
    assert [path.stem for path in SWEEPS] == ["activity", "ecg", "keywords", "remaining-life"]


PARTS = """task = "adding"
seeds = 1
[vary]
hidden_size = [4, 8]
[search]
lr = [0.1, 0.01]
[[parts]]
cells = ["gru"]
[[parts]]
cells = ["gru", "lstm"]
rules = ["selective"]
[parts.vary]
group_size = [1, 4]
"""


def parts(folder, text=PARTS) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_parts_have_combinations_of_their_own(tmp_path):
    sweep = load_sweep(parts(tmp_path), tmp_path / "runs")
    names = [row.name for row in sweep.rows if row.settings["lr"] == 0.1]
    assert names == [
        *(f"gru-hidden_size={size},lr=0.1" for size in (4, 8)),
        *(
            f"{cell}-selective-hidden_size={size},group_size={group},lr=0.1"
            for cell in ("gru", "lstm")
            for size in (4, 8)
            for group in (1, 4)
        ),
    ]
    assert (sweep.varied, sweep.searched) == (("hidden_size", "group_size"), ("lr",))
    # rows that differ in the search alone
    assert len({row.rivals for row in sweep.rows}) == len(names)
    text = PARTS.replace("seeds = 1\n", 'seeds = 1\ncells = ["rnn"]\n')
    assert [row.cell for row in load_sweep(parts(tmp_path, text), tmp_path / "runs").rows][:4] == ["rnn"] * 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (PARTS[PARTS.index("[[parts]]") :], "", "cells: expected a list of names, got none; add cells, or"),
        ("seeds = 1\n", 'seeds = 1\nrules = ["skip"]\n', "rules: expected together with cells, got rules alone"),
        ("group_size = [1, 4]", "lr = [0.1]", r"lr: expected in only one of \[settings\], \[vary\] and \[search\]"),
        ("group_size = [1, 4]", "hidden_size = [1]", "hidden_size: expected in only one of"),
        ('cells = ["gru"]\n', "", "parts: table 1: expected the key 'cells', which is missing"),
        ('cells = ["gru", "lstm"]', "cells = []", "parts: table 2: cells: expected a list of names"),
        ("group_size = [1, 4]", "group_sizes = [1, 4]", "group_sizes"),
        (
            "lr = [0.1, 0.01]",
            'start_run = ["runs/a", "runs_a"]',
            r"start_run: expected values that differ in letters, digits or ,.*, got 'runs/a' and 'runs_a'; change one",
        ),
    ],
)
def test_mistakes_in_parts_are_named(old, new, message, tmp_path):
    with pytest.raises(EdgernnError, match=message):
        load_sweep(parts(tmp_path, PARTS.replace(old, new, 1)), tmp_path / "runs")


def point(value, on=(), **costs):
    return Point("dense cell", "gru", f"{value}", value, None, costs, on)


POINTS = [point(0.9, work=10), point(0.95, work=20), point(0.93, work=30), point(0.99, work=40), point(0.98, work=40)]


def test_the_line_is_the_front_of_the_points_shown():
    assert [p.value for p in shown_front(POINTS, "work", True)] == [0.9, 0.95, 0.99]
    assert [p.value for p in shown_front(POINTS, "work", False)] == [0.9]
    assert shown_front([*POINTS, point(0.99, work=40)], "work", True)[-1] is POINTS[3]
    assert shown_front(POINTS, "latency", True) == []


def test_the_picture_of_fronts_is_drawn(tmp_path):
    # the validation split chose other rows than the test split would
    marked = [point(0.93, ("work",), work=30, bytes=7), *POINTS]
    fronts(tmp_path / "front.png", marked, {"work": "work", "bytes": "bytes", "latency": "time"}, "accuracy", True)
    assert image.imread(tmp_path / "front.png").std() > 0.05


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_points_on_a_front_have_one_number_in_all_plots_and_others_none(monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    both = Point("skipped updates", "gru, delta", "H = 8", 0.99, None, {"work": 2, "bytes": 40}, ["work", "bytes"])
    small = Point("smaller weights", "gru, int8", "H = 8", 0.98, None, {"work": 30, "bytes": 10}, ["bytes"])
    others = [Point("dense cell", "sru", f"H = {i}", 0.9, None, {"work": i, "bytes": i}, []) for i in range(9, 40)]
    fronts(Path("front.png"), [*others, small, both], {"work": "work", "bytes": "bytes"}, "accuracy", True)
    numbers = [{text.get_text(): text.xy for text in ax.texts} for ax in figures[0].axes]
    assert numbers == [{"1": (2, 0.99)}, {"1": (40, 0.99), "2": (10, 0.98)}]
    entries = legend(figures[0])
    assert entries[:2] == ["1: gru, delta, H = 8", "2: gru, int8, H = 8"]
    assert not any("sru" in entry for entry in entries)
    colors = {handle.get_label(): handle.get_color() for handle in figures[0].legends[0].legend_handles}
    assert colors["1: gru, delta, H = 8"] != colors["2: gru, int8, H = 8"]


@pytest.mark.parametrize(("sign", "higher_is_better"), [(1, True), (-1, False)])
def test_a_bad_point_does_not_flatten_the_fronts(sign, higher_is_better, monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    values = [sign * value for value in (90.0, 91.0, 92.0, 93.0, 20.0)]
    points = [Point("dense cell", "gru", "", value, None, {"work": i + 1.0}, []) for i, value in enumerate(values)]
    fronts(Path("front.png"), points, {"work": "work"}, "accuracy", higher_is_better)
    (ax,) = figures[0].axes
    # the best is 93, the median 91: the bad point is drawn at 93 - 4 * 2
    assert sorted(abs(bound) for bound in ax.get_ylim()) == pytest.approx([85 - 0.3 * 8, 93 + 0.3 * 8])
    assert f"clipped to {sign * 85} (true value {sign * 20})" in legend(figures[0])
    assert ax.get_ylabel() == "accuracy, % (test split)"


def test_bars_that_are_longer_than_the_axis_are_left_out(monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    intervals = [(89.0, 91.0), (50.0, 130.0)]
    points = [
        Point("dense cell", "gru", f"{i}", 90.0 + i, interval, {"work": i + 1.0}, ["work"])
        for i, interval in enumerate(intervals)
    ]
    fronts(Path("front.png"), points, {"work": "work"}, "accuracy", True)
    (ax,) = figures[0].axes
    assert len(ax.containers) == 1
    assert "no bar: longer than the axis" in legend(figures[0])
    fronts(Path("front.png"), points[:1], {"work": "work"}, "accuracy", True)
    assert "no bar: longer than the axis" not in legend(figures[1])
