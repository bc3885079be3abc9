# SPDX-License-Identifier: Apache-2.0
"""Options of the weights of any cell: normalised, low-rank, sparse."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.cells.norm import NORMS, RecurrentBatchNorm
from edgernn.cells.recurrent import BLOCK, LowRank
from edgernn.costs import model_cost
from edgernn.export import to_onnx
from edgernn.random_models import random_model
from edgernn.rules.always import Always
from edgernn.rules.decision import Rates
from edgernn.runtime import Session
from tests import oracle, oracle_cells
from tests.models import named_cost, write_alone
from tests.tolerances import FLOAT32, FLOAT64

I, H, STEPS = 3, 20, 5
recurrent = [c for c in CELLS if hasattr(CELLS[c](I, H), "R")]
with_weights = pytest.mark.parametrize("cell", recurrent)
every_norm = pytest.mark.parametrize("norm", NORMS)
with_normalised_c = pytest.mark.parametrize("cell", [c for c in CELLS if "tanh(N(c_t))" in CELLS[c].__doc__])


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def model_of(cell, rule=None, hidden=H, **options):
    if options.get("norm") == "recurrent-batch":
        options["norm_steps"] = STEPS
    model = edgernn.SequenceModel(cell, I, hidden, rule=rule, output="all", **options).double()
    with torch.no_grad():
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.5 / p.shape[-1] ** 0.5)
        for norm in model.layers[0].cell.norms.values():
            norm.gain.uniform_(0.2, 0.7)
            if hasattr(norm, "mean"):
                norm.mean.normal_(std=0.3)
                norm.var.uniform_(0.5, 2)
    return model.eval()


def weights(model):
    layer = model.layers[0]
    return {n.split(".", 1)[1]: v.detach().numpy() for n, v in [*layer.named_parameters(), *layer.named_buffers()]}


def oracle_run(cell, rule, parameters, x):
    state = [np.zeros((x.shape[1], H))] * len(CELLS[cell].states) + [np.zeros((x.shape[1], I))]
    return oracle.run(cell, rule, parameters, x.numpy(), state)


@with_weights
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_low_rank_is_a_product(cell, rule):
    model = model_of(cell, rule, rank=4)
    p = weights(model)
    assert (p["R"].shape[1], p["Q"].shape) == (4, (4, H))
    p["R"] = p["R"] @ p.pop("Q")
    x = torch.randn(6, 2, I, dtype=torch.float64)
    np.testing.assert_allclose(model(x)[0].detach(), oracle_run(cell, rule, p, x).y, rtol=0, atol=FLOAT64)
    whole = model_of(cell, rule)
    rows = len(whole.layers[0].cell.R)
    assert model_cost(model).macs - model_cost(whole).macs == 4 * (rows + H) - rows * H


@with_weights
def test_low_rank_starts_as_wide_as_a_whole_matrix(cell):
    factored, whole = CELLS[cell](100, 400, recurrent=LowRank(30)), CELLS[cell](100, 400)
    assert float((factored.R @ factored.Q).detach().std()) == pytest.approx(float(whole.R.detach().std()), rel=0.1)


@with_weights
def test_sparse_weights_are_zero_in_blocks_over_all_gates(cell):
    model = model_of(cell, density=0.25)
    steps = 60
    for step in range(steps):
        model.prune(step, steps)
        with torch.no_grad():
            model.layers[0].cell.R.add_(0.1 * torch.randn_like(model.layers[0].cell.R))
        if step < 20:
            assert bool(model.layers[0].cell.kept.all())
    module = model.layers[0].cell
    p = weights(model)
    p["R"] = p["R"] * p.pop("kept")
    gates = [g for g in module.gates if g.h]
    parts = np.split(p["R"], np.cumsum([module._rows[g.name] for g in gates])[:-1])
    for group in ([a for a, g in zip(parts, gates, strict=True) if g.mid is m] for m in (True, False)):
        if not group:
            continue
        size = len(group[0])
        blocks = [np.any([a[i : i + BLOCK] != 0 for a in group], (0, 1)) for i in range(0, size, BLOCK)]
        assert np.mean(blocks) == pytest.approx(0.25, abs=0.5 / np.size(blocks))
        for a in group:
            zero = np.array([~(a[i : i + BLOCK] != 0).any(0) for i in range(0, size, BLOCK)])
            assert (zero == ~np.array(blocks)).all()
    assert module.held_zeros() == (p["R"] == 0).sum() > 0
    x = torch.randn(6, 2, I, dtype=torch.float64)
    np.testing.assert_allclose(model(x)[0].detach(), oracle_run(cell, "always", p, x).y, rtol=0, atol=FLOAT64)


def test_pruned_weights_may_grow_again_until_they_are_held():
    model = edgernn.SequenceModel("gru", I, 2 * BLOCK, density=0.25)
    module = model.layers[0].cell
    model.prune(30, 90)
    first = module.R == 0
    assert first.double().mean() > 0.7
    with torch.no_grad():
        module.R[first] = 10.0
    model.prune(45, 90)
    assert not (module.R[~first] != 0).any()
    model.prune(60, 90)
    held = ~module.kept
    for step in range(61, 90):
        model.prune(step, 90)
    assert torch.equal(~module.kept, held)
    assert held.double().mean() == pytest.approx(0.75, abs=0.02)


def layer_norm(p, gain):
    centred = p - p.mean(-1, keepdims=True)
    return gain * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("training", [False, True])
@every_norm
def test_lstm_with_normalised_terms_equals_the_equations(norm, training):
    """Ba et al. eq 20, which does not normalise the cell state, and Cooijmans et al. eqs 6-8."""
    model = model_of("lstm", norm=norm)
    model.train(training)
    p = weights(model)
    T, B = 8, 6
    x = torch.randn(T, B, I, dtype=torch.float64)

    def normalise(key, value, t):
        gain = p[f"norms.{key}.gain"]
        if norm == "layer":
            return layer_norm(value, gain)
        mean, var = (p[f"norms.{key}.{name}"][min(t, STEPS - 1)] for name in ("mean", "var"))
        if training:
            mean, var = value.mean(0), value.var(0)
        return gain * (value - mean) / np.sqrt(var + 1e-5)

    h, c, y, statistics = np.zeros((B, H)), np.zeros((B, H)), [], []
    for t in range(T):
        products = {"W": x[t].numpy() @ p["W"].T, "R": h @ p["R"].T}
        a = sum(normalise(key, value, t) for key, value in products.items()) + p["b"]
        i, f, g, o = np.split(a, 4, -1)
        c = oracle_cells.sigmoid(f) * c + oracle_cells.sigmoid(i) * np.tanh(g)
        n = c if norm == "layer" else normalise("c", c, t) + p["norms.c.shift"]
        h = oracle_cells.sigmoid(o) * np.tanh(n)
        y.append(h)
        statistics.append({key: (value.mean(0), value.var(0)) for key, value in (products | {"c": c}).items()})
    before = {n: v.copy() for n, v in p.items()}
    np.testing.assert_allclose(model(x)[0].detach(), np.stack(y), rtol=0, atol=1e-9 if training else FLOAT64)
    if training and norm == "recurrent-batch":
        for key in ("W", "R", "c"):
            for k, name in enumerate(("mean", "var")):
                new = np.stack([s[key][k] for s in statistics[:STEPS]])
                got = getattr(model.layers[0].cell.norms[key], name).numpy()
                np.testing.assert_allclose(got, 0.9 * before[f"norms.{key}.{name}"] + 0.1 * new, rtol=0, atol=1e-9)


def test_cells_say_whether_they_normalise_their_state():
    for cell in CELLS.values():
        assert cell.normalises_c == ("tanh(N(c_t))" in cell.__doc__), cell.name
    for norm in NORMS:
        assert ("c" in model_of("lstm", norm=norm).layers[0].cell.norms) == (norm == "recurrent-batch")


@with_normalised_c
@pytest.mark.parametrize("rule", ["always", "selective", "skip", "phased", "clockwork"])
def test_any_cell_state_is_normalised_for_the_output_alone(cell, rule):
    """With products of mean 0 and the statistics of one step, all normalisations except that of c scale the weights."""
    model = edgernn.SequenceModel(cell, I, H, rule=rule, output="all", norm="recurrent-batch", norm_steps=1).double()
    with torch.no_grad():
        for norm in model.layers[0].cell.norms.values():
            norm.gain.uniform_(0.2, 0.7)
            norm.var.uniform_(0.5, 2)
        norms = model.layers[0].cell.norms
        norms["c"].mean.normal_(std=0.3)
        norms["c"].shift.normal_(std=0.3)
    p = weights(model.eval())
    for key in norms:
        scale = p[f"norms.{key}.gain"] / np.sqrt(p[f"norms.{key}.var"][0] + 1e-5)
        if key == "c":
            p |= {"N_scale": scale, "N_shift": p["norms.c.shift"] - p["norms.c.mean"][0] * scale}
        else:
            p[key] = scale[:, None] * p[key]
    x = torch.randn(9, 2, I, dtype=torch.float64)
    start = [s.detach().numpy() for s in model.layers[0].initial_state(2, x)]
    expected = oracle.run(cell, rule, p, x.numpy(), [*start, np.zeros((2, I))])
    y, state = model(x)
    np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
    for s, want in zip(state, expected.state, strict=False):
        np.testing.assert_allclose(s.detach(), want, rtol=0, atol=FLOAT64)


@with_normalised_c
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_training_equals_evaluation_with_the_statistics_of_the_batch(cell, rule, monkeypatch):
    monkeypatch.setattr(RecurrentBatchNorm, "momentum", 1.0)
    model = model_of(cell, rule, norm="recurrent-batch")
    x = torch.randn(STEPS, 6, I, dtype=torch.float64)
    y = model.train()(x)[0]
    y.square().sum().backward()
    for key, norm in model.layers[0].cell.norms.items():
        assert all(bool(p.grad.any()) for p in norm.parameters()), key
    torch.testing.assert_close(model.eval()(x)[0], y, rtol=0, atol=1e-9)


def normalised(cell, norm):
    options = {"cell_options": {"length": 9}} if cell == "decaynet" else {}
    return model_of(cell, norm=norm, layers=2, **options)


@every_norm
@pytest.mark.parametrize("cell", CELLS)
def test_any_cell_with_a_norm_is_the_same_in_parts(norm, cell):
    model = normalised(cell, norm)
    x = torch.randn(9, 2, I, dtype=torch.float64)
    with torch.no_grad():
        whole, end = model(x)
        first, state = model(x[:4])
        second, state = model(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=FLOAT64)
    torch.testing.assert_close(state, end, rtol=0, atol=FLOAT64)


@every_norm
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", *(slow(cell) for cell in ("eins", "t-lstm", "decaynet"))])
def test_a_cell_with_a_norm_is_the_same_in_a_file(norm, cell, tmp_path):
    model = normalised(cell, norm)
    x = torch.randn(9, 2, I, dtype=torch.float64)
    with torch.no_grad():
        whole, _ = model(x)
    (check,) = to_onnx(model.float(), tmp_path / "m.onnx")
    assert check.worst <= FLOAT32
    session = Session(tmp_path / "m.onnx", backend="portable")
    y = np.stack([session.step(x_t) for x_t in x.float().numpy()])
    np.testing.assert_allclose(y, whole, rtol=0, atol=FLOAT32)


@every_norm
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_with_a_norm_equal_finite_differences(norm, cell):
    # small, as every element is perturbed
    model = model_of(cell, norm=norm, hidden=4).train()
    names = [n for n, _ in model.named_parameters()]
    x = torch.randn(3, 4, I, dtype=torch.float64)

    def f(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(f, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


def test_a_files_normalisation_is_constant(tmp_path):
    import onnx

    model = model_of("lstm", norm="recurrent-batch").float()
    to_onnx(model, tmp_path / "m.onnx")
    names = [w.name for w in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert {f"layer0.norms.{key}.{part}" for key in "WRc" for part in ("scale", "shift")} <= set(names)
    assert not any(n.endswith((".mean", ".var", ".gain")) for n in names)


@pytest.mark.parametrize("type", ["bfloat16", "int8"])
def test_a_files_statistics_are_not_rounded(type, tmp_path):
    model = model_of("lstm", norm="recurrent-batch").float()
    (check,) = to_onnx(model, tmp_path / "m.onnx", weights=type)
    assert check.worst <= FLOAT32


IN_FILES = [{"rank": 4}, {"density": 0.25}, {"density": 0.25, "norm": "layer"}, {"norm": "recurrent-batch"}]
LAYERS = [("gru", "always"), ("ihc-lstm", "selective"), ("gru-before", "skip")]


# cases of `make quick`: each option and each layer
@pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        (*layer, options) if i % len(LAYERS) == j else slow(*layer, options)
        for i, options in enumerate(IN_FILES)
        for j, layer in enumerate(LAYERS)
        if (i + 1) % len(LAYERS) != j
    ],
)
def test_file_equals_torch(cell, rule, options, tmp_path):
    model = model_of(cell, rule, layers=2, **options).float()
    for step in range(30):
        model.prune(step, 30)
    for check in to_onnx(model, tmp_path / "m.onnx"):
        assert check.worst <= FLOAT32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cell": "gru", "rank": 0}, "rank: expected a whole number of at least 1 or none, got 0"),
        ({"cell": "sru", "rank": 2}, "rank: sru has no recurrent weights to factorise"),
        ({"cell": "sru", "density": 0.5}, "density: sru has no recurrent weights to prune"),
        ({"cell": "gru", "density": 1.5}, "density: expected a number above 0 and of at most 1 or none, got 1.5"),
        ({"cell": "gru", "density": 0.5, "rank": 2}, "density, rank: expected at most one of the two"),
        ({"cell": "gru", "norm": "batch"}, "unknown norm 'batch': did you mean 'recurrent-batch'"),
        ({"cell": "gru", "norm": "layer", "norm_steps": 0}, "norm_steps: expected a whole number of at least 1, got 0"),
        (
            {"cell": "gru", "norm": "layer", "norm_steps": 9},
            "norm_steps: expected norm=recurrent-batch, got norm=layer",
        ),
        ({"cell": "gru", "norm_steps": 9}, "norm_steps: expected norm=recurrent-batch, got norm=none, with which"),
    ],
)
def test_wrong_options_are_named(arguments, message):
    with pytest.raises(edgernn.UsageError, match=message):
        edgernn.SequenceModel(input_size=3, hidden_size=8, **arguments)


@pytest.mark.parametrize(("rule", "skips"), [("always", True), ("selective", False)])
def test_costs_by_name_count_pruned_weights(rule, skips):
    before = torch.random.get_rng_state()
    dense, sparse = (named_cost("gru", rule, 5, 32, density=density) for density in (None, 0.25))
    # R (96, 32) keeps a quarter of its blocks of 16 rows and one column
    zeros = 96 * 32 * 3 // 4
    assert dense.parameters - sparse.parameters == zeros
    assert dense.macs == sparse.macs
    assert dense.macs_executed - sparse.macs_executed == zeros * skips
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("density", [0.25, 0.7, 0.75, 0.9])
@pytest.mark.parametrize("cell", ["gru", "gru-before"])
def test_costs_count_the_zeros_that_the_kernel_multiplies(cell, density, tmp_path):
    model = random_model(cell, 32, 64, rule="skip", density=density)
    session = Session(write_alone(model, tmp_path / "m.onnx"), backend="native")
    session.run(np.ones((STEPS, 1, 32), np.float32))
    executed = session.macs.item() / STEPS
    assert model_cost(model).macs_executed == executed
    # the rule skip takes 64 multiply-adds
    assert Always(32, 64).executed_macs(model.layers[0].cell, Rates(1.0)) == executed - 64


def test_clockwork_needs_whole_weights():
    with pytest.raises(edgernn.UsageError, match="rank: expected none with the rule clockwork, which masks recurrent"):
        edgernn.SequenceModel("gru", 3, 8, rule="clockwork", rank=2)
