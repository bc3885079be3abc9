# SPDX-License-Identifier: Apache-2.0
"""Synthetic tasks, compared with their papers."""

import numpy as np
import pytest
import torch

from edgernn.errors import UsageError
from edgernn.settings import bind, build, fields_of
from edgernn.training.papers.tasks.binary_addition import BinaryAddition
from edgernn.training.papers.tasks.memorization import Memorization
from edgernn.training.tasks.adding import Adding
from tests.task_helpers import Trained, opened

pytestmark = pytest.mark.usefixtures("no_pictures")

ALL = (Adding, Memorization, BinaryAddition)


def generate(task, count=20_000):
    """Generate x (count, T, I) and the target with the task's function."""
    x, y = task.make(np.random.default_rng(0), count)
    return x.transpose(0, 1).double().numpy(), y.double().numpy()


# the data sources of all tasks


@pytest.mark.parametrize("kind", ALL, ids=lambda t: t.name)
def test_batches_depend_on_seed_and_step_alone(kind):
    settings = {"train_size": None}
    one, two, other = opened(kind(**settings)), opened(kind(**settings)), opened(kind(**settings), seed=1)
    late = one.train.batch(7, 5)
    one.train.batch(0, 5)
    assert torch.equal(late.x, two.train.batch(7, 5).x)
    assert torch.equal(late.target, two.train.batch(7, 5).target)
    assert not torch.equal(late.x, two.train.batch(8, 5).x)
    assert not torch.equal(late.x, other.train.batch(7, 5).x)


@pytest.mark.parametrize("train_size", [None, 300])
@pytest.mark.parametrize("kind", ALL, ids=lambda t: t.name)
def test_held_out_sets_are_fixed_and_disjoint(kind, train_size):
    # enough steps that sequences do not repeat by chance
    long = {Adding: {}, Memorization: {"bits": 30}, BinaryAddition: {"digits": 50}}[kind]
    one, other = (opened(kind(train_size=train_size, test_size=200, **long), seed=seed) for seed in (0, 1))
    assert torch.equal(one.test.x, other.test.x)
    assert torch.equal(one.validation.x, other.validation.x)
    parts = [one.validation.x, one.test.x, one.train.batch(0, 200).x.transpose(0, 1)]
    assert [len(part) for part in parts] == [200, 200, 200]
    assert len({row.numpy().tobytes() for part in parts for row in part}) == 600


@pytest.mark.parametrize("kind", ALL, ids=lambda t: t.name)
def test_stored_sequences_are_those_of_every_seed_and_come_back(kind):
    one, other = (opened(kind(train_size=30), seed=seed) for seed in (0, 1))
    assert one.train.steps_per_epoch(10) == 3
    epochs = [
        torch.cat([task.train.batch(step, 10).x for step in range(first, first + 3)], 1)
        for task, first in ((one, 0), (one, 3), (other, 0))
    ]
    rows = [sorted(row.numpy().tobytes() for row in epoch.transpose(0, 1)) for epoch in epochs]
    assert rows[0] == rows[1] == rows[2]
    assert not any(torch.equal(epochs[a], epochs[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_an_endless_stream_has_epochs_of_as_many_steps_as_asked():
    assert opened(Adding(epoch_steps=7)).train.steps_per_epoch(10) == 7


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        (Adding, {"T": "1"}, "T: expected a whole number of at least 2, got '1'"),
        (Adding, {"train_size": "0"}, "train_size: expected a whole number of at least 1 or none, got '0'"),
        (Adding, {"test_size": "none"}, "test_size: expected a whole number of at least 1, got 'none'"),
        (Adding, {"values": "gauss"}, "unknown values 'gauss': did you mean 'gaussian'"),
        (Adding, {"markers": "half"}, "unknown markers 'half': did you mean 'halves'"),
        (Adding, {"delta2": "0"}, "delta2: expected a number above 0 or none, got '0'"),
        (Adding, {"delta2": "2"}, "delta2: expected none with values=uniform, got 2"),
        (Adding, {"values": "gaussian"}, "delta2: expected a variance above 0 with values=gaussian, got none"),
        (Memorization, {"bits": "0"}, "bits: expected a whole number of at least 1, got '0'"),
        (Memorization, {"noise": "-1"}, "noise: expected a whole number of at least 0, got '-1'"),
        (Memorization, {"delta2": "-1"}, "delta2: expected a number of at least 0, got '-1'"),
        (BinaryAddition, {"digits": "0"}, "digits: expected a whole number of at least 1, got '0'"),
        (BinaryAddition, {"digits": "63"}, "digits: expected a whole number from 1 to 62, got 63"),
    ],
)
def test_bad_settings_are_named(kind, word, message):
    with pytest.raises(UsageError, match=message):
        build(kind, bind(word, task=fields_of(kind))["task"])


# adding

VALUES = {
    "uniform": ({}, 0.5, 1 / 12, (0, 1)),
    "half": ({}, 0.0, 1 / 12, (-0.5, 0.5)),
    "gaussian": ({"delta2": 2.5}, 0.0, 2.5, (-np.inf, np.inf)),
}
MARKED = {
    # positions of the first and second marker in order of time; `any`: any two different steps
    "halves-50": ("halves", 50, range(5), range(25, 50)),
    "halves-29": ("halves", 29, range(2), range(15, 29)),
    "halves-7": ("halves", 7, range(1), range(4, 7)),
    "halves-2": ("halves", 2, range(1), range(1, 2)),
    "any-9": ("any", 9, range(8), range(1, 9)),
    "any-2": ("any", 2, range(1), range(1, 2)),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("markers", ["any", "halves"])
@pytest.mark.parametrize("T", [2, 3, 50])
def test_adding_target_is_the_sum_of_two_marked_values(T, markers, values):
    batch = opened(Adding(T=T, markers=markers, values=values, **VALUES[values][0])).train.batch(3, 33)
    assert batch.x.shape == (T, 33, 2)
    assert batch.target.shape == (33, 1)
    for b in range(33):
        marked = [t for t in range(T) if batch.x[t, b, 1] == 1]
        assert len(marked) == 2
        assert sum(batch.x[:, b, 1] == 0) == T - 2
        expected = float(batch.x[marked[0], b, 0]) + float(batch.x[marked[1], b, 0])
        assert batch.target[b].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("values", VALUES)
def test_adding_values_have_their_distribution(values):
    settings, mean, variance, (least, most) = VALUES[values]
    task = Adding(T=20, values=values, **settings)
    x, y = generate(task)
    v = (x[..., 0] - mean) / variance**0.5
    assert x[..., 0].min() >= least
    assert x[..., 0].max() <= most
    assert v.mean() == pytest.approx(0, abs=0.02)
    assert v.var() == pytest.approx(1, abs=0.02)
    # the kurtosis of a uniform distribution is 3/5 of the normal distribution's
    assert (v**4).mean() == pytest.approx(3 if values == "gaussian" else 9 / 5, rel=0.03)
    assert y.var() == pytest.approx(2 * variance, rel=0.03)
    assert task.solved == pytest.approx(2 * variance / 100, rel=1e-9)


@pytest.mark.parametrize("case", MARKED)
def test_adding_markers_are_spread_evenly_over_their_steps(case):
    markers, T, first, second = MARKED[case]
    x, _ = generate(Adding(T=T, markers=markers))
    steps = np.stack([np.flatnonzero(row) for row in x[..., 1]])
    assert set(steps[:, 0]) == set(first)
    assert set(steps[:, 1]) == set(second)
    if markers == "any":
        pairs, counts = np.unique(steps, axis=0, return_counts=True)
        assert len(pairs) == T * (T - 1) // 2
    else:
        counts = np.bincount(steps[:, 1])[second.start :]
    assert np.abs(counts / counts.mean() - 1).max() < 0.2


def test_adding_is_solved_at_a_hundredth_of_the_variance():
    task = Adding()
    assert task.solved == pytest.approx(1.67e-3, abs=5e-6)
    assert task.is_solved(0.001)
    assert not task.is_solved(0.002)


def test_adding_trains_and_its_error_is_that_of_numpy(tmp_path):
    settings = {"T": 6, "values": "gaussian", "delta2": 4.0, "train_size": 40, "test_size": 30}
    run = Trained(tmp_path / "run", "adding", **settings)
    test = opened(Adding(**settings)).test
    x = test.x.double().numpy()
    error = run.outputs(test.x)[:, 0] - (x[..., 0] * x[..., 1]).sum(1)
    assert run.result["mse"] == pytest.approx((error**2).mean(), rel=1e-5)
    assert run.result["mse_over_delta2"] == pytest.approx((error**2).mean() / 4, rel=1e-5)
    assert run.result["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert run.result["threshold"] == pytest.approx(0.08)


def test_adding_without_delta2_has_no_error_over_it(tmp_path):
    assert "mse_over_delta2" not in Trained(tmp_path / "run", "adding", T=4, test_size=10).result


# memorization


@pytest.mark.parametrize(("bits", "noise", "delta2"), [(1, 0, 1.0), (3, 5, 0.25), (15, 20, 4.0)])
def test_memorization_is_bits_then_noise(bits, noise, delta2):
    task = Memorization(bits=bits, noise=noise, delta2=delta2)
    x, y = generate(task)
    assert x.shape == (20_000, bits + noise, 1)
    assert (task.input_size, task.output_size, task.output) == (1, bits, "last")
    assert np.array_equal(y, x[:, :bits, 0])
    assert set(np.unique(y)) == {-1.0, 1.0}
    assert np.abs(y.mean(0)).max() < 0.03
    if noise:
        tail = x[:, bits:, 0]
        assert tail.mean() == pytest.approx(0, abs=0.02 * delta2**0.5)
        assert tail.var() == pytest.approx(delta2, rel=0.02)
        assert (tail**4).mean() == pytest.approx(3 * delta2**2, rel=0.05)


def test_memorization_without_variance_is_silent_after_the_bits():
    x, _ = generate(Memorization(bits=2, noise=3, delta2=0.0), 5)
    assert not x[:, 2:].any()


def test_memorization_has_the_sizes_of_the_paper():
    task = opened(Memorization())
    assert [len(part) for part in (task.train, task.validation, task.test)] == [50_000, 1000, 1000]


def test_memorization_trains_and_its_metrics_are_those_of_numpy(tmp_path):
    settings = {"bits": 3, "noise": 2, "train_size": 40, "test_size": 300}
    run = Trained(tmp_path / "run", "memorization", **settings)
    test = opened(Memorization(**settings)).test
    wanted = test.x.double().numpy()[:, :3, 0]
    y = run.outputs(test.x)
    # eq 14: the squared norm of the difference, averaged over the examples
    expected = np.mean([np.dot(row, row) for row in y - wanted])
    assert run.result["metric"] == "squared_error"
    assert run.result["squared_error"] == pytest.approx(expected, rel=1e-5)
    assert run.result["bit_accuracy"] == pytest.approx((np.sign(y) == wanted).mean(), abs=1e-12)


def test_memorization_is_trained_on_its_metric():
    objective = Memorization.objective
    y, target = torch.tensor([[0.5, 2.0], [-1.0, 0.0]]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert objective.loss(y, target).item() == pytest.approx((0.25 + 9 + 0 + 1) / 2)
    assert objective.metrics(y, target)["bit_accuracy"] == 0.5
    assert objective.better(0.1, 0.2)


# binary addition


def number(digits):
    """Return the number of digits, least significant first."""
    return sum(int(digit) << place for place, digit in enumerate(digits))


@pytest.mark.parametrize("digits", [1, 2, 3, 16, 62])
def test_binary_addition_target_is_the_sum_of_two_numbers(digits):
    x, y = generate(BinaryAddition(digits=digits), 3000)
    assert x.shape == (3000, digits, 2)
    assert set(np.unique(x)) | set(np.unique(y)) <= {0.0, 1.0}
    first, second = ([number(row) for row in x[..., i]] for i in (0, 1))
    sums = [number(column) for column in y[..., 0].T]
    assert sums == [a + b for a, b in zip(first, second, strict=True)]
    # the largest number with this many digits is the sum of its rounded and floored halves
    largest = 2**digits - 1
    most = [(largest + 1) // 2, largest // 2]
    for numbers, limit in zip((first, second), most, strict=True):
        assert limit >= max(numbers) >= 0.99 * limit
        assert np.mean(numbers) == pytest.approx(limit / 2, rel=0.05)
    assert sum(most) == largest


def test_binary_addition_reaches_every_number():
    x, _ = generate(BinaryAddition(digits=3))
    assert set(map(number, x[..., 0])) == {0, 1, 2, 3, 4}
    assert set(map(number, x[..., 1])) == {0, 1, 2, 3}


def test_binary_addition_counts_rounded_digits_and_whole_sums():
    # (T, B, O): the second sequence has one wrong digit, the third an answer of -1
    y = torch.tensor([[[0.1], [3.0], [0.0]], [[0.6], [0.2], [-4.0]]])
    target = torch.tensor([[[0.0], [1.0], [0.0]], [[1.0], [1.0], [1.0]]])
    metrics = BinaryAddition.objective.metrics(y, target)
    answers = np.round(np.tanh(y.numpy()))
    assert answers[:, :, 0].tolist() == [[0, 1, 0], [1, 0, -1]]
    assert metrics["digit_accuracy"].item() == pytest.approx(4 / 6)
    assert metrics["sum_accuracy"].item() == pytest.approx(1 / 3)
    expected = ((np.tanh(y.numpy()) - target.numpy()) ** 2).mean()
    assert metrics["mse"].item() == pytest.approx(expected, rel=1e-6)
    assert BinaryAddition.objective.loss(y, target).item() == pytest.approx(expected, rel=1e-6)
    assert BinaryAddition().is_solved(1.0)
    assert not BinaryAddition().is_solved(0.999)


def test_binary_addition_is_learned_and_its_metrics_are_those_of_numpy(tmp_path):
    settings = {"digits": 4, "test_size": 300}
    run = Trained(tmp_path / "run", "binary-addition", **settings, hidden_size=16, batch_size=50, steps=100)
    test = opened(BinaryAddition(**settings)).test
    expected = [number(row[:, 0]) + number(row[:, 1]) for row in test.x.numpy()]
    answers = np.round(np.tanh(run.outputs(test.x)[..., 0]))
    digits = np.array([[total >> t & 1 for t in range(4)] for total in expected])
    right = answers == digits
    assert run.result["digit_accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    assert run.result["sum_accuracy"] == pytest.approx(right.all(1).mean(), abs=1e-12)
    assert run.result["digit_accuracy"] > 0.6
