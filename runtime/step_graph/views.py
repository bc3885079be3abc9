# SPDX-License-Identifier: Apache-2.0
"""Strided views of buffers: how a tensor of the graph lies in memory, and how shapes change without a copy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
# a count and the distance in floats between two neighbours
Factor = tuple[int, int]


class Kind(IntEnum):
    """Where a value lies: the numbers are those of the file."""

    ARENA, STATE, CONSTANT, INPUT, OUTPUT = range(5)


@dataclass(eq=False)
class Value:
    """A buffer of floats, for each stream its own one unless it is constant.

    Attributes:
        kind: Where it lies.
        size: Number of floats of a stream.
        numbers: Numbers (size,) of a constant, or initial ones of a state.
        offset: First float of the value in a row of the input or output, or in the arena once it is planned.
        padded: True for a buffer of the arena that is zero before the first step, and whose margins stay zero.
    """

    kind: Kind
    size: int
    numbers: Array | None = None
    offset: int = 0
    padded: bool = False


@dataclass(frozen=True)
class View:
    """A tensor as part of a value.

    Each axis is a list of factors, slowest first: the axis has as many elements as the product of their counts. So
    axes can be merged though they do not lie behind each other. An axis of length 1 has no factors.

    Attributes:
        value: The value.
        offset: First element of the tensor, in floats from the first one of the value.
        axes: Factors of each axis.
    """

    value: Value
    offset: int
    axes: tuple[tuple[Factor, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(count for count, _ in axis) for axis in self.axes)

    @property
    def factors(self) -> list[Factor]:
        return [factor for axis in self.axes for factor in axis]

    @property
    def size(self) -> int:
        return math.prod(count for count, _ in self.factors)

    def transposed(self, order: Sequence[int]) -> "View":
        return replace(self, axes=tuple(self.axes[k] for k in order))

    def reshaped(self, shape: Sequence[int]) -> "View | None":
        """Return the view in another shape, or None if strides do not express it."""
        waiting, axes = list(_merged(self.factors))[::-1], []
        for length in shape:
            axis, left = list[Factor](), length
            while left > 1:
                count, stride = waiting.pop()
                part = math.gcd(count, left) if count > left else count
                if left % part or (part < count and part != left):
                    return None
                if part < count:
                    waiting.append((count // part, stride))
                    stride *= count // part
                axis.append((part, stride))
                left //= part
            axes.append(_merged(axis))
        return replace(self, axes=tuple(axes))

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> "View | None":
        """Return `count` elements of an axis from `start` on, or None if strides do not express it."""
        factors = self.axes[axis]
        if count == 1:
            offset = start
            shift = 0
            for size, stride in factors[::-1]:
                offset, index = divmod(offset, size)
                shift += index * stride
            return self._with(axis, (), shift)
        if len(factors) == 1:
            ((_, stride),) = factors
            return self._with(axis, ((count, stride * step),), start * stride)
        inner = math.prod(size for size, _ in factors[1:])
        if step != 1 or start % inner or count % inner:
            return None
        stride = factors[0][1]
        return self._with(axis, _merged([(count // inner, stride), *factors[1:]]), start // inner * stride)

    def box(self, start: Sequence[int], size: Sequence[int]) -> "View":
        """Return a part of the view, whose axes can be divided there."""
        part = self
        for axis, (first, count) in enumerate(zip(start, size, strict=True)):
            smaller = part.sliced(axis, first, count)
            if smaller is None:
                raise ValueError(f"elements {first} to {first + count} of the axis {axis}")
            part = smaller
        return part

    def _with(self, axis: int, factors: Sequence[Factor], shift: int) -> "View":
        axes = (*self.axes[:axis], tuple(factors), *self.axes[axis + 1 :])
        return replace(self, offset=self.offset + shift, axes=axes)

    def expanded(self, shape: Sequence[int]) -> "View":
        """Return the view broadcast to a shape of at least as many axes."""
        axes = ((),) * (len(shape) - len(self.axes)) + self.axes
        same = zip(axes, shape, strict=True)
        return replace(self, axes=tuple(a if a or length == 1 else ((length, 0),) for a, length in same))

    def extent(self) -> tuple[int, int]:
        """Return the first and the last float of the value that belong to the view."""
        reach = [(count - 1) * stride for count, stride in self.factors]
        return self.offset + sum(min(r, 0) for r in reach), self.offset + sum(max(r, 0) for r in reach)


def _merged(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Join neighbouring factors that one stride expresses, and drop those of one element."""
    result: list[Factor] = []
    for count, stride in factors:
        if count == 1:
            continue
        if result and result[-1][1] == stride * count:
            result[-1] = (result[-1][0] * count, stride)
        else:
            result.append((count, stride))
    return tuple(result)


def dense(value: Value, shape: Sequence[int], order: Sequence[int] | None = None, offset: int = 0) -> View:
    """Return the view of a tensor that lies in a value without gaps, its axes in `order`, slowest first."""
    axes: list[tuple[Factor, ...]] = [()] * len(shape)
    stride = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        axes[axis] = ((shape[axis], stride),) if shape[axis] > 1 else ()
        stride *= shape[axis]
    return View(value, offset, tuple(axes))


@dataclass(frozen=True)
class Pieces:
    """A tensor that lies in several places: boxes that fill it, each with the index of its first element."""

    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], View], ...] = field(default=())

    def transposed(self, order: Sequence[int]) -> "Pieces":
        boxes = tuple((tuple(start[k] for k in order), view.transposed(order)) for start, view in self.boxes)
        return Pieces(tuple(self.shape[k] for k in order), boxes)

    def reshaped(self, shape: Sequence[int]) -> "Pieces | None":
        """Return the tensor with other axes of length 1; None for any other shape."""
        if [n for n in shape if n > 1] != [n for n in self.shape if n > 1]:
            return None
        boxes = []
        for start, view in self.boxes:
            old = iter((s, a) for s, a, n in zip(start, view.axes, self.shape, strict=True) if n > 1)
            pairs = [next(old) if n > 1 else (0, ()) for n in shape]
            boxes.append((tuple(s for s, _ in pairs), replace(view, axes=tuple(a for _, a in pairs))))
        return Pieces(tuple(shape), tuple(boxes))

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> "Pieces | None":
        """Return `count` elements of an axis from `start` on; None if it cannot be expressed."""
        if step != 1:
            return None
        boxes = []
        for first, view in self.boxes:
            low, high = max(start, first[axis]), min(start + count, first[axis] + view.shape[axis])
            if low >= high:
                continue
            part = view.sliced(axis, low - first[axis], high - low)
            if part is None:
                return None
            boxes.append(((*first[:axis], low - start, *first[axis + 1 :]), part))
        return Pieces((*self.shape[:axis], count, *self.shape[axis + 1 :]), tuple(boxes))

    def simple(self) -> "View | Pieces":
        """Return the only box as a view, if there is one alone."""
        return self.boxes[0][1] if len(self.boxes) == 1 else self


def outside(shape: Sequence[int], start: Sequence[int], size: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield first index and size of boxes that fill a box of this shape, but for an inner box."""
    low, length = [0] * len(shape), list(shape)
    for axis, (first, count) in enumerate(zip(start, size, strict=True)):
        for begin, end in ((0, first), (first + count, shape[axis])):
            if begin < end:
                yield [*low[:axis], begin, *low[axis + 1 :]], [*length[:axis], end - begin, *length[axis + 1 :]]
        low[axis], length[axis] = first, count


def refined(axes: Sequence[Sequence[Factor]]) -> list[list[Factor]] | None:
    """Divide factors of the same axis in several views, so that all have the same counts; None if they do not fit."""
    waiting = [list(factors) for factors in axes]
    result: list[list[Factor]] = [[] for _ in axes]
    while any(waiting):
        if not all(waiting):
            return None
        part = min(factors[-1][0] for factors in waiting)
        for factors, done in zip(waiting, result, strict=True):
            count, stride = factors.pop()
            if count % part:
                return None
            done.insert(0, (part, stride))
            if count > part:
                factors.append((count // part, stride * part))
    return result


def aligned(views: Sequence[View]) -> tuple[list[int], list[list[int]]] | None:
    """Return counts that go over the elements of views of one shape, and the strides of each view; None if none do."""
    counts, strides = list[int](), [list[int]() for _ in views]
    for axes in zip(*(view.axes for view in views), strict=True):
        parts = refined(axes)
        if parts is None:
            return None
        counts += [count for count, _ in parts[0]]
        for all_strides, factors in zip(strides, parts, strict=True):
            all_strides += [stride for _, stride in factors]
    return counts, strides


def collapsed(counts: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring loops that one loop can do, and drop those of one turn."""
    new_counts, new_strides = list[int](), [list[int]() for _ in strides]
    for k, count in enumerate(counts):
        if count == 1:
            continue
        inner = [s[k] for s in strides]
        if new_counts and all(n[-1] == s * count for n, s in zip(new_strides, inner, strict=True)):
            new_counts[-1] *= count
            for n, s in zip(new_strides, inner, strict=True):
                n[-1] = s
        else:
            new_counts.append(count)
            for n, s in zip(new_strides, inner, strict=True):
                n.append(s)
    return new_counts, new_strides


def sorted_by(counts: Sequence[int], strides: Sequence[Sequence[int]], first: int) -> tuple[list[int], list[list[int]]]:
    """Order loops by the strides of one of their operands, the largest first; equal ones keep their order."""
    order = sorted(range(len(counts)), key=lambda k: -abs(strides[first][k]))
    return [counts[k] for k in order], [[s[k] for k in order] for s in strides]
