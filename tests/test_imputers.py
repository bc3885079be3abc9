# SPDX-License-Identifier: Apache-2.0
"""GRU-D and RITS before any cell, compared with float64 NumPy written from the papers."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.costs import cost, executed_macs, model_cost
from edgernn.export import to_onnx
from edgernn.imputers import IMPUTERS
from edgernn.rules import RULES
from edgernn.runtime import Session
from tests import oracle, oracle_cells, oracle_rules
from tests.models import write_alone
from tests.native import lanes
from tests.oracle_paths import KernelPaths
from tests.test_packed import assert_steps_equal_torch
from tests.tolerances import FLOAT32, FLOAT64

every_imputer = pytest.mark.parametrize("imputer", IMPUTERS)
F, H = 3, 5


def series(T, B, dtype=torch.float64, seed=0, F=F):
    """Draw values, masks and times since the last observation, with gaps: x (T, B, 3F)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(T, B, F, generator=generator, dtype=dtype)
    masks = (torch.rand(T, B, F, generator=generator) > 0.4).to(dtype)
    times = torch.zeros(T, B, F, dtype=dtype)
    for t in range(1, T):
        gap = 0.5 + t % 3
        times[t] = gap + torch.where(masks[t - 1] > 0, 0.0, times[t - 1])
    return torch.cat([values, masks, times], -1)


def model_of(cell, imputer, F=F, H=H, **options):
    model = edgernn.SequenceModel(cell, 3 * F, H, imputer=imputer, output="all", **options).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5 / p.shape[-1] ** 0.5)
    if imputer == "gru-d":
        model.layers[0].imputer.impute_mean.copy_(torch.linspace(-1, 2, F))
    return model.eval()


def relu(v):
    return np.maximum(v, 0)


def gru_d(p, x, h, memory):
    """One step of System C.1 of the EINS paper; memory is the last observed value."""
    x, m, delta = x
    gamma_x = np.exp(-relu(p["impute_d"] * delta + p["impute_e"]))
    gamma_s = np.exp(-relu(delta @ p["impute_D"].T + p["impute_g"]))
    memory = m * x + (1 - m) * memory
    filled = m * x + (1 - m) * (gamma_x * memory + (1 - gamma_x) * p["impute_mean"])
    return filled, gamma_s * h, memory, ()


def rits(p, x, h, memory):
    """One step of Cao et al. 2018, section 4.3."""
    x, m, delta = x
    h = h * np.exp(-relu(delta @ p["impute_D"].T + p["impute_g"]))
    regression = h @ p["impute_A"].T + p["impute_a"]
    complement = m * x + (1 - m) * regression
    Z = p["impute_Z"] - np.diag(np.diag(p["impute_Z"]))
    feature = complement @ Z.T + p["impute_z"]
    gamma = np.exp(-relu(p["impute_d"] * delta + p["impute_e"]))
    beta = oracle_cells.sigmoid(np.concatenate([gamma, m], -1) @ p["impute_B"].T + p["impute_k"])
    combined = beta * feature + (1 - beta) * regression
    return m * x + (1 - m) * combined, h, memory, (regression, feature, combined)


STEPS = {"gru-d": gru_d, "rits": rits}


def expected(cell, imputer, layer, x):
    """Return y (T, B, H), the imputed values and RITS's loss, with the cell's step from the table of oracles."""
    p = {n.split(".")[-1]: v.detach().numpy() for n, v in [*layer.named_parameters(), *layer.named_buffers()]}
    row, B = oracle.CELLS[cell], x.shape[1]
    state = tuple(np.zeros((B, H)) for _ in CELLS[cell].states)
    memory, y, filled, loss = np.zeros((B, F)), [], [], 0.0
    for x_t in x.numpy():
        parts = np.split(x_t, 3, -1)
        values, m, _ = parts
        inputs, h, memory, estimates = STEPS[imputer](p, parts, state[0], memory)
        state = row.step(p, np.concatenate([inputs, m], -1), (h, *state[1:]))
        y.append(state[0])
        filled.append(inputs)
        loss += sum((np.abs(values - e) * m).sum() / (m.sum() + 1e-5) for e in estimates)
    return np.stack(y), np.stack(filled), loss


def test_every_imputer_has_an_oracle():
    assert set(STEPS) == set(IMPUTERS)


@every_imputer
@pytest.mark.parametrize("cell", ["gru-before", "gru", "lstm", "pru", "eins", "irc-gru", "fastgrnn"])
@pytest.mark.parametrize(("T", "B"), [(1, 1), (7, 3)], ids=str)
def test_layer_equals_oracle(imputer, cell, T, B):
    model = model_of(cell, imputer)
    x = series(T, B)
    y, filled, loss = expected(cell, imputer, model.layers[0], x)
    np.testing.assert_allclose(model(x)[0].detach(), y, rtol=0, atol=FLOAT64)
    np.testing.assert_allclose(model.traces[0].imputed.detach(), filled, rtol=0, atol=FLOAT64)
    assert float(model.imputation_loss.detach()) == pytest.approx(loss, abs=FLOAT64)


@every_imputer
def test_gradients_equal_finite_differences(imputer):
    model = model_of("pru", imputer)
    names = [n for n, _ in model.named_parameters()]
    x = series(4, 2)

    def f(*values):
        y, last = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))
        return y, model.imputation_loss, *last

    assert torch.autograd.gradcheck(f, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


@every_imputer
def test_missing_values_play_no_part(imputer):
    model = model_of("gru", imputer)
    x = series(9, 2)
    other = x.clone()
    other[..., :F] = torch.where(x[..., F : 2 * F] > 0, x[..., :F], 1e6)
    torch.testing.assert_close(model(x)[0], model(other)[0])


BEHIND = [
    ("gru-before", "always", (3, 5)),
    ("lstm", "always", (17, 33)),
    ("eins", "selective", (3, 5)),
    ("t-lstm", "skip", (1, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "rule", "sizes", "imputer"),
    [(*layer, [*IMPUTERS][number % len(IMPUTERS)]) for number, layer in enumerate(BEHIND)],
)
def test_file_equals_torch_in_whole_and_in_steps(imputer, cell, rule, sizes, tmp_path):
    features, hidden = sizes
    model = model_of(cell, imputer, rule=rule, layers=2, F=features, H=hidden).float()
    checks = to_onnx(model, tmp_path / "m.onnx")
    assert [check.backend for check in checks] == ["portable", "native"]
    x = series(11, 2, torch.float32, F=features)
    with torch.no_grad():
        y = model(x)[0].numpy()
    for check in checks:
        assert check.worst <= FLOAT32
        session = Session(tmp_path / "m.onnx", backend=check.backend)
        np.testing.assert_allclose(session.run(x.numpy()), y, rtol=0, atol=FLOAT32)
        steps = np.stack([session.step(x_t) for x_t in x.numpy()])
        np.testing.assert_allclose(steps, y, rtol=0, atol=FLOAT32)


@every_imputer
@pytest.mark.parametrize("rule", RULES)
def test_packed_models_equal_torch_under_every_rule(imputer, rule):
    x = series(12, 2, torch.float32).numpy()
    assert_steps_equal_torch(x, "gru", rule, input_size=3 * F, imputer=imputer)


@every_imputer
def test_kernel_reports_the_imputers_work(imputer, tmp_path):
    model = model_of("gru", imputer, rule="random").float()
    session = Session(write_alone(model, tmp_path / "m.onnx"), backend="native")
    # so few steps that nothing is computed for later ones
    steps = 8
    session.run(series(steps, 2, torch.float32).numpy())
    row = oracle.row_of("gru", 2 * F, H)
    paths = KernelPaths(row, 2 * F, H, lanes(), 32)
    k = session.updates.reshape(-1)
    computed, projected, _ = paths.choose(np.arange(H) < k[:, None], True)
    macs = np.maximum(k, computed) * row.row_macs(2 * F, H, 0) + (projected > 0) * (H - k) * row.x * 2 * F
    expected = steps * model.layers[0].imputer.macs() + macs.reshape(steps, 2).sum(0)
    np.testing.assert_array_equal(session.macs, expected)


@every_imputer
@pytest.mark.parametrize(("rule", "options"), [("random", {"rate": 0.2}), ("topk", {"k": 2})])
def test_products_with_decayed_states_count_in_full(imputer, rule, options, tmp_path):
    hidden, steps = 20, 30
    model = model_of("gru-before", imputer, H=hidden, rule=rule, rule_options=options).float()
    session, x = Session(write_alone(model, tmp_path / "m.onnx"), backend="native"), series(steps, 1, torch.float32)
    session.run(x.numpy())
    with torch.no_grad():
        model(x)
    decider = oracle_rules.RULES[rule]({}, 1, 2 * F, hidden)
    row = decider.fit(oracle.row_of("gru-before", 2 * F, hidden))
    k = session.updates[:, 0]
    assert 0 < k.mean() < hidden / 2
    expected = steps * model.layers[0].imputer.macs() + decider.step_macs(k, row, 2 * F, hidden).sum()
    assert executed_macs(model) == pytest.approx(expected / steps)
    assert session.macs[0] >= expected
    busy = float((k > 0).mean())
    costs = cost(model.layers[0].cell, model.layers[0].rule, k.mean() / hidden, busy, model.layers[0].imputer)
    assert costs.macs_executed == pytest.approx(expected / steps)


def test_names_imply_the_papers_cells():
    for name, cell in (("gru-d", "gru-before"), ("rits", "lstm")):
        model = edgernn.SequenceModel(name, 6, 4)
        assert (model.cell_type.name, model.imputer_type.name) == (cell, name)
    # Table 5 of the EINS paper counts the cell only: 2 x 35 inputs, 100 neurons
    for cell, parameters in (("lstm", 68_400), ("eins", 44_870)):
        model = edgernn.SequenceModel(cell, 105, 100, imputer="rits")
        assert sum(p.numel() for p in model.layers[0].cell.parameters()) == parameters


def test_cost_counts_the_imputer():
    plain = model_cost(edgernn.SequenceModel("lstm", 2 * F, H))
    costs = model_cost(edgernn.SequenceModel("rits", 3 * F, H))
    matrices = H * F + F * H + F * F + 2 * F * F
    assert costs.macs - plain.macs == costs.macs_executed - plain.macs_executed == matrices
    assert costs.parameters - plain.parameters == matrices + H + 5 * F
    assert costs.flops_paper - plain.flops_paper == 2 * matrices - H - 3 * F


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cell": "gru-d", "input_size": 4}, r"input_size: expected a multiple of 3 .*, got 4"),
        ({"cell": "gru", "input_size": 3, "imputer": "grud"}, "unknown imputer 'grud': did you mean 'gru-d'"),
        ({"cell": "rits", "input_size": 3, "bidirectional": True}, "train a model for each direction"),
    ],
)
def test_wrong_use_is_named(arguments, message):
    with pytest.raises(edgernn.UsageError, match=message):
        edgernn.SequenceModel(hidden_size=4, **arguments)
