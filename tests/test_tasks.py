# SPDX-License-Identifier: Apache-2.0
"""Tasks: contents of batches, splits of data, and errors for invalid data."""

import math
import re

import numpy as np
import pytest
import torch

from edgernn.cells import CELLS
from edgernn.cli.settings_help import task_doc
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.rules import RULES
from edgernn.settings import bind, fields_of, options_of
from edgernn.training import TASKS, find_task
from edgernn.training.config import TrainConfig
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.base import CLASSIFICATION, REGRESSION
from edgernn.training.tasks.keywords import OwnWords
from edgernn.training.tasks.sources import IGNORED, Batch, Sequences, random_split
from edgernn.training.tasks.tables import Tables

# every task


@pytest.mark.parametrize("task", [*TASKS.values(), Arrays, Tables], ids=lambda t: t.name)
def test_settings_of_a_task_share_no_name_with_others(task):
    others = set(fields_of(TrainConfig)) | set(fields_of(ModelConfig))
    for owner in (*CELLS.values(), *RULES.values()):
        others |= set(options_of(owner))
    assert not others & set(fields_of(task))


@pytest.mark.parametrize("task", [*TASKS.values(), Arrays, Tables], ids=lambda t: t.name)
def test_a_recipe_names_settings_of_the_config(task):
    bind(task.defaults, train=fields_of(TrainConfig), model=fields_of(ModelConfig))


@pytest.mark.parametrize("task", [*TASKS.values(), Arrays, Tables, OwnWords], ids=lambda t: t.name)
def test_the_help_of_a_task_describes_each_setting_once(task):
    settings = task_doc(task).partition("\n\nSettings:\n\n")[2].partition("\n\n")[0]
    names = re.findall(r"`(\w+)`", " ".join(re.findall(r"^- (.*?):", settings, re.MULTILINE)))
    assert sorted(names) == sorted(fields_of(task))
    assert not re.search("[Ss]ee `", task_doc(task))


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(UsageError, match="unknown task 'adings': did you mean 'adding'"):
        find_task("adings")


# stored sequences


@pytest.mark.parametrize("y", [torch.ones(4, 6, dtype=torch.uint8), torch.ones(4, 6, 2)], ids=["labels", "numbers"])
def test_a_batch_is_padded_to_its_longest_sequence_and_padding_is_ignored(y):
    lengths = torch.tensor([2, 6, 3, 1])
    data = Sequences(torch.full((4, 6, 1), math.nan), y, per_step=True, lengths=lengths)
    batches = list(data.chunks(2))
    assert [tuple(batch.x.shape) for batch in batches] == [(6, 2, 1), (3, 2, 1)]
    assert [batch.steps for batch in batches] == [8, 4]
    for batch in (*batches, batches[0].part(0, 2), data.batch(0, 3)):
        padding = torch.arange(len(batch.x))[:, None] >= batch.lengths
        assert (batch.x[padding] == 0).all()
        assert batch.x[~padding].isnan().all()
        ignored = batch.target < 0 if y.ndim == 2 else batch.target.isnan().all(-1)
        assert torch.equal(ignored, padding)


@pytest.mark.parametrize("objective", [CLASSIFICATION, REGRESSION], ids=["labels", "numbers"])
def test_ignored_targets_count_neither_in_the_loss_nor_in_metrics(objective):
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=(5, 4, 3))).requires_grad_()
    ignored = torch.from_numpy(rng.random((5, 4)) < 0.4)
    if objective is CLASSIFICATION:
        target = torch.from_numpy(rng.integers(3, size=(5, 4))).masked_fill(ignored, IGNORED)
    else:
        target = torch.from_numpy(rng.normal(size=(5, 4, 3))).masked_fill(ignored[..., None], math.nan)
    batch = Batch(torch.zeros(5, 4, 1), target, per_step=True)
    assert batch.counted == pytest.approx(int((~ignored).sum()))
    kept, kept_target = y[~ignored], target[~ignored]
    gradients = [torch.autograd.grad(objective.loss(*pair), y)[0] for pair in ((y, target), (kept, kept_target))]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
    expected = {name: value.item() for name, value in objective.metrics(kept, kept_target).items()}
    assert {name: value.item() for name, value in objective.metrics(y, target).items()} == pytest.approx(expected)
    none = objective.loss(y, torch.full_like(target, IGNORED if objective is CLASSIFICATION else math.nan))
    assert none.item() == 0
    assert not torch.autograd.grad(none, y)[0].any()


def test_an_epoch_has_every_sequence_once_and_the_next_another_order():
    train = Sequences(torch.arange(19.0)[:, None, None], torch.zeros(19))
    assert train.steps_per_epoch(4) == 5
    epochs = [[float(v) for s in range(5) for v in train.batch(5 * e + s, 4).x.flatten()] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert len(set(epochs[0])) == 19
    assert epochs[0] != epochs[1]
    assert epochs[0][4:8] == train.batch(1, 4).x.flatten().tolist()


def test_symbols_become_one_hot_vectors_and_whole_targets_int64():
    x, y = torch.tensor([[2, 0, 3], [1, 3, 3]], dtype=torch.uint8), torch.tensor([5, 200], dtype=torch.uint8)
    batch = next(Sequences(x, y, symbols=4).chunks())
    expected = np.eye(4, dtype=np.float32)[x.numpy().T]
    assert np.array_equal(batch.x.numpy(), expected)
    assert batch.target.dtype == torch.int64
    assert batch.target.tolist() == [5, 200]


def test_split_parts_are_disjoint_and_whole():
    parts = random_split(100, [10, 20], 3)
    assert [len(p) for p in parts] == [70, 10, 20]
    assert sorted(torch.cat(parts).tolist()) == list(range(100))
    assert not torch.equal(parts[0], random_split(100, [10, 20], 4)[0])


# metrics compared with independent computations


def test_classification_metrics():
    y = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0], [1.0, 5.0, 0.0], [0.0, 1.0, 0.0]])
    target = torch.tensor([0, 2, 0, 1])
    metrics = CLASSIFICATION.metrics(y, target)
    assert metrics["accuracy"] == 0.75
    e = [[math.exp(v) for v in row] for row in y.tolist()]
    expected = -sum(math.log(row[t] / sum(row)) for row, t in zip(e, target.tolist(), strict=True)) / 4
    assert metrics["cross_entropy"].item() == pytest.approx(expected, rel=1e-6)
    assert CLASSIFICATION.loss(y.view(2, 2, 3), target.view(2, 2)).item() == pytest.approx(expected, rel=1e-6)
    assert CLASSIFICATION.better(0.9, 0.8)


def test_regression_metrics():
    metrics = REGRESSION.metrics(torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [2.0]]))
    assert metrics["mse"] == 2.5
    assert metrics["mae"] == 1.5
    assert REGRESSION.better(0.8, 0.9)
