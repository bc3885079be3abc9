# SPDX-License-Identifier: Apache-2.0
"""The native training kernels, also of user-defined cells and low-rank weights, compared with the loop in float64."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import edgernn
from edgernn.cells import CELLS, COMPILED, Cell, Gate, Gates, Vector
from edgernn.cells.base import State
from edgernn.cells.recurrent import BlockSparse, LowRank
from edgernn.kernels import WIDEST_LOW_RANK, attach, cpu, training_library
from edgernn.kernels.common import ANY_CELL
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from edgernn.training.api import train
from tests.fused import (
    CELLS_AND_RULES,
    COLUMN_AND_GATE,
    LOSSES,
    AnyCell,
    assert_equals_loop,
    fused,
    inputs,
    make,
    make_groups,
    run,
    whole_loss,
)
from tests.fused_cells import USER_CELLS, Gru, Memory, TwoStages
from tests.native import VARIANTS, library
from tests.tolerances import FLOAT32
from tests.training_helpers import SMALL, without_pictures

pytestmark = pytest.mark.usefixtures("training_library")

# T, B, I, H: all 1; odd; H = I, which some cells require; several vectors; whole vectors
SIZES = [(1, 1, 3, 5), (7, 3, 5, 11), (4, 2, 1, 1), (5, 9, 17, 17), (6, 10, 20, 50), (9, 4, 16, 32)]


def assert_same(layer: RecurrentLayer, T: int, B: int, loss: Callable[..., Tensor] = whole_loss) -> None:
    assert_equals_loop(layer, fused(layer), T, B, loss)


# every rule on cells of one and two stages, and on one that reads x_{t-1}, in all sizes
WHOLE = ("gru", "eins", "t-lstm")
# with several blocks of vectors in a row
USER_SIZES = [*SIZES[1:2], *SIZES[:1], *SIZES[3:4], *SIZES[5:], (3, 2, 4, 300)]
USER_CASES = [
    (cell, rule, size)
    for cell, rule in product(USER_CELLS, ANY_CELL)
    # a cell that reads x_{t-1} runs under periodic in the loop
    if rule != "periodic" or not cell.reads_last
    for size in (USER_SIZES if rule in ("always", "selective") else USER_SIZES[:1])
]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(
    ("cell", "rule", "size"),
    [
        pytest.param(*pair, size, marks=[] if pair[0] in WHOLE or pair[1] == "always" else pytest.mark.slow)
        for place, pair in enumerate(CELLS_AND_RULES)
        for number, size in enumerate(SIZES)
        # of other pairs, neighbouring rules of a cell and neighbouring cells of a rule share no size
        if pair[0] in WHOLE or (place + number) % 3 == 0
    ]
    + USER_CASES,
    ids=named,
)
def test_forward_and_all_gradients_equal_the_loop(cell: AnyCell, rule: str, size: tuple[int, int, int, int]) -> None:
    T, B, I, H = size
    assert_same(make(cell, rule, I, H), T, B)


@pytest.mark.parametrize("size", [(1, 1, 3, 5), (7, 3, 5, 11), (6, 10, 20, 50)], ids=str)
@pytest.mark.parametrize(("cell", "rule"), COLUMN_AND_GATE, ids=map("-".join, COLUMN_AND_GATE))
def test_columns_and_gates_equal_the_loop(cell: str, rule: str, size: tuple[int, int, int, int]) -> None:
    T, B, I, H = size
    options = {"theta_x": 0.4, "theta_h": 0.1} if rule == "delta" else {"k": max(1, H // 3)}
    assert_same(make(cell, rule, I, H, **options), T, B)


@pytest.mark.parametrize("loss", ["last", "second", "budget", "y"])
@pytest.mark.parametrize(
    ("cell", "rule", "hidden"),
    [
        *product(["lstm", "gru-before", "irc-sru"], ["selective", "skip", "delta"], [6]),
        *product([Memory, TwoStages], ["selective", "skip"], [21]),
    ],
    ids=named,
)
def test_any_part_of_the_result_may_be_left_out_of_the_loss(cell: AnyCell, rule: str, hidden: int, loss: str) -> None:
    assert_same(make(cell, rule, 6, hidden), 5, 3, LOSSES[loss])


@pytest.mark.parametrize("epoch", [0, 100])
@pytest.mark.parametrize("budget", ["decisions", "likelihoods"])
def test_both_budgets_equal_the_loop(budget: str, epoch: int) -> None:
    layer = make("gru", "selective", 4, 19, budget=budget)
    layer.rule.anneal(epoch)
    # wide enough that likelihoods are clipped at both ends
    torch.nn.init.normal_(layer.rule.rule_W)
    assert_same(layer, 6, 5)
    x, state = inputs(layer, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(fused(layer)(x, state)[2].budget, layer(x, state)[2].budget)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("rule", "options"),
    [("selective", {}), ("selective", {"group_size": 4}), ("skip", {}), ("phased", {}), ("delta", {"theta_x": 0.4})],
)
def test_weights_of_the_budgets_steps_equal_the_loop(rule: str, options: dict[str, Any], threads: int) -> None:
    layer = make("lstm", rule, 4, 19, **options)
    layer.step_weights = 3 * torch.rand(6, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(layer, 6, 5)
    finally:
        torch.set_num_threads(before)


def test_frozen_weights_have_the_same_budget() -> None:
    layer = make("gru", "selective", 5, 21, budget="likelihoods").requires_grad_(False)
    x = torch.randn(9, 4, 5)
    torch.testing.assert_close(fused(layer)(x)[2].budget, layer(x)[2].budget)


@pytest.mark.parametrize("budget", ["decisions", "likelihoods"])
@pytest.mark.parametrize(("G", "H"), [(1, 19), (4, 50)])
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "irc-gru"])
def test_detached_states_equal_the_loop(cell: str, G: int, H: int, budget: str) -> None:
    assert_same(make_groups(cell, 5, H, G, budget=budget, detach_state=True), 6, 5)


# G and H: a last group with fewer neurons, within or beyond a vector; whole groups; one group
GROUPS = [(2, 11), (4, 50), (7, 50), (16, 130), (32, 50), (4, 32), (16, 32), (32, 64), (7, 7)]


@pytest.mark.parametrize(
    ("cell", "G", "H"),
    [
        (cell, *sizes)
        for place, cell in enumerate([*CELLS, *VARIANTS, *USER_CELLS])
        for number, sizes in enumerate(GROUPS)
        if cell in WHOLE or (place + number) % 3 == 0
    ]
    + [(cell, 7, 300) for cell in USER_CELLS],
    ids=named,
)
def test_groups_of_neurons_equal_the_loop(cell: AnyCell, G: int, H: int) -> None:
    # every cell and every size of groups has both
    budget = ("decisions", "likelihoods")[([*CELLS, *VARIANTS, *USER_CELLS].index(cell) + G + H) % 2]
    assert_same(make_groups(cell, 5, H, G, budget=budget), 6, 5)


@pytest.mark.parametrize("loss", ["last", "second", "budget", "y"])
def test_any_part_of_the_result_of_groups_may_be_left_out_of_the_loss(loss: str) -> None:
    assert_same(make_groups("lstm", 6, 21, 4), 5, 3, LOSSES[loss])


@pytest.mark.parametrize("length", [None, 1, 4, 50])
def test_decaynet_length_equals_the_loop(length: int | None) -> None:
    cell = CELLS["decaynet"](3, 7, length=length)
    assert_same(RecurrentLayer(cell, RULES["always"](3, 7)), 9, 2)


def test_learned_start_gets_its_gradient() -> None:
    layer = make("lstm", "skip", 3, 7)
    x = torch.randn(6, 4, 3)
    gradients = []
    for module in (fused(layer), copy.deepcopy(layer).double()):
        whole_loss(*module(x.to(module.start[0].dtype))).backward()
        gradients.append([p.grad for p in module.parameters()])
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=FLOAT32 * max(0.1, float(expected.abs().max())))


@pytest.mark.parametrize("rule", [name for name in ANY_CELL if RULES[name].schedules])
def test_rules_of_the_step_alone_start_as_in_the_loop(rule: str) -> None:
    layer = make("lstm", rule, 3, 7)
    x = torch.randn(6, 4, 3)
    results = []
    for module in (fused(layer), copy.deepcopy(layer).double()):
        torch.manual_seed(5)
        y, last, trace = module(x.to(module.cell.W.dtype))
        whole_loss(y, last, trace).backward()
        results.append([y, *last, *(p.grad for p in module.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    for got, expected in zip(*results, strict=True):
        close = 4 * FLOAT32 * max(0.1, float(expected.detach().abs().max()))
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=close)


def test_library_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_library, "train_library_path", lambda: Path(library()))
    training_library.library.cache_clear()
    with pytest.raises(
        edgernn.EdgernnError,
        match="expected the library of this version of edgernn, got another; install edgernn again",
    ):
        training_library.library()
    training_library.library.cache_clear()


def test_random_sequences_of_a_batch_start_at_steps_of_their_own() -> None:
    rule = RULES["random"](2, 50)
    like = torch.zeros(1)
    t = [rule.initial_memory(20, like)[0] for _ in range(2)]
    assert t[0].unique().numel() == 20
    assert not torch.equal(t[0], t[1])
    assert torch.equal(rule.eval().initial_memory(20, like)[0], torch.zeros(20, 1))


@pytest.mark.parametrize("cell", ["gru", Gru], ids=named)
def test_sparse_weights_equal_the_loop(cell: AnyCell) -> None:
    layer = make(cell, "always", 3, 33, BlockSparse(0.5))
    layer.cell.threshold(hold=True)
    assert_same(layer, 5, 4)


@pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        *(
            (cell, *case)
            for cell in ("gru", "lstm-peephole", "fastgrnn", "irc-gru")
            for case in (
                *((rule, {}) for rule in ANY_CELL),
                ("selective", {"group_size": 7}),
                ("delta", {"theta_x": 0.4}),
            )
        ),
        *product([Memory, TwoStages], ["always", "selective", "skip", "clockwork"], [{}]),
    ],
    ids=named,
)
def test_threads_agree(cell: AnyCell, rule: str, options: dict[str, Any]) -> None:
    """Equal up to rounding for weight gradients, which threads sum in a different order; identical per sample."""
    layer = fused(make(cell, rule, 7, 50, **options))
    x, state = inputs(layer, 40, 37)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            layer.zero_grad()
            results.append(run(layer, x, state, whole_loss))
    finally:
        torch.set_num_threads(before)
    (y, last, _, grads), *others = results
    for other_y, other_last, _, other_grads in others:
        assert torch.equal(other_y, y)
        assert all(map(torch.equal, other_last, last))
        for name, grad in grads.items():
            if grad is None:
                # a learned initial state, passed as the state, or a state that no gradient reaches
                assert other_grads[name] is None
            elif name == "x" or name.startswith("state"):
                assert torch.equal(other_grads[name], grad), name
            else:
                close = FLOAT32 * float(grad.abs().max())
                torch.testing.assert_close(other_grads[name], grad, rtol=FLOAT32, atol=close)
    for name, grad in others[-1][3].items():
        assert grad is None or torch.equal(others[-2][3][name], grad), name


@pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        *(
            (cell, *case)
            for cell in ("lstm", "irc-gru", "t-lstm")
            for case in (("selective", {}), ("selective", {"group_size": 4}), ("skip", {}), ("delta", {"theta_x": 0.4}))
        ),
        *product(USER_CELLS, ["selective", "skip"], [{}]),
    ],
    ids=named,
)
def test_without_gradients_nothing_is_kept_and_the_result_is_the_same(
    cell: AnyCell, rule: str, options: dict[str, Any]
) -> None:
    layer = fused(make(cell, rule, 5, 21, **options))
    x, state = inputs(layer, 8, 3)
    y, last, trace = layer(x, state)
    with torch.no_grad():
        other_y, other_last, other_trace = layer(x, state)
    assert torch.equal(other_y, y)
    assert all(map(torch.equal, other_last, last))
    assert torch.equal(other_trace.decisions, trace.decisions)


def test_frozen_weights_get_no_gradient_and_change_no_other() -> None:
    layer = fused(make("gru", "selective", 4, 9))
    x, state = inputs(layer, 5, 3)
    *_, grads = run(layer, x, state, whole_loss)
    layer.cell.R.requires_grad_(False)
    layer.zero_grad()
    *_, others = run(layer, x, state, whole_loss)
    assert others.pop("cell.R") is None
    for name, grad in others.items():
        assert torch.equal(grad, grads[name]), name


def test_backward_may_run_twice() -> None:
    layer = fused(make("lstm", "selective", 4, 9))
    x, state = inputs(layer, 5, 3)
    loss = whole_loss(*layer(x, state))
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()))
    assert all(map(torch.equal, first, second))


def test_views_are_read_as_what_they_show() -> None:
    layer = fused(make("gru", "always", 4, 9))
    x, state = inputs(layer, 6, 3)
    wide = torch.randn(3, 6, 8)
    wide[..., 4:] = x.transpose(0, 1)
    y, _, _ = layer(wide.transpose(0, 1)[..., 4:], (state[0].T.contiguous().T,))
    assert torch.equal(y, layer(x, state)[0])


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        ((4, 2, 5), (2, 9), r"x: expected shape \(T >= 1, B, 3\), got \(4, 2, 5\)"),
        ((0, 2, 3), (2, 9), "x: expected shape"),
        ((4, 3), (2, 9), "x: expected shape"),
        ((4, 2, 3), (1, 9), r"state h: expected shape \(2, 9\), got \(1, 9\)"),
        ((4, 2, 3), (2, 8), r"state h: expected shape \(2, 9\), got \(2, 8\)"),
    ],
)
def test_wrong_shapes_raise(x: tuple[int, ...], state: tuple[int, ...], message: str) -> None:
    with pytest.raises(edgernn.EdgernnError, match=message):
        fused(make("gru", "always", 3, 9))(torch.zeros(x), (torch.zeros(state),))


def test_too_few_states_raise() -> None:
    with pytest.raises(edgernn.EdgernnError, match="state: expected 2 tensors"):
        fused(make("lstm", "always", 3, 9))(torch.zeros(2, 2, 3), (torch.zeros(2, 9),))


def test_other_precisions_are_left_to_the_loop() -> None:
    layer = fused(make("gru", "always", 3, 9)).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    assert layer(x)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "backend", "why"),
    [
        ({"cell": "gru"}, "fused", None),
        ({"cell": "skiprnn"}, "fused", None),
        ({"cell": "sarnn", "layers": 2, "bidirectional": True}, "fused", None),
        ({"cell": "sarnn", "rule_options": {"group_size": 4}}, "fused", None),
        ({"cell": "egru", "rule": "delta"}, "fused", None),
        ({"cell": "pru", "rule": "topk"}, "fused", None),
        ({"cell": "gru", "rule": "variable"}, "torch", "no kernel for the rule variable"),
        ({"cell": "gru", "norm": "layer"}, "torch", r"no kernel for gru\+layer"),
        ({"cell": "gru", "rank": 2}, "fused", None),
        ({"cell": "gru-d", "input_size": 6}, "torch", "imputer"),
    ],
    ids=["gru", "skip", "sarnn", "groups", "delta", "topk", "rule", "norm", "rank", "imputer"],
)
def test_attach_takes_kernels_where_there_are_some(options: dict[str, Any], backend: str, why: str | None) -> None:
    model = edgernn.SequenceModel(**{"input_size": 3, "hidden_size": 8, **options})
    assert attach(model, "auto", "cpu") == backend
    assert {layer.backend for layer in model.recurrent_layers()} == {backend}
    if why is None:
        assert attach(model, "fused", "cpu") == "fused"
    else:
        with pytest.raises(edgernn.UsageError, match=f"backend: fused cannot run this model: .*{why}"):
            attach(model, "fused", "cpu")
    assert attach(model, "torch", "cpu") == "torch"
    with pytest.raises(edgernn.UsageError, match="backend: expected one of auto, torch, fused, got 'native'"):
        attach(model, "native", "cpu")


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "library", lambda: None)
    model = edgernn.SequenceModel("gru", 3, 8)
    assert attach(model, "auto", "cpu") == "torch"
    with pytest.raises(edgernn.UsageError, match="libedgernn_train is not installed"):
        attach(model, "fused", "cpu")


@pytest.mark.parametrize("cell", ["sarnn", "lstm", "skiprnn"])
def test_training_is_the_same_with_both_backends(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pictures(monkeypatch)
    results, losses = {}, {}
    for backend in ("torch", "fused"):
        settings = {**SMALL, "steps": 20, "eval_every": 5, "lambda": 1e-3, "backend": backend}
        results[backend] = train("adding", cell, out=tmp_path / backend, settings=settings)
        run = edgernn.training.run_directory.RunDirectory(tmp_path / backend)
        losses[backend] = [line["loss"] for line in run.metrics()]
        assert results[backend]["backend"] == backend
    assert len(losses["torch"]) == 4
    assert losses["fused"] == pytest.approx(losses["torch"], rel=1e-4)


# user-defined cells, run as programs


def renamed_cell(cell: Cell) -> type[Cell]:
    """Return the class of a cell under a name that the library does not have."""
    return type("Mine", (type(cell),), {"name": f"my-{cell.name}"})


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("cell", COMPILED)
def test_program_of_each_cell_of_ours_gives_what_its_kernel_gives(cell: str, rule: str) -> None:
    layer = fused(make(cell, rule, 20, 20))
    builtin = make(cell, rule, 20, 20)
    builtin.cell = renamed_cell(builtin.cell)(20, 20)
    builtin.load_state_dict(layer.state_dict())
    builtin.unroller = cpu.CpuUnroller(builtin)
    assert (layer.unroller.program is None, builtin.unroller.program is None) == (True, False)
    x, state = inputs(layer, 12, 5)
    y, last, _, grads = run(layer, x, state, whole_loss)
    own_y, own_last, _, own_grads = run(builtin, x, state, whole_loss)
    torch.testing.assert_close(own_y, y, rtol=0, atol=FLOAT32)
    for a, b in zip(own_last, last, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=FLOAT32)
    for name, grad in grads.items():
        if grad is None or own_grads[name] is None:
            assert name == "cell.length"
            continue
        # both have rounding errors
        close = 2 * FLOAT32 * max(0.1, float(grad.abs().max()))
        torch.testing.assert_close(own_grads[name], grad, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}")


def random_update(seed: int) -> Callable[[Cell, Gates, State], State]:
    """An update of random operators with finite values, which reads all gates and both states."""

    def update(self: Cell, p: Gates, state: State) -> State:
        rng = np.random.default_rng(seed)
        values = [p.a, p.b, p.v * torch.ones_like(p.a), *state]
        unary = (torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.neg, torch.abs, F.relu, F.softsign, F.softplus)
        binary = (torch.add, torch.sub, torch.minimum, torch.maximum, lambda a, b: torch.tanh(a) * b)
        for _ in range(12):
            a, b, c = (values[i] for i in rng.integers(len(values), size=3))
            kind = rng.integers(5)
            if kind < 2:
                values.append(unary[rng.integers(len(unary))](a))
            elif kind < 4:
                values.append(binary[rng.integers(len(binary))](a, b))
            else:
                values.append(torch.lerp(a, b, torch.sigmoid(c)) if rng.integers(2) else torch.where(a > b, c, b))
        total = torch.tanh(sum(values[:5]))
        return torch.tanh(values[-1]) + 0.1 * total, torch.sigmoid(values[-2]) - total

    return update


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("seed", range(20))
def test_random_equations_equal_the_loop(seed: int, rule: str) -> None:
    members = {
        "name": "my-random",
        "gates": (Gate("a"), Gate("b", c=True)),
        "states": ("h", "c"),
        "vectors": {"v": Vector("H", 0.4)},
        "update": random_update(seed),
    }
    layer = make(type("Random", (Cell,), members), rule, 4, 19)
    assert_same(layer, 3, 4)


def test_attaching_draws_no_numbers_and_copies_have_cells_of_their_own() -> None:
    torch.manual_seed(3)
    model = edgernn.SequenceModel(Gru, 3, 8)
    before = torch.get_rng_state()
    assert attach(model, "auto", "cpu") == "fused"
    assert torch.equal(torch.get_rng_state(), before)
    # copies own their cells, which outlive the original
    other = copy.deepcopy(model)
    x = torch.randn(4, 2, 3)
    expected = model(x)[0]
    del model
    assert torch.equal(other(x)[0], expected)


def test_backward_outlives_the_layer() -> None:
    layer = fused(make(Memory, "always", 3, 9))
    x, state = inputs(layer, 4, 2)
    y, _, _ = layer(x, state)
    weight = layer.cell.W
    del layer
    (grad,) = torch.autograd.grad(y.sum(), [weight])
    assert grad.any()


# low-rank recurrent weights

RECURRENT = [name for name, cell in CELLS.items() if hasattr(cell(1, 1), "R")]
OPTIONS = {"delta": {"theta_x": 0.4, "theta_h": 0.1}, "topk": {"k": 4}}


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        *product(RECURRENT, ["always", "selective", "delta"]),
        *product(["gru"], ["skip", "phased", "topk"]),
        (Gru, "selective"),
    ],
    ids=named,
)
def test_low_rank_weights_equal_the_loop(cell: AnyCell, rule: str) -> None:
    assert_same(make(cell, rule, 11, 11, recurrent=LowRank(2), **OPTIONS.get(rule, {})), 6, 5)


def test_frozen_factors_get_no_gradient() -> None:
    layer = make("gru", "always", 4, 9, recurrent=LowRank(2))
    layer.cell.R.requires_grad_(False)
    x, state = inputs(layer, 5, 3)
    grads, loop_grads = (run(each, x, state, whole_loss)[3] for each in (fused(layer), layer))
    assert grads["cell.R"] is None
    torch.testing.assert_close(grads["cell.Q"], loop_grads["cell.Q"])


@pytest.mark.parametrize("settings", [{"norm": "recurrent-batch", "norm_steps": 5}, {"weights": "int8"}], ids=str)
def test_normalised_and_rounded_factors_equal_the_loop(settings: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = edgernn.SequenceModel("lstm", 3, 10, rank=2, output="all", **settings)
    x = torch.randn(5, 6, 3)
    results = []
    for backend in ("torch", "fused"):
        assert attach(model, backend, "cpu") == backend
        model.zero_grad()
        y = model(x)[0]
        y.sin().sum().backward()
        results.append([y, *(p.grad for p in model.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_loop_runs_wide_states_unless_kernels_are_asked_for() -> None:
    for hidden, chosen in ((WIDEST_LOW_RANK, "fused"), (WIDEST_LOW_RANK + 1, "torch")):
        model = edgernn.SequenceModel("gru", 3, hidden, rank=2)
        assert attach(model, "auto", "cpu") == chosen
        assert attach(model, "fused", "cpu") == "fused"


# other instruction sets


@pytest.mark.check("instruction-sets")
@pytest.mark.skipif("EDGERNN_ISA" in os.environ, reason="EDGERNN_ISA already names a set")
@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
@pytest.mark.slow
def test_laws_hold_for_instruction_set(name: str) -> None:
    environment = os.environ | {"EDGERNN_ISA": name, "EDGERNN_LIBRARY": library()}
    probe = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).edgernn_train_isa; f.restype = ctypes.c_char_p\nprint(f())"
    )
    process = subprocess.run(
        [sys.executable, "-c", probe, str(training_library.train_library_path())],
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.stdout.strip() != f"b'{name}'":
        pytest.skip(f"this machine or this build lacks {name}")
    if training_library.library().edgernn_train_isa().decode().removesuffix("vnni") == name:
        return  # the instruction set in use is covered by this process
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", __file__],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
