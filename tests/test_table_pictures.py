# SPDX-License-Identifier: Apache-2.0
"""Pictures of a table: the contents of each kind, including rows that are not measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from edgernn.errors import EdgernnError
from edgernn.training.papers import recipe as recipes
from edgernn.training.papers.report_pictures import Boxes
from edgernn.training.papers.reproduce import join_series, reproduce
from edgernn.training.papers.table_pictures import draw_pictures, read_picture
from edgernn.training.pictures import NothingToDrawError
from edgernn.training.run_directory import RunDirectory
from edgernn.training.statistics import spread
from edgernn.training.tables.series import run_series

NAMED = {"name": "p", "text": "T."}


def row(name, variant, values, series=None):
    columns = {column: spread(numbers) for column, numbers in values.items()}
    return {"name": name, "variant": variant, "columns": columns, "series": series or {}}


def curve(*values):
    return {"over": "epoch", "at": list(range(1, len(values[0]) + 1)), "values": [list(v) for v in values]}


REPORT = {
    "rows": [
        row(
            name,
            {"T": T, "lambda": weight},
            {"mse": [level * T, level * T * 1.1], "skip_percent": [10.0 * T + weight, 12.0 * T + weight]},
            {
                "loss": curve([level, level / 2, level / 4], [level, level / 3, level / 9]),
                "sgd_loss": curve([1.0, 1.0]),
            },
        )
        for name, level in (("a", 0.5), ("b", 2.0))
        for T in (1, 20)
        for weight in (0.0, 0.1)
    ]
}
KINDS = [
    {"kind": "trend", "column": "mse", "over": "T"},
    {"kind": "trend", "column": "mse", "over": "T", "panels": "lambda", "log": True},
    {"kind": "trend", "column": "mse", "over": "lambda", "panels": [["a"], ["b"]]},
    {"kind": "curves", "series": "loss", "baselines": ["sgd_loss"], "panels": "T"},
    {"kind": "boxes", "of": ["mse"], "panels": [["a"], ["b"]], "violins": True},
    {"kind": "boxes", "of": ["loss", "mse"], "panels": "T"},
    {"kind": "boxes", "of": ["loss"], "every": 2, "log": True},
    {"kind": "tradeoff", "column": "mse"},
    {"kind": "scatter", "column": "mse", "against": "skip_percent", "groups": [["a"], ["b"]]},
    {
        "kind": "equations",
        "equations": [{"title": "E", "start": 1.0, "f": [0.5], "i": [1]}],
    },
]


@pytest.mark.parametrize("fields", KINDS, ids=[f"{fields['kind']}-{i}" for i, fields in enumerate(KINDS)])
def test_every_kind_draws(fields, tmp_path):
    (path,) = draw_pictures([read_picture(NAMED | fields)], REPORT, tmp_path, {}, prefix="t-")
    assert path == tmp_path / "t-p.png"
    pixels = image.imread(path)[..., :3]
    assert min(pixels.shape[:2]) > 200
    assert np.ptp(pixels) > 0.9


@pytest.mark.parametrize("fields", KINDS[:-1], ids=[f"{fields['kind']}-{i}" for i, fields in enumerate(KINDS[:-1])])
def test_rows_that_are_not_measured_leave_nothing_to_draw(fields, tmp_path):
    empty = {"rows": [row("a", {"T": 1, "lambda": 0.0}, {"mse": [], "skip_percent": []})]}
    assert draw_pictures([read_picture(NAMED | fields)], empty, tmp_path, {}) == []
    assert not list(tmp_path.iterdir())


def texts(fields, report, tmp_path):
    path = tmp_path / "p.svg"
    read_picture(NAMED | fields).draw(path, report, {})
    return path.read_text()


def test_a_trend_has_a_line_for_each_row_and_a_plot_for_each_value(tmp_path):
    text = texts({"kind": "trend", "column": "mse", "over": "T", "panels": "lambda"}, REPORT, tmp_path)
    for word in ("a", "b", "lambda = 0.0", "lambda = 0.1", "MSE"):
        assert f"<!-- {word} -->" in text, word


def test_curves_have_a_line_for_each_row_and_each_baseline(tmp_path):
    text = texts({"kind": "curves", "series": "loss", "baselines": ["sgd_loss"]}, REPORT, tmp_path)
    assert text.count("<!-- sgd -->") == 1
    assert "<!-- epoch -->" in text


def test_a_scatter_labels_a_group_of_one_row_by_its_whole_name(tmp_path):
    names = ("groups-1", "groups-16", "skip-a", "skip-b")
    columns = {"mse": [0.1, 0.2], "skip_percent": [50.0, 60.0]}
    report = {"rows": [row(name, {}, columns) for name in names]}
    groups = [["groups-1"], ["groups-16"], ["skip-a", "skip-b"]]
    text = texts({"kind": "scatter", "column": "mse", "against": "skip_percent", "groups": groups}, report, tmp_path)
    for word in ("groups-1", "groups-16", "skip"):
        assert f"<!-- {word} -->" in text, word
    text = texts({"kind": "scatter", "column": "mse", "against": "skip_percent"}, report, tmp_path)
    for word in names:
        assert f"<!-- {word} -->" in text, word


def test_a_scatter_over_time_shows_the_rows_whose_time_is_measured(tmp_path):
    fields = {"kind": "scatter", "column": "mse", "against": "microseconds", "groups": [["timed"], ["other"]]}
    rows = [row(name, {}, {"mse": [0.1, 0.2], "skip_percent": [50.0]}) for name in ("timed", "other")]
    with pytest.raises(NothingToDrawError):
        texts(fields, {"rows": rows}, tmp_path)
    rows[0]["latency"] = {"microseconds": {"mean": 12.0, "interval": [11.0, 13.0]}}
    text = texts(fields, {"rows": rows}, tmp_path)
    assert "<!-- timed -->" in text
    assert "<!-- other -->" not in text
    assert "<!-- µs a sequence -->" in text


def test_a_series_is_cut_into_parts(tmp_path):
    text = texts({"kind": "boxes", "of": ["loss"], "every": 2}, REPORT, tmp_path)
    for word in ("1-2", "3-4", "epoch"):
        assert f"<!-- {word} -->" in text, word


def test_pictures_of_models_say_which_run_is_missing(tmp_path):
    picture = read_picture(NAMED | {"kind": "kept", "rows": ["a", "b"]})
    assert picture.of_runs
    with pytest.raises(NothingToDrawError, match="b"):
        picture.draw(tmp_path / "p.png", REPORT, {("a", ""): tmp_path})


def test_samples_of_runs_stand_under_each_other(tmp_path):
    runs = {}
    for name, grey in (("a", 0.2), ("b", 0.8)):
        (tmp_path / name).mkdir()
        image.imsave(tmp_path / name / "samples.png", np.full((40, 80, 3), grey))
        runs[name, "T=1"] = tmp_path / name
    picture = read_picture(NAMED | {"kind": "samples", "rows": ["a", "b"], "variant": "T=1"})
    (path,) = draw_pictures([picture], {"rows": []}, tmp_path, runs)
    pixels = image.imread(path)[..., :3].mean(-1)
    middle = pixels[:, pixels.shape[1] // 2]
    assert middle[len(middle) // 4] == pytest.approx(0.2, abs=0.02)
    assert middle[3 * len(middle) // 4] == pytest.approx(0.8, abs=0.02)


def test_a_picture_is_a_table_of_a_known_kind():
    with pytest.raises(EdgernnError, match="expected a TOML table with the key kind, got 3"):
        read_picture(3)
    with pytest.raises(EdgernnError, match="unknown kind 'box': did you mean 'boxes'"):
        read_picture(NAMED | {"kind": "box"})
    with pytest.raises(EdgernnError, match=r"boxes: of: expected a list of names, got \[\]"):
        read_picture(NAMED | {"kind": "boxes", "of": []})
    assert read_picture(NAMED | {"kind": "boxes", "of": ["a"]}) == Boxes(**NAMED, of=["a"])


def test_series_are_those_of_the_evaluations_and_of_the_task(tmp_path):
    for seed, steps in ((0, 3), (1, 2)):
        run = tmp_path / f"{seed}"
        run.mkdir()
        lines = [{"step": 5 * k, "epoch": k, "loss": 1 / 3 / k} for k in range(1, steps + 1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        RunDirectory(run).save_series({"curve": [1.0, float(seed)]})
    runs = [tmp_path / "0", tmp_path / "1"]
    series = {name: join_series([run_series(name, run) for run in runs]) for name in ("loss", "curve", "missing")}
    assert series == {
        "loss": {"over": "epoch", "at": [1, 2, 3], "values": [[0.33333, 0.16667, 0.11111], [0.33333, 0.16667]]},
        "curve": {"over": "step", "at": [1, 2], "values": [[1.0, 0.0], [1.0, 1.0]]},
        "missing": None,
    }
    # several evaluations per epoch
    lines = [{"step": 5 * k, "epoch": 0, "loss": 1.0} for k in (1, 2)]
    (tmp_path / "0/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss = run_series("loss", tmp_path / "0")
    assert (loss.over, loss.at) == ("step", [5, 10])


TABLE = """title = "T"
paper = "P"
task = "adding"
columns = ["mse", "skip_percent", "neurons_updated"]
series = ["loss", "mse"]
[settings]
T = 8
hidden_size = 4
batch_size = 10
steps = 4
eval_every = 2
[vary]
lambda = [0.0, 0.5]
[[claims]]
text = "C"
kind = "no-more"
column = "mse"
rows = ["sarnn", "sarnn"]
variant = "lambda=0.0"
than = "lambda=0.5"
[[pictures]]
name = "loss"
kind = "curves"
series = "loss"
text = "L."
[[pictures]]
name = "kept"
kind = "kept"
rows = ["sarnn"]
variant = "lambda=0.5"
text = "K."
[[pictures]]
name = "cobweb"
kind = "cobwebs"
rows = ["sarnn"]
variant = "lambda=0.0"
text = "C."
[[pictures]]
name = "patterns"
kind = "patterns"
rows = ["sarnn"]
variant = "lambda=0.0"
text = "P."
[rows.sarnn]
stands-for = "row"
cell = "sarnn"
settings.lr = 0.001
"""


@pytest.mark.slow
def test_a_table_keeps_series_and_leaves_its_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/t.toml").write_text(TABLE)
    report = reproduce("t", out=tmp_path / "runs", seeds=2, jobs=1)
    files = [f"{tmp_path}/runs/{name}" for name in ("table.json", "table.md", "loss.png", "kept.png", "cobweb.png")]
    assert report["files"] == [*files, f"{tmp_path}/runs/patterns.png"]
    for row in report["rows"]:
        run = tmp_path / f"runs/sarnn-lambda={row['variant']['lambda']}-seed1"
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert row["series"]["loss"]["values"][1] == pytest.approx([line["loss"] for line in lines], rel=1e-4)
        assert row["series"]["mse"]["at"] == [2, 4]
        result = json.loads((run / "result.json").read_text())
        updated = 4 * (1 - result["skip_percent"] / 100)
        assert row["columns"]["neurons_updated"]["values"][1] == pytest.approx(updated)
    (claim,) = report["claims"]
    first, second = (np.mean(row["columns"]["mse"]["values"]) for row in report["rows"])
    assert claim["result"]["value"] == pytest.approx(first - second)
    page = (tmp_path / "runs/table.md").read_text()
    assert "MSE, sarnn (lambda=0.0) less sarnn (lambda=0.5) is" in page


def figure_of(fields, report, monkeypatch):
    figures = []
    monkeypatch.setattr("edgernn.training.papers.report_pictures.save", lambda figure, path: figures.append(figure))
    read_picture(NAMED | fields).draw(Path("p.png"), report, {})
    return figures[0]


def ends(ax):
    """Return the lowest and highest end of the vertical bars in a plot."""
    bars = [segment for line in ax.containers for segment in line.lines[2][0].get_segments()]
    return min(bar[0][1] for bar in bars), max(bar[1][1] for bar in bars)


def test_bars_end_at_the_limits_of_a_column(monkeypatch):
    rows = [row("a", {"T": T}, {"mse": [0.1, 0.9], "accuracy": [91.0, 99.0]}) for T in (1, 2)]
    assert rows[0]["columns"]["mse"]["interval"][0] < 0
    assert rows[0]["columns"]["accuracy"]["interval"][1] > 100
    (ax,) = figure_of({"kind": "trend", "column": "mse", "over": "T"}, {"rows": rows}, monkeypatch).axes
    assert (ends(ax)[0], ax.get_ylim()[0], ax.get_xlabel()) == (0, 0, "T, steps")
    assert ends(ax)[1] == pytest.approx(rows[0]["columns"]["mse"]["interval"][1])
    (ax,) = figure_of({"kind": "trend", "column": "accuracy", "over": "T"}, {"rows": rows}, monkeypatch).axes
    assert ends(ax)[1] == pytest.approx(100)


def test_the_legend_of_a_scatter_is_beside_the_plot(monkeypatch):
    rows = [row(name, {}, {"mse": [0.1, 0.2], "skip_percent": [50.0, 60.0]}) for name in "ab"]
    figure = figure_of({"kind": "scatter", "column": "mse", "against": "skip_percent"}, {"rows": rows}, monkeypatch)
    figure.canvas.draw()
    (ax,) = figure.axes
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


def test_more_than_three_plots_are_in_several_rows(monkeypatch):
    rows = [row("a", {"T": T, "hidden_size": H}, {"mse": [0.1, 0.2]}) for T in (1, 2) for H in range(5)]
    fields = {"kind": "trend", "column": "mse", "over": "T", "panels": "hidden_size"}
    figure = figure_of(fields, {"rows": rows}, monkeypatch)
    assert [ax.get_title() for ax in figure.axes] == [*(f"H = {H}" for H in range(5)), ""]
    assert [ax.get_subplotspec().get_gridspec().ncols for ax in figure.axes] == [3] * 6
