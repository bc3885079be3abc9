# SPDX-License-Identifier: Apache-2.0
"""Torch operators as programs, and cells as tables and programs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgernn.cell_program import cell_program, trace_equations
from edgernn.cell_table import INPUT, STATE, VECTOR
from edgernn.cells import CELLS, EINS, GRU, Cell, DecayNet, Gate, Gates, Vector
from edgernn.cells.base import State
from edgernn.cells.norm import Norm
from edgernn.differentiate import gradient
from edgernn.program import ProgramError
from edgernn.tracing import check_gradient, trace

WIDTHS = {0: 3, 1: 3}

SUPPORTED = {
    "arithmetic": lambda a, b: (a + 2 * b - 0.5) * b / (a * a + 1) - (-a),
    "rsub": lambda a, b: 1 - a,
    "alpha": lambda a, b: torch.add(a, b, alpha=3) + torch.sub(a, b, alpha=2),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
    "minimum": lambda a, b: torch.minimum(a, b) + torch.maximum(a, 2 * b),
    "clamp": lambda a, b: a.clamp(-1, 1) + b.clamp(min=0) + b.clamp(max=0.5),
    "relu": lambda a, b: torch.relu(a) * b,
    "relu6": lambda a, b: F.relu6(3 * a) + F.hardtanh(b),
    "leaky_relu": lambda a, b: F.leaky_relu(a, 0.2) + F.threshold(b, 0.1, -2.0),
    "power": lambda a, b: a**2 + a**3 + a**4 + a**-1 + b**-2 + a.square() + 1 / b,
    "root": lambda a, b: a.abs().sqrt() + torch.rsqrt(b.abs() + 1) + a.abs() ** 0.5,
    "exp": lambda a, b: torch.exp(a) + torch.exp2(b) + torch.expm1(a),
    "log": lambda a, b: torch.log(a.abs()) + torch.log2(b.abs()) + torch.log1p(b.abs()),
    "sin": lambda a, b: torch.sin(a) + torch.cos(b) + torch.tan(a),
    "silu": lambda a, b: F.silu(a) + F.mish(b),
    "softplus": lambda a, b: F.softplus(9 * a) + F.softplus(b, 3.0) + F.logsigmoid(a),
    "elu": lambda a, b: F.elu(a, 0.5) + F.selu(b) + F.celu(a, 2.0),
    "softsign": lambda a, b: F.softsign(a),
    "hardsigmoid": lambda a, b: F.hardsigmoid(3 * a) + F.hardswish(3 * b),
    "lerp": lambda a, b: torch.lerp(a, b, torch.sigmoid(a)) + torch.lerp(a, b, 0.3),
    "where": lambda a, b: torch.where(a > b, a, b * b) + torch.where(a <= 0, 1.0, b),
    "logic": lambda a, b: torch.where((a > 0) & (b > 0) | ~(a < b), a, b) + b.masked_fill((a >= 0) ^ (b != a), 2.0),
    "float": lambda a, b: (a > 0).float() * b + torch.ones_like(a) + torch.full_like(b, 0.25) * a,
    "in_place": lambda a, b: a.clone().mul_(b).add_(1),
    "sign": lambda a, b: torch.sign(a) * b,
}


def traced(function):
    return trace("it", lambda values: (function(values[0], values[1]),), WIDTHS, 3)


@pytest.mark.parametrize("name", SUPPORTED)
def test_operators_of_torch_become_programs(name):
    function = SUPPORTED[name]
    program = traced(function)
    values = [torch.randn(40, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    operands = [values[key] for key in program.arguments]
    expected = function(*values)
    (computed,) = program.run([operand.detach().numpy() for operand in operands])
    torch.testing.assert_close(torch.tensor(computed), expected.detach(), check_dtype=False)
    grad = torch.randn(40, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, operands, grad)
    back = gradient(program, [9])
    inputs = dict(enumerate(v.detach() for v in values)) | {9: grad}
    for one, other in zip(back.run([inputs[key].numpy() for key in back.arguments]), wanted, strict=True):
        torch.testing.assert_close(torch.tensor(one), other)
    check_gradient("it", program, lambda v: (function(v[0], v[1]),), WIDTHS)


def test_gradients_at_the_ends_of_a_clamp_and_at_the_foot_of_a_relu_are_those_of_torch():
    for function, ends in ((lambda a, b: a.clamp(-1, 1), (-1.0, 1.0)), (lambda a, b: torch.relu(a), (0.0,))):
        a = torch.tensor(ends, dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(function(a, a).sum(), a)
        back = gradient(traced(function), [9])
        inputs = {0: a.detach(), 9: torch.ones(len(ends), dtype=torch.float64)}
        (computed, *_) = back.run([inputs[key].numpy() for key in back.arguments])
        torch.testing.assert_close(torch.tensor(computed), expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: torch.erf(a), "torch's erf is not supported; use operators that add, "),
        (lambda a, b: a - a.mean(-1, keepdim=True), "torch's mean is not point-wise"),
        (lambda a, b: a.flip(-1), "torch's flip is not supported"),
        (lambda a, b: a @ b.T @ b, "not point-wise|not supported"),
        (lambda a, b: a**b, "torch's pow: expected the exponent"),
        (lambda a, b: a**1.5, "torch's pow: expected the exponent"),
        (lambda a, b: a.double(), "expected a result of float32 or bool, got float64"),
        (lambda a, b: a + torch.tensor([1.0, 2.0, 3.0]), "constants in equations: expected Python numbers, got"),
        (lambda a, b: a if a.sum() > 0 else b, "cannot be traced"),
        (lambda a, b: a + torch.rand_like(a), "torch's rand_like|torch's rand"),
        (lambda a, b: (a > 0) + (b > 0) + a, "depends on more than its arguments"),
        (lambda a, b: a.sum(), "torch's sum is not supported"),
        (lambda a, b: torch.nan_to_num(a), "nan_to_num"),
    ],
)
def test_what_is_no_program_is_refused_with_its_reason(function, message):
    with pytest.raises(ProgramError, match=f"^it: .*({message})"):
        traced(function)


def test_a_gradient_that_is_not_that_of_the_equations_is_found():
    def held(a: Tensor, b: Tensor) -> Tensor:
        return a.detach() * b

    program = traced(held)
    with pytest.raises(ProgramError, match="it: the gradient in torch differs from that of the traced equations"):
        check_gradient("it", program, lambda v: (held(v[0], v[1]),), WIDTHS)


class MinimalGated(Cell):
    """A user-defined cell: f = σ(..), h = (1 - f) h + f tanh(n + V (f h)), with one mapped vector of each size."""

    name = "my-mgu"
    gates = (Gate("f", mid=True), Gate("g"), Gate("n", h=False, m=True))
    vectors = {"scale": Vector("H", 0.5, torch.tanh), "plain": Vector("1", 2.0)}  # noqa: RUF012

    def mid(self, p: Gates, state: State) -> Tensor:
        return torch.sigmoid(p.f) * state[0]

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.lerp(h, p.scale * torch.tanh(p.n) + p.plain, torch.sigmoid(p.g)),)


def test_program_of_a_cell():
    program = cell_program(MinimalGated(3, 5))
    assert program.gates == (1 + 2 + 8 + 16, 1 + 2 + 8, 1 + 4 + 8)
    assert program.vectors == (0, 2)
    assert program.layout == (1, 0, 0, 0, 0)
    assert program.update.arguments == (1, 2, VECTOR, VECTOR + 1, STATE)
    assert program.mid is not None
    assert program.mid.arguments == (0, STATE)
    assert program.map is not None
    (mapped, same) = program.map.run([np.array([0.5]), np.array([2.0])])
    np.testing.assert_allclose([mapped.item(), same.item()], [np.tanh(0.5), 2.0])
    assert set(program.attributes()) == {
        *("gates", "vectors", "layout"),
        *("update", "mid", "map"),
    }


@pytest.mark.parametrize("I", [4, 3])
@pytest.mark.parametrize("name", CELLS)
def test_every_cell_has_equations(name, I):
    cell = CELLS[name](I, 4)
    equations = trace_equations(cell, differentiable=True)
    assert len(equations.update.results) == len(cell.states)
    assert (equations.mid is not None) == any(gate.m for gate in cell.gates)
    if name == "decaynet":
        with pytest.raises(ProgramError, match="the native library needs no vector like length"):
            cell_program(cell)
        return
    program = cell_program(cell)
    reads_both = name in ("sru", "irc-sru", "irc-t-lstm") and I == 4
    assert program.square == reads_both
    assert program.mid_is_input == (equations.mid is not None and name != "gru-before")
    assert (INPUT in program.update.arguments) == (name in ("sru", "irc-sru") and I == 4)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"update": lambda self, p, state: (torch.erf(p.n),)}, "update: torch's erf is not supported"),
        ({"update": lambda self, p, state: (torch.softmax(p.n, -1),)}, "update: .*_softmax"),
        ({"update": lambda self, p, state: (p.n, p.n)}, r"update\(\): expected it to return 1 tensors, got 2"),
        ({"update": lambda self, p, state: (p.q,)}, "update: cannot be traced"),
        ({"constants": lambda self, x: {}}, r"a cell that overrides constants\(\)"),
        (
            {"gates": tuple(Gate(f"n{i}" if i else "n") for i in range(9))},
            "the native library needs at most 8 gates, got 9",
        ),
        ({"vectors": {f"v{i}": Vector("H") for i in range(5)}}, "at most 4 `vectors`, got 5"),
        ({"states": ("a", "b", "c", "d", "e"), "update": lambda self, p, s: (p.n,) * 5}, "at most 4 states, got 5"),
        ({"vectors": {"v": Vector("H", map=torch.erf)}}, "map of v: torch's erf"),
        ({"gates": (Gate("n"), Gate("u", mid=True))}, "gate u: mid=True needs a gate with m=True"),
        ({"gates": (Gate("n", x=False),)}, "the native library needs a gate with x"),
        ({"gates": (Gate("n"), Gate("b", x=False, h=False))}, "a term other than the bias in gate b"),
        (
            {"gates": tuple(Gate(f"n{i}" if i else "n") for i in range(5))},
            "at most 4 gates with x that do not feed mid",
        ),
        ({"vectors": {"v": Vector("I")}}, "m of size I for v"),
        ({"step": lambda self, *values: values}, r"a cell that overrides step\(\)"),
    ],
)
def test_cells_without_a_program_are_refused(members, message):
    base = {"name": "my", "gates": (Gate("n"),), "update": lambda self, p, state: (torch.tanh(p.n),)}
    cell = type("My", (Cell,), base | members)(3, 5)
    with pytest.raises(ProgramError, match=message):
        cell_program(cell)


def test_x_beside_the_last_input_has_no_program():
    gates, equation = (Gate("n", h=False),), lambda self, p, state: (torch.tanh(p.n) + p.x,)
    cell = type("My", (Cell,), {"name": "my", "gates": gates, "reads_last": True, "update": equation})(3, 6)
    with pytest.raises(ProgramError, match=r"no equation that reads p\.x in a cell with reads_last"):
        cell_program(cell)


@pytest.mark.parametrize("I", [3, 5])
def test_the_size_of_m_is_told_by_what_it_follows(I):
    """A cell of I = H inputs says as little of it as a cell that restates the size of the base class."""

    def sized(size):
        return type("My", (MinimalGated,), {"mid_size": property(size)})(I, 5)

    assert not cell_program(sized(lambda self: self.hidden_size)).mid_is_input
    assert cell_program(EINS(I, 5)).mid_is_input
    with pytest.raises(
        ProgramError, match="mid_size: expected H or I in a cell that is translated to native code, got 10"
    ):
        cell_program(sized(lambda self: 2 * self.hidden_size))


def test_norm_has_no_program():
    with pytest.raises(ProgramError, match="a cell with normalised products \\(setting norm\\) cannot be translated"):
        cell_program(GRU(3, 5, norm=Norm("layer")))


def test_length_stands_for_the_steps_of_a_sequence():
    cell = DecayNet(3, 5)
    assert cell.constants(torch.zeros(7, 1, 3))["length"] == 7
    assert DecayNet(3, 5, length=9).constants(torch.zeros(7, 1, 3))["length"] == 9
