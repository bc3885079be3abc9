# SPDX-License-Identifier: Apache-2.0
"""Users' own cells in the native training library, run by their programs, against the layer's loop in float64."""

import copy
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import edgernn
from edgernn.cells import CELLS, Cell, Gate, Gates, Vector
from edgernn.cells.base import State
from edgernn.cells.recurrent import BlockSparse, LowRank
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from edgernn.training.kernels import attach, cpu
from edgernn.training.kernels.common import RULES as FUSED_RULES
from edgernn.training.kernels.program_cell import CellSource, ProgramNumbers, describe_cell, to_c
from tests.fused import assert_equals_loop, inputs, make, run, whole_loss
from tests.native import library
from tests.tolerances import FLOAT32

# T, B, I, H: one of each; odd ones; H = I; whole vectors; several blocks of vectors in a row
SIZES = [(1, 1, 3, 5), (7, 3, 5, 11), (5, 9, 17, 17), (9, 4, 16, 32), (3, 2, 4, 300)]


class Gru(CELLS["gru"]):
    """The library's GRU, which it does not know under another name."""

    name = "my-gru"


class Memory(Cell):
    """An LSTM with a leak, a peephole of c in every gate, and another squashing function."""

    name = "my-memory"
    gates = (Gate("i", c=True), Gate("f", c=True), Gate("g"), Gate("o", c=True, bias=False))
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        c = torch.sigmoid(p.f) * c + torch.sigmoid(p.i) * F.softsign(p.g)
        return (torch.sigmoid(p.o) * torch.tanh(c), 0.9 * c)


class TwoStages(Cell):
    """A gate feeds m, which has the size of the state; vectors of each kind, mapped and not, and one never read."""

    name = "my-stages"
    gates = (Gate("r", mid=True), Gate("z"), Gate("n", h=False, m=True), Gate("unread", h=False))
    own = {  # noqa: RUF012
        "slope": Vector("H", 0.5, F.softplus),
        "scale": Vector("1", 0.7, torch.tanh),
        "shift": Vector("H", 0.1),
        "spare": Vector("H", 1.0),
    }

    def mid(self, p: Gates, state: State) -> Tensor:
        return torch.sigmoid(p.slope * p.r) * state[0] + p.scale

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.lerp(h, torch.tanh(p.slope * p.n + p.shift) * p.scale, torch.sigmoid(p.z)),)


class InputStage(Cell):
    """m has the size of the input, and is made from x and a vector of that size."""

    name = "my-input-stage"
    gates = (Gate("d", mid=True), Gate("f", h=False, m=True), Gate("a"))
    own = {"rho": Vector("I", 0.3, torch.sigmoid), "tau": Vector("H", 1.5)}  # noqa: RUF012

    @property
    def mid_size(self) -> int:
        return self.input_size

    def mid(self, p: Gates, state: State) -> Tensor:
        return p.x * torch.sigmoid(p.d) + p.rho * torch.sin(p.x)

    def update(self, p: Gates, state: State) -> State:
        f = torch.sigmoid(p.tau * p.f)
        return (f * state[0] + (1 - f) * torch.tanh(p.a),)


class Highway(Cell):
    """Reads x beside its gates, so I must be H; a state that is only handed on."""

    name = "my-highway"
    gates = (Gate("t"), Gate("n", h=False))
    states = ("h", "old")

    def update(self, p: Gates, state: State) -> State:
        t = torch.sigmoid(p.t)
        return (t * p.n.relu() + (1 - t) * p.x + 0.1 * state[1], state[0])


class LastInput(Cell):
    """Reads the input before, and five gates have the same terms, more than inference takes."""

    name = "my-last"
    gates = tuple(Gate(name) for name in "abcde")
    reads_last = True

    def update(self, p: Gates, state: State) -> State:
        mixed = torch.where(p.a > p.b, p.a * torch.sigmoid(p.c), p.b.clamp(-1, 1)) + (p.d * p.d + 0.1).sqrt()
        return (0.5 * state[0] + torch.tanh(mixed) * torch.exp(-p.e * p.e),)


class Derived(Cell):
    """Makes of its own vectors others, which its equations read."""

    name = "my-derived"
    gates = (Gate("n"),)
    own = {"rate": Vector("H", 0.3), "gain": Vector("1", 2.0)}  # noqa: RUF012

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        return {**super().constants(x), "product": self.rate * self.gain, "half": self.gain / 2}

    def update(self, p: Gates, state: State) -> State:
        return (torch.tanh(p.n * p.half) + p.product * state[0],)


MINE = (Gru, Memory, TwoStages, InputStage, Highway, LastInput, Derived)


@pytest.fixture(scope="module", autouse=True)
def _library() -> Iterator[None]:
    """The one beside the library that tests are told to take."""
    with pytest.MonkeyPatch.context() as patch:
        ops = Path(library())
        patch.setattr(cpu, "train_library_path", lambda: ops.with_name("libedgernn_train" + ops.suffix))
        cpu.library.cache_clear()
        yield
    cpu.library.cache_clear()


def mine(cell: type[Cell], rule: str, I: int, H: int, **options: Any) -> RecurrentLayer:
    options |= {"open": 0.5} if rule == "phased" else {}
    made = RecurrentLayer(cell(I, H), RULES[rule](I, H, **options))
    made.rule.anneal(30)
    return made


def fused(layer: RecurrentLayer) -> RecurrentLayer:
    made = copy.deepcopy(layer)
    made.unroller = cpu.CpuUnroller(made)
    return made


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rule", FUSED_RULES)
@pytest.mark.parametrize("cell", MINE)
def test_forward_and_all_gradients_equal_the_loop(cell: type[Cell], rule: str, size: tuple[int, int, int, int]) -> None:
    T, B, I, H = size
    layer = mine(cell, rule, H if cell is Highway else I, H)
    assert_equals_loop(layer, fused(layer), T, B)


def unnamed(cell: Cell) -> type[Cell]:
    """The type of a cell under a name that the library does not have."""
    return type("Mine", (type(cell),), {"name": f"my-{cell.name}"})


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("cell", CELLS)
def test_program_of_each_cell_of_ours_gives_what_its_kernel_gives(cell: str, rule: str) -> None:
    layer = make(cell, rule, 20, 20)
    layer.unroller = cpu.CpuUnroller(layer)
    own = make(cell, rule, 20, 20)
    own.cell = unnamed(own.cell)(20, 20)
    own.load_state_dict(layer.state_dict())
    own.unroller = cpu.CpuUnroller(own)
    assert (layer.unroller.program is None, own.unroller.program is None) == (True, False)
    x, state = inputs(layer, 12, 5)
    y, last, _, grads = run(layer, x, state, whole_loss)
    own_y, own_last, _, own_grads = run(own, x, state, whole_loss)
    torch.testing.assert_close(own_y, y, rtol=0, atol=FLOAT32)
    for a, b in zip(own_last, last, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=FLOAT32)
    for name, grad in grads.items():
        if grad is None or own_grads[name] is None:
            assert name == "cell.length"
            continue
        close = FLOAT32 * max(0.1, float(grad.abs().max()))
        torch.testing.assert_close(own_grads[name], grad, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("loss", ["last", "second", "budget", "y"])
@pytest.mark.parametrize("rule", ["selective", "skip"])
@pytest.mark.parametrize("cell", [Memory, TwoStages])
def test_any_part_of_the_result_may_be_left_out_of_the_loss(cell: type[Cell], rule: str, loss: str) -> None:
    parts: dict[str, Callable[..., Tensor]] = {
        "last": lambda y, last, trace: last[0].sin().sum(),
        "second": lambda y, last, trace: last[-1].sin().sum(),
        "budget": lambda y, last, trace: trace.budget * 2,
        "y": lambda y, last, trace: y[2].sin().sum(),
    }
    layer = mine(cell, rule, 6, 21)
    assert_equals_loop(layer, fused(layer), 5, 3, parts[loss])


@pytest.mark.parametrize("rule", ["always", "selective", "skip", "clockwork"])
@pytest.mark.parametrize("cell", [Memory, TwoStages])
def test_threads_agree(cell: type[Cell], rule: str) -> None:
    layer = fused(mine(cell, rule, 7, 50))
    x, state = inputs(layer, 40, 37)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3, 3):
            torch.set_num_threads(threads)
            layer.zero_grad()
            found.append(run(layer, x, state, whole_loss))
    finally:
        torch.set_num_threads(before)
    (y, _, _, grads), (other_y, _, _, others), (_, _, _, again) = found
    assert torch.equal(other_y, y)
    for name, grad in grads.items():
        if grad is None:
            continue
        assert torch.equal(again[name], others[name]), name
        torch.testing.assert_close(others[name], grad, rtol=FLOAT32, atol=FLOAT32 * float(grad.abs().max()))


@pytest.mark.parametrize("rule", ["selective", "skip"])
@pytest.mark.parametrize("cell", MINE)
def test_without_gradients_nothing_is_kept_and_the_result_is_the_same(cell: type[Cell], rule: str) -> None:
    layer = fused(mine(cell, rule, 21, 21))
    x, state = inputs(layer, 8, 3)
    y, last, trace = layer(x, state)
    with torch.no_grad():
        other_y, other_last, other_trace = layer(x, state)
    assert torch.equal(other_y, y)
    assert all(map(torch.equal, other_last, last))
    assert torch.equal(other_trace.decisions, trace.decisions)


def test_sparse_weights_equal_the_loop() -> None:
    cell = Gru(3, 33, recurrent=BlockSparse(0.5))
    layer = RecurrentLayer(cell, RULES["always"](3, 33))
    cell.threshold(hold=True)
    assert_equals_loop(layer, fused(layer), 5, 4)


def random_update(seed: int) -> Callable[[Cell, Gates, State], State]:
    """An update of random operators, which stay finite; reads all gates and both states."""

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
        "own": {"v": Vector("H", 0.4)},
        "update": random_update(seed),
    }
    layer = mine(type("Random", (Cell,), members), rule, 4, 19)
    assert_equals_loop(layer, fused(layer), 3, 4)


def test_attaching_draws_no_numbers_and_trains_as_the_loop_does() -> None:
    torch.manual_seed(3)
    model = edgernn.SequenceModel(Gru, 3, 8)
    before = torch.get_rng_state()
    assert attach(model, "auto", "cpu") == "fused"
    assert torch.equal(torch.get_rng_state(), before)
    # copies have cells of their own, which outlive the first
    other = copy.deepcopy(model)
    x = torch.randn(4, 2, 3)
    want = model(x)[0]
    del model
    assert torch.equal(other(x)[0], want)


def test_backward_outlives_the_layer() -> None:
    layer = fused(mine(Memory, "always", 3, 9))
    x, state = inputs(layer, 4, 2)
    y, _, _ = layer(x, state)
    weight = layer.cell.W
    del layer
    (grad,) = torch.autograd.grad(y.sum(), [weight])
    assert grad.any()


class Detached(Gru):
    def update(self, p: Gates, state: State) -> State:
        (h,) = super().update(p, state)
        return (h + state[0].detach(),)


class Summed(Gru):
    def update(self, p: Gates, state: State) -> State:
        return (torch.softmax(p.n, -1),)


class Projecting(Gru):
    def project(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return 2 * super().project(x, t)


class ManyGates(Cell):
    name = "my-many"
    gates = tuple(Gate(name) for name in "abcdefghi")

    def update(self, p: Gates, state: State) -> State:
        return (torch.tanh(p.a),)


class Long(Cell):
    name = "my-long"
    gates = (Gate("n"),)

    def update(self, p: Gates, state: State) -> State:
        h = p.n
        for i in range(200):
            h = torch.tanh(h + 0.01 * i)
        return (h,)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Detached, "there is no kernel for my-gru: update: its gradient by argument"),
        (Summed, "there is no kernel for my-gru: update: torch's _softmax is not supported"),
        (Projecting, r"there is no kernel for my-gru: a cell with a project\(\) of its own has no program"),
        (ManyGates, "there is no kernel for my-many: a program needs at most 8 gates, got 9"),
        (Long, "there is no kernel for my-long: equations: expected at most 128 values"),
    ],
)
def test_cells_that_cannot_be_traced_are_left_to_the_loop(cell: type[Cell], message: str) -> None:
    model = edgernn.SequenceModel(cell, 3, 8)
    assert attach(model, "auto", "cpu") == "torch"
    with pytest.raises(edgernn.UsageError, match=message):
        attach(model, "fused", "cpu")


def test_low_rank_is_refused() -> None:
    layer = RecurrentLayer(Gru(3, 8, recurrent=LowRank(2)), RULES["always"](3, 8))
    assert cpu.why_not(layer) == r"there is no kernel for my-gru+low-rank"


def refusal(source: CellSource) -> str:
    with pytest.raises(edgernn.UsageError) as caught:
        cpu.ProgramCell(source)
    return str(caught.value)


# one gate with x and h, one state: h_t = p_0, whose gradient is that of h
PLAIN = CellSource(
    (3,),
    (),
    (1, 0, 0, 0, 0),
    ProgramNumbers((1, 0, 0, 1, 0, 0)),
    ProgramNumbers((2, 0, 0, 2, 0, 64, 1, 0)),
)


def numbers(*ints: int, constants: Sequence[float] = ()) -> ProgramNumbers:
    return ProgramNumbers(ints, tuple(constants))


REFUSALS = {
    "no gates": ({"gates": ()}, "gates: expected 1 to 8 numbers, got 0"),
    "unknown term": ({"gates": (64,)}, "gates: expected numbers from 0 to 63, got 64"),
    "no x": ({"gates": (2,)}, "gates: no gate reads x, whose weights set I"),
    "c of one state": ({"gates": (33,)}, "gates: a gate reads c, which needs two states"),
    "too many vectors": ({"vectors": (0,) * 5}, "vectors: expected 0 to 4 numbers, got 5"),
    "short layout": ({"layout": (1, 0)}, "layout: expected 5 to 5 numbers, got 2"),
    "no update": ({"update": numbers()}, "update: expected four counts, got 0"),
    "update of another stage": ({"update": numbers(1, 0, 0, 1, 16, 0)}, "update: expected arguments that this stage"),
    "update that reads a gradient": (
        {"update": numbers(1, 0, 0, 1, 64, 0)},
        "update: expected arguments that this stage of the cell has, got 64",
    ),
    "no derivative": ({"update_back": numbers()}, "update_back: expected four counts, got 0"),
    "derivative of too few results": (
        {"update_back": numbers(2, 0, 0, 1, 0, 64, 1)},
        "update_back: expected 2 results, got 1",
    ),
    "derivative that reads a state that is not there": (
        {"update_back": numbers(2, 0, 0, 2, 49, 64, 1, 0)},
        "update_back: expected arguments that this stage of the cell has, got 49",
    ),
    "derivative that reads a gradient that is not there": (
        {"update_back": numbers(2, 0, 0, 2, 0, 65, 1, 0)},
        "update_back: expected arguments that this stage of the cell has, got 65",
    ),
    "unknown op": (
        {"update_back": numbers(2, 0, 1, 2, 0, 64, 21, 0, 0, 0, 2, 0)},
        "update_back: expected codes of ops below 21, got 21",
    ),
    "value of its own": (
        {"update_back": numbers(2, 0, 1, 2, 0, 64, 6, 2, 0, 0, 2, 0)},
        "update_back: expected numbers of values below 2, got 2",
    ),
    "result beyond": (
        {"update_back": numbers(2, 0, 0, 2, 0, 64, 2, 0)},
        "update_back: expected numbers of values below 2, got 2",
    ),
    "constant NaN": (
        {"update_back": numbers(2, 1, 0, 2, 0, 64, 1, 0, constants=[float("nan")])},
        "update_back: expected finite constants",
    ),
    "too long": (
        {"update_back": numbers(2, 0, 511, 2, 0, 64, *(6, 0, 0, 0) * 511, 1, 0)},
        "update_back: expected at most 512 values, got 513",
    ),
    "too much at a time": (
        {
            # 300 values, which are read when all are there
            "update_back": numbers(
                *(2, 0, 449, 2, 0, 64),
                *(number for i in range(300) for number in (6, i + 1, 0, 0)),
                *(number for i in range(149) for number in (19, 301 + i, 300 - 2 * i, 299 - 2 * i)),
                *(1, 450),
            )
        },
        "update_back: expected at most 256 constants and values at a time",
    ),
    "m that nothing reads": ({"mid": numbers(1, 0, 0, 1, 0, 0)}, "mid: no gate reads m"),
    "derivative of m that nothing reads": ({"mid_back": numbers(1, 0, 0, 1, 0, 0)}, "mid_back: no gate reads m"),
    "no derivative of m": (
        {"gates": (5, 17), "mid": numbers(1, 0, 0, 1, 1, 0)},
        "mid_back: expected four counts, got 0",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_cell_is_refused_with_a_sentence(case: str) -> None:
    change, message = REFUSALS[case]
    assert refusal(replace(PLAIN, **change)).startswith(message)


def test_plain_cell_is_taken() -> None:
    """The cases above differ from it in what they are refused for alone."""
    assert cpu.ProgramCell(PLAIN).address is not None


def test_lists_that_are_none_are_refused() -> None:
    loaded = cpu.library()
    assert loaded is not None
    why = ctypes.create_string_buffer(200)
    structure = to_c(PLAIN)
    structure.gate_count = -1
    assert loaded.edgernn_train_new_cell(ctypes.byref(structure), why, 200) is None
    assert why.value == b"gates: expected a list, got -1 numbers"
    structure = to_c(PLAIN)
    structure.update.ints = None
    assert loaded.edgernn_train_new_cell(ctypes.byref(structure), why, 9) is None
    assert why.value == b"update: "


@pytest.mark.parametrize("seed", range(200))
def test_numbers_made_wrong_do_no_harm(seed: int) -> None:
    """Any one number of a good cell is changed: it is refused with a sentence, or runs."""
    rng = np.random.default_rng(seed)
    source, _ = describe_cell(TwoStages(3, 5))
    name = str(rng.choice(["gates", "vectors", "layout", "update", "update_back", "mid", "mid_back"]))
    value = getattr(source, name)
    ints = list(value.ints if isinstance(value, ProgramNumbers) else value)
    place = int(rng.integers(len(ints)))
    ints[place] = int(rng.choice([-1, 0, 1, 2, 5, 16, 33, 63, 127, 1 << 40, ints[place] + 1, ints[place] - 1]))
    changed = replace(value, ints=tuple(ints)) if isinstance(value, ProgramNumbers) else tuple(ints)
    try:
        made = cpu.ProgramCell(replace(source, **{name: changed}))
    except edgernn.UsageError:
        return
    if name in ("gates", "vectors", "layout"):
        return  # the sizes of its weights are others
    layer = fused(mine(TwoStages, "selective", 3, 5))
    layer.unroller.program = made
    x, state = inputs(layer, 3, 2)
    y, last, _, _ = run(layer, x, state, whole_loss)
    assert (y.shape, last[0].shape) == ((3, 2, 5), (2, 5))
