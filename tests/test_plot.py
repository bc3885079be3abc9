# SPDX-License-Identifier: Apache-2.0
"""Plots of runs: the plots of each kind of run, and their contents."""

import shutil

import numpy as np
import pytest
import torch
from matplotlib import image

from edgernn.errors import EdgernnError, UsageError
from edgernn.model import SequenceModel
from edgernn.training import train
from edgernn.training.pictures import OperatingPoint, confusion_matrix, save, tradeoff, update_patterns
from edgernn.training.plot import plot

SMALL = {"T": 8, "hidden_size": 6, "batch_size": 10, "steps": 6, "eval_every": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, cell, settings in (
        ("gru", "gru", {}),
        ("sarnn-0", "sarnn", {"lambda": 0.0}),
        ("sarnn-1", "sarnn", {"lambda": 1.0}),
        ("skiprnn", "skiprnn", {}),
    ):
        train("adding", cell, out=folder / name, settings={**SMALL, **settings})
    return folder


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["gru"], ["learning"]),
        # the initial state is learned
        (["skiprnn"], ["learning", "pattern"]),
        (["sarnn-0", "sarnn-1", "gru"], ["learning", "pattern", "tradeoff"]),
    ],
)
@pytest.mark.slow
def test_runs_give_all_the_pictures_they_can(runs, tmp_path, names, kinds):
    pictures = plot([runs / name for name in names], tmp_path)
    assert [path.name for path in pictures] == [f"{kind}.{suffix}" for kind in kinds for suffix in ("png", "svg")]
    for path in pictures:
        if path.suffix == ".png":
            pixels = image.imread(path)[..., :3]
            assert min(pixels.shape[:2]) > 200
            assert np.ptp(pixels) == 1
        else:
            assert path.read_text().lstrip().startswith("<?xml")


def test_pictures_of_one_run_lie_beside_it(runs):
    assert {path.parent for path in plot([runs / "gru"], kinds=["learning"])} == {runs / "gru"}


def test_names_of_runs_are_drawn_as_they_stand(runs, tmp_path, monkeypatch):
    names = ["_first", "a$b$c", b"caf\xe9".decode(errors="surrogateescape")]
    for name in names:
        shutil.copytree(runs / "gru", tmp_path / name)
    legends = []
    monkeypatch.setattr(
        "edgernn.training.pictures.save",
        lambda figure, path: legends.append(figure.axes[0].get_legend_handles_labels()[1]) or save(figure, path),
    )
    plot([tmp_path / name for name in names], tmp_path / "plots", kinds=["learning"])
    assert legends == 2 * [[" _first", r"a\$b\$c", r"caf\udce9"]]


def test_what_cannot_be_drawn_says_why(runs, tmp_path):
    with pytest.raises(
        EdgernnError,
        match="pattern: cannot be plotted: expected a run whose update rule skips updates, such as selective, got",
    ):
        plot([runs / "gru"], tmp_path, ["pattern"])
    with pytest.raises(EdgernnError, match="tradeoff: cannot be plotted: expected several runs to compare, got one"):
        plot([runs / "gru"], tmp_path, ["tradeoff"])
    with pytest.raises(UsageError, match="kind: expected one of learning, pattern, tradeoff, got 'lerning'"):
        plot([runs / "gru"], tmp_path, ["lerning"])
    with pytest.raises(EdgernnError, match="no such run directory"):
        plot([tmp_path / "nothing"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_not_finished_has_a_learning_curve_alone(runs, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (run / name).write_bytes((runs / "sarnn-0" / name).read_bytes())
    assert {path.stem for path in plot([run])} == {"learning"}


def test_runs_of_different_metrics_are_not_mixed(runs, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((30, 8, 2)), y=rng.integers(2, size=30))
    train(str(tmp_path / "own.npz"), "gru", out=tmp_path / "own", settings={"steps": 2, "hidden_size": 4})
    with pytest.raises(EdgernnError, match="expected runs of one metric, got accuracy, mse"):
        plot([runs / "gru", tmp_path / "own"], tmp_path / "out", ["learning"])


def test_a_pattern_is_black_where_a_neuron_changes(tmp_path):
    torch.manual_seed(0)
    models = {"all": SequenceModel("gru", 1, 4).eval(), "none": SequenceModel("gru", 1, 4, rule="random").eval()}
    models["none"].recurrent_layers()[0].rule.rule_rate.fill_(0.0)
    update_patterns(tmp_path / "p.png", models, torch.zeros(6, 1, 1))
    pixels = image.imread(tmp_path / "p.png")[..., :3].mean(-1)
    middle = pixels.shape[0] // 2
    half = pixels.shape[1] // 2
    assert pixels[middle, half // 2 + 20] == pytest.approx(0, abs=0.02)
    assert pixels[middle, half + half // 2 + 20] == pytest.approx(1, abs=0.02)


def test_a_price_is_drawn_for_every_group(tmp_path):
    outcomes = [
        OperatingPoint("a", 10.0, 0.9, 0.0),
        OperatingPoint("a", 80.0, 0.8, 1e-3),
        OperatingPoint("b", 50.0, 0.5, 1e-4),
    ]
    tradeoff(tmp_path / "t.svg", outcomes, "accuracy")
    text = (tmp_path / "t.svg").read_text()
    # legend and axis labels, which the SVG keeps as comments beside the outlines
    for word in ("<!-- a -->", "<!-- b -->", "<!-- accuracy -->", "<!-- updates skipped, % -->"):
        assert word in text, word


def test_names_that_the_font_lacks_or_that_take_all_the_room_are_drawn_in_silence(tmp_path):
    confusion_matrix(tmp_path / "confusion.png", torch.eye(2), ["\u65e5\u672c", "a" * 200])
    assert image.imread(tmp_path / "confusion.png").ndim == 3
