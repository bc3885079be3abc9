# SPDX-License-Identifier: Apache-2.0
"""Point-wise programs: validation, results, derivatives, and the generated files."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from edgernn.cells import Cell, Gate, Vector
from edgernn.differentiate import gradient
from edgernn.program import MOST_VALUES, OPS, STORED_OPS, Builder, Instruction, Program, ProgramError
from edgernn.rules import RULES
from tests.added_rule.tiring import Tiring
from tests.source_tree import ROOT, generator

# each op in NumPy
ORACLE = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "min": torch.minimum,
    "max": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "less": lambda a, b: (a < b).to(a.dtype),
    "less_equal": lambda a, b: (a <= b).to(a.dtype),
    "equal": lambda a, b: (a == b).to(a.dtype),
    "select": lambda a, b, c: torch.where(a != 0, b, c),
    "lerp": torch.lerp,
}


def run_in_torch(program: Program, values: list[Tensor]) -> tuple[Tensor, ...]:
    """Compute a program with the oracle's functions, which torch differentiates."""
    constants = [torch.tensor(number, dtype=torch.float64) for number in program.constants]
    return tuple(result.expand(values[0].shape) for result in program.evaluate([*values, *constants], ORACLE))


def run_arrays(program: Program, values: list[Tensor]) -> list[Tensor]:
    return [torch.tensor(result) for result in program.run([value.detach().numpy() for value in values])]


def one_op_program(name: str) -> Program:
    """Return the program of one op."""
    arity = OPS[name].arity
    return Program(tuple(range(arity)), (), (Instruction(name, tuple(range(arity))),), (arity,))


def points(count: int, seed: int = 0) -> list[Tensor]:
    """Draw positive numbers, for which every op is defined; some are equal."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.6, 2.4, (count, 50))
    values[:, :10] = np.round(values[:, :10])
    return [torch.tensor(row, requires_grad=True) for row in values]


@pytest.mark.slow
def test_generated_files_are_what_the_code_says():
    for path, text in generator().generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: python runtime/csrc/generate.py"


@pytest.mark.slow
def test_every_cell_header_is_generated():
    headers = {path.name for path in (ROOT / "runtime" / "csrc" / "cells").glob("*.h")}
    assert headers == {"gate.h"} | {path.name for path in generator().generated() if path.parent.name == "cells"}


@pytest.mark.slow
def test_every_rule_header_is_generated():
    headers = {path.name for path in (ROOT / "runtime" / "csrc" / "rules").glob("*.h")} - {"rule.h"}
    assert headers == {path.name for path in generator().generated() if path.parent.name == "rules"}
    assert {f"{rule}.h" for rule in RULES} < headers


class Swapping(Cell):
    """A cell that swaps its states, with a gate named as an argument, and an unread gate."""

    name = "swap-ping"
    gates = (Gate("p"), Gate("x", h=False, bias=False))
    vectors = {"alpha": Vector("1", map=torch.sigmoid)}  # noqa: RUF012
    states = ("a", "b")

    def update(self, p, state):
        a, b = state
        new = torch.tanh(p.p)
        return (b + new * p.alpha, 2 * a - new)


def test_header_of_a_cell():
    header = generator().cell_header(Swapping)
    assert header.startswith("// SPDX-License-Identifier: Apache-2.0\n// A cell that swaps its states")
    struct = re.search(r"struct .*?\n};\n", header, re.DOTALL)[0]
    assert (
        struct
        == """\
struct SwapPing {
  static constexpr const char* kName = "swap-ping";
  static constexpr Gate kGates[] = {{"p", kX | kH | kBias}, {"x", kX}};
  static constexpr Param kParams[] = {{"alpha", Extent::kOne, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"a", "b"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    const V new_p = Tanh(p[0]);
    const V new_b = state[0] * 2.0f - new_p;
    state[0] = state[1] + new_p * q[0];
    state[1] = new_b;
  }
};
"""
    )


def test_header_of_a_cell_that_c_plus_plus_lacks_functions_for_is_refused():
    class Exponential(Swapping):
        def update(self, p, state):
            return (torch.exp(p.p), state[1])

    with pytest.raises(ProgramError, match="exp: expected an op with a C\\+\\+ function"):
        generator().cell_header(Exponential)


def test_header_of_a_rule():
    header = generator().rule_header(Tiring)
    struct = re.search(r"struct .*?\n};\n", header, re.DOTALL)[0]
    assert (
        struct
        == """\
struct Tiring : RuleDefaults {
  static constexpr const char* kName = "tiring";
  static constexpr RuleKind kKind = RuleKind::kNeuron;
  static constexpr bool kInclusive = true;
  static constexpr bool kHasEquations = true;
  static constexpr MemorySpec kMemories[] = {{"rule_m", Extent::kHidden},
                                             {"rule_r", Extent::kHidden}};
  static constexpr WeightSpec kParams[] = {{"rule_W", HiddenRows(), Columns::kInput},
                                           {"rule_d", HiddenRows()},
                                           {"rule_b", HiddenRows()},
                                           {"rule_g", HiddenRows()},
                                           {"rule_k", OneRow()}};
  static constexpr int kMatrix = 0;
  static constexpr int kBias = 2;
  static constexpr int kNeuronMacs = 1;

  template <class V>
  static constexpr V Score(V e, V h, const V* m, const V* q) {
    return e + q[1] * h - m[0] + q[4] * m[1];
  }

  template <class V>
  static constexpr V Likelihood(V score, float slope) {
    return Clamp((score * slope + 1.0f) * 0.5f, 0.0f, 1.0f);
  }

  template <class V>
  static constexpr V Evidence(V s, const V* q) {
    return q[1] * s;
  }

  template <class V>
  static constexpr V Drive(V sum, const V* q) {
    return Tanh(q[4] * sum);
  }

  template <class V>
  static constexpr void Advance(V u, V score, V drive, const V* q, V* m) {
    m[0] = Sigmoid(q[3]) * m[0] + u;
    m[1] = (1.0f - u) * (m[1] * 0.5f + score * 0.25f) + drive;
  }
};
"""
    )


def refused_rule(**methods):
    return type("Refused", (Tiring,), {"name": "refused", **methods})


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        ({"project": lambda self, x: x @ self.rule_W.T + self.rule_b * self.rule_g}, "project.x.: expected W x . b"),
        (
            {"macs": lambda self: self.hidden_size * self.input_size + 1},
            "macs.*: expected a multiple of the number of neurons, 7",
        ),
        ({"drive": lambda self, evidence: evidence / 3}, "div: expected a divisor that is a power of 2, got 3"),
        (
            {"score": lambda self, e, state, memory: e + state[1]},
            "refused: score: expected an equation that reads only e, h, m, q, got one that reads s_c",
        ),
    ],
)
def test_header_of_a_rule_that_c_plus_plus_cannot_hold_is_refused(methods, sentence):
    with pytest.raises(ProgramError, match=sentence):
        generator().rule_header(refused_rule(**methods))


def test_codes_of_ops_stay():
    assert [(op.name, op.code) for op in STORED_OPS.values()] == [(name, code) for code, name in enumerate(ORACLE)]


@pytest.mark.parametrize("name", STORED_OPS)
def test_op_equals_its_oracle(name):
    values = [value.detach() for value in points(OPS[name].arity)]
    (y,) = run_arrays(one_op_program(name), values)
    torch.testing.assert_close(y, ORACLE[name](*values), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", STORED_OPS)
def test_derivative_of_an_op_equals_autograd(name):
    program = one_op_program(name)
    values = points(OPS[name].arity, 1)
    (y,) = run_in_torch(program, values)
    grad = torch.linspace(-1, 1, 50, dtype=torch.float64)
    expected = torch.autograd.grad(y, values, grad, allow_unused=True) if y.requires_grad else [None] * len(values)
    back = gradient(program, [9])
    bound = {i: v.detach() for i, v in enumerate(values)} | {9: grad}
    pulled = (
        run_arrays(back, [bound[key] for key in back.arguments]) if back.arguments else [torch.zeros(50)] * len(values)
    )
    for got, wanted in zip(pulled, expected, strict=True):
        torch.testing.assert_close(got, torch.zeros(50) if wanted is None else wanted, check_dtype=False)


def event_program(height: float, width: float) -> Program:
    """Return the program that adds 2 event(v) to v."""
    builder = Builder()
    v, numbers = builder.argument(0), [builder.constant(number) for number in (height, width)]
    step = builder.op("event", v, *numbers)
    return builder.finish([builder.op("add", v, builder.op("mul", builder.constant(2.0), step))])


@pytest.mark.parametrize(("height", "width"), [(0.7, 1.0), (0.25, 1.75), (1.0, 0.5)])
def test_event_is_a_step_whose_derivative_is_a_triangle(height, width):
    v = np.concatenate([np.linspace(-2, 2, 81), [0.0, -0.0, 1e-300, -1e-300]])
    program = event_program(height, width)
    (y,) = program.run([v])
    np.testing.assert_array_equal(y, v + 2 * np.heaviside(v, 0))
    grad = np.linspace(-1, 1, len(v))
    back = gradient(program, [9])
    (computed,) = back.run([{0: v, 9: grad}[key] for key in back.arguments])
    np.testing.assert_allclose(computed, grad * (1 + 2 * height * np.maximum(0, 1 - np.abs(v) / width)), rtol=1e-14)


def test_stored_programs_compare_where_others_have_events():
    program = event_program(0.7, 1.5)
    lowered = program.lowered()
    assert {instruction.op for instruction in program.instructions} == {"event", "mul", "add"}
    assert {instruction.op for instruction in lowered.instructions} == {"less", "mul", "add"}
    # neither the height nor the width is stored
    assert set(lowered.constants) == {0.0, 2.0}
    assert program.serialise() == lowered.serialise()
    assert lowered.lowered() is lowered
    assert {instruction.op for instruction in gradient(program, [9]).instructions} <= set(STORED_OPS)
    v = np.linspace(-1, 1, 21)
    np.testing.assert_array_equal(lowered.run([v])[0], program.run([v])[0])


@pytest.mark.parametrize("seed", range(30))
def test_derivative_of_a_program_equals_autograd(seed):
    program = random_program(seed)
    values = [torch.rand(20, dtype=torch.float64, requires_grad=True) for _ in program.arguments]
    results = run_in_torch(program, values)
    grads = [torch.rand(20, dtype=torch.float64) for _ in results]
    keys = range(100, 100 + len(results))
    loss = sum((r * g).sum() for r, g in zip(results, grads, strict=True))
    expected = torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True)
    back = gradient(program, keys)
    bound = dict(zip((*program.arguments, *keys), (*(v.detach() for v in values), *grads), strict=True))
    for got, wanted in zip(run_arrays(back, [bound[key] for key in back.arguments]), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def random_program(seed: int) -> Program:
    """Return a program of smooth ops with finite values, three arguments and two results."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    values = [builder.argument(key) for key in range(3)] + [builder.constant(float(rng.normal()))]
    names = ["add", "sub", "mul", "min", "max", "neg", "abs", "sin", "cos", "tanh", "sigmoid", "select", "lerp", "less"]
    for _ in range(12):
        name = str(rng.choice(names))
        values.append(builder.op(name, *(int(v) for v in rng.choice(values, OPS[name].arity))))
    # read all arguments
    total = values[0]
    for value in values[1:3]:
        total = builder.op("add", total, value)
    return builder.finish([values[-1], builder.op("mul", total, values[-2])])


@pytest.mark.parametrize("seed", range(10))
def test_serialised_program_is_read_back(seed):
    program = random_program(seed)
    ints, numbers = program.serialise()
    again = Program.deserialise(ints, numbers)
    assert (again.arguments, again.instructions, again.results) == (
        program.arguments,
        program.instructions,
        program.results,
    )
    np.testing.assert_allclose(again.constants, program.constants, rtol=1e-7)


def test_serialised_form():
    builder = Builder()
    p, h = builder.argument(2), builder.argument(48)
    half = builder.constant(0.5)
    program = builder.finish([builder.op("lerp", h, builder.op("tanh", p), half)])
    assert program.serialise() == ([2, 1, 2, 1, 2, 48, 13, 0, 0, 0, 20, 1, 3, 2, 4], [0.5])


def test_equal_values_are_one_and_constants_are_folded():
    builder = Builder()
    a, b = builder.argument(0), builder.argument(1)
    assert builder.op("mul", a, b) == builder.op("mul", b, a) != builder.op("sub", a, b)
    assert builder.op("sub", a, b) != builder.op("sub", b, a)
    assert builder.number(builder.op("exp", builder.constant(0.0))) == 1
    one, zero = builder.constant(1.0), builder.constant(0.0)
    assert builder.op("mul", one, a) == builder.op("add", a, zero) == builder.op("div", a, one) == a
    assert builder.op("neg", builder.op("sub", zero, a)) == a


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((0, 0), (), (), (0,)), "integers that differ"),
        (((0,), (float("inf"),), (), (0,)), "finite"),
        (((0,), (1e39,), (), (0,)), "finite"),
        (((0,), (), (Instruction("erf", (0,)),), (1,)), "expected an op"),
        (((0,), (), (Instruction("add", (0,)),), (1,)), "expected an operation of OPS and one index per operand"),
        (((0,), (), (Instruction("neg", (1,)),), (1,)), "indices of earlier values, below 1"),
        (((0,), (), (), (1,)), "indices of values, below 1"),
        (((0,), (), (), ()), "results"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(ProgramError, match=message):
        Program(*parts)


@pytest.mark.parametrize(
    ("ints", "numbers", "message"),
    [
        ([1, 0, 0], [], "four counts"),
        ([1, 0, -1, 1], [], "four counts"),
        ([1, 0, 1, 1, 0, 6, 0, 0, 0], [], "10 whole numbers"),
        ([1, 1, 0, 1, 0, 0], [], "1 constants"),
        ([1, 0, 1, 1, 0, 21, 0, 0, 0, 1], [], "operation codes below 21"),
        ([1, 0, 1, 1, 0, 6, 0, 1, 0, 1], [], "expects 1 operands, got"),
        ([1, 0, 0, 5, 0, 0, 0, 0, 0, 0], [], "at most 128 values and 4 results"),
    ],
)
def test_numbers_that_are_no_program_are_refused(ints, numbers, message):
    with pytest.raises(ProgramError, match=message):
        Program.deserialise(ints, numbers)


def test_too_long_a_program_is_refused():
    chain = tuple(Instruction("tanh", (i,)) for i in range(MOST_VALUES))
    with pytest.raises(ProgramError, match=rf"at most {MOST_VALUES} values \(.*\), got {MOST_VALUES + 1};"):
        Program((0,), (), chain, (MOST_VALUES,)).serialise()
