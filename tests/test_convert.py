# SPDX-License-Identifier: Apache-2.0
"""Conversions to and from torch.nn preserve outputs and weights."""

import pytest
import torch
from torch import nn

import edgernn

KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
every_kind = pytest.mark.parametrize("kind", KINDS)
sizes = pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (2, True)], ids=str)


def states_of(kind, hidden, count):
    """Convert our flat tuple to torch's stacked states: h, or h and c."""
    if kind == "lstm":
        return torch.stack(hidden[::2]), torch.stack(hidden[1::2])
    assert len(hidden) == count
    return torch.stack(hidden)


def assert_same(kind, module, model):
    """Compare outputs and last states from a random initial state."""
    count = len(model.layers)
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    state = tuple(torch.randn(3, 6, dtype=torch.float64) for _ in model.state_names)
    y, last = model(x, state)
    expected, theirs = module(x, states_of(kind, state, count))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(states_of(kind, last, count), theirs, rtol=0, atol=1e-12)


@every_kind
@sizes
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_from_torch_computes_the_same(kind, layers, bidirectional, bias):
    module = KINDS[kind](5, 6, layers, bidirectional=bidirectional, bias=bias).double()
    model = edgernn.from_torch(module)
    assert model.layers[0].cell.name == kind
    assert (model.head, model.output) == (None, "all")
    assert_same(kind, module, model)


@every_kind
@sizes
def test_to_torch_computes_the_same(kind, layers, bidirectional):
    options = {"layers": layers, "bidirectional": bidirectional, "output": "all"}
    model = edgernn.SequenceModel(kind, 5, 6, **options).double()
    module = edgernn.to_torch(model)
    assert type(module) is KINDS[kind]
    assert_same(kind, module, model)


@every_kind
@sizes
def test_round_trip_is_exact(kind, layers, bidirectional):
    model = edgernn.SequenceModel(kind, 5, 6, layers=layers, bidirectional=bidirectional, output="all").eval()
    again = edgernn.from_torch(edgernn.to_torch(model))
    assert not again.training
    expected, got = model.state_dict(), again.state_dict()
    assert list(expected) == list(got)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    # a module keeps the sum of its two biases
    module = edgernn.to_torch(model)
    theirs = edgernn.to_torch(edgernn.from_torch(module)).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in module.state_dict().items())


def test_head_and_output_are_left_to_the_caller():
    model = edgernn.SequenceModel("gru", 5, 6, 2, layers=2, bidirectional=True)
    x = torch.randn(4, 3, 5)
    _, h = edgernn.to_torch(model)(x)
    torch.testing.assert_close(model(x)[0], model.head(torch.cat([h[-2], h[-1]], -1)))


def test_batch_first_concerns_no_weight():
    module = nn.GRU(5, 6, batch_first=True)
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(edgernn.from_torch(module)(x)[0], module(x.transpose(0, 1))[0].transpose(0, 1))


def test_type_of_the_weights_is_kept():
    model = edgernn.from_torch(nn.LSTM(5, 6, dtype=torch.bfloat16))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in edgernn.to_torch(model).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.LSTM(3, 6, proj_size=2), "proj_size: expected 0, got 2"),
        (nn.RNN(3, 6, nonlinearity="relu"), "nonlinearity: expected tanh, got relu"),
        (nn.GRU(3, 6, 2, dropout=0.5), "dropout: expected 0, got 0.5"),
        (nn.GRUCell(3, 6), "module: expected torch.nn.RNN, GRU or LSTM, got GRUCell"),
    ],
    ids=["projection", "relu", "dropout", "cell"],
)
def test_from_torch_says_what_it_cannot(module, message):
    with pytest.raises(edgernn.UsageError, match=message):
        edgernn.from_torch(module)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cell": "pru"}, "cell: expected one of rnn, gru, lstm, got pru"),
        ({"cell": "sarnn"}, "rule: expected always, got selective"),
        ({"cell": "gru", "mean": 1.0}, "mean, std: expected 0 and 1"),
        ({"cell": "gru", "rank": 2}, r"cell: expected a plain gru layer, got gru\+low-rank"),
        ({"cell": "lstm", "norm": "layer"}, r"cell: expected a plain lstm layer, got lstm\+layer"),
        ({"cell": "lstm", "imputer": "rits"}, "imputer: expected none, got rits"),
    ],
    ids=["cell", "rule", "standardised", "low rank", "normalised", "imputer"],
)
def test_to_torch_says_what_it_cannot(arguments, message):
    with pytest.raises(edgernn.UsageError, match=message):
        edgernn.to_torch(edgernn.SequenceModel(input_size=3, hidden_size=6, **arguments))
