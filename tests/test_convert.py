# SPDX-License-Identifier: Apache-2.0
"""Conversions to and from torch.nn preserve outputs and weights."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import edgernn
from edgernn.export import to_onnx

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


def normed(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(module, "weight_ih_l1_reverse")


@pytest.mark.parametrize(
    ("wrap", "unwrap", "name"),
    [
        (
            lambda module: prune.l1_unstructured(module, "weight_hh_l1", 0.4),
            lambda module: prune.remove(module, "weight_hh_l1"),
            "weight_hh_l1",
        ),
        (
            lambda module: prune.random_unstructured(module, "bias_hh_l0_reverse", 2),
            lambda module: prune.remove(module, "bias_hh_l0_reverse"),
            "bias_hh_l0_reverse",
        ),
        (
            normed,
            lambda module: torch.nn.utils.remove_weight_norm(module, "weight_ih_l1_reverse"),
            "weight_ih_l1_reverse",
        ),
    ],
    ids=["pruned matrix", "pruned bias", "weight norm"],
)
def test_weights_that_a_call_computes_are_made_permanent_first(wrap, unwrap, name):
    module = nn.LSTM(5, 6, 2, bidirectional=True)
    wrap(module)
    with torch.no_grad():
        # without a call of the module since
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    with pytest.raises(edgernn.UsageError, match=f"weights: expected parameters, got {name} computed .*prune.remove"):
        edgernn.from_torch(module)
    unwrap(module)
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(edgernn.from_torch(module)(x)[0], module(x)[0])


def test_pruned_weights_of_a_model_are_made_permanent_first(tmp_path):
    model = edgernn.SequenceModel("gru", 3, 8, 2)
    prune.random_unstructured(model.recurrent_layers()[0].cell, "R", 0.5)
    for convert in (edgernn.to_torch, lambda model: to_onnx(model, tmp_path / "m.onnx")):
        with pytest.raises(edgernn.UsageError, match=r"expected parameters, got layers\.0\.cell\.R computed"):
            convert(model)


def test_classes_are_named_in_full_with_a_way_out():
    quantised = type("LSTM", (nn.Module,), {"__module__": "torch.ao.nn.quantized.dynamic"})()
    parametrised = nn.GRU(3, 6)
    torch.nn.utils.parametrizations.weight_norm(parametrised, "weight_hh_l0")
    plain = nn.GRU(3, 6)
    subclass = type("GRU", (nn.GRU,), {"__module__": "mine"})(3, 6)
    for module, message in (
        (quantised, r"got torch\.ao\.nn\.quantized\.dynamic\.LSTM; convert the module from which it was quantised"),
        (parametrised, r"got \S+ParametrizedGRU; call torch\.nn\.utils\.parametrize\.remove_parametrizations"),
        (subclass, r"got mine\.GRU; its forward may differ: load its state_dict into a module of torch\.nn"),
    ):
        with pytest.raises(edgernn.UsageError, match=f"module: expected torch.nn.RNN, GRU or LSTM, {message}"):
            edgernn.from_torch(module)
    plain.load_state_dict(subclass.state_dict())
    assert torch.equal(edgernn.from_torch(plain).recurrent_layers()[0].cell.R, subclass.weight_hh_l0)


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
        (nn.GRUCell(3, 6), "module: expected torch.nn.RNN, GRU or LSTM, got torch.nn.modules.rnn.GRUCell"),
        (nn.GRU(3, 6, batch_first=True), "batch_first: expected False, got True, but the model reads .T, B, I."),
    ],
    ids=["projection", "relu", "dropout", "cell", "batch first"],
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
