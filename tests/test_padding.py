# SPDX-License-Identifier: Apache-2.0
"""Sequences of unequal lengths in one padded batch: outputs, gradients, states and counts equal those one by one."""

import math

import pytest
import torch
from torch import Tensor

from edgernn.cells import CELLS
from edgernn.dropout import masked
from edgernn.errors import UsageError
from edgernn.layer import python_loop
from edgernn.model import SequenceModel
from edgernn.rules import RULES

LENGTHS = torch.tensor([2, 5, 1, 5, 3])
# rules that draw random numbers draw others for sequences one by one
RANDOM = {name for name in RULES if name == "random"}


def gradients(model: SequenceModel, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def assert_equals_one_by_one(model: SequenceModel, x: Tensor, tolerance: float) -> None:
    """Compare outputs, penalty, gradients, work and last states of a padded batch with those of each sequence alone."""
    torch.manual_seed(1)
    per_step = model.output == "all"
    factors = torch.randn(*x.shape[: 2 if per_step else 1], model.output_size, dtype=x.dtype)
    factors = factors if per_step else factors[0].expand(x.shape[1], -1)
    loss, budget, updates, states = x.new_zeros(()), x.new_zeros(()), 0.0, []
    for i, length in enumerate(LENGTHS.tolist()):
        y, state = model(x[:length, i : i + 1])
        loss = loss + (y[:, 0] * factors[:length, i] if per_step else y[0] * factors[i]).sum()
        budget = budget + model.budget / len(LENGTHS)
        updates += model.update_rate * length / int(LENGTHS.sum())
        states.append(state)
    expected = gradients(model, loss + 0.1 * budget)
    padded = x.masked_fill((torch.arange(len(x))[:, None] >= LENGTHS)[..., None], math.nan)
    for needs_state in (True, False):
        if needs_state:
            y, last = model(padded, lengths=LENGTHS)
            for tensor, alone in zip(last, zip(*states, strict=True), strict=True):
                torch.testing.assert_close(tensor, torch.cat(alone), rtol=0, atol=tolerance)
        else:
            y = model.outputs(padded, LENGTHS)
        counted = y * factors
        if per_step:
            counted = counted[torch.arange(len(x))[:, None] < LENGTHS]
        assert model.budget.item() == pytest.approx(budget.item(), abs=tolerance)
        assert model.update_rate == pytest.approx(updates, abs=1e-6)
        for ours, wanted in zip(gradients(model, counted.sum() + 0.1 * model.budget), expected, strict=True):
            torch.testing.assert_close(ours, wanted, rtol=0, atol=tolerance)


CASES = [
    *((cell, None, {"cell_options": {"length": 4}} if cell == "decaynet" else {}) for cell in CELLS),
    *(("gru", rule, {"layers": 2}) for rule in RULES if rule not in RANDOM),
    ("gru", None, {"imputer": "rits"}),
    ("sarnn", None, {"layers": 2, "output": "all", "block": "gated"}),
    *(
        (cell, None, {"bidirectional": True, "output": output})
        for cell in ("gru", "sarnn")
        for output in ("last", "all")
    ),
]


@pytest.mark.parametrize(("cell", "rule", "settings"), CASES, ids=str)
def test_a_padded_batch_equals_its_sequences_one_by_one(cell, rule, settings):
    torch.manual_seed(0)
    model = SequenceModel(cell, 3, 4, 2, rule=rule, **settings).double()
    x = torch.randn(5, 5, model.input_size, dtype=torch.float64)
    with python_loop(model):
        assert_equals_one_by_one(model, x, 1e-10)


KERNELS = [("sarnn", None, {}), ("lstm", None, {}), ("mingru", None, {}), ("sarnn", None, {"bidirectional": True})]
KERNELS += [("gru", rule, {}) for rule in ("skip", "delta", "periodic", "selective")]


@pytest.mark.parametrize(("cell", "rule", "settings"), KERNELS, ids=str)
def test_training_kernels_leave_padding_out(cell, rule, settings):
    torch.manual_seed(0)
    model = SequenceModel(cell, 3, 8, 2, rule=rule, output="all", **settings)
    assert {layer.backend for layer in model.recurrent_layers()} == {"fused"}
    assert_equals_one_by_one(model, torch.randn(5, 5, 3), 1e-5)


def test_marked_steps_in_padding_count_nowhere():
    torch.manual_seed(0)
    model = SequenceModel("sarnn", 3, 8, bidirectional=True)
    x, background = torch.randn(5, 5, 3), torch.rand(5, 5) < 0.4
    counts, rates, budget = 0, 0.0, 0.0
    for i, length in enumerate(LENGTHS.tolist()):
        marks = background[:length, i : i + 1]
        with model.marked(marks, 3.0):
            model(x[:length, i : i + 1])
        if not marks.all():
            rates += model.foreground_rate * int((~marks).sum())
            counts += int((~marks).sum())
        budget += model.budget.item() / len(LENGTHS)
    for run in (model.outputs, lambda x, lengths: model(x, None, lengths)):
        with model.marked(background, 3.0):
            run(x, LENGTHS)
        assert model.foreground == pytest.approx(counts / int(LENGTHS.sum()))
        assert model.foreground_rate == pytest.approx(rates / counts)
        assert model.budget.item() == pytest.approx(budget, rel=1e-5)


def test_padding_of_words_and_of_sound_is_not_read():
    torch.manual_seed(0)
    words = SequenceModel("gru", 3, 8, 2, vocabulary=9)
    x = torch.randint(9, (5, 5)).masked_fill(torch.arange(5)[:, None] >= LENGTHS, -1)
    y = words.outputs(x, LENGTHS)
    settings = {"hop": 80, "window_size": 200, "sample_rate": 8000, "bands": 16}
    sound = SequenceModel("gru", 80, 8, 2, frontend="logmel", **settings)
    samples = torch.randn(5, 5, sound.input_size)
    heard = sound.outputs(samples.masked_fill((torch.arange(5)[:, None] >= LENGTHS)[..., None], math.nan), LENGTHS)
    for i, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(y[i], words(x[:length, i : i + 1])[0][0])
        torch.testing.assert_close(heard[i], sound(samples[:length, i : i + 1])[0][0])


def test_a_masked_value_is_the_mean_of_the_sequence_without_padding():
    x = torch.ones(5, 5, 3).masked_fill((torch.arange(5)[:, None] >= LENGTHS)[..., None], 100.0)
    present = torch.arange(5)[:, None] < LENGTHS
    assert (masked(x, 5, 3, present)[present] == 1).all()


@pytest.mark.parametrize(
    ("settings", "run", "message"),
    [
        ({"norm": "recurrent-batch"}, lambda model, x: model(x, lengths=LENGTHS), "norm=recurrent-batch, whose"),
        ({"cell": "decaynet"}, lambda model, x: model(x, lengths=LENGTHS), "got decaynet; set its option length"),
        ({}, lambda model, x: model(x, lengths=LENGTHS + 1), "lengths: expected 1 to 5, got 2 to 6"),
        ({}, lambda model, x: model(x, lengths=LENGTHS[:2]), r"lengths: expected whole numbers \(5,\)"),
    ],
)
def test_lengths_that_cannot_be_right_are_refused(settings, run, message):
    model = SequenceModel(settings.pop("cell", "gru"), 3, 8, **settings)
    with pytest.raises(UsageError, match=message):
        run(model, torch.randn(5, 5, 3))
