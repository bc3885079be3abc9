# SPDX-License-Identifier: Apache-2.0
"""Generates the C code of the steps of a model, other than what is inside a layer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.program import Instruction, Program
from edgernn.runtime.firmware.layer_parts import Field, largest_quantised
from edgernn.runtime.firmware.pointwise_c import ExpressionPrinter, array, float_literal
from edgernn.runtime.firmware.weight_arrays import C_TYPES, in_fours, padded, type_of
from edgernn.runtime.step_graph.steps import (
    Branch,
    Depthwise,
    Fft,
    Gather,
    Linear,
    Lookup,
    Move,
    Operand,
    Pointwise,
    Recurrent,
    Reduce,
    Step,
)
from edgernn.runtime.step_graph.views import Kind, Value
from edgernn.runtime.weights import Weight

# size of a number by its C type
BYTES = {"float": 4, "int8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4}


class Constants:
    """The constant arrays of a program, each content once.

    Attributes:
        texts: Their definitions in C.
        bytes: Their size.
    """

    texts: list[str]
    bytes: int

    def __init__(self) -> None:
        self.texts = []
        self.bytes = 0
        self._names: dict[Any, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, type: str, name: str, values: NDArray[Any]) -> str:
        """Add an array and return its name, which gets a number if it is taken; `type` is the C type of an element."""
        key = type, values.size, np.ascontiguousarray(values).tobytes()
        if key not in self._names:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            self._names[key] = name if count == 1 else f"{name}_{count}"
            self.texts.append(array(type, self._names[key], values))
            self.bytes += values.size * BYTES[type]
        return self._names[key]

    def matrix(self, name: str, matrix: Weight) -> list[str]:
        """Add the values of a matrix, and the scales of its rows if they are int8; return the names."""
        names = [self.add(C_TYPES[type_of(matrix)], name, matrix.values)]
        if matrix.scales is not None:
            names.append(self.add("float", f"{name}_scales", matrix.scales))
        return names


class StepCode:
    """Generator of the C code of steps.

    Args:
        constants: Where constant arrays go.
        places: First number of each state in the array of states.
        x: C expression of the input.
        layer: Generates the statements of a step's layer for its input, given as a C expression, and its states.
        quantises: Quantise the input of linear maps with int8 weights, see `ModelContent`.
    """

    def __init__(
        self,
        constants: Constants,
        places: Mapping[Value, int],
        x: str,
        layer: Callable[[Recurrent, str, Sequence[str]], Iterator[str]],
        quantises: bool,
    ) -> None:
        self._constants, self._places, self._x, self._layer = constants, places, x, layer
        self._quantises = quantises
        self._tied: tuple[Weight, str] | None = None

    def lines(self, step: Step) -> Iterator[str]:
        """Generate the statements of a step."""
        yield from _GENERATORS[type(step)](self, step)

    def _base(self, value: Value) -> tuple[str, int]:
        """Return the C array of a value, and its first number there."""
        if value.kind == Kind.CONSTANT:
            assert value.numbers is not None
            return self._constants.add("float", "constant", np.asarray(value.numbers, np.float32)), 0
        if value.kind == Kind.STATE:
            return "model->state", self._places[value]
        arrays = {Kind.ARENA: "model->arena", Kind.INPUT: self._x, Kind.OUTPUT: "y"}
        return arrays[value.kind], value.offset

    def _pointer(self, operand: Operand, strides: Sequence[int] = ()) -> str:
        """Return the C expression of an operand's address in loops over i0, i1, ..."""
        base, first = self._base(operand.value)
        terms = _terms(first + operand.offset, strides)
        return " + ".join([base, *terms])

    def _number(self, operand: Operand, strides: Sequence[int], more: Sequence[str] = ()) -> str:
        base, first = self._base(operand.value)
        return f"{base}[{' + '.join([*_terms(first + operand.offset, strides), *more]) or '0'}]"

    def condition(self, step: Branch) -> str:
        """Return the head of the block of a branch's steps."""
        return f"if ({self._number(step.condition, [])} {'!=' if step.wanted else '=='} 0.0f)"

    def lookup(self, step: Lookup) -> Iterator[str]:
        names = self._constants.matrix("embedding", step.matrix)
        self._tied = step.matrix, names[0]
        size = step.matrix.values.shape[1]
        row = f"(int32_t){self._number(step.index, [])}"
        value = f"{names[0]}[{row} * {size} + i]"
        value = {
            "float": value,
            "bfloat16": f"edgernn_read_bfloat16({value})",
            "int8": f"(float){value} * {names[-1]}[{row}]",
        }[type_of(step.matrix)]
        yield f"for (int32_t i = 0; i < {size}; ++i) ({self._pointer(step.target)})[i] = {value};"

    def move(self, step: Move) -> Iterator[str]:
        target = self._number(step.target, step.target.strides)
        yield from _loops(step.counts, [f"{target} = {self._number(step.source, step.source.strides)};"])

    def linear(self, step: Linear) -> Iterator[str]:
        W = _stored(step)
        bias = "0" if step.b is None else self._constants.add("float", "bias", np.asarray(step.b, np.float32))
        source, target = (self._pointer(operand, operand.strides) for operand in (step.source, step.target))
        rows, columns = W.values.shape
        if self._tied is not None and np.array_equal(W.floats, self._tied[0].floats):
            # the head shares the rows of the embedding
            names, grouped = self._constants.matrix("embedding", self._tied[0]), 0
        elif type_of(W) == "int8" and not self._quantises:
            names, grouped = self._constants.matrix("weights", W), 0
        else:
            ordered, grouped = in_fours(W)
            names = self._constants.matrix("weights", ordered)
        sizes = f"{rows}, {columns}"
        if type_of(W) != "int8":
            call = f"edgernn_{type_of(W)}_linear({names[0]}, {bias}, {grouped}, {sizes}, {source}, {target});"
        elif not self._quantises:
            call = f"edgernn_int8_rows({', '.join(names)}, {bias}, {sizes}, {source}, {target});"
        else:
            largest = float_literal(largest_quantised(columns))
            call = f"edgernn_int8_linear({', '.join(names)}, {bias}, {grouped}, {sizes}, {largest},"
            call += f" {source}, model->quantised_x, {target});"
        yield from _loops(step.counts, [call])

    def depthwise(self, step: Depthwise) -> Iterator[str]:
        taps, channels = step.W.shape
        W = self._constants.add("float", "weights", np.asarray(step.W, np.float32))
        table = self._constants.add("int32_t", "taps", np.array(step.taps))
        bias = "0.0f"
        if step.b is not None:
            bias = f"{self._constants.add('float', 'bias', np.asarray(step.b, np.float32))}[c]"
        source = self._number(step.source, step.source.strides, [f"{table}[k]", "c"])
        yield from _loops(
            step.counts,
            [
                f"for (int32_t c = 0; c < {channels}; ++c) {{",
                f"  float sum = {bias};",
                f"  for (int32_t k = 0; k < {taps}; ++k) sum += {W}[k * {channels} + c] * {source};",
                f"  {self._number(step.target, step.target.strides, ['c'])} = sum;",
                "}",
            ],
        )

    def recurrent(self, step: Recurrent) -> Iterator[str]:
        # loops over steps and rows, without those of one turn
        kept = [k for k, n in enumerate((step.steps, step.rows)) if n > 1]

        def strides(over_steps: int, over_rows: int) -> list[int]:
            return [(over_steps, over_rows)[k] for k in kept]

        source = self._pointer(step.source, strides(step.rows * step.inputs, step.inputs))
        pairs = list(zip(step.states, step.widths, strict=True))
        if step.reads_zero:
            for state, width in pairs:
                yield from _loops([step.rows * width], [f"{self._number(state, [1])} = 0.0f;"])
        inner = list(self._layer(step, source, [self._pointer(state, strides(0, width)) for state, width in pairs]))
        if step.target is not None:
            y = self._number(step.target, strides(step.rows * step.outputs, step.outputs), ["k"])
            h = self._number(step.states[0], strides(0, step.widths[0]), ["k"])
            inner.append(f"for (int32_t k = 0; k < {step.outputs}; ++k) {y} = {h};")
        yield from _loops([(step.steps, step.rows)[k] for k in kept], inner)

    def each_row(self, step: Recurrent, statement: Callable[[Recurrent, Sequence[str]], str]) -> Iterator[str]:
        """Generate a statement for the states of each row of a layer, given as C expressions."""
        loops = [step.rows] if step.rows > 1 else []
        pairs = zip(step.states, step.widths, strict=True)
        states = [self._pointer(state, [width] * len(loops)) for state, width in pairs]
        yield from _loops(loops, [statement(step, states)])

    def pointwise(self, step: Pointwise) -> Iterator[str]:
        depths = [max((k + 1 for k, s in enumerate(o.strides) if s), default=0) for o in step.operands]
        literals: dict[int, float] = {}
        for k, operand in enumerate(step.operands):
            if operand.value.kind == Kind.CONSTANT and not depths[k]:
                assert operand.value.numbers is not None
                number = float(np.float32(np.asarray(operand.value.numbers).flat[operand.offset]))
                if np.isfinite(number):
                    literals[k] = number
        loaded = [k for k in range(len(step.operands)) if k not in literals]
        # a program numbers its arguments first, then its constants
        order = [*loaded, *literals]
        indices = {k: place for place, k in enumerate(order)}
        for k in range(len(step.program)):
            indices[len(order) + k] = len(order) + k
        instructions = [Instruction(op, tuple(indices[k] for k in operands)) for op, operands in step.program]
        program = Program(
            tuple(range(len(loaded))),
            tuple(literals.values()),
            tuple(instructions),
            tuple(indices[k] for _, k in step.results),
        )
        printer = ExpressionPrinter(program, [f"a{k}" for k in loaded])
        results = printer.results()
        stores = [
            f"{self._number(result, result.strides)} = {text};"
            for (result, _), text in zip(step.results, results, strict=True)
        ]
        statements = [*printer.lines, *stores]
        read = set(re.findall(r"\ba\d+\b", " ".join(statements)))
        loads = [
            [
                f"const float a{k} = {self._number(step.operands[k], step.operands[k].strides)};"
                for k in loaded
                if depths[k] == depth and f"a{k}" in read
            ]
            for depth in range(len(step.counts) + 1)
        ]
        yield from _loops(step.counts, statements, loads)

    def reduce(self, step: Reduce) -> Iterator[str]:
        # the results lie densely in the order of the loops
        strides, size = list[int](), 1
        for count in reversed(step.counts):
            strides.insert(0, size)
            size *= count
        number = self._number(step.source, step.source.strides)
        add = {"sum": f"total += {number};"}
        add |= {name: f"total = edgernn_{name}(total, {number});" for name in ("max", "min")}
        start = "0.0f" if step.kind == "sum" else self._number(step.source, step.source.strides[: len(step.counts)])
        inner = [
            f"float total = {start};",
            *_loops(step.reduced, [add[step.kind]], first=len(step.counts)),
            f"{self._number(step.target, strides)} = total;",
        ]
        yield from _loops(step.counts, inner, block=not step.counts)

    def gather(self, step: Gather) -> Iterator[str]:
        table = self._constants.add("int32_t", "indices", np.array(step.indices))
        row = [f"{table}[i0] * {step.inner}", "i1"]
        value = self._number(step.source, [], row)
        if min(step.indices) < 0:
            value = f"{table}[i0] < 0 ? 0.0f : {value}"
        target = self._number(step.target, [step.inner, 1])
        yield from _loops([len(step.indices), step.inner], [f"{target} = {value};"])

    def fft(self, step: Fft) -> Iterator[str]:
        window = "0"
        if step.window is not None:
            window = self._constants.add("float", "window", np.asarray(step.window, np.float32))
        half = step.N // 2
        angles = 2 * np.pi * np.arange(half) / step.N
        tables = [
            self._constants.add("float", f"{name}_{step.N}", function(angles).astype(np.float32))
            for name, function in (("cosines", np.cos), ("sines", np.sin))
        ]
        source = self._pointer(step.source, step.source.strides)
        target = self._pointer(step.target, step.target.strides)
        yield "{"
        yield f"  static const EdgernnFourier fourier = {{{half}, {', '.join(tables)}}};"
        call = f"edgernn_real_fourier(&fourier, {window}, {step.count}, {source}, model->spectrum, {target});"
        yield from (f"  {line}" for line in _loops([step.rows], [call]))
        yield "}"


_GENERATORS: dict[type[Step], Callable[[StepCode, Any], Iterator[str]]] = {
    Move: StepCode.move,
    Linear: StepCode.linear,
    Depthwise: StepCode.depthwise,
    Recurrent: StepCode.recurrent,
    Pointwise: StepCode.pointwise,
    Reduce: StepCode.reduce,
    Gather: StepCode.gather,
    Lookup: StepCode.lookup,
    Fft: StepCode.fft,
}


def step_workspace(step: Step, quantises: bool) -> Iterator[Field]:
    """Return the temporary arrays of a step other than a layer."""
    if isinstance(step, Fft):
        yield Field("float", "spectrum", step.N, "of a window")
    if isinstance(step, Linear) and type_of(_stored(step)) == "int8" and quantises:
        yield Field("int16_t", "quantised_x", padded(step.W.shape[1]), "x, quantised")


def _stored(step: Linear) -> Weight:
    return Weight(np.asarray(step.W, np.float32)) if step.stored is None else step.stored


def _terms(first: int, strides: Sequence[int]) -> list[str]:
    """Return the summands of a place in loops over i0, i1, ..."""
    factors = {1: "", **{stride: f"{stride} * " for stride in strides if stride > 1}}
    factors |= {stride: f"({stride}) * " for stride in strides if stride < 0}
    products = [f"{factors[stride]}i{k}" for k, stride in enumerate(strides) if stride]
    return [str(first)] * (first != 0) + products


def _loops(
    counts: Sequence[int],
    inner: Sequence[str],
    loads: Sequence[Sequence[str]] = (),
    *,
    first: int = 0,
    block: bool = False,
) -> Iterator[str]:
    """Generate nested loops over i0, i1, ...

    Args:
        counts: Turns of each loop, slowest first.
        inner: Statements of the innermost loop.
        loads: Declarations before the loops, in the first one, and so on.
        first: Number of the first index.
        block: Put the statements into a block though there is no loop.

    Yields:
        Lines of C.
    """
    depth, opened = 0, 0
    # declarations are in a block of their own
    block = block or bool(loads and (loads[0] or not counts))
    if block:
        yield "{"
        depth = opened = 1
    yield from ("  " * depth + line for line in (loads[0] if loads else ()))
    for k, count in enumerate(counts):
        index = f"i{first + k}"
        yield "  " * depth + f"for (int32_t {index} = 0; {index} < {count}; ++{index}) {{"
        depth, opened = depth + 1, opened + 1
        yield from ("  " * depth + line for line in (loads[k + 1] if loads else ()))
    yield from ("  " * depth + line for line in inner)
    for level in reversed(range(opened)):
        yield "  " * level + "}"
