# SPDX-License-Identifier: Apache-2.0
"""The packed file of a step graph: places in the arena, tensors, and steps as integers."""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.program import STORED_OPS
from edgernn.runtime.packed_format import GRAPH, GRAPH_VERSION, LayerRecord, file_content
from edgernn.runtime.step_graph.lowering import Lowered
from edgernn.runtime.step_graph.steps import (
    Branch,
    Depthwise,
    Fft,
    Gather,
    Layer,
    Linear,
    Lookup,
    Move,
    Operand,
    Pointwise,
    Recurrent,
    Reduce,
    Step,
)
from edgernn.runtime.step_graph.views import Kind, Value, collapsed, sorted_by
from edgernn.runtime.weights import Weight

Array = NDArray[Any]
# flag of a file with a step graph
FLAG = 16
VALUE = struct.Struct("<4I")
CODES = {
    Move: 0,
    Linear: 1,
    Depthwise: 2,
    Recurrent: 3,
    Pointwise: 4,
    Reduce: 5,
    Gather: 6,
    Lookup: 6,
    Fft: 7,
    Branch: 8,
}
_KINDS = {"sum": 0, "max": 1, "min": 2}
# offsets in the arena are multiples of this
_PLACE = 16
# loops of a MOVE
_MOST_LOOPS = 6


@dataclass(frozen=True)
class Content:
    """A packed step graph.

    Attributes:
        data: The file.
        names: Name of each step in the file, such as LINEAR.
        nodes: Operator and name of the node that each step in the file computes.
        macs: Multiply-adds of all steps.
        arena: Floats of the arena for each stream.
    """

    data: bytes
    names: list[str]
    nodes: list[str]
    macs: int
    arena: int


def encode(graph: Lowered, updates: int = 0, macs: int = 0) -> Content:
    """Return the packed file of a step graph, with the work of a step in layers that cannot skip where others do.

    In a graph with branches, the work is that of all operations.
    """
    if any(isinstance(step, Branch) for step in graph.steps):
        updates, macs = work(step for step in graph.steps if not step.branches)
        _check_work(macs, "outside of branches")
    return _Encoder(graph).content(updates, macs)


def place(steps: Sequence[Step], alignment: int = _PLACE) -> int:
    """Give each value of the arena its offset, and return the size of the arena in floats.

    Values that are never needed at the same time share memory; padded ones share it with none. Offsets are multiples
    of `alignment`.
    """
    spans = dict[Value, list[int]]()
    for k, step in enumerate(steps):
        for view in (*step.reads(), *step.writes()):
            if view.value.kind == Kind.ARENA:
                spans.setdefault(view.value, [k, k])[1] = k
    total, placed = 0, list[Value]()
    for value in sorted(spans, key=lambda v: (not v.padded, -v.size)):
        if value.padded:
            spans[value] = [0, len(steps)]
        first, last = spans[value]
        rivals = sorted(
            (other for other in placed if spans[other][0] <= last and first <= spans[other][1]), key=lambda v: v.offset
        )
        value.offset = 0
        for other in rivals:
            if value.offset + value.size <= other.offset:
                break
            value.offset = max(value.offset, -(-(other.offset + other.size) // alignment) * alignment)
        placed.append(value)
        total = max(total, -(-(value.offset + value.size) // alignment) * alignment)
    return total


def work(steps: Iterable[Step]) -> tuple[int, int]:
    """Return the updates and the multiply-adds of steps, without layers whose work the engine counts."""
    counted = [step for step in steps if not (isinstance(step, Recurrent) and step.layer.skips)]
    updates = sum(step.steps * step.rows * step.outputs for step in counted if isinstance(step, Recurrent))
    return updates, sum(step.macs for step in counted)


def _check_work(macs: int, where: str) -> None:
    if macs >= 1 << 31:
        raise EdgernnError(
            f"{where}: expected fewer than 2^31 multiply-adds a step, got {macs:,}; use a smaller network"
        )


class _Encoder:
    def __init__(self, graph: Lowered) -> None:
        self._graph = graph
        self._tensors: list[Weight] = []
        self._known: dict[Any, int] = {}
        self._values: dict[Value, int] = {}
        self._records: list[bytes] = []
        self._layers: dict[int, tuple[int, int]] = {}
        self._layer_records: list[LayerRecord] = []
        self._ints: list[int] = []
        self._names: list[str] = []
        self._nodes: list[str] = []
        # place of the number of steps of each branch
        self._lengths: dict[Branch, int] = {}
        # values of one number, which share a tensor
        self._scalars: dict[Value, int] = {}

    def content(self, updates: int, macs: int) -> Content:
        graph = self._graph
        arena = place(graph.steps)
        for step in graph.steps:
            for view in step.reads():
                if view.value.kind == Kind.CONSTANT and view.value.size == 1:
                    self._scalars.setdefault(view.value, len(self._scalars))
        if self._scalars:
            numbers = np.array([float(value.numbers[0]) for value in self._scalars if value.numbers is not None])
            shared = self._tensor(numbers)
            self._records.append(VALUE.pack(Kind.CONSTANT, shared, len(self._scalars), 0))
            self._values |= dict.fromkeys(self._scalars, 0)
        for state in graph.states:
            self._value(state)
        for step in graph.steps:
            self._step(step)
        rows = [sum(map(math.prod, shapes.values())) for shapes in (graph.inputs, graph.outputs)]
        ints = np.array(self._ints, "<i4")
        record = GRAPH.pack(len(self._records), len(graph.states), len(self._names), len(ints), arena, updates, macs, 0)
        data = file_content(
            GRAPH_VERSION,
            FLAG,
            (rows[0], 0, rows[1]),
            self._layer_records,
            self._tensors,
            graph=record,
            steps=b"".join(self._records) + ints.tobytes(),
        )
        return Content(data, self._names, self._nodes, sum(step.macs for step in graph.steps), arena)

    def _tensor(self, array: Array) -> int:
        return self._weight(Weight(np.ascontiguousarray(array, np.float32)))

    def _weight(self, weight: Weight) -> int:
        scales = None if weight.scales is None else weight.scales.tobytes()
        key = weight.values.shape, weight.values.dtype, weight.values.tobytes(), scales
        if key not in self._known:
            self._known[key] = len(self._tensors)
            self._tensors.append(weight)
        return self._known[key]

    def _optional(self, array: Array | None) -> int:
        return -1 if array is None else self._tensor(array)

    def _value(self, value: Value) -> int:
        if value not in self._values:
            self._values[value] = len(self._records)
            numbers = value.numbers
            offset, tensor = value.offset, 0
            if value.kind == Kind.CONSTANT and numbers is not None:
                offset = self._tensor(numbers)
            elif value.kind == Kind.STATE and numbers is not None:
                offset, tensor = 0, self._tensor(numbers)
            self._records.append(VALUE.pack(value.kind, offset, value.size, tensor))
        return self._values[value]

    def _place(self, operand: Operand, shift: int = 0) -> tuple[int, int]:
        """Return number of a value, and the offset in it."""
        return self._value(operand.value), operand.offset + shift + self._scalars.get(operand.value, 0)

    def _layer(self, layer: Layer) -> tuple[int, int]:
        """Return the number of a layer, and its first tensor."""
        if id(layer) not in self._layers:
            self._layers[id(layer)] = len(self._layer_records), len(self._tensors)
            self._layer_records.append(LayerRecord(layer.name, len(layer.weights), layer.cell, layer.group_size))
            self._tensors += layer.weights
        return self._layers[id(layer)]

    def _emit(self, step: Step, arguments: Sequence[int]) -> None:
        for branch in step.branches:
            self._ints[self._lengths[branch]] += 1
        self._ints += [CODES[type(step)], len(arguments), *map(int, arguments)]
        self._names.append(type(step).__name__.upper())
        self._nodes.append(step.node)

    def _step(self, step: Step) -> None:
        if isinstance(step, Branch):
            updates, macs = work(inner for inner in self._graph.steps if inner.branches == (*step.branches, step))
            _check_work(macs, step.node)
            self._emit(step, [*self._place(step.condition), step.wanted, updates, macs, 0])
            # the number of its steps, which are still to be written
            self._lengths[step] = len(self._ints) - 1
        elif isinstance(step, Move):
            counts, strides = collapsed(*sorted_by(step.counts, [step.source.strides, step.target.strides], 1))
            for n, (s, t), (a, b) in _turns(counts, strides, _MOST_LOOPS):
                loops = zip(n or [1], s or [0], t or [0], strict=True)
                flat = [number for loop in loops for number in loop]
                self._emit(step, [*self._place(step.source, a), *self._place(step.target, b), len(n) or 1, *flat])
        elif isinstance(step, Linear):
            W = self._tensor(step.W) if step.stored is None else self._weight(step.stored)
            b = self._optional(step.b)
            self._rows(step, [W, b], [])
        elif isinstance(step, Depthwise):
            W, b = self._tensor(step.W), self._optional(step.b)
            self._rows(step, [W, b], [len(step.taps), *step.taps])
        elif isinstance(step, Recurrent):
            states = [number for state in step.states for number in self._place(state)]
            self._emit(
                step,
                [
                    *self._layer(step.layer),
                    *self._place(step.source),
                    *((-1, 0) if step.target is None else self._place(step.target)),
                    *(step.steps, step.rows, step.reads_zero, len(step.states)),
                    *states,
                ],
            )
        elif isinstance(step, Pointwise):
            self._pointwise(step)
        elif isinstance(step, Reduce):
            self._reduce(step)
        elif isinstance(step, Gather):
            places = *self._place(step.source), *self._place(step.target)
            self._emit(step, [*places, step.inner, len(step.indices), *step.indices])
        elif isinstance(step, Lookup):
            # a gather without indices of its own
            table = Value(Kind.CONSTANT, step.matrix.values.size, step.matrix.floats)
            self._values[table] = len(self._records)
            self._records.append(VALUE.pack(Kind.CONSTANT, self._weight(step.matrix), table.size, 0))
            places = *self._place(Operand(table, 0, [])), *self._place(step.target)
            self._emit(step, [*places, step.matrix.values.shape[1], 0, *self._place(step.index)])
        elif isinstance(step, Fft):
            places = *self._place(step.source), *self._place(step.target)
            rows = step.rows, step.source.strides[0], step.target.strides[0], step.N
            self._emit(step, [*places, *rows, self._optional(step.window)])

    def _rows(self, step: Linear | Depthwise, tensors: Sequence[int], more: Sequence[int]) -> None:
        counts, strides = collapsed(step.counts, [step.source.strides, step.target.strides])
        for n, (s, t), (a, b) in _turns(counts, strides, 2):
            rows = [1] * (2 - len(n)) + n, [0] * (2 - len(n)) + s, [0] * (2 - len(n)) + t
            flat = [number for loop in zip(*rows, strict=True) for number in loop]
            places = *self._place(step.source, a), *self._place(step.target, b)
            inside = [n - step.source.offset - a for n in self._between_margins(step)]
            self._emit(step, [*places, *tensors, *flat, *more, *inside])

    def _between_margins(self, step: Linear | Depthwise) -> tuple[int, ...]:
        """Return begin and end of the floats that a linear map reads and that are not always zero, if others are."""
        value = step.source.value
        if isinstance(step, Depthwise) or not value.padded:
            return ()
        written = [view.extent() for other in self._graph.steps for view in other.writes() if view.value is value]
        return (min(first for first, _ in written), 1 + max(last for _, last in written)) if written else ()

    def _pointwise(self, step: Pointwise) -> None:
        results = [result for result, _ in step.results]
        operands = [*results, *step.operands]
        counts, strides = collapsed(*sorted_by(step.counts, [operand.strides for operand in operands], 0))
        last = [s[-1] if s else 0 for s in strides]
        # the last loop is that of the columns, unless its floats do not lie together
        columns = bool(counts) and all(n == 1 for n in last[: len(results)]) and all(n in (0, 1) for n in last)
        for n, s, shifts in _turns(counts, strides, 2 + columns):
            width = n[-1] if columns else 1
            rows = n[:-1] if columns else n
            fill = [0] * (2 - len(rows))
            arguments = [*([1] * (2 - len(rows)) + rows), width, len(step.operands)]
            for operand, steps, shift in zip(
                operands[len(results) :], s[len(results) :], shifts[len(results) :], strict=True
            ):
                strides_of_rows = fill + (steps[:-1] if columns else steps)
                arguments += [*self._place(operand, shift), *strides_of_rows, steps[-1] if columns else 0]
            arguments.append(len(results))
            for operand, steps, shift in zip(results, s, shifts, strict=False):
                arguments += [*self._place(operand, shift), *fill, *(steps[:-1] if columns else steps)]
            arguments.append(len(step.program))
            for name, indices in step.program:
                arguments += [STORED_OPS[name].code, *indices, *[-1] * (3 - len(indices))]
            arguments += [index for _, index in step.results]
            self._emit(step, arguments)

    def _reduce(self, step: Reduce) -> None:
        outer = len(step.counts)
        strides = step.source.strides
        counts, inner = list(step.counts), strides[:outer]
        columns = counts.pop() if counts and (inner[-1] == 1 or len(counts) == 3) else 1
        width = inner.pop() if len(inner) > len(counts) else 0
        pairs = [*_filled(counts, inner), *_filled(step.reduced, strides[outer:])]
        places = *self._place(step.source), *self._place(step.target)
        flat = [number for pair in pairs for number in pair]
        self._emit(step, [_KINDS[step.kind], *places, *flat, columns, width])


def _filled(counts: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return two loops, those that are missing with one turn."""
    return [(1, 0)] * (2 - len(counts)) + list(zip(counts, strides, strict=True))


def _turns(
    counts: Sequence[int], strides: Sequence[Sequence[int]], most: int
) -> Iterator[tuple[list[int], list[list[int]], list[int]]]:
    """Yield at most `most` inner loops, their strides, and the shift of each operand, for each turn of the others."""
    outer = max(0, len(counts) - most)
    for index in np.ndindex(*counts[:outer]):
        shifts = [sum(i * s for i, s in zip(index, steps, strict=False)) for steps in strides]
        yield list(counts[outer:]), [list(steps[outer:]) for steps in strides], shifts
