# SPDX-License-Identifier: Apache-2.0
"""Trivial baselines: each equals figures computed by hand, and stands in tables of results."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from edgernn.training.papers.paper_table import markdown
from edgernn.training.papers.tasks.binary_addition import BinaryAddition
from edgernn.training.papers.tasks.brits import Mortality
from edgernn.training.papers.tasks.draw import DrawImages
from edgernn.training.papers.tasks.l2l import LearningToLearn
from edgernn.training.papers.tasks.memorization import Memorization
from edgernn.training.papers.tasks.ptb import NextWord
from edgernn.training.papers.tasks.sentence_vae import SentenceCodes
from edgernn.training.tables.jobs import Job
from edgernn.training.tables.table_text import baseline_lines
from edgernn.training.tables.trivial_baselines import baselines
from edgernn.training.tasks.activity import Activity
from edgernn.training.tasks.adding import Adding
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.char import Char
from edgernn.training.tasks.ecg import Ecg
from edgernn.training.tasks.images import MnistRows
from edgernn.training.tasks.keywords import OwnWords
from edgernn.training.tasks.remaining_life import RemainingLife
from edgernn.training.tasks.seizures import Seizures
from edgernn.training.tasks.sources import Generated, Sequences
from edgernn.training.tasks.trivial import fit_threshold, log_counts
from tests.stays import F, write_stays
from tests.task_helpers import opened
from tests.test_task_ecg import SMALL, write_heart
from tests.training_helpers import write_mnist
from tests.words import write_english

MAJORITY, MEAN, THRESHOLD = "majority class", "mean of the targets", "threshold on the mean magnitude"


def with_parts(task, train, test, **attributes):
    """Give a task its training and its test part, in place of data that it would read."""
    for name, value in {"train": train, "validation": test, "test": test, **attributes}.items():
        setattr(task, name, value)
    return task


def labelled(x, y, **options):
    return Sequences(torch.tensor(x, dtype=torch.float32), torch.tensor(y), **options)


# pieces


def test_frequencies_leave_out_what_has_no_label():
    scores = log_counts(torch.tensor([[2, 0, -1], [2, 2, -2]]), 4)
    assert scores.exp().tolist() == pytest.approx([1, 1, 3, 1])


@pytest.mark.parametrize(
    ("numbers", "labels", "threshold", "sides"),
    [
        ([3.0, 1.0, 4.0, 2.0], [1, 0, 1, 0], 2.5, (0, 1)),
        # the class with small numbers may be either
        ([3.0, 1.0, 4.0, 2.0, 2.2], [0, 1, 0, 1, 0], 2.1, (1, 0)),
        # equal numbers cannot be told apart
        ([1.0, 1.0, 1.0], [0, 1, 1], math.inf, (1, None)),
    ],
)
def test_a_threshold_separates_labels_best(numbers, labels, threshold, sides):
    predict = fit_threshold(torch.tensor(numbers), torch.tensor(labels), 2)
    for number, side in zip((threshold - 0.01, threshold + 0.01), sides, strict=True):
        if math.isfinite(number):
            assert predict(torch.tensor([number])).argmax(-1).item() == side
    if sides[1] is None:
        assert predict(torch.tensor([-1e9, 1e9])).argmax(-1).tolist() == [sides[0]] * 2


def test_a_threshold_is_that_of_every_cut_tried():
    rng = np.random.default_rng(3)
    numbers, labels = rng.normal(size=60).round(1), rng.integers(3, size=60)
    predict = fit_threshold(torch.from_numpy(numbers), torch.from_numpy(labels), 3)
    hits = (predict(torch.from_numpy(numbers)).argmax(-1).numpy() == labels).sum()

    def most(part):
        return max(Counter(part.tolist()).values(), default=0)

    assert hits == max(most(labels[numbers <= cut]) + most(labels[numbers > cut]) for cut in numbers)


# tasks with generated data


def test_adding_has_the_mean_and_the_marker():
    task = opened(Adding(T=10, test_size=50))
    sums = np.concatenate([task.train.batch(step, 100).target.numpy() for step in range(100)])
    errors = task.test.y.numpy() - sums.mean()
    scores = task.baselines()
    assert scores[MEAN] == pytest.approx({"mse": np.mean(errors**2), "mae": np.abs(errors).mean()}, rel=1e-5)
    assert scores["marker as the gate"] == {"mse": 0.0, "mae": 0.0, "skip_percent": pytest.approx(80.0)}


def test_memorization_keeps_the_first_steps():
    task = opened(Memorization(bits=3, noise=9, train_size=20, test_size=8))
    mean = task.train.y.double().mean(0)
    scores = task.baselines()
    assert scores[MEAN]["squared_error"] == pytest.approx(float((task.test.y - mean).square().sum(1).mean()))
    assert scores["first steps, kept"] == {"squared_error": 0.0, "bit_accuracy": 1.0, "skip_percent": 75.0}


def test_binary_addition_without_carries():
    task = opened(BinaryAddition(digits=4, train_size=30, test_size=40))
    x, sums = task.test.x.numpy(), task.test.y.numpy()
    right = (x[..., :1] != x[..., 1:]) == sums
    scores = task.baselines()
    without, mean = scores["sum without carries"], scores["mean digit"]
    assert without["digit_accuracy"] == pytest.approx(right.mean())
    assert without["sum_accuracy"] == pytest.approx(right.all(1).mean())
    assert without["mse"] == pytest.approx(1 - right.mean())
    digit = task.train.y.mean().item()
    assert mean["mse"] == pytest.approx(((sums - digit) ** 2).mean(), rel=1e-5)
    assert mean["digit_accuracy"] == pytest.approx((sums == round(digit)).mean())


def test_targets_of_a_source_are_those_of_its_batches():
    make = Adding(T=4).make
    source = Generated(make, 3, 7)
    assert torch.equal(source.targets()[100:200], source.batch(1, 100).target)
    assert source.targets().shape == (300, 1)
    steps = Generated(BinaryAddition(digits=5).make, 2, 0, per_step=True)
    assert steps.targets().shape == (5, 200, 1)


# tasks with data sets


def test_labels_have_the_majority_class():
    train = labelled(np.zeros((5, 2, 1)), [1, 1, 0, 1, 2])
    task = with_parts(MnistRows(), train, labelled(np.zeros((4, 2, 1)), [1, 0, 1, 3]), output_size=4)
    (metrics,) = task.baselines().values()
    # class 3 is in no training sequence and counts as if it were in one
    log_p = {1: math.log(3 / 6), 0: math.log(1 / 6), 3: math.log(1 / 6)}
    assert metrics["accuracy"] == 0.5
    assert metrics["cross_entropy"] == pytest.approx(-(2 * log_p[1] + log_p[0] + log_p[3]) / 4)


def test_seizures_have_a_threshold_on_the_amplitude():
    signs = np.resize([1.0, -1.0], 17)[None, :, None]
    train = labelled(np.array([1.0, 2.0, 3.0, 8.0, 2.5, 9.0])[:, None, None] * signs, [0, 0, 0, 1, 1, 1])
    test = labelled(np.array([1.0, 5.0, 6.0, 7.0])[:, None, None] * signs, [0, 0, 1, 1])
    scores = with_parts(Seizures(), train, test).baselines()
    assert scores[MAJORITY]["accuracy"] == 0.5
    # 2.25 and 5.5 separate all but one training sequence, and the smaller one is taken
    assert scores[THRESHOLD]["accuracy"] == 0.75
    entropy = -(math.log(2 / 3) + math.log(1 / 4) + 2 * math.log(3 / 4)) / 4
    assert scores[THRESHOLD]["cross_entropy"] == pytest.approx(entropy)


def test_steps_without_a_label_are_left_out():
    train = labelled(np.zeros((1, 5, 6)), [[3, 3, -1, -2, 0]], per_step=True)
    test = labelled(np.zeros((2, 3, 6)), [[3, 3, -1], [0, 5, 3]], per_step=True)
    scores = with_parts(Activity(), train, test).baselines()
    assert scores[MAJORITY]["accuracy"] == pytest.approx(3 / 5)
    assert scores[MAJORITY]["recall_sitting"] == 1
    assert scores[MAJORITY]["macro_f1"] == pytest.approx(2 * 3 / (3 + 5) / 6)


def test_remaining_life_is_the_capped_mean():
    train = labelled(np.zeros((4, 2, 24)), [[0.2], [0.4], [1.5], [3.0]])
    test = labelled(np.zeros((2, 2, 24)), [[0.65], [2.0]])
    (metrics,) = with_parts(RemainingLife(cap=100), train, test).baselines().values()
    # the mean is 65 cycles
    assert metrics["rmse"] == pytest.approx(math.sqrt(35**2 / 2), rel=1e-5)
    assert metrics["rmse_uncapped"] == pytest.approx(math.sqrt(135**2 / 2), rel=1e-5)


def test_the_next_step_is_like_this_one(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 5, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x[:8], x_test=x[8:])
    task = opened(Arrays(predict="next"), tmp_path / "data.npz")
    scores = task.baselines()
    assert scores["last value"]["mse"] == pytest.approx(float(np.mean(np.diff(x[8:], axis=1) ** 2)), rel=1e-5)
    mean = task.train.y.mean((0, 1)).numpy()
    assert scores[MEAN]["mse"] == pytest.approx(float(np.mean((x[8:, 1:] - mean) ** 2)), rel=1e-5)
    np.savez(tmp_path / "labels.npz", x=x, y=np.arange(12) % 3)
    assert opened(Arrays(), tmp_path / "labels.npz").baselines().keys() == {MAJORITY}


def test_characters_have_their_frequencies(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcab" * 40)
    task = opened(Char(file=str(path), window=4))
    counts = Counter(task.train.y.flatten().tolist())
    entropy = -np.mean([math.log(counts[c] / counts.total()) for c in task.test.y.flatten().tolist()])
    (metrics,) = task.baselines().values()
    assert metrics["cross_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert metrics["bits_per_character"] == pytest.approx(entropy / math.log(2), rel=1e-5)


@pytest.fixture
def text(tmp_path):
    for part, lines in {"train": "a b\na a c\n", "valid": "a\n", "test": "c a\nb\n"}.items():
        (tmp_path / f"{part}.txt").write_text(lines)
    return tmp_path


def test_words_have_their_frequencies(text):
    # of 7 words of the training part: a 3, b 1, c 1, end of a sentence 2
    log_p = [math.log(n / 8) for n in (1, 3, 2, 1, 2)]
    task = opened(NextWord(), text)
    # <unk>, which the training part lacks, counts as if it were there once
    assert len(task.classes) == 5
    (metrics,) = task.baselines().values()
    assert metrics["cross_entropy"] == pytest.approx(-sum(log_p) / 5)
    assert metrics["perplexity"] == pytest.approx(math.exp(-sum(log_p) / 5))
    (metrics,) = opened(SentenceCodes(), text).baselines().values()
    assert metrics["nll"] == metrics["reconstruction"] == pytest.approx(-sum(log_p) / 2)
    assert metrics["kl"] == 0
    assert metrics["perplexity"] == pytest.approx(math.exp(-sum(log_p) / 5))


def test_images_have_their_mean():
    train = Sequences(torch.tensor([[[0, 255]], [[255, 255]], [[0, 255]]], dtype=torch.uint8), torch.empty(3, 0))
    test = Sequences(torch.tensor([[[0, 255]], [[255, 0]]], dtype=torch.uint8), torch.empty(2, 0))
    (metrics,) = with_parts(DrawImages(), train, test).baselines().values()
    # a pixel is white in 1 and 3 of 3 images, and in one of two more
    nats = [math.log(3 / 5) + math.log(4 / 5), math.log(2 / 5) + math.log(1 / 5)]
    assert metrics["nll_bound"] == metrics["reconstruction"] == pytest.approx(-sum(nats) / 2, rel=1e-6)


def test_imputed_values_are_the_mean_or_the_last(tmp_path):
    write_stays(tmp_path / "physionet2012")
    task = opened(Mortality(), tmp_path)
    x, y = task.test.x.numpy(), task.test.y.numpy()
    mean, std = np.array(task.mean[:F]), np.array(task.std[:F])
    sizes, errors = [], []
    for n, t, f in np.argwhere(~np.isnan(y[..., :F])):
        truth = (y[n, t, f] - mean[f]) / std[f]
        before = [s for s in range(t) if x[n, s, F + f]]
        last = (x[n, before[-1], f] - mean[f]) / std[f] if before else 0
        sizes.append(abs(truth))
        errors.append(abs(last - truth))
    scores = task.baselines()
    by_mean, by_last = scores["mean of each feature"], scores["last value of each feature"]
    assert by_mean["mae"] == pytest.approx(np.mean(sizes), rel=1e-5)
    assert by_mean["mre"] == pytest.approx(1)
    assert by_last["mae"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert by_last["mre"] == pytest.approx(np.sum(errors) / np.sum(sizes), rel=1e-5)
    share, dies = task.train.y[:, 0, -1].mean().item(), y[:, 0, -1]
    entropy = -np.mean(np.where(dies > 0, math.log(share), math.log(1 - share)))
    for metrics in scores.values():
        assert metrics["auc"] == 0.5
        assert metrics["accuracy"] == pytest.approx(np.mean(dies == 0))
        assert metrics["cross_entropy"] == pytest.approx(entropy, rel=1e-5)


def test_an_optimisee_that_stays_as_it_starts(tmp_path):
    write_mnist(tmp_path / "mnist", train=36, test=10)
    task = opened(LearningToLearn(trials=2, run_steps=4, unroll=2, minibatch=5), tmp_path)
    losses, hits = [], []
    for number in range(2):
        theta = task.classifier.start(torch.Generator().manual_seed(33000 + number))
        (batch,) = task.test.chunks()
        y = task.classifier(theta, batch.x)
        losses.append(float(torch.nn.functional.cross_entropy(y, batch.target)))
        hits.append(float((y.argmax(-1) == batch.target).double().mean()))
    (metrics,) = task.baselines().values()
    assert metrics["final_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert metrics["final_accuracy"] == pytest.approx(np.mean(hits))
    assert metrics["mean_loss"] == pytest.approx(math.log(10), abs=0.1)


def test_words_have_the_majority_class(tmp_path):
    write_english(tmp_path)
    task = opened(OwnWords(words="left,right", silence=0.5), tmp_path)
    # 6 clips of each word for training, 2 of an unknown word, 6 of silence
    labels = Counter(task.train.targets().tolist())
    assert labels == {0: 6, 1: 6, 2: 2, 3: 6}
    (test,) = task.test.chunks()
    (metrics,) = task.baselines().values()
    assert metrics["accuracy"] == pytest.approx(float((test.target == 0).double().mean()))
    assert metrics["accuracy_words"] == 0.5
    entropy = -np.mean([math.log(labels[label] / 20) for label in test.target.tolist()])
    assert metrics["cross_entropy"] == pytest.approx(entropy, rel=1e-5)
    # in a stream nearly all steps are silent, and so is each clip
    (metrics,) = opened(OwnWords(words="left,right", stream=3.0), tmp_path).baselines().values()
    assert metrics["accuracy_words"] == 0


def test_heart_beats_are_found_by_their_range(tmp_path):
    write_heart(tmp_path / "mit-bih")
    scores = opened(Ecg(**SMALL), tmp_path).baselines()
    assert scores[MAJORITY] == dict.fromkeys(scores[MAJORITY], 0.0)
    # N and S have the same shape, so that both are found as N; V is wider and lower
    by_range = scores["threshold on the range of the signal"]
    records = opened(Ecg(**SMALL), tmp_path).test.records
    counts = Counter(np.concatenate([record.label for record in records]).tolist())
    assert by_range["sensitivity_N"] > 0.95
    assert by_range["sensitivity_S"] == by_range["sensitivity_V"] == 0
    precision = by_range["precision_N"]
    assert counts[0] / counts.total() - 0.02 < precision < counts[0] / (counts[0] + counts[1]) + 0.02
    f1 = 2 * precision * by_range["sensitivity_N"] / (precision + by_range["sensitivity_N"])
    assert by_range["macro_f1"] == pytest.approx(f1 / 3)
    assert opened(Ecg(positions=True), tmp_path).baselines().keys() == {MAJORITY}


# tables of results


def adding_jobs(tmp_path, seeds=(0, 1), cells=("gru", "sarnn"), **settings):
    shared = {"train_size": 30, "test_size": 20, "skip_target": None, **settings}
    return [
        Job("adding", cell, None, seed, {**shared, "T": T}, tmp_path / "none")
        for cell in cells
        for T in (6, 8)
        for seed in seeds
    ]


def test_a_baseline_is_scored_once_for_each_task_and_seed(tmp_path):
    entries = baselines(adding_jobs(tmp_path), ["mse", "solved", "flops"], None)
    names = [MEAN, "marker as the gate"]
    assert [(entry["name"], entry["settings"]) for entry in entries] == [
        (names[0], {"T": 6}),
        # right for each T
        (names[1], {}),
        (names[0], {"T": 8}),
    ]
    for entry, T in zip(entries[::2], (6, 8), strict=True):
        assert entry["columns"].keys() == {"mse", "solved"}
        assert entry["seeds"] == [0, 1]
        expected = [opened(Adding(T=T, train_size=30, test_size=20), seed=seed).baselines()[MEAN] for seed in (0, 1)]
        assert entry["columns"]["mse"]["values"] == [metrics["mse"] for metrics in expected]
        # a share in percent, as in the tables
        assert entry["columns"]["solved"]["mean"] == 0
    assert entries[1]["columns"]["solved"]["mean"] == 100


def test_a_setting_without_effect_on_a_baseline_is_left_out(tmp_path):
    jobs = [
        Job("memorization", "gru", None, 0, {"noise": noise, "train_size": 9, "test_size": 5}, tmp_path / "none")
        for noise in (2, 6)
    ]
    mean, *kept = baselines(jobs, ["squared_error", "skip_percent"], None)
    assert (mean["name"], mean["settings"]) == (MEAN, {})
    # the steps that it skips depend on the noise
    assert [entry["settings"] for entry in kept] == [{"noise": 2}, {"noise": 6}]


def test_a_table_without_data_says_why_there_is_no_baseline(tmp_path):
    (entry,) = baselines([Job("remaining-life", "gru", None, 0, {}, tmp_path / "none")], ["rmse"], tmp_path)
    assert (entry["name"], entry["columns"]) == ("", {})
    (line,) = baseline_lines({"baselines": [entry]})
    assert line.startswith("No trivial baselines: ")
    assert "train_FD001.txt" in line


def paper_report(tmp_path, **changes):
    """A table of adding with one row for each T, whose runs had the seeds 0 and 1."""
    jobs = adding_jobs(tmp_path, cells=("gru",))
    column = {"n": 2, "mean": 0.1, "sd": 0.0, "interval": [0.1, 0.1], "values": [0.1, 0.1]}
    compared = {"paper": None, "agreement": None}
    rows = [
        {
            "name": "gru",
            "variant": {"T": T},
            "seeds": [0, 1],
            "failed": {},
            "parameters": 9,
            "seconds": 1.0,
            "columns": {name: {**column, **compared} for name in ("mse", "skip_percent", "flops")},
        }
        for T in (6, 8)
    ]
    about = {"title": "t", "paper": "p", "note": "", "command": "c", "quick": False, "paper_seeds": None}
    about |= {"interval": "", "machine": "m", "edgernn": "0", "claims": [], "agreement": {"within": 0}, "vary": ["T"]}
    columns = ["mse", "skip_percent", "flops"]
    return {**about, "columns": columns, "rows": rows, "baselines": baselines(jobs, columns, None), **changes}


def test_a_page_shows_baselines_beside_models(tmp_path):
    report = paper_report(tmp_path)
    lines = markdown(report).splitlines()
    (line,) = (line for line in lines if line.startswith("| *marker as the gate* | 8 |"))
    # MSE and skip have no figure of the paper, and FLOPs none at all
    assert line == "| *marker as the gate* | 8 |  | 0 ± 0 |  | 75 ± 0 |  |  |  | 2 |  |"
    assert sum(line.startswith(f"| *{MEAN}* | ") for line in lines) == 2
    assert any("trivial baselines" in line for line in lines)
    assert {line.count("|") for line in lines if line.startswith("|")} == {lines[lines.index(line)].count("|")}
    # reports of earlier versions have none
    del report["baselines"]
    assert "*" not in "".join(line for line in markdown(report).splitlines() if line.startswith("|"))
