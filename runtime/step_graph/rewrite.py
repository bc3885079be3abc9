# SPDX-License-Identifier: Apache-2.0
"""Takes steps away: copies into the place where they lead, and point-wise functions joined into one step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.step_graph.builder import addresses
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
from edgernn.runtime.step_graph.views import Kind, Value, View, collapsed

Array = NDArray[Any]
# limits of a point-wise step: operands, results, and operands with instructions
_MOST_OPERANDS, _MOST_RESULTS, _MOST_NUMBERS = 16, 4, 96
# a result of few of these is computed again for each number that reads it
_CHEAP, _MOST_CHEAP = ("add", "sub", "mul", "neg"), 2
# outputs of a linear map that are one map, if they read a part of the inputs
_NEIGHBOURS = 4


def rewrite(steps: list[Step]) -> list[Step]:
    """Return fewer steps that compute the same."""
    steps = [part for step in steps for part in (_narrowed(step) if isinstance(step, Linear) else [step])]
    while True:
        count = len(steps)
        for change in (_hold, _forward, _share_states, _fuse, _drop_unread):
            steps = change(steps)
        if len(steps) == count:
            return steps


def _narrowed(step: Linear) -> list[Step]:
    """Divide a map of which neighbouring outputs read neighbouring inputs, such as mel filters; else return it."""
    parts = []
    for first in range(0, len(step.W), _NEIGHBOURS):
        rows = slice(first, first + _NEIGHBOURS)
        used = np.flatnonzero(step.W[rows].any(0))
        begin, end = (used[0], used[-1] + 1) if len(used) else (0, 1)
        source = replace(step.source, offset=step.source.offset + int(begin))
        target = replace(step.target, offset=step.target.offset + first)
        b = None if step.b is None else step.b[rows]
        parts.append(replace(step, source=source, target=target, W=step.W[rows, begin:end], b=b))
    narrow = step.stored is None and 2 * sum(part.W.size for part in parts) <= step.W.size
    for part in parts:
        part.node, part.branches = step.node, step.branches
    return list(parts) if narrow else [step]


class _Uses:
    """Which steps read and write each value, in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.index = {step: k for k, step in enumerate(steps)}
        self.readers: dict[Value, list[tuple[Step, View]]] = {}
        self.writers: dict[Value, list[tuple[Step, View]]] = {}
        for step in steps:
            for table, views in ((self.readers, step.reads()), (self.writers, step.writes())):
                for view in views:
                    table.setdefault(view.value, []).append((step, view))

    def between(self, table: dict[Value, list[tuple[Step, View]]], view: View, first: int, last: int) -> Iterator[Step]:
        """Yield the steps after `first` and before `last` that touch a part of a view."""
        for step, other in table.get(view.value, []):
            if first < self.index[step] < last and _overlap(view, other):
                yield step


def _overlap(a: View, b: View) -> bool:
    (first, last), (begin, end) = a.extent(), b.extent()
    return first <= end and begin <= last and bool(np.intersect1d(addresses(a), addresses(b)).size)


def _affine(places: Array) -> list[int] | None:
    """Return the strides of an array of places, or None if they do not grow evenly along each axis."""
    first = places.flat[0]
    strides = [int(places.take(1, k).flat[0] - first) if n > 1 else 0 for k, n in enumerate(places.shape)]
    even = np.full(places.shape, first)
    for k, stride in enumerate(strides):
        even += (np.arange(places.shape[k]) * stride).reshape([-1 if j == k else 1 for j in range(places.ndim)])
    return strides if np.array_equal(even, places) else None


def _split(places: Array, counts: list[int]) -> list[int]:
    """Divide loops where the places stop growing evenly; return the new counts, or the same."""
    result = []
    for k, n in enumerate(counts):
        line = np.moveaxis(places, k, -1)[(0,) * (len(counts) - 1)]
        changes = np.flatnonzero(np.diff(line, 2)) if n > 2 else np.zeros(0, int)
        part = int(changes[0]) + 2 if len(changes) else n
        result += [n] if n % part or part == n else [n // part, part]
    return result


def _loops(counts: Sequence[int], tables: Sequence[Array]) -> tuple[list[int], list[list[int]]] | None:
    """Return loops, and their strides for each table of places of `counts`, or None if no loops go over them evenly."""
    current = list(counts)
    for _ in range(8):
        shaped = [table.reshape(current) for table in tables]
        strides = [_affine(table) for table in shaped]
        if all(s is not None for s in strides):
            return current, [s for s in strides if s is not None]
        uneven = next(table for table, s in zip(shaped, strides, strict=True) if s is None)
        finer = _split(uneven, current)
        if finer == current:
            return None
        current = finer
    return None


def _places(operand: Operand, counts: Sequence[int]) -> Array:
    return addresses(operand.access(counts)).reshape(counts)


def _forward(steps: list[Step]) -> list[Step]:
    """Let steps write to where their results are copied, and leave the copy out."""
    uses, removed = _Uses(steps), set[Step]()
    for move in steps:
        if not isinstance(move, Move):
            continue
        value = move.source.value
        writers, readers = uses.writers.get(value, []), uses.readers.get(value, [])
        if value.kind != Kind.ARENA or value.padded or len(readers) != 1 or not writers:
            continue
        ((target),) = move.writes()
        first = min(uses.index[step] for step, _ in writers)
        if not _is_within((step for step, _ in writers), move):
            continue
        if any(step in removed for step, _ in writers) or any(
            uses.between(uses.readers, target, first - 1, uses.index[move])
        ):
            continue
        source = addresses(next(iter(move.reads()))).ravel()
        table = np.full(value.size, -1, np.int64)
        table[source] = addresses(target).ravel()
        if len(np.unique(source)) != len(source) or len(source) != value.size:
            continue
        changes = [_redirected(step, value, target.value, table) for step, _ in writers]
        if all(change is not None for change in changes):
            for change in changes:
                assert change is not None
                change()
            removed.add(move)
            uses = _Uses([step for step in steps if step not in removed])
    return [step for step in steps if step not in removed]


def _is_within(steps: Iterable[Step], outer: Step) -> bool:
    """Return True if none of the steps runs in a turn without the step `outer`."""
    return all(step.branches[: len(outer.branches)] == outer.branches for step in steps)


def _redirected(step: Step, old: Value, new: Value, table: Array) -> Callable[[], None] | None:
    """Return what makes a step write to other places: `table` has the new one of each float. None if it cannot."""
    if any(view.value is old for view in step.reads()):
        return None
    if isinstance(step, Pointwise):
        return _redirected_pointwise(step, old, new, table)
    if isinstance(step, Recurrent) and (step.target is None or step.target.value is not old):
        return None
    (written, *_) = (view for view in step.writes() if view.value is old)
    places = table[addresses(written)]
    if isinstance(step, Recurrent | Reduce | Gather | Lookup):
        flat = places.ravel()
        if (np.diff(flat) != 1).any():
            return None
        target = Operand(new, int(flat[0]), [])
        return lambda: setattr(step, "target", target)
    assert isinstance(step, Move | Linear | Depthwise | Fft)
    counts = [step.rows] if isinstance(step, Fft) else step.counts
    inner = [] if isinstance(step, Move) else [places.shape[-1]]
    rows = places.reshape([*counts, *inner])
    if inner:
        if (np.diff(rows, axis=-1) != 1).any():
            return None
        rows = rows[..., 0]
    loops = _loops(counts, [rows, _places(step.source, counts)])
    if loops is None:
        return None
    new_counts, (strides, reads) = loops
    small = collapsed(new_counts, [reads, strides])
    if len(small[0]) > (1 if isinstance(step, Fft) else 6 if isinstance(step, Move) else 2):
        return None
    offset = int(rows.flat[0])

    def change() -> None:
        if isinstance(step, Fft):
            step.source.strides, step.target = reads, Operand(new, offset, strides)
        else:
            step.counts, step.source.strides, step.target = new_counts, reads, Operand(new, offset, strides)

    return change


def _redirected_pointwise(step: Pointwise, old: Value, new: Value, table: Array) -> Callable[[], None] | None:
    operands = [*step.operands, *(result for result, _ in step.results)]
    arrays = [_places(operand, step.counts) for operand in operands]
    values = [operand.value for operand in operands]
    for k, operand in enumerate(operands):
        if operand.value is old:
            arrays[k], values[k] = table[arrays[k]], new
    changed = _new_operands(step.counts, values, arrays, len(step.operands))
    if changed is None:
        return None
    counts, fresh = changed

    def change() -> None:
        step.counts, step.operands = counts, fresh[: len(step.operands)]
        step.results = [(r, k) for r, (_, k) in zip(fresh[len(step.operands) :], step.results, strict=True)]

    return change


def _new_operands(
    counts: Sequence[int], values: Sequence[Value], arrays: Sequence[Array], reads: int
) -> tuple[list[int], list[Operand]] | None:
    """Return loops and operands of a point-wise step, of which the first `reads` are read; None if it is no such step.

    The floats of a result lie together along one loop, and those of each operand as well, or it is the same float.
    """
    loops = _loops(counts, arrays)
    if loops is None:
        return None
    new_counts, strides = loops
    small, steps = collapsed(new_counts, strides)
    inner = [k for k, s in enumerate(steps[reads]) if s == 1]
    if small and (not inner or any(s[inner[-1]] != 1 for s in steps[reads:])):
        return None
    if small and any(s[inner[-1]] not in (0, 1) for s in steps[:reads]):
        return None
    operands = [Operand(v, int(a.flat[0]), s) for v, a, s in zip(values, arrays, strides, strict=True)]
    for result, written in zip(operands[reads:], arrays[reads:], strict=True):
        for operand, read in zip(operands[:reads], arrays[:reads], strict=True):
            same = operand.value is result.value
            if same and not np.array_equal(written, read) and np.intersect1d(written, read).size:
                return None
    return new_counts, operands


def _hold(steps: list[Step]) -> list[Step]:
    """Let the results of branches lie in a state, where one branch copies the state and the result is its next value.

    Then a state that a branch leaves as it is needs no copy.
    """
    uses, removed = _Uses(steps), set[Step]()
    for store in steps:
        if (
            not isinstance(store, Move)
            or store.target.value.kind != Kind.STATE
            or store.source.value.kind != Kind.ARENA
        ):
            continue
        value, state, shift = store.source.value, store.target.value, _shift(store, store.source.value)
        writers = [step for step, _ in uses.writers.get(value, [])]
        holds = [step for step in writers if isinstance(step, Move) and step.source.value is state and step.branches]
        holds = [step for step in holds if shift is not None and _shift(step, value) == shift]
        first = min((uses.index[step] for step in writers if step not in holds), default=len(steps))
        readers = [step for step, _ in uses.readers.get(state, []) if step not in holds]
        if not holds or value.padded or any(uses.index[step] >= first for step in readers):
            continue
        if [step for step, _ in uses.writers[state]] != [store] or not _is_within(writers, store):
            continue
        assert shift is not None
        removed |= {store, *holds}
        for step in steps:
            for operand in _operands(step):
                if operand.value is value:
                    operand.value, operand.offset = state, operand.offset + shift
        uses = _Uses([step for step in steps if step not in removed])
    return [step for step in steps if step not in removed]


def _share_states(steps: list[Step]) -> list[Step]:
    """Let layers work on their states in place, where a state is copied to memory of the layer, and back."""
    uses, removed = _Uses(steps), set[Step]()
    for load in steps:
        if not isinstance(load, Move) or load.source.value.kind != Kind.STATE or load.target.value.kind != Kind.ARENA:
            continue
        value, state = load.target.value, load.source.value
        writers = [step for step, _ in uses.writers[value]]
        stores = [step for step, _ in uses.readers.get(value, []) if isinstance(step, Move)]
        stores = [step for step in stores if step.target.value is state]
        if len(writers) != 2 or writers[0] is not load or len(stores) != 1 or not isinstance(writers[1], Recurrent):
            continue
        if not load.branches == writers[1].branches == stores[0].branches:
            continue
        shifts = [_shift(load, value), _shift(stores[0], value)]
        if shifts[0] is None or shifts[0] != shifts[1]:
            continue
        (place,) = load.reads()
        last = uses.index[stores[0]]
        late = uses.between(uses.readers, place, uses.index[writers[1]] - 1, len(steps))
        if any(uses.between(uses.writers, place, -1, last)) or any(True for step in late if step not in removed):
            continue
        removed |= {load, stores[0]}
        for step in steps:
            for operand in _operands(step):
                if operand.value is value:
                    operand.value, operand.offset = state, operand.offset + shifts[0]
        uses = _Uses([step for step in steps if step not in removed])
    return [step for step in steps if step not in removed]


def _shift(move: Move, value: Value) -> int | None:
    """Return where a value begins in the other value of a copy, if it is copied as a whole in its order."""
    own, other = (move.source, move.target) if move.source.value is value else (move.target, move.source)
    places, others = _places(own, move.counts).ravel(), _places(other, move.counts).ravel()
    if len(places) != value.size or len(np.unique(places)) != value.size or len(np.unique(others - places)) != 1:
        return None
    return int(others[0] - places[0])


def _operands(step: Step) -> list[Operand]:
    if isinstance(step, Pointwise):
        return [*step.operands, *(result for result, _ in step.results)]
    if isinstance(step, Recurrent):
        return [step.source, *([] if step.target is None else [step.target]), *step.states]
    if isinstance(step, Lookup):
        return [step.index, step.target]
    if isinstance(step, Branch):
        return [step.condition]
    assert isinstance(step, Move | Linear | Depthwise | Reduce | Gather | Fft)
    return [step.source, step.target]


def _fuse(steps: list[Step]) -> list[Step]:
    """Compute point-wise functions of point-wise results in one step."""
    removed = set[Step]()
    uses = _Uses(steps)
    for second in steps:
        while isinstance(second, Pointwise):
            first = next((f for f in _sources(second, uses) if f not in removed and _fused(f, second, uses)), None)
            if first is None:
                break
            removed.add(first)
            uses = _Uses([step for step in steps if step not in removed])
    return [step for step in steps if step not in removed]


def _sources(second: Pointwise, uses: _Uses) -> list[Pointwise]:
    """Return the point-wise steps whose results a step reads, the latest first."""
    writers = [
        writer
        for operand in second.operands
        if operand.value.kind == Kind.ARENA
        for writer, _ in uses.writers.get(operand.value, [])
        if isinstance(writer, Pointwise) and writer is not second
    ]
    return sorted(set(writers), key=lambda step: -uses.index[step])


def _fused(first: Pointwise, second: Pointwise, uses: _Uses) -> bool:
    """Put the functions of a step into a later one that reads its results, and return True, if that is possible."""
    start, end = uses.index[first], uses.index[second]
    results = {result.value: (result, index) for result, index in first.results}
    if len(results) < len(first.results) or any(len(uses.writers[value]) > 1 for value in results):
        return False
    if any(value.kind != Kind.ARENA or value.padded for value in results):
        return False
    others = [step for value in results for step, _ in uses.readers.get(value, []) if step is not second]
    if any(uses.index[step] < end for step in others):
        return False
    if first.branches != second.branches:
        return False
    for view in first.reads():
        if any(uses.between(uses.writers, view, start, end)):
            return False
    kept = {value for value in results if any(step is not second for step, _ in uses.readers.get(value, []))}
    # the turn of the first step in which each turn of the second one reads
    size = int(np.prod(first.counts))
    turns: Array | None = None
    for operand in second.operands:
        if operand.value in results:
            written = _places(results[operand.value][0], first.counts).ravel()
            table = np.full(operand.value.size, -1, np.int64)
            table[written] = np.arange(size)
            read = table[_places(operand, second.counts)]
            if (read < 0).any() or (turns is not None and not np.array_equal(turns, read)):
                return False
            turns = read
    assert turns is not None
    again = turns.size > size
    if again and (kept or len(first.program) > _MOST_CHEAP or any(op not in _CHEAP for op, _ in first.program)):
        return False
    if kept and turns.size != size:
        return False
    return _join(first, second, results, kept, turns)


def _join(
    first: Pointwise, second: Pointwise, results: dict[Value, tuple[Operand, int]], kept: set[Value], turns: Array
) -> bool:
    values, arrays, numbers = list[Value](), list[Array](), dict[Any, int]()

    def place(value: Value, array: Array) -> int:
        key = value, array.tobytes()
        if key not in numbers:
            numbers[key] = len(values)
            values.append(value)
            arrays.append(array)
        return numbers[key]

    inner = [place(o.value, _places(o, first.counts).ravel()[turns]) for o in first.operands]
    outer = [None if o.value in results else place(o.value, _places(o, second.counts)) for o in second.operands]
    reads = len(values)
    program = list[tuple[str, tuple[int, ...]]]()
    known = dict[Any, int]()

    def run(step: Pointwise, places: list[int]) -> list[int]:
        """Add the instructions of a step; return the index of each of its numbers."""
        listed = list(places)
        for op, indices in step.program:
            instruction = op, tuple(listed[k] for k in indices)
            if instruction not in known:
                known[instruction] = reads + len(program)
                program.append(instruction)
            listed.append(known[instruction])
        return listed

    before = run(first, inner)
    after = run(
        second,
        [before[results[o.value][1]] if k is None else k for o, k in zip(second.operands, outer, strict=True)],
    )
    outputs = [(o.value, _places(o, second.counts), after[k]) for o, k in second.results]
    outputs += [
        (value, _places(operand, first.counts).ravel()[turns], before[index])
        for value, (operand, index) in results.items()
        if value in kept
    ]
    if reads > _MOST_OPERANDS or len(outputs) > _MOST_RESULTS or reads + len(program) > _MOST_NUMBERS:
        return False
    changed = _new_operands(
        second.counts, [*values, *(v for v, _, _ in outputs)], [*arrays, *(a for _, a, _ in outputs)], reads
    )
    if changed is None:
        return False
    second.counts, operands = changed
    second.operands, second.program = operands[:reads], program
    second.results = [(o, k) for o, (_, _, k) in zip(operands[reads:], outputs, strict=True)]
    return True


def _drop_unread(steps: list[Step]) -> list[Step]:
    """Leave out what no other step reads."""
    kept: list[Step] = []
    read: set[Value] = set()
    for step in reversed(steps):
        if isinstance(step, Pointwise):
            step.results = [(r, k) for r, k in step.results if r.value.kind != Kind.ARENA or r.value in read]
            needed = bool(step.results)
        elif isinstance(step, Branch):
            needed = any(step in inner.branches for inner in kept)
        else:
            needed = any(view.value.kind != Kind.ARENA or view.value in read for view in step.writes())
        if isinstance(step, Recurrent) and step.target is not None:
            value = step.target.value
            step.target = None if value.kind == Kind.ARENA and value not in read else step.target
        if needed:
            kept.append(step)
            read |= {view.value for view in step.reads()}
    return kept[::-1]
