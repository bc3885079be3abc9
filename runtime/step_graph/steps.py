# SPDX-License-Identifier: Apache-2.0
"""The steps of a plan: what each reads and writes, and how much it computes."""

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.step_graph.views import Value, View
from edgernn.runtime.weights import Weight

Array = NDArray[Any]


@dataclass
class Operand:
    """The floats that a step reads or writes: a stride for each of its loops."""

    value: Value
    offset: int
    strides: list[int]

    def access(self, counts: Sequence[int], *inner: tuple[int, int]) -> View:
        """Return all floats that loops of these counts touch, with further loops inside them."""
        loops = [*zip(counts, self.strides, strict=True), *inner]
        return View(self.value, self.offset, tuple(((n, s),) if n > 1 else () for n, s in loops))


@dataclass(eq=False)
class Step(abc.ABC):
    """A step of a plan. `reads` and `writes` list what it touches, `macs` counts its multiply-adds.

    Attributes:
        node: Operator and name of the node that it computes; of the last one, for functions in one step.
        branches: The branches in which it runs, the outermost first.
    """

    node = ""
    branches: tuple["Branch", ...] = field(default=(), init=False)

    @abc.abstractmethod
    def reads(self) -> Iterator[View]:
        """Iterate over what it reads."""

    @abc.abstractmethod
    def writes(self) -> Iterator[View]:
        """Iterate over what it writes."""

    @property
    def macs(self) -> int:
        return 0


@dataclass(eq=False)
class Branch(Step):
    """Runs the steps that have it in their `branches` if a number is not 0; without `wanted`, if it is 0."""

    condition: Operand
    wanted: bool

    def reads(self) -> Iterator[View]:
        yield self.condition.access([])

    def writes(self) -> Iterator[View]:
        return iter(())


@dataclass(eq=False)
class Move(Step):
    """Copies floats."""

    counts: list[int]
    source: Operand
    target: Operand

    def reads(self) -> Iterator[View]:
        yield self.source.access(self.counts)

    def writes(self) -> Iterator[View]:
        yield self.target.access(self.counts)


@dataclass(eq=False)
class Linear(Step):
    """For each row, W x + b of x (D,), consecutive floats; W (O, D), b (O,) or None.

    `stored` is W in the type in which a file or a program stores it; None for float32.
    """

    counts: list[int]
    source: Operand
    target: Operand
    W: Array
    b: Array | None
    stored: Weight | None = None

    def reads(self) -> Iterator[View]:
        yield self.source.access(self.counts, (self.W.shape[1], 1))

    def writes(self) -> Iterator[View]:
        yield self.target.access(self.counts, (len(self.W), 1))

    @property
    def macs(self) -> int:
        return math.prod(self.counts) * self.W.size


@dataclass(eq=False)
class Depthwise(Step):
    """For each row, Σ_k W[k] ⊙ x[taps[k]:] + b of C consecutive floats; W (K, C), b (C,) or None."""

    counts: list[int]
    source: Operand
    target: Operand
    W: Array
    b: Array | None
    taps: list[int]

    def reads(self) -> Iterator[View]:
        for tap in self.taps:
            source = Operand(self.source.value, self.source.offset + tap, self.source.strides)
            yield source.access(self.counts, (self.W.shape[1], 1))

    def writes(self) -> Iterator[View]:
        yield self.target.access(self.counts, (self.W.shape[1], 1))

    @property
    def macs(self) -> int:
        return math.prod(self.counts) * self.W.size


@dataclass(frozen=True)
class Layer:
    """A recurrent layer: name of its kernel, weights in the order of its node, and further attributes of the node.

    `skips` is True under a rule that skips: the engine counts the work of such a layer at each step.
    """

    name: str
    weights: list[Weight]
    cell: dict[str, Any] = field(default_factory=dict)
    group_size: int = 1
    skips: bool = False


@dataclass(eq=False)
class Recurrent(Step):
    """Runs a recurrent layer for `steps` steps on `rows` sequences: x (T, rows, I) to y (T, rows, H).

    Without a target, its first state is what others read.
    """

    layer: Layer
    steps: int
    rows: int
    inputs: int
    outputs: int
    source: Operand
    target: Operand | None
    states: list[Operand]
    widths: list[int]
    reads_zero: bool = False

    def _states(self) -> Iterator[View]:
        for state, width in zip(self.states, self.widths, strict=True):
            yield state.access([], (self.rows * width, 1))

    def reads(self) -> Iterator[View]:
        yield self.source.access([], (self.steps * self.rows * self.inputs, 1))
        if not self.reads_zero:
            yield from self._states()

    def writes(self) -> Iterator[View]:
        if self.target is not None:
            yield self.target.access([], (self.steps * self.rows * self.outputs, 1))
        yield from self._states()

    @property
    def macs(self) -> int:
        matrices = sum(w.values.size for w in self.layer.weights if w.values.ndim == 2)
        return self.steps * self.rows * matrices


@dataclass(eq=False)
class Pointwise(Step):
    """Computes functions of single numbers.

    Attributes:
        counts: Loops, slowest first; each operand and result has a stride for each of them.
        operands: What is read.
        program: Instructions (name, indices): numbers below the count of operands are those, then instructions.
        results: Where results go, and the index of the number that is stored there.
    """

    counts: list[int]
    operands: list[Operand]
    program: list[tuple[str, tuple[int, ...]]]
    results: list[tuple[Operand, int]]

    def reads(self) -> Iterator[View]:
        for operand in self.operands:
            yield operand.access(self.counts)

    def writes(self) -> Iterator[View]:
        for result, _ in self.results:
            yield result.access(self.counts)


@dataclass(eq=False)
class Reduce(Step):
    """Sum, largest or smallest number over the loops `reduced`; the results lie densely in the order of `counts`."""

    kind: str
    counts: list[int]
    reduced: list[int]
    source: Operand
    target: Operand

    def reads(self) -> Iterator[View]:
        yield self.source.access([*self.counts, *self.reduced])

    def writes(self) -> Iterator[View]:
        yield self.target.access([], (math.prod(self.counts), 1))


@dataclass(eq=False)
class Gather(Step):
    """Copies the rows of these indices, each `inner` consecutive floats."""

    source: Operand
    target: Operand
    inner: int
    indices: list[int]

    def reads(self) -> Iterator[View]:
        yield self.source.access([], ((max(self.indices) + 1) * self.inner, 1))

    def writes(self) -> Iterator[View]:
        yield self.target.access([], (len(self.indices) * self.inner, 1))


@dataclass(eq=False)
class Lookup(Step):
    """Copies the row of a matrix (rows, columns) whose number is the float `index`."""

    index: Operand
    target: Operand
    matrix: Weight

    def reads(self) -> Iterator[View]:
        yield self.index.access([])

    def writes(self) -> Iterator[View]:
        yield self.target.access([], (self.matrix.values.shape[1], 1))


@dataclass(eq=False)
class Fft(Step):
    """Real Fourier transform of each row of N floats times a window: N / 2 + 1 real, then as many imaginary parts.

    A window of less than N numbers reads as many floats; zeros follow them.
    """

    rows: int
    source: Operand
    target: Operand
    N: int
    window: Array | None

    @property
    def count(self) -> int:
        """Number of floats of a row, without the zeros behind them."""
        return self.N if self.window is None else len(self.window)

    def reads(self) -> Iterator[View]:
        yield self.source.access([self.rows], (self.count, 1))

    def writes(self) -> Iterator[View]:
        yield self.target.access([self.rows], (self.N + 2, 1))

    @property
    def macs(self) -> int:
        return self.rows * self.N * int(np.log2(self.N))
