# SPDX-License-Identifier: Apache-2.0
"""Conversion of torch's recurrent layers anywhere in a module: calls, outputs, states and gradients stay."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import edgernn
from edgernn.nn import Recurrent, RecurrentCell, convert
from tests.layers import oracle_run


def settings() -> list[tuple[type[nn.RNNBase], dict[str, object]]]:
    options = [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
        {"num_layers": 2, "dropout": 0.5},
    ]
    return list(product((nn.RNN, nn.GRU, nn.LSTM), options))


@pytest.mark.parametrize(("kind", "options"), settings())
def test_layers_keep_outputs_states_and_gradients(kind: type[nn.RNNBase], options: dict[str, object]) -> None:
    torch.manual_seed(0)
    module = kind(3, 5, **options).eval()  # type: ignore[arg-type]
    result = convert(module)
    assert (result.replaced, result.left) == ([""], {})
    assert isinstance(result.module, Recurrent)
    x, count = torch.randn(4, 6, 3), module.num_layers * (2 if module.bidirectional else 1)
    batch = 4 if module.batch_first else 6
    h = torch.randn(count, batch, 5)
    state = (h, torch.randn(count, batch, 5)) if kind is nn.LSTM else h
    for values, start in ((x, None), (x, state), (x[0], None)):
        results = []
        for each in (module, result.module):
            inputs = values.clone().requires_grad_()
            y, last = each(inputs, start)
            (y.sin().sum() + sum(s.cos().sum() for s in (last if kind is nn.LSTM else (last,)))).backward()
            results.append([y, *(last if kind is nn.LSTM else (last,)), inputs.grad])
        for ours, theirs in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    # a module without biases has none to train
    assert len([p for p in result.module.parameters() if p.requires_grad]) == count * (2 + module.bias)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_keep_outputs(kind: type[nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    module, x = kind(3, 5), torch.randn(4, 3)  # type: ignore[arg-type]
    new = convert(module).module
    assert isinstance(new, RecurrentCell)
    state = module(x)
    for ours, theirs in ((new(x), state), (new(x, state), module(x, state)), (new(x[0]), module(x[0]))):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["delta", "skip", "periodic"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_state_of_the_cell_alone_starts_the_rule_anew(kind: type[nn.RNNBase], rule: str) -> None:
    torch.manual_seed(0)
    module, x = kind(3, 5), torch.randn(9, 2, 3, dtype=torch.float64)  # type: ignore[arg-type]
    layer = convert(module, rule=rule).module.double()
    cell = convert(getattr(nn, f"{kind.__name__}Cell")(3, 5), rule=rule).module.double()
    assert isinstance(layer, Recurrent)
    assert isinstance(cell, RecurrentCell)
    cell.load_state_dict(layer.state_dict())
    h, c = torch.randn(2, 1, 2, 5, dtype=torch.float64)
    start: tuple[Tensor, ...] = (h, c) if kind is nn.LSTM else (h,)
    expected = oracle_run(kind.__name__.lower(), layer.layers[0], x, tuple(s[0] for s in start)).y
    with torch.no_grad():
        y, state = layer(x[:4], start if kind is nn.LSTM else h)
        # the whole state is passed on
        second, _ = layer(x[4:], state)
        steps, step = [], tuple(s[0] for s in start)
        for x_t in x:
            step = cell(x_t, step)
            steps.append(step[0])
    np.testing.assert_allclose(torch.cat([y, second]), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(torch.stack(steps), expected, rtol=0, atol=1e-12)
    plain = Recurrent(kind.__name__.lower(), 3, 5, rule=rule).double()
    with pytest.raises(edgernn.UsageError, match=r"state: expected tensors h \(1, 2, 5\).*rule_"):
        plain(x, start)
    with pytest.raises(edgernn.UsageError, match=r"state: expected tensors h .*, got shapes \[\(1, 2, 4\)"):
        layer(x, h[..., :4])


class Net(nn.Module):
    """Layers in lists, one of them in two places, and some that have no counterpart."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.GRU(3, 3)
        self.blocks = nn.ModuleList([self.shared, nn.Sequential(nn.Linear(3, 3)), self.shared])
        self.relu = nn.RNN(3, 3, nonlinearity="relu")
        self.projected = nn.LSTM(3, 4, proj_size=3)
        self.normalised = parametrizations.weight_norm(nn.GRU(3, 3), "weight_hh_l0")
        self.own = type("Own", (nn.GRU,), {})(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.blocks[0](x)
        x, _ = self.blocks[2](self.blocks[1](x))
        for module in (self.relu, self.own):
            x, _ = module(x)
        return x


def test_tree_names_what_it_leaves() -> None:
    net, x = Net(), torch.randn(4, 2, 3)
    expected = net(x)
    result = convert(net)
    assert isinstance(net.shared, nn.GRU)
    assert result.replaced == ["shared", "blocks.0", "blocks.2"]
    assert result.module.shared is result.module.blocks[0] is result.module.blocks[2]  # type: ignore[index]
    assert {name: reason.partition(",")[0] for name, reason in result.left.items()} == {
        "relu": "nonlinearity: expected tanh",
        "projected": "proj_size: expected 0",
        "normalised": "expected a class of torch.nn",
        "own": "expected a class of torch.nn",
    }
    torch.testing.assert_close(result.module(x), expected, rtol=0, atol=1e-6)
    skipping = convert(net, rule="delta").module
    assert skipping.shared.recurrent_layers()[0].rule.name == "delta"  # type: ignore[union-attr, operator]
    with pytest.raises(edgernn.UsageError, match="unknown rule 'detla'"):
        convert(net, rule="detla")
