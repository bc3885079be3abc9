# SPDX-License-Identifier: Apache-2.0
"""Runs of an ONNX file in chunks, and their comparison with a run of the whole sequence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edgernn.errors import EdgernnError
from edgernn.export.delta_graph import with_outputs
from edgernn.export.streaming.probe import Runner, length_of
from edgernn.runtime.graph_states import RECURRENT, State, axes_of, inputs_of

Array = NDArray[Any]
# allowed difference of chunks from the whole if no value is above 1, else as a share of the largest value
TOLERANCE = 1e-6
# allowed difference in terms of the change of the outputs after a rounding of the inputs, and its largest share of them
_ROUNDING, _SHARE = 8, 0.1


def zero_states(proto: onnx.ModelProto, states: Sequence[State], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return zeros for the states of a model, in the shapes that go with these other inputs."""
    inputs, sizes = inputs_of(proto.graph), dict[str, int]()
    for name, array in feeds.items():
        if name in inputs:
            sizes |= {a: n for a, n in zip(axes_of(inputs[name]), array.shape, strict=False) if isinstance(a, str)}
    return {
        state.input: np.zeros(
            [length_of(axis, sizes) for axis in state.axes],
            helper.tensor_dtype_to_np_dtype(inputs[state.input].type.tensor_type.elem_type),
        )
        for state in states
    }


def run_calls(
    runner: Runner, calls: Sequence[Mapping[str, Array]], states: Sequence[State], start: Mapping[str, Array]
) -> list[dict[str, Array]]:
    """Run a model call by call, with the states of each call passed to the next one.

    Args:
        runner: The model.
        calls: Inputs of each call by name, without states.
        states: The states.
        start: States before the first call.

    Returns:
        All outputs of each call by name.
    """
    results, current = [], dict(start)
    for feeds in calls:
        results.append(runner.run({**feeds, **current}))
        current = {state.input: results[-1][state.output] for state in states}
    return results


def steps_of(proto: onnx.ModelProto, feeds: Mapping[str, Array], time: str) -> int:
    """Return the length of the variable axis `time` in inputs of a model."""
    axes = {name: axes_of(value) for name, value in inputs_of(proto.graph).items()}
    return next(int(array.shape[axes[name].index(time)]) for name, array in feeds.items() if time in axes[name])


def cut(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], time: str, lengths: Sequence[int]
) -> list[dict[str, Array]]:
    """Cut inputs along the variable axis `time` into chunks of these lengths.

    An input that holds the lengths of sequences gets the length of each chunk.
    """
    inputs, calls, start = inputs_of(proto.graph), [], 0
    counts = {node.input[4] for node in proto.graph.node if node.op_type in RECURRENT and len(node.input) > 4}
    for length in lengths:
        call = {}
        for name, array in feeds.items():
            axes = axes_of(inputs[name])
            part = array.take(range(start, start + length), axes.index(time)) if time in axes else array
            call[name] = np.full_like(array, length) if name in counts else part
        calls.append(call)
        start += length
    return calls


def joined(parts: Sequence[Array], whole: Array) -> Array:
    """Join the parts of a value along the axis whose lengths add up to that of the whole; else return the last part."""
    for axis, length in enumerate(whole.shape):
        shapes = {part.shape[:axis] + part.shape[axis + 1 :] for part in parts}
        if len(shapes) == 1 and sum(part.shape[axis] for part in parts) == length and parts[0].shape != whole.shape:
            return np.concatenate(parts, axis)
    return parts[-1]


def difference(a: Array, b: Array) -> float:
    """Return the largest difference of two arrays; infinity if their shapes differ, or one alone is no number."""
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind not in "f":
        return 0.0 if (a == b).all() else float("inf")
    with np.errstate(invalid="ignore"):
        error = np.abs(a.astype(np.float64) - b)
    error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, error)
    return float("inf") if np.isnan(error).any() else float(error.max(initial=0))


def allowed(runner: Runner, feeds: Mapping[str, Array], whole: Mapping[str, Array]) -> dict[str, float]:
    """Return the allowed difference of each output of a run from another order of its sums.

    It follows from the run itself: TOLERANCE times the largest value of the output if that is above 1, or if it is
    more, a few times the change of the output when the float inputs move by the rounding of their type. Large recurrent
    weights amplify such a change, and they amplify the rounding of each sum as well.

    Args:
        runner: The model.
        feeds: All inputs of the run.
        whole: Its outputs.

    Returns:
        The largest allowed difference by output.

    Raises:
        EdgernnError: An output has no finite number, so that nothing can be compared.
    """
    rng = np.random.default_rng(1)
    moved = {
        name: array * (1 + np.finfo(array.dtype).eps * rng.choice([-1, 1], array.shape)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feeds.items()
    }
    other = runner.run(moved)
    limits = {}
    for name, y in whole.items():
        if y.dtype.kind == "f" and y.size and not np.isfinite(y).any():
            raise EdgernnError(
                f"{runner.path}: {name}: expected finite numbers for the inputs of the check, got none; give inputs "
                "that fit with --data, or check the weights"
            )
        finite = np.abs(y[np.isfinite(y)]).max(initial=1) if y.dtype.kind == "f" else 1.0
        moves = difference(y, other[name])
        # a random output moves by its own size, and is refused
        amplified = _ROUNDING * moves if _ROUNDING * moves <= _SHARE * finite else 0.0
        limits[name] = max(_last_digit(y) * float(finite), amplified)
    return limits


def _last_digit(y: Array) -> float:
    return max(TOLERANCE, float(np.finfo(y.dtype).eps)) if y.dtype.kind == "f" else TOLERANCE


def check_chunks(
    proto: onnx.ModelProto, states: Sequence[State], feeds: Mapping[str, Array], time: str, unit: int, path: Path
) -> float:
    """Compare runs in chunks with a run of the whole sequence: step by step, in two random cuts, and in two parts.

    Args:
        proto: The model.
        states: Its states.
        feeds: Inputs of the whole sequence without states.
        time: The variable axis of the inputs that is time.
        unit: Number of which the steps of each call must be a multiple.
        path: Path of the file, for error messages.

    Returns:
        The largest difference of an output or last state.

    Raises:
        EdgernnError: A difference is larger than `allowed`. The message names the first node that depends on the cut.
    """
    runner, start = Runner(proto, path), zero_states(proto, states, feeds)
    steps = steps_of(proto, feeds, time)
    whole = runner.run({**feeds, **start})
    limits, worst = allowed(runner, {**feeds, **start}, whole), 0.0
    for lengths in _cuts(steps, unit):
        results = run_calls(runner, cut(proto, feeds, time, lengths), states, start)
        for name, y in whole.items():
            error = difference(joined([result[name] for result in results], y), y)
            if not error <= limits[name]:
                culprit = _first_dependent(proto, states, feeds, time, lengths, path)
                raise EdgernnError(
                    f"{path}: {name}: expected the same output in chunks of {min(lengths)} to {max(lengths)} steps as "
                    f"of the whole sequence, up to {limits[name]:.1e}, got a difference of {error:.1e}; {culprit}"
                )
            worst = max(worst, error)
    return worst


def _cuts(steps: int, unit: int) -> list[list[int]]:
    """Return lengths of the chunks of a sequence in several ways, each a multiple of `unit`."""
    count, rng = steps // unit, np.random.default_rng(0)
    cuts = [[1] * count, [count // 2, count - count // 2]]
    for _ in range(2):
        ends = sorted({0, count, *rng.integers(0, count + 1, max(1, count // 4))})
        cuts.append([int(n) for n in np.diff(ends)])
    return [[n * unit for n in lengths if n] for lengths in cuts]


def _first_dependent(
    proto: onnx.ModelProto,
    states: Sequence[State],
    feeds: Mapping[str, Array],
    time: str,
    lengths: Sequence[int],
    path: Path,
) -> str:
    """Name the first node whose values in chunks differ from those of the whole sequence, and say what to do."""
    inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
    floats = {value.name for value in inferred if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    names = [name for node in proto.graph.node for name in node.output if name in floats]
    start = zero_states(proto, states, feeds)
    try:
        runner = Runner(with_outputs(proto, names), path)
        whole = runner.run({**feeds, **start})
        results = run_calls(runner, cut(proto, feeds, time, lengths), states, start)
        limits = allowed(runner, {**feeds, **start}, whole)
    except EdgernnError:
        return "export the model so that no operator reads further steps"
    for node in proto.graph.node:
        # a state has another value in each chunk
        if node.op_type not in RECURRENT and start.keys() & {*node.input}:
            continue
        for name in node.output:
            if name not in whole:
                continue
            if not difference(joined([result[name] for result in results], whole[name]), whole[name]) <= limits[name]:
                title = f"{node.op_type} {node.name}" if node.name else f"{node.op_type} of {name}"
                return f"{title} is the first node that reads other steps than those before it; replace it in the model"
    return "no single node differs by more than rounding; use inputs of smaller values with --data"
