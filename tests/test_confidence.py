# SPDX-License-Identifier: Apache-2.0
"""The confidence interval of a metric on the test sequences."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import edgernn
from benchmarks.confidence import Interval, metric_interval
from edgernn.training.tasks.base import CLASSIFICATION, Objective, Task
from edgernn.training.tasks.confusion import Confusion, calibrate, calibration_error, fit_temperature, interval
from edgernn.training.tasks.ecg import BeatTally, Ecg
from edgernn.training.tasks.sources import Batch, Sequences
from tests.task_helpers import opened
from tests.test_task_ecg import SMALL, write_heart


@dataclass
class Guess(Task):
    """Labels of which a share is 0, and a model that always says 0."""

    name: ClassVar[str] = "guess"
    help: ClassVar[str] = ""
    count: int = 1000
    counted: bool = False

    def open(self, source, seed):
        self.objective, self.input_size, self.output_size = CLASSIFICATION, 1, 2
        generator = torch.Generator().manual_seed(seed)
        y = (torch.rand(self.count, generator=generator) < 0.2).long()
        self.test = Sequences(torch.ones(self.count, 3, 1), y)

    def tally(self, split):
        return Confusion(["a", "b"]) if self.counted else None


def zeros():
    model = edgernn.SequenceModel("rnn", 1, 2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.head.bias[0] = 1.0
    return model


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_few_sequences_have_no_interval(count, counted):
    task = Guess(count=count, counted=counted)
    task.open(None, 0)
    assert metric_interval(zeros(), task) is None


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.slow
def test_the_interval_of_a_share_is_that_of_the_binomial_distribution(counted):
    task = Guess(counted=counted)
    halves, inside = [], 0
    for seed in range(20):
        task.open(None, seed)
        share = 1 - task.test.y.double().mean().item()
        interval = metric_interval(zeros(), task)
        assert (interval.low + interval.high) / 2 == pytest.approx(share)
        halves.append((interval.high - interval.low) / 2)
        inside += interval.low <= 0.8 <= interval.high
    assert sum(halves) / 20 == pytest.approx(1.96 * math.sqrt(0.16 / 1000), rel=0.1)
    assert inside >= 16
    assert interval.method == "jackknife over 50 groups of the test sequences"
    assert not interval.by_record
    assert "too narrow for those of new ones" in interval.scope
    # the files of a test set may be sorted by class
    task.test.y = task.test.y.sort()[0]
    interval = metric_interval(zeros(), task)
    assert (interval.high - interval.low) / 2 == pytest.approx(1.96 * math.sqrt(0.16 / 1000), rel=0.35)


def test_the_interval_of_a_mean_squared_error_is_that_of_its_mean():
    task = Guess(count=50)
    task.open(None, 0)
    task.objective = Objective("mse", False, None, lambda y, target: {"mse": (y[:, 0] - target).square().mean()})
    interval = metric_interval(zeros(), task)
    errors = (1 - task.test.y.double()).square()
    half = 2.0096 * errors.std().item() / math.sqrt(50)
    assert interval.low == pytest.approx(errors.mean().item() - half, rel=1e-4)


@pytest.mark.slow
def test_sequences_of_one_recording_are_left_out_together():
    task = Guess(count=250)
    task.open(None, 0)
    alone = metric_interval(zeros(), task)
    # every recording comes 20 times, and its copies tell nothing new
    task.test.x, task.test.y = task.test.x.repeat(20, 1, 1), task.test.y.repeat(20)
    task.test.origins = torch.arange(250).repeat(20)
    copies = metric_interval(zeros(), task)
    assert copies.method == "jackknife over 250 records of the test"
    assert copies.by_record
    assert copies.high - copies.low == pytest.approx(alone.high - alone.low, rel=0.35)
    task.test.origins = None
    mixed = metric_interval(zeros(), task)
    assert mixed.high - mixed.low < (copies.high - copies.low) / 3


def test_the_scope_follows_from_the_groups_and_not_from_their_text():
    task = Guess(count=200)
    task.open(None, 0)
    assert metric_interval(zeros(), task).scope.startswith("The interval treats the test sequences as independent.")
    task.test.origins = torch.arange(200) // 10
    assert metric_interval(zeros(), task).scope is None
    for by_record in (True, False):
        interval = Interval(0.1, 0.2, "bootstrap", by_record)
        assert (interval.scope is None) == by_record


def test_an_empty_part_has_no_interval():
    task = Guess(count=100)
    task.open(None, 0)
    assert metric_interval(zeros(), task, Sequences(torch.ones(0, 3, 1), torch.zeros(0).long())) is None
    half = Sequences(task.test.x[:50], task.test.y[:50])
    assert metric_interval(zeros(), task, half) != metric_interval(zeros(), task)


@pytest.mark.parametrize("positions", [False, True])
def test_heart_beats_are_grouped_by_record(positions, tmp_path):
    write_heart(tmp_path / "mit-bih")
    task = opened(Ecg(positions=positions, **({} if positions else SMALL)), tmp_path)
    model = edgernn.SequenceModel("gru", task.input_size, 4, task.output_size, output=task.output)
    tally = task.tally(task.test)
    with torch.no_grad():
        for batch in task.test.chunks():
            tally.add(model(batch.x)[0], batch)
    if positions:
        assert tally.without_each() is None
        assert task.test.origins.unique_consecutive().tolist() == list(range(len(task.test.records)))
        assert len(task.test.origins) == len(task.test)
        return
    # two records: without one, the figures are those of the other
    (scores,), (target,) = tally._scores, tally._targets
    first = len(task.test.records[0].signal) // task.frame
    for left_out, others in enumerate((slice(first, None), slice(first))):
        alone = BeatTally([task.test.records[1 - left_out]], task.frame, task.delay)
        alone._scores, alone._targets = [scores[others]], [target[others]]
        assert alone.result() == tally.without_each()[left_out]
    assert metric_interval(model, task) is None


def test_the_interval_of_independent_cases_is_that_of_wilson():
    # 81 of 263, from Newcombe 1998, table I: 0.2553 to 0.3662
    hits = np.zeros(263)
    hits[:81] = 1
    assert interval(hits, np.ones(263)) == pytest.approx((0.2553, 0.3662), abs=1e-3)
    assert interval(np.zeros(1), np.zeros(1)) == (0, 1)
    low, high = interval(np.ones(29), np.ones(29))
    assert (low, high) == (pytest.approx(0.883, abs=1e-3), pytest.approx(1))


def test_cases_that_depend_on_each_other_widen_the_interval():
    # ten recordings of 30 windows, each all right or all wrong: as wide as ten cases
    hits, cases = np.array([30.0] * 7 + [0.0] * 3), np.full(10, 30.0)
    alone = interval(hits / 30, np.ones(10))
    assert interval(hits, cases) == pytest.approx(alone, abs=0.01)
    # nothing tells how cases depend on each other if all are hits
    assert interval(cases, cases) == interval(np.ones(10), np.ones(10))


def test_the_table_has_intervals_of_recordings():
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(3, (60,), generator=rng)
    y = torch.nn.functional.one_hot(torch.where(torch.rand(60, generator=rng) < 0.7, target, 0), 3).float()
    confusion = Confusion(["a", "b", "c"])
    for chosen in (slice(0, 40), slice(40, 60)):
        confusion.add_sequences(y[chosen], Batch(torch.zeros(2, len(target[chosen]), 1), target[chosen]))
    (header, *rows), (_, *grouped) = (
        [line.split(",") for line in confusion.table(origins).splitlines()]
        for origins in (None, torch.arange(60) // 10)
    )
    assert header[4:] == ["precision", "recall", "f1", *(f"{n}_{e}" for n in header[4:7] for e in ("low", "high"))]
    shown, right = y.argmax(1), y.argmax(1) == target
    for i, (row, other) in enumerate(zip(rows, grouped, strict=True)):
        numbers, wider = [float(cell) for cell in row[4:]], [float(cell) for cell in other[4:]]
        assert numbers[:3] == wider[:3]
        expected = interval((right & (shown == i)).numpy().astype(float), (shown == i).numpy().astype(float))
        assert numbers[3:5] == pytest.approx(expected, abs=1e-4)
        for k in range(3):
            assert numbers[3 + 2 * k] <= numbers[k] <= numbers[4 + 2 * k]
    # steps of one sequence are one group
    steps = Confusion(["a", "b", "c"])
    steps.add_sequences(y.view(10, 6, 3), Batch(torch.zeros(10, 6, 1), target.view(10, 6), per_step=True))
    assert torch.equal(steps.counts, confusion.counts)
    turned = torch.arange(60) % 6
    assert steps.table() == confusion.table(turned)


def test_a_temperature_brings_probabilities_to_the_frequencies():
    rng = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(4000, 3, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(1), 1, generator=rng)[:, 0]
    assert fit_temperature(3 * truth, labels) == pytest.approx(3, rel=0.05)
    assert fit_temperature(truth / 2, labels) == pytest.approx(0.5, rel=0.05)
    assert calibration_error(3 * truth, labels) > 0.1 > 0.03 > calibration_error(truth, labels)
    # few labels, all right, do not make the model sure of everything
    assert 0.5 < fit_temperature(torch.eye(2, dtype=torch.float64).repeat(2, 1), torch.tensor([0, 1, 0, 1])) < 1


def test_the_temperature_goes_into_the_output_layer():
    task = opened(Guess(400))
    task.validation = task.test
    model = zeros()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([6.0, 0.0]))
    x = torch.ones(3, 1, 1)
    before = model.outputs(x)[0].detach().softmax(0)
    figures = calibrate(model, task, "cpu")
    share = float((task.test.y == 0).double().mean())
    after = model.outputs(x)[0].detach().softmax(0)
    assert float(before[0]) == pytest.approx(0.9975, abs=1e-4)
    assert float(after[0]) == pytest.approx(share, abs=0.02)
    assert figures["temperature"] == pytest.approx(6 / model.head.bias[0].item())
    assert figures["calibration_error"] < 0.02 < figures["calibration_error_before"]
