# SPDX-License-Identifier: Apache-2.0
"""Dropout of embeddings, states, outputs and weights."""

import pytest
import torch

import edgernn
from edgernn.dropout import locked, with_dropped_weights, words


def test_locked_dropout_is_one_choice_for_all_steps():
    torch.manual_seed(0)
    y = locked(torch.ones(5, 40, 50), 0.3)
    assert all(torch.equal(y[0], step) for step in y)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    # 2,000 samples
    assert float((y[0] == 0).double().mean()) == pytest.approx(0.3, abs=0.05)


def test_embedding_dropout_leaves_out_whole_words():
    torch.manual_seed(0)
    tokens = torch.randint(1000, (20, 100))
    y = words(torch.ones(20, 100, 3), tokens, 1000, 0.4)
    dropped = {}
    for token, row in zip(tokens.flatten().tolist(), y.flatten(0, 1), strict=True):
        assert dropped.setdefault(token, row.tolist()) == row.tolist()
    assert sorted(map(list, {tuple(row) for row in dropped.values()})) == [[0.0] * 3, [pytest.approx(1 / 0.6)] * 3]
    assert sum(row[0] == 0 for row in dropped.values()) / len(dropped) == pytest.approx(0.4, abs=0.06)


@pytest.mark.parametrize(
    ("cell", "rates", "names"),
    [("gru", (0.4, 0.0), {"R"}), ("eins", (0.0, 0.4), {"W", "V"}), ("lstm-peephole", (0.4, 0.4), {"R", "C", "W"})],
)
def test_weight_drop_is_one_choice_a_sequence(cell, rates, names):
    torch.manual_seed(0)
    layer = edgernn.SequenceModel(cell, 30, 40).recurrent_layers()[0]
    x = torch.randn(6, 3, 30)
    start = state = layer.initial_state(3, x)
    y, _, _ = with_dropped_weights(layer, *rates)(x, start)
    y.sum().backward()
    for name, weight in layer.cell.named_parameters():
        share = float((weight.grad == 0).double().mean())
        assert share == pytest.approx(0.4 if name in names else 0.0, abs=0.06), name
    # the same function with the weights set to zero, step by step
    with torch.no_grad():
        plain = edgernn.SequenceModel(cell, 30, 40).recurrent_layers()[0]
        for name, weight in layer.cell.named_parameters():
            kept = (weight.grad != 0) / 0.6 if name in names else 1.0
            getattr(plain.cell, name).copy_(weight * kept)
        for x_t, y_t in zip(x, y, strict=True):
            got, state, _ = plain(x_t[None], state)
            torch.testing.assert_close(got[0], y_t)
    again, _, _ = with_dropped_weights(layer, *rates)(x, start)
    assert not torch.equal(again, y)


RATES = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output", "weight_drop", "weight_drop_input")


@pytest.mark.parametrize("name", RATES)
def test_each_rate_acts_in_training_alone(name):
    model = edgernn.SequenceModel("lstm", 20, 20, layers=2, vocabulary=50, output="all", **{name: 0.5})
    x = torch.randint(50, (7, 4))
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    plain = edgernn.SequenceModel("lstm", 20, 20, layers=2, vocabulary=50, output="all")
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x)[0], plain(x)[0])


def test_output_dropout_is_of_the_last_layer_and_hidden_dropout_of_the_others():
    torch.manual_seed(0)
    x = torch.randint(50, (7, 4))
    one = edgernn.SequenceModel("lstm", 20, 20, vocabulary=50, output="all", dropout_hidden=0.9)
    assert torch.equal(one(x)[0], one(x)[0])
    raw, _ = one.recur(x)
    assert torch.equal(one.drop_output(raw), raw)
    dropped = edgernn.SequenceModel("lstm", 20, 20, vocabulary=50, output="all", dropout_output=0.5)(x)[0]
    assert ((dropped == 0).all(0) == (dropped == 0).any(0)).all()
    assert 0.3 < float((dropped == 0).double().mean()) < 0.7
