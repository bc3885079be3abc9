# SPDX-License-Identifier: Apache-2.0
"""Plans a graph: its steps, without those that are not needed, and how its states lie in memory."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgernn.runtime.step_graph.builder import addresses
from edgernn.runtime.step_graph.lowering import MOST_NUMBERS, Box, Lowered, lower
from edgernn.runtime.step_graph.rewrite import rewrite
from edgernn.runtime.step_graph.steps import Move, Recurrent
from edgernn.runtime.step_graph.views import Value, outside


def plan(
    model: onnx.ModelProto,
    path: Path,
    states: Mapping[str, str],
    starts: Mapping[str, NDArray[Any]] | None = None,
    *,
    whole: bool = False,
    most: int = MOST_NUMBERS,
    fixed: Collection[str] = (),
) -> Lowered:
    """List the steps of a graph, divide its states as its layers read them, and take steps away that copies need.

    Args:
        model: The model. Variable axes have length 1.
        path: Path of its file, for error messages.
        states: For each input that is a state, the output with its next value.
        starts: Initial values of states; zeros for others.
        whole: Leave each state as it is, so that a state that was saved by another runtime fits.
        most: Numbers that a value may have.
        fixed: Inputs that the caller made constants; an error in a branch that they choose names them.

    Returns:
        The plan.

    Raises:
        UsageError: A node, an input or an output has no step. The message names it.
        EdgernnError: The graph is invalid.
    """
    result = lower(model, path, states, starts=starts, most=most, fixed=fixed)
    if not whole:
        boxes = {name: _boxes(result, parts[0][0], parts[0][1]) for name, parts in result.boxes.items()}
        if any(boxes[name] != [box for box, _ in parts] for name, parts in result.boxes.items()):
            result = lower(model, path, states, starts=starts, boxes=boxes, most=most, fixed=fixed)
    result.steps = rewrite(result.steps)
    return result


def _boxes(lowered: Lowered, whole: Box, state: Value) -> list[Box]:
    """Divide a state into the parts that single layers read, each in their order, and what is left."""
    _, shape, _ = whole
    inside = {operand.value for step in lowered.steps if isinstance(step, Recurrent) for operand in step.states}
    moves = [step for step in lowered.steps if isinstance(step, Move) and step.source.value is state]
    own = dict.fromkeys(_box(move, shape) for move in moves if move.target.value in inside)
    boxes = [box for box in own if box is not None]
    if not boxes or None in own or _touch(boxes):
        largest = max(moves, key=lambda move: int(np.prod(move.counts)), default=None)
        return [(whole[0], shape, whole[2] if largest is None else _order(largest, shape))]
    left: list[Box] = [whole]
    for start, size, _ in boxes:
        left = [part for box in left for part in _without(box, start, size)]
    return boxes + left


def _places(move: Move, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return the indices in a state of what is copied, in the order in which it lies afterwards."""
    (read,), (written,) = move.reads(), move.writes()
    order = np.argsort(addresses(written).ravel(), kind="stable")
    return list(np.unravel_index(addresses(read).ravel()[order], shape))


def _box(move: Move, shape: tuple[int, ...]) -> Box | None:
    """Return which box of a state is copied, and the order of its axes; None if it is no box."""
    places = _places(move, shape)
    start = tuple(int(axis.min()) for axis in places)
    size = tuple(int(axis.max()) - first + 1 for axis, first in zip(places, start, strict=True))
    return (start, size, _order(move, shape)) if int(np.prod(size)) == len(places[0]) else None


def _order(move: Move, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a state, slowest first, in the order of a copy."""
    changes = [np.flatnonzero(np.diff(axis)) for axis in _places(move, shape)]
    # an axis along which nothing changes is the slowest
    period = [int(change[0]) + 1 if len(change) else np.inf for change in changes]
    return tuple(sorted(range(len(shape)), key=lambda axis: -period[axis]))


def _touch(boxes: list[Box]) -> bool:
    ranges = [[range(s, s + n) for s, n in zip(start, size, strict=True)] for start, size, _ in boxes]
    return any(
        all(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
        for k, one in enumerate(ranges)
        for other in ranges[:k]
    )


def _without(box: Box, start: tuple[int, ...], size: tuple[int, ...]) -> list[Box]:
    first, lengths, order = box
    low = [max(a, b) - a for a, b in zip(first, start, strict=True)]
    ends = [min(a + n, b + m) - a for a, n, b, m in zip(first, lengths, start, size, strict=True)]
    count = [end - begin for begin, end in zip(low, ends, strict=True)]
    if min(count) <= 0:
        return [box]
    parts = outside(lengths, low, count)
    return [(tuple(a + b for a, b in zip(first, begin, strict=True)), tuple(n), order) for begin, n in parts]
