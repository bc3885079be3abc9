# SPDX-License-Identifier: Apache-2.0
"""Layers for networks of one's own: recurrent layers, single steps and causal convolutions, and their penalty."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import edgernn
from edgernn.frontends import FrontendConfig, LogMel
from edgernn.names import CELLS, RULES
from edgernn.nn import CausalConv1d, Recurrent, RecurrentCell, budget, steer, update_rate

# cell, rule, settings
LAYERS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("gru", None, {}),
    ("lstm", None, {}),
    ("sarnn", None, {"group_size": 2}),
    ("gru", "delta", {"theta_x": 0.1}),
    ("lstm", "skip", {}),
    ("gru-before", "topk", {}),
    ("gru", None, {"rank": 3, "norm": "layer"}),
]


def tensors(state: Any) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


@pytest.mark.parametrize(("cell", "rule", "settings"), LAYERS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padded_and_packed_sequences_are_those_alone(
    cell: str, rule: str | None, settings: dict[str, Any], bidirectional: bool
) -> None:
    torch.manual_seed(0)
    rnn = Recurrent(cell, 3, 6, 2, rule=rule, bidirectional=bidirectional, batch_first=True, **settings)
    x, lengths = torch.randn(4, 9, 3), torch.tensor([9, 3, 7, 3])
    for b, steps in enumerate(lengths.tolist()):
        x[b, steps:] = torch.nan
    y, state = rnn(x, lengths=lengths)
    rate = update_rate(rnn)
    gradients = torch.autograd.grad(y.square().sum(), list(rnn.parameters()), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert y.shape == (4, 9, 12 if bidirectional else 6)
    updates = 0.0
    for b, steps in enumerate(lengths.tolist()):
        alone, last = rnn(x[b, :steps])
        updates += update_rate(rnn) * steps
        torch.testing.assert_close(y[b, :steps], alone, rtol=0, atol=2e-6)
        assert not y[b, steps:].any()
        for ours, own in zip(tensors(state), tensors(last), strict=True):
            torch.testing.assert_close(ours[:, b] if ours.ndim == 3 else ours[b], own, rtol=0, atol=2e-6)
    assert rate == pytest.approx(updates / int(lengths.sum()))
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    packed_y, packed_state = rnn(packed)
    torch.testing.assert_close(pad_packed_sequence(packed_y, batch_first=True)[0], y)
    for ours, own in zip(tensors(state), tensors(packed_state), strict=True):
        torch.testing.assert_close(ours, own)


@pytest.mark.parametrize(("cell", "rule", "settings"), LAYERS)
def test_parts_and_single_steps_give_the_whole(cell: str, rule: str | None, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    rnn, x = Recurrent(cell, 3, 6, rule=rule, **settings), torch.randn(7, 2, 3)
    y, state = rnn(x)
    first, middle = rnn(x[:4])
    second, last = rnn(x[4:], middle)
    torch.testing.assert_close(torch.cat([first, second]), y)
    assert [tuple(s.shape) for s in tensors(state)] == [tuple(s.shape) for s in tensors(rnn.initial_state(2, x))]
    assert len(rnn.state_names) == len(tensors(state))
    one = RecurrentCell(cell, 3, 6, rule=rule, **settings)
    one.load_state_dict(rnn.state_dict())
    step = None
    for x_t in x:
        step = one(x_t, step)
    for ours, own in zip(tensors(step), tensors(last), strict=True):
        torch.testing.assert_close(ours, own.squeeze(0) if own.ndim == 3 else own)


def test_copies_files_and_dropout() -> None:
    torch.manual_seed(0)
    rnn, x = Recurrent("sarnn", 3, 8, 2, dropout=0.5), torch.randn(7, 2, 3)
    assert rnn.backend == "fused"
    assert rnn.why_loop is None
    y, _ = rnn(x)
    assert not torch.equal(rnn(x)[0], y)
    clone = copy.deepcopy(rnn).eval()
    file = io.BytesIO()
    torch.save(rnn.state_dict(), file)
    again = Recurrent("sarnn", 3, 8, 2, dropout=0.5).eval()
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    assert torch.equal(clone(x)[0], again(x)[0])
    loop = Recurrent("gru", 3, 8, norm="layer")
    assert loop.backend == "torch"
    assert "no normalisation but norm=recurrent-batch" in str(loop.why_loop)


@pytest.mark.parametrize(("kernel", "dilation", "groups"), [(3, 1, 1), (4, 2, 2), (1, 1, 1)])
def test_causal_convolution_in_parts(kernel: int, dilation: int, groups: int) -> None:
    torch.manual_seed(0)
    conv, x = CausalConv1d(4, 6, kernel, dilation=dilation, groups=groups), torch.randn(2, 4, 11)
    y, last = conv(x)
    padded = nn.functional.pad(x, ((kernel - 1) * dilation, 0))
    torch.testing.assert_close(y, nn.functional.conv1d(padded, conv.weight, conv.bias, 1, 0, dilation, groups))
    state, parts = None, []
    for steps in (1, 2, 8):
        begin = sum(part.shape[2] for part in parts)
        part, state = conv(x[:, :, begin : begin + steps], state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), y)
    assert torch.equal(state, last)


class Net(nn.Module):
    """A network of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(3, 5, 3, padding=1), Recurrent("sarnn", 5, 8, batch_first=True)
        self.other, self.head = Recurrent("gru", 8, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return self.head(self.other(y)[0][:, -1])


def test_budget_and_rate_of_a_network() -> None:
    net, x = Net(), torch.randn(2, 7, 3)
    with pytest.raises(edgernn.UsageError, match="expected a forward pass before, got none; call the module first"):
        update_rate(net)
    net(x)
    (trace,) = net.rnn.traces
    assert torch.equal(budget(net), trace.budget + net.other.traces[0].budget)
    assert update_rate(net) == pytest.approx((8 * float(trace.decisions.double().mean()) + 4) / 12)
    with pytest.raises(edgernn.UsageError, match="expected one with a recurrent layer of edgernn, got none"):
        budget(nn.Linear(1, 1))


class Steps(nn.Module):
    """A layer for each half of a sequence, or its cell for each step."""

    def __init__(self, layer: Recurrent, cell: RecurrentCell) -> None:
        super().__init__()
        self.layer, self.cell, self.stepwise = layer, cell, False

    def forward(self, x: Tensor) -> Tensor:
        if not self.stepwise:
            halves = x.chunk(2)
            y, state = self.layer(halves[0])
            return y.sum() + self.layer(halves[1], state)[0].sum()
        state, total = torch.zeros(x.shape[1], 6), torch.zeros(())
        for x_t in x:
            state = self.cell(x_t, state)
            total = total + state.sum()
        return total


def make_steps() -> Steps:
    torch.manual_seed(0)
    layer, cell = Recurrent("sarnn", 3, 6), RecurrentCell("sarnn", 3, 6)
    cell.load_state_dict(layer.state_dict())
    return Steps(layer, cell)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("stepwise", [False, True])
def test_budget_and_rate_count_every_call_of_a_step(stepwise: bool, compiled: bool) -> None:
    net, x = make_steps(), torch.randn(10, 4, 3)
    whole = copy.deepcopy(net.layer)
    whole(x)
    expected, rate = budget(whole), update_rate(whole)
    expected.backward()
    net.stepwise = stepwise
    part = net.cell if stepwise else net.layer
    call = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
    # a step that nobody reads, then one that is read after every pass
    for read in (False, True, True):
        net.zero_grad()
        call(x)
        if read:
            torch.testing.assert_close(budget(net), expected)
            assert update_rate(net) == pytest.approx(rate)
            budget(net).backward()
            for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad)
        else:
            # as an optimiser does
            with torch.no_grad():
                next(part.parameters()).add_(0)
    with torch.no_grad():
        call(x)
        torch.testing.assert_close(budget(net), expected.detach())


def test_calls_that_nobody_counts_hold_no_memory() -> None:
    layer, x = Recurrent("sarnn", 3, 6), torch.randn(5, 4, 3)
    for _ in range(20):
        layer(x)
    assert len(layer.earlier) == 7
    single = layer.traces[0].budget
    torch.testing.assert_close(budget(layer), 8 * single)
    layer(x)
    torch.testing.assert_close(budget(layer), single)
    assert not copy.deepcopy(layer).traces
    net = make_steps()
    steering = steer(net, skip=0.5, steps=3)
    for _ in range(20):
        net(x)
    assert len(net.layer.earlier) == 1
    steering(torch.zeros(()))
    assert len(pickle.dumps(net)) < 20_000


def test_steering_reaches_a_share_and_resumes() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"rnn": Recurrent("sarnn", 2, 12), "head": nn.Linear(12, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    steering = steer(net, skip=0.7, steps=150)
    rates = []
    for step in range(150):
        if step == 75:
            saved = steering.state_dict()
            steering = steer(net, skip=0.7, steps=150)
            steering.load_state_dict(saved)
        x = torch.rand(12, 16, 2)
        y, _ = net["rnn"](x)
        loss = steering((net["head"](y[-1]) - x[..., :1].mean(0)).square().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(update_rate(net))
    assert steering.step == 150
    assert sum(rates[-30:]) / 30 == pytest.approx(0.3, abs=0.12)
    assert rates[0] > 0.4


@pytest.mark.parametrize("cell", list(CELLS))
def test_layers_compute_in_half_precision(cell: str) -> None:
    torch.manual_seed(0)
    layer, x = Recurrent(cell, 3, 4), torch.randn(6, 2, 3)
    want, _ = layer(x)
    got, _ = layer.half()(x.half())
    assert got.dtype == torch.float16
    assert torch.allclose(got.float(), want, atol=0.03)


@pytest.mark.parametrize("rule", ["periodic", "clockwork", "random", "phased", "skip"])
def test_steps_that_change_no_neuron_have_gradients_of_zero(rule: str) -> None:
    before, x = nn.Linear(3, 3), torch.randn(1, 2, 3)
    for layer in (Recurrent("lstm", 3, 4, 2, rule=rule), RecurrentCell("lstm", 3, 4, rule=rule)):
        cell = isinstance(layer, RecurrentCell)
        state = layer.initial_state(2, x)
        if rule == "skip":
            state = tuple(torch.zeros_like(s) if s.shape[-1] == 1 else s for s in state)
        values = before(x)
        out = layer(values[0], state) if cell else layer(values, state)
        h = out[0]
        h.sum().backward()
        assert h.requires_grad
        if rule == "periodic":
            assert not h.any()
            assert all(p.grad is not None and not p.grad.any() for p in (*layer.parameters(), *before.parameters()))


def test_sizes_and_options_may_be_numbers_of_numpy() -> None:
    layer = Recurrent(
        "gru", np.int64(3), np.int32(4), np.int64(2), rank=np.int64(2), rule="periodic", period=np.int8(2)
    )
    assert repr(layer) == repr(Recurrent("gru", 3, 4, 2, rank=2, rule="periodic", period=2))
    assert layer(torch.ones(5, 2, 3))[0].shape == (5, 2, 4)


@pytest.mark.parametrize(
    ("cell", "rule"), [("gru", None), ("lstm", "delta"), ("sarnn", None), ("pru", "selective"), ("gru", "periodic")]
)
def test_shapes_are_those_of_tensors_without_data(cell: str, rule: str | None) -> None:
    layer = Recurrent(cell, 3, 4, rule=rule, bidirectional=True).to("meta")
    y, _ = layer(torch.ones(5, 2, 3, device="meta"))
    y.sum().backward()
    assert (y.shape, y.device.type) == ((5, 2, 8), "meta")


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(("cell", "rule"), [("decaynet", None), *(("gru", rule) for rule in RULES)])
def test_constants_come_back_from_meta(cell: str, rule: str | None, assign: bool) -> None:
    torch.manual_seed(0)
    layer, x = Recurrent(cell, 3, 8, rule=rule).eval(), torch.randn(6, 2, 3)
    with torch.device("meta"):
        made = Recurrent(cell, 3, 8, rule=rule)
    for bare in (made, copy.deepcopy(layer).to("meta")):
        copied = bare.eval() if assign else bare.eval().to_empty(device="cpu")
        copied.load_state_dict(layer.state_dict(), assign=assign)
        assert torch.equal(copied(x)[0], layer(x)[0])


def test_constants_of_a_front_end_come_back_from_meta() -> None:
    frontend = LogMel(FrontendConfig(hop=160, bands=8))
    x = torch.randn(3, 2, 160)
    assert torch.equal(copy.deepcopy(frontend).to("meta").to_empty(device="cpu")(x)[0], frontend(x)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recurrent("grru", 3, 4), "unknown cell 'grru': did you mean 'gru'"),
        (lambda: Recurrent("gru", 3, 4, periods=2), "unknown setting 'periods'"),
        (lambda: Recurrent("gru", 0, 4), "input_size: expected a whole number of at least 1, got 0"),
        (lambda: Recurrent("gru", 2**31, 4), r"input_size: expected a whole number below 2\^31, got 2147483648"),
        (lambda: Recurrent("gru", 3, 4, 0), "num_layers: expected a whole number of at least 1, got 0"),
        (lambda: Recurrent("gru", True, 4), "input_size: expected a whole number of at least 1, got True"),
        (lambda: RecurrentCell("gru", 3, 4.0), "hidden_size: expected a whole number of at least 1, got 4.0"),
        (lambda: Recurrent("gru", 3, 4, dropout=1), "dropout: expected at least 0 and below 1, got 1"),
        (lambda: Recurrent("gru-d", 3, 4), "cell: expected one without an imputer"),
        (lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 4)), r"x: expected floats \(T, B, 3\), got torch.float32"),
        (lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3).long()), "x: expected torch.float32, got torch.int64"),
        (lambda: Recurrent("gru", 3, 4)([[[1.0, 2.0, 3.0]]]), "x: expected a torch.Tensor, got list; convert it"),
        (
            lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3).to_sparse()),
            r"x: expected a dense tensor, got one with the layout torch.sparse_coo; convert it with x.to_dense\(\)",
        ),
        (
            lambda: Recurrent("gru", 3, 4)(torch.nested.nested_tensor([torch.ones(5, 3)], layout=torch.jagged)),
            "x: expected a dense tensor, got a nested one; convert it with torch.nested.to_padded_tensor",
        ),
        (lambda: RecurrentCell("gru", 3, 4)(np.ones((2, 3))), "x: expected a torch.Tensor, got numpy.ndarray"),
        (lambda: Recurrent("gru", 3, 4).half()(torch.ones(5, 2, 3)), "x: expected torch.float16, got torch.float32"),
        (
            lambda: Recurrent("lru", 3, 4)(torch.ones(5, 2, 3), torch.ones(2, 1, 2, 4).double().unbind(0)),
            "state: expected torch.float32, got torch.float64; convert it with state.to",
        ),
        (lambda: CausalConv1d(3, 4, 2)(torch.ones(2, 3, 5).double()), "x: expected torch.float32, got torch.float64"),
        (lambda: CausalConv1d(3, 4, 2)(torch.ones(2, 3, 0)), "x: expected at least one step, got none"),
        (lambda: Recurrent("gru", 3, 4)(torch.ones(0, 2, 3)), "x: expected at least one step, got none"),
        (
            lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3), torch.ones(2, 4)),
            r"state: expected tensors h \(1, 2, 4\), got shapes \[\(2, 4\)\]; pass the last state, or None",
        ),
        (lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3), lengths=[5]), r"lengths: expected whole numbers \(2,\)"),
        (
            lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3), lengths=[True, True]),
            r"lengths: expected whole numbers \(2,\), got torch.bool",
        ),
        (lambda: Recurrent("gru", 3, 4)(torch.ones(5, 2, 3), lengths=[0, 5]), "lengths: expected 1 to 5, got 0 to 5"),
        (lambda: RecurrentCell("gru", 3, 4)(torch.ones(5, 2, 3)), r"x: expected floats \(B, 3\)"),
        (
            lambda: RecurrentCell("gru", 3, 4)(torch.ones(2, 3), torch.ones(1, 4)),
            r"state: expected shapes \[\(2, 4\)\]",
        ),
        (lambda: CausalConv1d(3, 4, 2, groups=2), "groups: expected a divisor of 3 and 4 channels, got 2"),
        (lambda: CausalConv1d(3, 4, 2)(torch.ones(2, 5, 3)), r"x: expected shape \(B, 3, T\)"),
        (lambda: CausalConv1d(3, 4, 2)(torch.ones(2, 3, 5), torch.ones(2, 3, 2)), r"state: expected shape \(2, 3, 1\)"),
        (lambda: steer(Recurrent("gru", 3, 4), steps=9), "skip: expected an update rule with a penalty on updates"),
        (lambda: steer(Recurrent("sarnn", 3, 4), 1.5, steps=9), "skip: expected a share from 0 to 1, got 1.5"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(edgernn.UsageError, match=message):
        make()
