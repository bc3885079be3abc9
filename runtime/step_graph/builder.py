# SPDX-License-Identifier: Apache-2.0
"""Builds the steps of a plan: copies, point-wise functions, sums and matrix products over strided views."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.step_graph.steps import Branch, Depthwise, Linear, Move, Operand, Pointwise, Reduce, Step
from edgernn.runtime.step_graph.views import (
    Factor,
    Kind,
    Pieces,
    Value,
    View,
    aligned,
    collapsed,
    dense,
    sorted_by,
)

Array = NDArray[Any]
# steps of a plan
_MOST_STEPS = 1 << 14
# a tensor of the graph: constant, in one place, or in several places
Tensor = Array | View | Pieces
# an operation with its operands: tensors, numbers and further expressions
Expression = Any


def addresses(view: View) -> NDArray[np.int64]:
    """Return the place of each element of a view in its value, in the shape of the view."""
    places = np.full((), view.offset, np.int64)
    for count, stride in view.factors:
        places = places[..., None] + np.arange(count) * stride
    return places.reshape(view.shape)


def in_order(view: View, shape: Sequence[int]) -> list[int]:
    """Return the axes of a tensor from the slowest to the fastest one in the memory of one of its parts.

    An axis along which the part has one element, or repeats, comes behind the axis before it.
    """
    strides = [abs(axis[-1][1]) if axis else 0 for axis in view.axes]
    order = sorted((k for k, s in enumerate(strides) if s), key=lambda k: -strides[k])
    for k, length in enumerate(shape):
        if not strides[k] and length > 1:
            before = [order.index(j) for j in range(k) if j in order]
            order.insert(before[-1] + 1 if before else 0, k)
    return order + [k for k in range(len(shape)) if k not in order]


class Builder:
    """Appends the steps that compute tensors, and remembers which steps computed a value."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        # the node whose steps are added
        self.node = ""
        self._branches: tuple[Branch, ...] = ()
        self._read: set[Value] = set()
        self.producers: dict[Value, list[Step]] = {}
        self._constants: dict[Any, Value] = {}
        self._copies: dict[int, tuple[Tensor, View]] = {}

    def add(self, step: Step) -> None:
        if len(self.steps) >= _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS} steps")
        step.node, step.branches = self.node, self._branches
        self.steps.append(step)
        self._read.update(view.value for view in step.reads())
        for written in step.writes():
            self.producers.setdefault(written.value, []).append(step)

    @contextmanager
    def branch(self, condition: Operand, *, wanted: bool) -> Iterator[None]:
        """Let the steps that are added run only if a number is not 0, or without `wanted` only if it is 0."""
        branch, outer, copies = Branch(condition, wanted), self._branches, dict(self._copies)
        self.add(branch)
        self._branches = (*outer, branch)
        yield
        # a copy that is not always made is of no use afterwards
        self._branches, self._copies = outer, copies

    def arena(self, size: int, *, padded: bool = False) -> Value:
        return Value(Kind.ARENA, size, padded=padded)

    def constant(self, array: Array) -> View:
        """Return a constant as a view; axes along which it repeats take no memory."""
        array = np.asarray(array, np.float32)
        for axis, length in enumerate(array.shape):
            first = np.take(array, [0], axis)
            if length > 1 and np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
        key = array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = Value(Kind.CONSTANT, array.size, np.ascontiguousarray(array).ravel())
        return dense(self._constants[key], array.shape)

    def view(self, tensor: Tensor) -> View:
        """Return a tensor as one view; one in several places is copied together."""
        if isinstance(tensor, View):
            return tensor
        if isinstance(tensor, Pieces):
            return self.copy(tensor)
        return self.constant(tensor).expanded(np.shape(tensor))

    def copy(self, tensor: Tensor, order: Sequence[int] | None = None) -> View:
        """Copy a tensor to memory of its own, its axes in `order`, slowest first. Default: as they lie now."""
        kept = self._copies.get(id(tensor))
        if order is None and kept is not None:
            return kept[1]
        shape = tensor.shape
        largest = max(tensor.boxes, key=lambda b: b[1].size)[1] if isinstance(tensor, Pieces) else self.view(tensor)
        target = dense(self.arena(math.prod(shape)), shape, in_order(largest, shape) if order is None else order)
        self.store(tensor, target)
        if order is None:
            # the tensor is kept, too, so that no other one gets its id
            self._copies[id(tensor)] = tensor, target
        return target

    def rows(self, tensor: Tensor) -> View:
        """Return a tensor without gaps in the order of its axes, the last one fastest."""
        view = self.view(tensor)
        wanted = dense(view.value, view.shape, offset=view.offset)
        factors = collapsed(*_loops(view))
        return view if factors == collapsed(*_loops(wanted)) else self.copy(tensor, range(len(view.shape)))

    def store(self, tensor: Tensor, target: View, *, zeros: bool = True) -> None:
        """Copy a tensor to a view of its shape; without `zeros`, parts that are constant zeros are left out."""
        if not isinstance(tensor, Pieces):
            tensor = Pieces(target.shape, (((0,) * len(target.shape), self.view(tensor)),))
        for start, view in tensor.boxes:
            numbers = view.value.numbers
            if zeros or view.value.kind != Kind.CONSTANT or numbers is None or numbers.any():
                self._move(view, target.box(start, view.shape))

    def _move(self, source: View, target: View) -> None:
        loops = aligned([source, target])
        if loops is None:
            # the order of a view's axes is another than that of its elements
            source = self.copy(source, range(len(source.shape)))
            loops = aligned([source, target])
        assert loops is not None
        counts, (reads, writes) = collapsed(*sorted_by(*loops, 1))
        self.add(
            Move(counts, Operand(source.value, source.offset, reads), Operand(target.value, target.offset, writes))
        )

    def compute(self, *expressions: Expression, shape: Sequence[int]) -> list[View]:
        """Compute point-wise functions of tensors, broadcast to a shape.

        An expression is a tensor, a number, or a tuple of the name of an op of `edgernn.program` and its operands.
        """
        views = list[View]()

        def find(expression: Expression) -> Expression:
            """Replace tensors and numbers by the indices of their views."""
            if isinstance(expression, tuple):
                return (expression[0], *map(find, expression[1:]))
            is_number = isinstance(expression, int | float)
            view = self.view(np.asarray(expression) if is_number else expression).expanded(shape)
            if view not in views:
                views.append(view)
            return views.index(view)

        trees = [find(expression) for expression in expressions]
        program, numbers = list[tuple[str, tuple[int, ...]]](), dict[Any, int]()

        def encode(tree: Any) -> int:
            if isinstance(tree, int):
                return tree
            if tree not in numbers:
                instruction = (tree[0], tuple(map(encode, tree[1:])))
                program.append(instruction)
                numbers[tree] = len(views) + len(program) - 1
            return numbers[tree]

        indices = [encode(tree) for tree in trees]
        results = self._results(views, len(indices))
        loops = aligned([*results, *views])
        if loops is None:
            views = [view if view.value.size == 1 else self.copy(view, range(len(view.shape))) for view in views]
            results = self._results(views, len(indices))
            loops = aligned([*results, *views])
        assert loops is not None
        counts, strides = collapsed(*sorted_by(*loops, 0))
        for k in range(len(views)):
            if counts and strides[len(results) + k][-1] not in (0, 1):
                views[k] = self._like(views[k], results[0])
        loops = aligned([*results, *views])
        assert loops is not None
        counts, strides = collapsed(*sorted_by(*loops, 0))
        operands = [Operand(view.value, view.offset, s) for view, s in zip([*results, *views], strides, strict=True)]
        self.add(
            Pointwise(
                counts,
                operands[len(results) :],
                program,
                list(zip(operands[: len(results)], indices, strict=True)),
            )
        )
        return results

    def _results(self, views: Sequence[View], count: int) -> list[View]:
        """Return new memory for results, laid out as the operand that has all elements."""
        full = [v for v in views if v.value.kind != Kind.CONSTANT] or list(views)
        model = max(full, key=lambda v: (math.prod(n for n, s in v.factors if s), v.value.kind == Kind.ARENA))
        layout = self._layout(model)
        return [View(self.arena(model.size), 0, layout) for _ in range(count)]

    def _layout(self, model: View) -> tuple[tuple[Factor, ...], ...]:
        """Return the axes of memory without gaps whose factors have the order of those of a view."""
        listed = [(axis, k, n, s) for axis, fs in enumerate(model.axes) for k, (n, s) in enumerate(fs)]
        ordered = sorted((f for f in listed if f[3]), key=lambda f: -abs(f[3]))
        for place, f in enumerate(listed):
            if not f[3]:
                before = [ordered.index(other) for other in listed[:place] if other in ordered]
                ordered.insert(before[-1] + 1 if before else 0, f)
        places, stride = dict[tuple[int, int], Factor](), 1
        for axis, k, n, _ in reversed(ordered):
            places[axis, k] = (n, stride)
            stride *= n
        return tuple(tuple(places[axis, k] for k in range(len(fs))) for axis, fs in enumerate(model.axes))

    def _like(self, view: View, model: View) -> View:
        """Copy a view to memory that is laid out as another one."""
        target = View(self.arena(model.size), 0, self._layout(model))
        self._move(view, target)
        return target

    def reduce(self, kind: str, tensor: Tensor, axes: Sequence[int]) -> View:
        """Return sum, max or min over some axes, which keep the length 1."""
        view = self.view(tensor)
        repeated = [n for axis in axes for n, s in view.axes[axis] if not s]
        once = (tuple(f for f in fs if f[1] or axis not in axes) for axis, fs in enumerate(view.axes))
        view = replace(view, axes=tuple(once))
        if kind == "sum" and repeated:
            result = self.reduce(kind, view, axes)
            return self.compute(("mul", result, float(math.prod(repeated))), shape=result.shape)[0]
        for _ in range(2):
            kept = [(n, s, axis, k) for axis, fs in enumerate(view.axes) for k, (n, s) in enumerate(fs)]
            kept = sorted((f for f in kept if f[2] not in axes), key=lambda f: -abs(f[1]))
            counts, (strides,) = collapsed([f[0] for f in kept], [[f[1] for f in kept]])
            inner = [(n, s) for axis, fs in enumerate(view.axes) for n, s in fs if axis in axes]
            inner.sort(key=lambda f: -abs(f[1]))
            reduced, (steps,) = collapsed([n for n, _ in inner], [[s for _, s in inner]])
            if len(counts) <= 3 and len(reduced) <= 2:
                break
            view = self.copy(view, [k for k in range(len(view.shape)) if k not in axes] + list(axes))
        places, stride = dict[tuple[int, int], Factor](), 1
        for n, _, axis, k in reversed(kept):
            places[axis, k] = (n, stride)
            stride *= n
        layout = ((places[axis, k] for k in range(len(fs)) if axis not in axes) for axis, fs in enumerate(view.axes))
        result = View(self.arena(stride), 0, tuple(map(tuple, layout)))
        if not reduced:
            self.store(view, result)
            return result
        source = Operand(view.value, view.offset, [*strides, *steps])
        self.add(Reduce(kind, counts, reduced, source, Operand(result.value, 0, [])))
        return result

    def multiply(self, tensor: Tensor, W: Array, b: Array | None = None) -> View:
        """Return the product of the last axis of a tensor (…, D) and W (O, D), plus b (O,)."""
        view = self.view(tensor)
        O, D = W.shape
        if view.axes[-1] not in (((D, 1),), ()):
            view = self.copy(view, range(len(view.shape)))
        lead = view.shape[:-1]
        order = [k for k in in_order(View(view.value, 0, view.axes[:-1]), lead) if lead[k] > 1]
        for _ in range(2):
            target = dense(self.arena(math.prod(lead) * O), [*lead, O], [*order, len(lead)])
            leading = [View(v.value, v.offset, v.axes[:-1]) for v in (view, target)]
            loops = aligned(leading)
            assert loops is not None
            counts, strides = collapsed(*sorted_by(*loops, 1))
            if len(counts) <= 2:
                break
            view, order = self.copy(view, range(len(view.shape))), [k for k in range(len(lead)) if lead[k] > 1]
        source, place = Operand(view.value, view.offset, strides[0]), Operand(target.value, 0, strides[1])
        self.add(Linear(counts, source, place, np.asarray(W, np.float64), b))
        return target

    def fold(self, view: View, scale: Array | None, shift: Array | None) -> bool:
        """Multiply a value that linear steps computed by `scale` and add `shift`, both (…), by changing the weights.

        Args:
            view: All elements of a value.
            scale: Factors in the shape of the view, or None.
            shift: Summands in the shape of the view, or None.

        Returns:
            False, and nothing is changed, if other steps computed the value, a step reads it, or the numbers differ
            from row to row.
        """
        producers = self.producers.get(view.value, [])
        if not producers or not all(isinstance(step, Linear | Depthwise) for step in producers):
            return False
        if view.value in self._read:
            return False
        places = addresses(view).ravel()
        if view.value.size != len(places) or len(np.unique(places)) != len(places):
            return False
        flat = [np.zeros(len(places)), np.zeros(len(places))]
        for array, numbers in zip(flat, (scale, shift), strict=True):
            if numbers is not None:
                array[places] = np.broadcast_to(numbers, view.shape).ravel()
        changes = []
        for step in producers:
            assert isinstance(step, Linear | Depthwise)
            (written,) = step.writes()
            columns = len(step.W) if isinstance(step, Linear) else step.W.shape[1]
            rows = addresses(written).reshape(-1, columns)
            new = [array[rows] for array in flat]
            if any((array != array[0]).any() for array in new):
                return False
            changes.append((step, *(array[0] for array in new)))
        for step, factor, summand in changes:
            b = 0.0 if step.b is None else step.b
            if scale is not None:
                step.W = step.W * (factor[:, None] if isinstance(step, Linear) else factor)
                b = b * factor
            step.b = np.broadcast_to(b + summand if shift is not None else b, len(summand))
            if not step.b.any():
                step.b = None
        return True


def _loops(view: View) -> tuple[list[int], list[list[int]]]:
    return [n for n, _ in view.factors], [[s for _, s in view.factors]]
