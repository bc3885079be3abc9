# SPDX-License-Identifier: Apache-2.0
"""The ops of programs in the native library. test_native_op.py repeats these tests for every instruction set."""

import numpy as np
import pytest

from edgernn.cell_table import INPUT, STATE, VECTOR
from edgernn.program import STORED_OPS, Builder, Instruction, Program
from tests.programs import run_equations
from tests.tolerances import FLOAT32


def one_op_program(name):
    """Return the program of one op of x and the states after it."""
    arity = STORED_OPS[name].arity
    places = (INPUT, STATE, STATE + 1)[:arity]
    count = max(arity - 1, 1)
    results = (arity, *range(1, arity))[:count]
    return count, Program(places, (), (Instruction(name, tuple(range(arity))),), results)


def op_results(name, *operands):
    """Return the op's results in the library and in float64, for operands of any shape."""
    operands = [np.asarray(a, np.float32).ravel() for a in operands]
    size = -(-len(operands[0]) // 64) * 64
    rows = [np.resize(a, size).reshape(-1, 64) for a in operands]
    states, program = one_op_program(name)
    before = [*rows[1:], *[rows[0]] * (states - len(rows[1:]))]
    got = run_equations(states, program, rows[0], *before)[0].ravel()[: len(operands[0])]
    return got.astype(np.float64), [a.astype(np.float64) for a in operands]


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1.2e-38, -1.2e-38], np.float32)
# unary ops: the function in float64, its test range and its tolerance
RANGES = {
    "neg": (np.negative, (-1e3, 1e3), 0),
    "abs": (np.abs, (-1e3, 1e3), 0),
    "sqrt": (np.sqrt, (0, 1e3), 1e-7),
    "exp": (np.exp, (-87.3, 88.7), 3e-7),
    "log": (np.log, (1e-3, 1e3), 3e-7),
    "sin": (np.sin, (-8000, 8000), 3e-7),
    "cos": (np.cos, (-8000, 8000), 3e-7),
    "tanh": (np.tanh, (-20, 20), 4e-7),
    "sigmoid": (lambda a: 1 / (1 + np.exp(-a)), (-80, 80), 4e-7),
    "sign": (lambda a: np.where(np.isnan(a), 0, np.sign(a)), (-1, 1), 0),
}


@pytest.mark.parametrize("name", RANGES)
def test_function_is_exact_to_rounding(name):
    function, (low, high), close = RANGES[name]
    got, (x,) = op_results(name, np.linspace(low, high, 100_001))
    # near a root of sine and cosine the rounding error of the angle dominates
    near = 1e-10 if name in ("sin", "cos") else 1e-7 if name == "sigmoid" else 0
    np.testing.assert_allclose(got, function(x), rtol=close, atol=near)


@pytest.mark.parametrize("name", RANGES)
def test_function_of_a_special_number(name):
    got, (x,) = op_results(name, SPECIAL)
    with np.errstate(all="ignore"):
        expected = RANGES[name][0](x).astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=3e-7)
    if name in ("neg", "abs", "sqrt"):
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_of_a_large_angle(name):
    x = np.logspace(0, 38.5, 20_000).astype(np.float32)
    got, (x,) = op_results(name, np.concatenate([x, -x]))
    np.testing.assert_allclose(got, getattr(np, name)(x), rtol=3e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["exp", "log"])
def test_exponential_and_logarithm_over_the_whole_range(name):
    x = np.logspace(-37.9, 38.5, 50_000) if name == "log" else np.linspace(-110, 110, 50_000)
    got, (x,) = op_results(name, x)
    with np.errstate(over="ignore"):
        expected = getattr(np, name)(x).astype(np.float32)
    # results below the normal range of float are 0
    expected[np.abs(expected) < 1.2e-38] = 0
    got[np.abs(got) < 1.2e-38] = 0
    np.testing.assert_allclose(got, expected, rtol=3e-7)


def test_numbers_below_the_smallest_of_full_precision_are_zero():
    got, _ = op_results("log", [1e-40, 1e-45])
    np.testing.assert_array_equal(got, -np.inf)


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}


@pytest.mark.parametrize("name", BINARY)
def test_op_of_two_operands(name):
    numbers = np.concatenate([SPECIAL[:-2], np.random.default_rng(0).standard_normal(20).astype(np.float32)])
    first, second = (a.ravel() for a in np.meshgrid(numbers, numbers))
    got, operands = op_results(name, first, second)
    with np.errstate(all="ignore"):
        expected = BINARY[name](*operands).astype(np.float32)
    # results below the normal range are 0
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1.2e-38)


def test_ops_of_three_operands():
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((3, 200)).astype(np.float32)
    a[:6] = (0, -0.0, np.nan, np.inf, 1e-37, 1)
    b[7], c[8] = np.nan, np.inf
    got, (a, b, c) = op_results("select", a, b, c)
    np.testing.assert_array_equal(got, np.where(a != 0, b, c))
    a, b, c = rng.standard_normal((3, 200)).astype(np.float32)
    got, (a, b, c) = op_results("lerp", a, b, c)
    np.testing.assert_allclose(got, (1 - c) * a + c * b, rtol=0, atol=1e-6)


def test_every_op_is_tried():
    assert {*RANGES, *BINARY, "select", "lerp"} == set(STORED_OPS)


def test_own_vectors_are_mapped_once_from_what_they_were():
    """Vectors of sizes H and I and a scalar; each map sees its own vector and the scalar."""
    builder = Builder()
    a, b, number = (builder.argument(VECTOR + i) for i in range(3))
    mapped = builder.finish([builder.op("mul", a, number), builder.op("add", b, number), builder.op("exp", number)])
    builder = Builder()
    h, *vectors = (builder.argument(key) for key in (STATE, VECTOR, VECTOR + 1, VECTOR + 2))
    value = h
    for vector in vectors:
        value = builder.op("add", builder.op("mul", value, builder.constant(2.0)), vector)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(40), rng.standard_normal(40), [0.5]]
    h = rng.standard_normal((3, 40)).astype(np.float32)
    sizes = list(zip((0, 1, 2), values, strict=True))
    (got,) = run_equations(1, builder.finish([value]), h, h, vectors=sizes, map=mapped)
    expected = ((h * 2 + values[0] * 0.5) * 2 + values[1] + 0.5) * 2 + np.exp(0.5)
    np.testing.assert_allclose(got, expected, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("alive", [1, 40, 58])
def test_largest_program(alive):
    """128 values; the number alive at a time varies, and with it the block size."""
    rng = np.random.default_rng(0)
    constants = tuple(float(number) for number in rng.uniform(0.5, 1.0, 10))
    instructions: list[Instruction] = []

    def add(name, *operands):
        instructions.append(Instruction(name, operands))
        return 10 + len(instructions)

    # a product would be computed with the sum that reads it
    values = [add("div", 0, 1 + i % 10) for i in range(alive)]
    total = values[0]
    for value in values[1:]:
        total = add("add", total, value)
    while 11 + len(instructions) < 128:
        total = add("tanh" if len(instructions) % 2 else "add", *(total, total)[: 2 - len(instructions) % 2])
    program = Program((INPUT,), constants, tuple(instructions), (total,))
    assert program.size == 128
    x = rng.standard_normal((2, 300)).astype(np.float32)
    (got,) = run_equations(1, program, x, x)
    (expected,) = program.run([x])
    np.testing.assert_allclose(got, expected, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("hidden", [5, 300])
def test_programs_whose_ops_are_fused(hidden):
    """Values are read by one or several ops, as any operand, and returned as one or several states, or not at all."""
    rng = np.random.default_rng(hidden)
    x, *before = rng.standard_normal((5, 2, hidden)).astype(np.float32)
    for _ in range(60):
        builder = Builder()
        values = [builder.argument(key) for key in (INPUT, *range(STATE, STATE + 4))]
        for name in rng.choice(
            ["add", "mul", "sigmoid", "tanh", "lerp", "sub"], 12, p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05]
        ):
            operands = rng.choice(values[-4:] if rng.random() < 0.7 else values, STORED_OPS[name].arity)
            values.append(builder.op(name, *map(int, operands)))
        program = builder.finish([int(value) for value in rng.choice(values, 4)])
        arguments = dict(zip((INPUT, *range(STATE, STATE + 4)), (x, *before), strict=True))
        expected = program.run([arguments[key].astype(np.float64) for key in program.arguments])
        for got, state in zip(run_equations(4, program, x, *before), expected, strict=True):
            np.testing.assert_allclose(got, state, rtol=1e-5, atol=1e-5)
