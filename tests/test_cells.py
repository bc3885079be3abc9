# SPDX-License-Identifier: Apache-2.0
"""Every cell under every rule in torch: the float64 oracle, gradients, and properties of a recurrence."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.cli.cell_costs import cell_costs
from edgernn.costs import cost
from edgernn.layer import RecurrentLayer
from edgernn.names import COMBINATIONS
from edgernn.rules import RULES
from tests import oracle
from tests.models import named_cost
from tests.pairs import PAIRS
from tests.random_layers import assert_gradients_are_right, layer_of, op_parameters, random_state
from tests.tolerances import FLOAT64

SHAPES = [(1, 1, 1, 1), (2, 1, 3, 5), (3, 2, 6, 6), (7, 3, 17, 33), (1, 4, 2, 16)]
every_cell = pytest.mark.parametrize("cell", CELLS)
# cases of `make quick`: every cell, and every rule on a one-stage and a two-stage cell
SPINE = [(c, r) for c, r in PAIRS if r == "always" or c in ("gru", "eins")]
every_pair = pytest.mark.parametrize(
    ("cell", "rule"),
    [p if p in SPINE else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS],
)
# some cells have other gates where I = H
every_size = pytest.mark.parametrize(("I", "H"), [(3, 5), (4, 4)], ids=str)


# of most cells, a pair has two of the five shapes; a cell and a rule have all of them
@pytest.mark.parametrize(
    ("cell", "rule", "T", "B", "I", "H"),
    [
        pytest.param(*pair, *shape, marks=[] if pair in SPINE else pytest.mark.slow)
        for place, pair in enumerate(PAIRS)
        for number, shape in enumerate(SHAPES)
        if pair[0] in ("gru", "eins") or (place + number) % 5 in (0, 2)
    ],
)
def test_layer_equals_oracle(cell, rule, T, B, I, H):
    layer = layer_of(cell, rule, I, H)
    x, state = torch.randn(T, B, I, dtype=torch.float64), random_state(layer, B)
    expected = oracle.run(cell, rule, op_parameters(layer), x.numpy(), [s.numpy() for s in state])
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            y, last, trace = layer(x, state)
        np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
        for got, wanted in zip(last[: len(expected.state)], expected.state, strict=True):
            np.testing.assert_allclose(got.detach(), wanted, rtol=0, atol=FLOAT64)
        if RULES[rule].can_skip:
            assert (trace.decisions.sum(-1).numpy() == expected.updates).all()


def test_oracle_covers_every_cell():
    assert set(oracle.CELLS) == set(CELLS)


@every_cell
@every_size
def test_gradients_equal_finite_differences(cell, I, H):
    assert_gradients_are_right(layer_of(cell, "always", I, H), I)


@pytest.mark.parametrize("slope", [1.0, 3.0])
def test_straight_through_gradient_is_that_of_the_hard_sigmoid(slope):
    v = torch.linspace(-2, 2, 41, dtype=torch.float64).add(0.013).requires_grad_()
    weight = torch.randn(41, dtype=torch.float64)
    soft = ((slope * v + 1) / 2).clamp(0, 1)
    hard = (soft > 0.5).to(v.dtype)
    rule = RULES["selective"](1, 41).double()
    rule.slope = slope
    with torch.no_grad():
        rule.rule_d.zero_()
    u = rule.decide(v, (torch.zeros_like(v),), ()).u
    assert torch.equal(u, hard)
    (got,) = torch.autograd.grad((u * weight).sum(), v)
    (expected,) = torch.autograd.grad(((hard + soft - soft.detach()) * weight).sum(), v)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("group_size", [1, 4])
def test_detached_states_get_no_gradient_from_decisions(group_size):
    rule = RULES["selective"](3, 10, group_size=group_size, detach_state=True).double()
    e, h = rule.project(torch.randn(2, 3, dtype=torch.float64)), torch.randn(2, 10, dtype=torch.float64)
    u = rule.decide(e, (h.requires_grad_(),), ()).u
    u.sum().backward()
    assert h.grad is None
    assert rule.rule_d.grad.abs().min() > 0


@pytest.mark.parametrize("detach_state", [False, True])
def test_detached_states_bound_the_gradient_of_neurons_that_keep_their_state(detach_state):
    """A neuron keeps 0.5 for 400 steps, where the cell computes 0.6 and the score is -0.05 (h̃ - h > 0, d > 0)."""
    rule = RULES["selective"](1, 1, detach_state=detach_state).double()
    with torch.no_grad():
        rule.rule_d.fill_(0.9)
    h = start = torch.full((1, 1), 0.5, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        u = rule.decide(torch.full_like(h, -0.5), (h,), ()).u
        h = u * 0.6 + (1 - u) * h
    assert h.item() == 0.5
    h.sum().backward()
    # without the option, the factor at each step is 1 + 0.9 · (0.6 - 0.5) / 2
    assert start.grad.item() == pytest.approx(1 if detach_state else 1.045**400)


@every_cell
@every_size
def test_selective_gradients_equal_those_of_the_surrogate(cell, I, H):
    """u = hard + (soft - soft.detach()): the whole layer written out in plain autograd."""
    layer = layer_of(cell, "selective", I, H)
    x, state = torch.randn(6, 2, I, dtype=torch.float64), random_state(layer, 2)
    layer.rule.anneal(7)
    y, last, trace = layer(x, state)
    loss = y.sin().sum() + sum(s.cos().sum() for s in last[: len(layer.cell.states)]) + trace.budget
    got = torch.autograd.grad(loss, list(layer.parameters()))

    constants, budget, outputs = layer.cell.constants(x), 0, []
    inputs = x
    if layer.cell.reads_last:
        inputs = torch.cat([x, torch.cat([state[-1][None], x[:-1]])], -1)
        state = state[:-1]
    for t in range(len(x)):
        v = x[t] @ layer.rule.rule_W.T + layer.rule.rule_b + layer.rule.rule_d * state[0]
        soft = ((1.28 * v + 1) / 2).clamp(0, 1)
        u = (soft > 0.5).to(v.dtype) + soft - soft.detach()
        new = layer.cell.step(layer.cell.project(inputs[t : t + 1])[0], x[t], state, constants)
        state = tuple(u * n + (1 - u) * s for n, s in zip(new, state, strict=True))
        budget = budget + u.mean()
        outputs.append(state[0])
    loss = torch.stack(outputs).sin().sum() + sum(s.cos().sum() for s in state) + budget
    expected = torch.autograd.grad(loss, list(layer.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("budget", ["decisions", "likelihoods"])
def test_budget_is_the_sum_over_time_of_the_mean(budget):
    model = edgernn.SequenceModel("sarnn", 3, 8, rule_options={"budget": budget})
    model.anneal(50)
    x = torch.randn(5, 4, 3)
    model(x)
    layer = model.recurrent_layers()[0]
    state, total = model.initial_state(4, x), 0.0
    with torch.no_grad():
        for t in range(5):
            e = layer.rule.project(x[t : t + 1])[0]
            v = e + layer.rule.rule_d * state[0]
            soft = ((3 * v + 1) / 2).clamp(0, 1)
            total += float((soft if budget == "likelihoods" else (soft > 0.5).float()).mean())
            _, state = model(x[t : t + 1], state)
    model(x)
    assert float(model.budget.detach()) == pytest.approx(total, rel=1e-5)


def test_slope_follows_the_paper_schedule():
    rule = RULES["selective"](1, 1)
    slopes = []
    for epoch in (0, 1, 50, 100, 1000):
        rule.anneal(epoch)
        slopes.append(rule.slope)
    assert slopes == pytest.approx([1.0, 1.04, 3.0, 5.0, 5.0])


# properties that make a cell independent of the sequence length
STREAMING_OPTIONS = {"decaynet": {"length": 8}}


@every_pair
def test_split_sequence_equals_whole(cell, rule):
    options = STREAMING_OPTIONS.get(cell)
    model = edgernn.SequenceModel(cell, 3, 9, 2, rule=rule, layers=2, output="all", cell_options=options)
    model = model.double().eval()
    assert all(layer.cell.streaming for layer in model.recurrent_layers())
    x = torch.randn(11, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        whole, end = model(x)
        first, state = model(x[:4])
        second, state = model(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=FLOAT64)
    torch.testing.assert_close(state, end, rtol=0, atol=FLOAT64)


@every_cell
def test_backward_direction_reads_the_sequence_backwards(cell):
    both = edgernn.SequenceModel(cell, 3, 4, bidirectional=True, output="all")
    back = edgernn.SequenceModel(cell, 3, 4, output="all")
    back.layers[0].load_state_dict(both.layers[1].state_dict())
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(both(x)[0][..., 4:], back(x.flip(0))[0].flip(0))
    both.output = "last"
    torch.testing.assert_close(both(x)[0][:, 4:], back(x.flip(0))[0][-1])


@pytest.mark.parametrize("cell", ["sru", "irc-sru", "irc-t-lstm"])
def test_other_sizes_have_equations_of_their_own(cell):
    same, other = CELLS[cell](6, 6), CELLS[cell](5, 6)
    assert (same.form, other.form) == (cell, f"{cell}-projected")
    # two layers with different cells in one model
    model = edgernn.SequenceModel(cell, 3, 4, layers=2)
    assert [layer.kernel_name for layer in model.recurrent_layers()] == [other.form, same.form]


def test_strongly_typed_cell_carries_its_last_input():
    model = edgernn.SequenceModel("t-lstm", 3, 5, layers=2, output="all")
    x = torch.randn(4, 2, 3)
    _, state = model(x)
    named = dict(zip(model.state_names, state, strict=True))
    assert list(named) == ["layer0.h", "layer0.c", "layer0.x_last", "layer1.h", "layer1.c", "layer1.x_last"]
    assert torch.equal(named["layer0.x_last"], x[-1])
    assert torch.equal(named["layer1.x_last"], named["layer0.h"])


def test_parameters_with_a_first_value_have_it():
    for cell, values in (
        ("irc-gru", {"alpha": 2}),
        ("irc-lstm", {"alpha": 2}),
        ("irc-sru", {"alpha": 2}),
        ("irc-t-lstm", {"alpha": 2}),
        ("irc-fastgrnn", {"alpha": 2, "beta": 1}),
        ("fastgrnn", {"b_z": 1, "b_n": 1, "zeta": 1, "nu": -4}),
        ("fastgrnn-split", {"zeta": 1, "nu": -4}),
    ):
        module = CELLS[cell](3, 40)
        for _ in range(2):
            for name, value in values.items():
                assert (getattr(module, name) == value).all()
            assert 0 < module.W.abs().max() <= 40**-0.5
            torch.nn.init.zeros_(module.W)
            module.reset_parameters()


def test_gru_and_lstm_equal_torch():
    for kind, blocks in (("gru", 3), ("lstm", 4), ("rnn", 1)):
        theirs = getattr(torch.nn, kind.upper())(3, 7)
        model = edgernn.SequenceModel(kind, 3, 7, output="all")
        cell = model.recurrent_layers()[0].cell
        bi, bh = theirs.bias_ih_l0.detach(), theirs.bias_hh_l0.detach()
        b = torch.cat([bi[:14] + bh[:14], bi[14:], bh[14:]]) if kind == "gru" else bi + bh
        cell.load_state_dict({"W": theirs.weight_ih_l0.detach(), "R": theirs.weight_hh_l0.detach(), "b": b})
        x = torch.randn(9, 2, 3)
        torch.testing.assert_close(model(x)[0], theirs(x)[0])
        assert cell.W.shape == (blocks * 7, 3)


def test_update_rate_counts_every_layer():
    model = edgernn.SequenceModel("sarnn", 3, 8, layers=2)
    with pytest.raises(RuntimeError, match="not been run"):
        _ = model.update_rate
    model(torch.randn(5, 4, 3))
    rates = [float(t.decisions.double().mean()) for t in model.traces]
    assert model.update_rate == pytest.approx(sum(rates) / 2)
    assert edgernn.SequenceModel("gru", 3, 8)(torch.zeros(1, 1, 3)) is not None


def test_parameters_follow_the_papers():
    I, H = 100, 800
    assert named_cost("lstm", None, I, H).parameters == 4 * I * H + 4 * H * H + 4 * H == 2_883_200
    assert named_cost("gru-before", None, I, H).parameters == 3 * (I * H + H * H + H)
    assert named_cost("gru", None, I, H).parameters == 3 * (I * H + H * H + H) + H
    assert named_cost("pru", None, I, H).parameters == 2 * (I * H + H * H + H)
    # the tables of the EINS paper count one bias
    for sizes, printed in (((100, 800), 420_100), ((20, 20), 2_820), ((300, 256), 564_300), ((70, 100), 44_870)):
        assert named_cost("eins", None, *sizes).parameters == printed
    # by the IRC paper's equations; its 0.42 million for (100, 800) is the count of EINS
    for sizes, counted in (((100, 800), 490_100), ((20, 20), 2_820)):
        assert named_cost("ihc-lstm", None, *sizes).parameters == counted
    # per layer of its Table II: 1.7, 1.3 and 1.7 million; the FastGRNN of EdgeML has half as many
    vectors = {"irc-gru": 650, "irc-fastgrnn": 650 + 1, "fastgrnn-split": 2 * 650 + 2, "fastgrnn": 2 * 650 + 2}
    for cell, matrices in (("irc-gru", 4), ("irc-fastgrnn", 3), ("fastgrnn-split", 4), ("fastgrnn", 2)):
        layer = named_cost(cell, None, 650, 650)
        assert (layer.macs, layer.parameters) == (matrices * 650**2, matrices * 650**2 + vectors[cell])
        assert named_cost(cell, None, 650, 650, layers=2).parameters == 2 * layer.parameters
    N, M = 30, 70
    assert named_cost("irc-lstm", None, N, M).parameters == 5 * N * M + N
    # T-LSTM 5.1 and IRC-T-LSTM 2.5 million in two layers of 650, 50.0 % less
    typed, residual = (named_cost(cell, None, 650, 650, layers=2) for cell in ("t-lstm", "irc-t-lstm"))
    assert (typed.macs, typed.parameters) == (2 * 6 * 650**2, 2 * (6 * 650**2 + 3 * 650))
    assert (residual.macs, residual.parameters) == (2 * 3 * 650**2, 2 * (3 * 650**2 + 2 * 650))
    assert (round(typed.parameters / 1e6, 1), round(residual.parameters / 1e6, 1)) == (5.1, 2.5)
    assert round(100 * (1 - residual.parameters / typed.parameters), 1) == 50.0
    # IRC-SRU has 0.06 % fewer than SRU in three layers of 1150; the paper prints 12.0 million for both, which is 11.9
    simple, residual = (named_cost(cell, None, 1150, 1150, layers=3) for cell in ("sru", "irc-sru"))
    assert simple.macs == residual.macs == 3 * 3 * 1150**2
    assert simple.parameters == 3 * (3 * 1150**2 + 4 * 1150)
    assert residual.parameters == 3 * (3 * 1150**2 + 2 * 1150)
    assert (round(simple.parameters / 1e6, 1), round(residual.parameters / 1e6, 1)) == (11.9, 11.9)
    assert round(100 * (1 - residual.parameters / simple.parameters), 2) == 0.06
    # where sizes differ: the fourth matrix of SRU, and U_V instead of its diagonal
    assert named_cost("sru", None, N, M).parameters == 4 * N * M + 4 * M
    assert named_cost("irc-sru", None, N, M).parameters == 5 * N * M + N
    assert named_cost("irc-t-lstm", None, N, M).parameters == 4 * N * M + N
    # three full peepholes, and the LSTM's parameters without the bias that System 2 omits
    assert named_cost("lstm-peephole", None, N, M).parameters == named_cost("lstm", None, N, M).parameters + 3 * M * M
    assert named_cost("decaynet", None, N, M).parameters == named_cost("lstm", None, N, M).parameters - M


@pytest.mark.parametrize(
    ("cell", "rule", "I", "H", "T", "skip", "printed"),
    [
        ("gru", "always", 77, 50, 15, 0.0, 569_250),
        ("gru", "always", 1, 50, 25, 0.0, 378_750),
        ("gru", "always", 1, 50, 17, 0.0, 257_550),
        ("gru", "always", 2, 128, 500, 0.0, 49.728e6),
        ("gru", "selective", 2, 128, 500, 0.252, 37.5e6),
        ("gru", "selective", 2, 128, 500, 0.496, 25.4e6),
    ],
    ids=["twitter-gru", "yahoo-gru", "seizures-gru", "adding-gru", "adding-sarnn-25", "adding-sarnn-50"],
)
def test_flops_paper_reproduces_the_printed_numbers(cell, rule, I, H, T, skip, printed):
    flops = T * named_cost(cell, rule, I, H, update_rate=1 - skip).flops_paper
    assert flops == pytest.approx(printed, rel=2e-3 if skip else 0)


@every_cell
@pytest.mark.parametrize(("I", "H"), [(3, 8), (8, 8)], ids=str)
def test_executed_macs_follow_the_update_rate(cell, I, H):
    row, decision = oracle.row_of(cell, I, H), H * I + H
    for updated in (0, 2, 8):
        costs = cost(CELLS[cell](I, H), RULES["selective"](I, H), update_rate=updated / H)
        # columns of the first stage for neurons that did not change
        saved = (updated > 0) * (H - updated) * row.middle_size(I, H) * row.mid_macs(0, 1)
        assert costs.macs_executed == row.step_macs(updated, I, H) - saved + decision
        assert costs.macs == row.step_macs(H, I, H) + decision


def test_unknown_names_suggest_the_nearest():
    for kind, arguments, hint in (
        ("cell", {"cell": "sarn"}, "sarnn"),
        ("cell", {"cell": "ltsm"}, "lstm"),
        ("rule", {"cell": "gru", "rule": "selectiv"}, "selective"),
    ):
        with pytest.raises(edgernn.UsageError, match=f"unknown {kind} .*did you mean '{hint}'"):
            edgernn.SequenceModel(input_size=1, **arguments)
    assert set(COMBINATIONS).isdisjoint(CELLS)


@pytest.mark.parametrize(
    ("name", "cell", "rule"), [("sarnn", "gru", "selective"), ("deltagru", "gru", "delta"), ("d-gru", "gru", "topk")]
)
def test_a_papers_name_is_a_pair_in_the_list_of_costs(name, cell, rule):
    assert edgernn.SequenceModel(name, 2, 8).config.layer.types == (CELLS[cell], RULES[rule])
    assert edgernn.SequenceModel(cell, 2, 8, rule=rule).config.layer.name == name
    (entry,) = (entry for entry in cell_costs(2, 8) if entry["name"] == name)
    assert (entry["cell"], entry["rule"], entry["paper"]) == (cell, rule, RULES[rule].paper)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: expected a whole number of at least 1, got 0"),
        ({"layers": 0}, "layers: expected a whole number of at least 1 and of at most 1000, got 0"),
        ({"output_size": 0}, "output_size: expected a whole number of at least 1 or none, got 0"),
        ({"output": "first"}, "output: expected 'last' or 'all', got 'first'"),
        (
            {"cell": "eins", "cell_options": {"a": "y"}},
            "a: expected 'v' or 'x', the vector from which a_t is computed, got 'y'",
        ),
        (
            {"cell": "eins", "cell_options": {"forget_bias": "1"}},
            "forget_bias: expected a number, or None for no bias, got '1'",
        ),
        ({"cell": "decaynet", "cell_options": {"length": 0}}, "length: expected a whole number of at least 1 or None"),
        (
            {"cell": "decaynet", "cell_options": {"length": 2.5}},
            "length: expected a whole number of at least 1 or None",
        ),
        ({"cell": "sarnn", "rule_options": {"budget": "x"}}, "budget: expected one of decisions, likelihoods, got 'x'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(edgernn.UsageError, match=message):
        edgernn.SequenceModel(**{"cell": "gru", "input_size": 2, **arguments})


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda x: x.numpy(), r"expected a torch.Tensor, got numpy.ndarray; convert it with torch.as_tensor\(x, "),
        (lambda x: x.tolist(), "expected a torch.Tensor, got builtins.list; convert it"),
        (lambda x: x.double(), r"expected torch.float32, got torch.float64; convert it with x.to\(torch.float32\)$"),
        (lambda x: x > 0, "expected torch.float32, got torch.bool"),
        (lambda x: x.cfloat(), "expected torch.float32, got torch.complex64"),
        (lambda x: x[:, 0], r"got \(4, 3\); add the axis B with x.unsqueeze\(1\)"),
        (lambda x: x.to("meta"), r"expected a tensor on cpu, got one on meta; move it with x.to\('cpu'\)"),
    ],
    ids=["numpy", "list", "float64", "bool", "complex", "one sequence", "device"],
)
def test_inputs_that_torch_cannot_compute_with_are_named(convert, message):
    model, x = edgernn.SequenceModel("gru", 3, 4), torch.ones(4, 2, 3)
    with pytest.raises(edgernn.UsageError, match=f"^x: .*{message}"):
        model(convert(x))
    # numbers that torch converts to the type of the weights
    for same in (x.long(), x.half(), x.to(torch.uint8)):
        assert torch.equal(model(same)[0], model(x)[0])
    assert model.double()(x.double())[0].dtype == torch.float64


def test_samples_and_words_of_a_wrong_type_are_named():
    audio = edgernn.SequenceModel("gru", 160, 4, frontend="logmel", hop=160)
    with pytest.raises(edgernn.UsageError, match=r"got torch.int16; .*, and divide 16-bit samples by 32768$"):
        audio(torch.ones(5, 1, 160, dtype=torch.int16))
    words = edgernn.SequenceModel("gru", 4, 4, 9, vocabulary=9)
    with pytest.raises(edgernn.UsageError, match=r"x: expected a torch.Tensor, got numpy.ndarray; .* torch.int64 for"):
        words(np.zeros((5, 1), np.int64))


@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 3), (4, 2, 5)])
def test_wrong_shapes_are_named(shape):
    model = edgernn.SequenceModel("gru", 3, 4)
    with pytest.raises(edgernn.UsageError, match=r"x: expected shape \(T >= 1, B, 3\), got"):
        model(torch.zeros(shape))
    with pytest.raises(edgernn.UsageError, match="state: expected 1 tensors"):
        model(torch.zeros(1, 1, 3), (torch.zeros(1, 4),) * 2)


@pytest.mark.parametrize("rule", ["always", "selective"])
def test_a_layer_runs_the_step_that_a_cell_overrides(rule):
    class Halved(CELLS["gru"]):
        name = "halved"

        def step(self, a, x, state, constants, t=None):
            return tuple(s / 2 for s in super().step(a, x, state, constants, t))

    torch.manual_seed(0)
    halved = RecurrentLayer(Halved(2, 3), RULES[rule](2, 3))
    plain = RecurrentLayer(CELLS["gru"](2, 3), RULES[rule](2, 3))
    plain.load_state_dict(halved.state_dict())
    if rule == "selective":
        halved.rule.force(1.0)
        plain.rule.force(1.0)
    x = torch.randn(1, 4, 2)
    torch.testing.assert_close(2 * halved(x)[0], plain(x)[0])
