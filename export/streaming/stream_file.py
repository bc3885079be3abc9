# SPDX-License-Identifier: Apache-2.0
"""Gives an ONNX file of another tool its states, so that a caller can run it in chunks."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.export.exported_layers import is_exported
from edgernn.export.streaming.cache_conv import cache_convs, list_uncached
from edgernn.export.streaming.chunks import allowed, check_chunks, cut, difference, run_calls, steps_of, zero_states
from edgernn.export.streaming.fuse_cell import fuse_cells
from edgernn.export.streaming.open_states import check_bodies, open_layers, recurrent_in
from edgernn.export.streaming.plain_layers import plain_layers
from edgernn.export.streaming.probe import Probe, Runner, random_feeds
from edgernn.export.streaming.simplify import folded
from edgernn.files import default_output, output_file, write_bytes
from edgernn.locks import hold_file
from edgernn.npz import read_npz
from edgernn.runtime.graph_states import RECURRENT, State, axes_of, fix_inputs, inputs_of, named_states, pair_states
from edgernn.runtime.info import read_model
from edgernn.runtime.weights import parse

Array = NDArray[Any]
Shape = Sequence[int | str]
# number of calls, or of units of time, on which a file is checked
_CALLS = 24


@dataclass
class Streamed:
    """A model that runs in chunks.

    Attributes:
        proto: The model.
        states: Its states, those that it had before included.
        time: The variable axis of its inputs that is time, or None if each call is one step.
        unit: Number of which the steps of each call must be a multiple.
        fused: Names of operators LSTM and GRU that were put together.
        quantised: Names of operators DynamicQuantizeLSTM that became LSTM.
        left: For each recurrent operator over another axis than time, and each convolution that reads zeros before each
            call, why it has no state.
        error: Largest difference between the outputs in chunks and those of the whole sequence.
        change: Largest difference between the outputs and those of the original model, or None if it does not run.
    """

    proto: onnx.ModelProto
    states: list[State]
    time: str | None
    unit: int
    fused: list[str]
    quantised: list[str]
    left: list[str]
    error: float = 0.0
    change: float | None = None


def prepared(
    proto: onnx.ModelProto,
    path: Path,
    values: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> tuple[onnx.ModelProto, list[str], list[str]]:
    """Return a copy of a model with its recurrent layers as operators of the graph itself.

    Args:
        proto: The model.
        path: Path of its file, for error messages.
        values: Inputs that become constants.
        shapes: Shapes of inputs; a number is a fixed length, a name a variable one.

    Returns:
        The copy, and the names of operators that were put together and of those that were quantised.

    Raises:
        UsageError: The graph has no such input, or a shape has another number of axes.
        EdgernnError: The model is invalid.
    """
    _check_interface(proto.graph, path)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    fix_inputs(copy, values or {}, shapes or {}, path)
    copy = folded(copy, path)
    try:
        onnx.checker.check_model(copy)
        return copy, fuse_cells(copy), plain_layers(copy)
    except onnx.checker.ValidationError as error:
        text = str(error).partition("\n")[0]
        raise EdgernnError(
            f"{path}: expected a valid ONNX file, got one with an error: {text}; export it again"
        ) from None
    except onnx.shape_inference.InferenceError as error:
        raise EdgernnError(
            f"{path}: {_first_contradiction(copy)}: expected shapes that fit, got: {error}; export it again"
        ) from None


def _check_interface(graph: onnx.GraphProto, path: Path) -> None:
    """Check that a graph has inputs, and that its inputs and outputs are tensors."""
    if not inputs_of(graph):
        raise UsageError(
            f"{path}: expected an input, got a graph of constants alone; export the model with its input x"
        )
    for value in (*graph.input, *graph.output):
        if (kind := value.type.WhichOneof("value")) not in (None, "tensor_type"):
            kind = kind.removesuffix("_type").replace("_", " ")
            raise UsageError(
                f"{path}: {value.name}: expected a tensor, got a {kind}; export the model with tensors as inputs and "
                "outputs"
            )


def _first_contradiction(proto: onnx.ModelProto) -> str:
    """Name the first node at which the shapes of a graph contradict each other."""
    nodes, part = list(proto.graph.node), onnx.ModelProto()
    part.CopyFrom(proto)

    def contradicts(count: int) -> bool:
        del part.graph.node[count:]
        part.graph.node.extend(nodes[len(part.graph.node) : count])
        try:
            onnx.shape_inference.infer_shapes(part)
        except onnx.shape_inference.InferenceError:
            return True
        return False

    node = nodes[bisect_left(range(1, len(nodes) + 1), True, key=contradicts)]
    title: str = node.name or node.op_type
    return title


def stream_model(
    proto: onnx.ModelProto,
    path: Path,
    *,
    values: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    pairs: Mapping[str, str] | None = None,
    example: Mapping[str, Array] | None = None,
) -> Streamed:
    """Give a model its states as inputs and outputs, and check that chunks give the outputs of the whole sequence.

    Args:
        proto: The model. It is not changed.
        path: Path of its file, for error messages.
        values: Inputs that become constants.
        shapes: Shapes of inputs; a number is a fixed length, a name a variable one.
        pairs: For each input that is a state already, the output with its next value. Default: found by `pair_states`.
        example: Inputs by name for the check, without states. In an array with one axis more than its input, the first
            axis counts calls. Default: random ones.

    Returns:
        The new model.

    Raises:
        UsageError: The model has nothing to stream, or reads the future; the message names the node.
        EdgernnError: The model is invalid, does not run, or chunks give other outputs.
    """
    new, fused, quantised = prepared(proto, path, values, shapes)
    graph = new.graph
    for name, value in inputs_of(graph).items():
        # ONNX Runtime's recurrent operators abort the process
        if any(dim.HasField("dim_value") and dim.dim_value < 1 for dim in value.type.tensor_type.shape.dim):
            raise EdgernnError(
                f"{path}: {name}: expected axes of at least 1, got {axes_of(value)}; correct it with --shape"
            )
    check_bodies(graph, path)
    carried = pair_states(graph, frozenset(example or ())) if pairs is None else named_states(graph, pairs, path)
    calls = None if example is None else _calls(graph, carried, example, path)
    full = None if calls is None else {**calls[0], **zero_states(new, carried, calls[0])}
    layers = [node for node in recurrent_in(graph) if node.op_type in RECURRENT]
    convs = [node for node in graph.node if node.op_type == "Conv"]
    places = {node.input[k] for node in layers for k in RECURRENT[node.op_type].values() if k < len(node.input)}
    names = [node.input[0] for node in (*layers, *convs)] + sorted(places - {""})
    constants = {tensor.name for tensor in graph.initializer}
    probe = Probe(new, path, [name for name in names if name not in constants], full)
    for tensor in graph.initializer:
        if tensor.name in names:
            probe.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
    carried = [State(state.input, state.output, tuple(probe.axes(state.input))) for state in carried]
    time = _time(probe, layers, convs, path)
    # an input of each step, such as a mask, is no state
    carried = [state for state in carried if time not in state.axes]
    opened, left = open_layers(new, probe, time, path)
    unit = 1
    if time is not None:
        cached, unit = cache_convs(new, probe, time, [state.input for state in carried], path)
        opened += cached
    else:
        left += list_uncached(new, probe)
    if not opened and not carried:
        reasons = "".join(f"; {reason}" for reason in left)
        raise UsageError(
            f"{path}: expected a recurrent operator or a causal convolution over an axis of variable length, got none"
            f"{reasons}; name the axis of time with --shape, such as --shape {next(iter(inputs_of(graph)))}=B,T,40"
        )
    _declare(graph, probe)
    result = Streamed(new, [*carried, *opened], time, unit, fused, quantised, left)
    onnx.checker.check_model(new)
    _check(_loosened(proto, shapes or {}, path), result, probe, carried, values or {}, calls, path)
    return result


def _calls(
    graph: onnx.GraphProto, states: Sequence[State], arrays: Mapping[str, Array], path: Path
) -> list[dict[str, Array]]:
    """Check the inputs that the user gives, convert them to the types of the graph, and divide them into calls."""
    inputs = inputs_of(graph)
    wanted = {name: value.type.tensor_type for name, value in inputs.items() if name not in {s.input for s in states}}
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise EdgernnError(
            f"{path}: data: expected an array for each input that is no state, {', '.join(wanted)}, got "
            f"{', '.join(arrays) or 'none'}; add {missing[0]}"
        )
    counts, feeds = set[int](), dict[str, Array]()
    for name, tensor in wanted.items():
        feeds[name] = arrays[name].astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        excess = feeds[name].ndim - len(tensor.shape.dim)
        if excess not in (0, 1) or 0 in feeds[name].shape:
            raise EdgernnError(
                f"{path}: data: {name}: expected {len(tensor.shape.dim)} axes, and perhaps one of calls before them, "
                f"got the shape {feeds[name].shape}; reshape it"
            )
        if excess:
            counts.add(len(feeds[name]))
    if len(counts) > 1:
        raise EdgernnError(f"{path}: data: expected the same number of calls in all arrays, got {sorted(counts)}")
    if not counts:
        return [feeds]
    ranks = {name: len(tensor.shape.dim) for name, tensor in wanted.items()}
    return [{n: a[k] if a.ndim > ranks[n] else a for n, a in feeds.items()} for k in range(counts.pop())]


def _time(probe: Probe, layers: list[onnx.NodeProto], convs: list[onnx.NodeProto], path: Path) -> str | None:
    """Return the variable axis of the inputs along which recurrent operators and convolutions run, or None."""
    axes = [probe.axes(node.input[0])[0] for node in layers]
    axes += [axis for node in convs for axis in probe.axes(node.input[0])[2:]]
    names = (axis for axis in axes if isinstance(axis, str))
    found = list(dict.fromkeys(axis if axis in probe.sizes else axis.rpartition("*")[2] for axis in names))
    if len(found) > 1:
        raise UsageError(
            f"{path}: expected one variable axis along which recurrent operators and convolutions run, got "
            f"{', '.join(found)}; fix the length of the others with --shape"
        )
    return found[0] if found else None


def _declare(graph: onnx.GraphProto, probe: Probe) -> None:
    """Name the variable axes of the outputs, some of which torch.onnx declares as those of its example."""
    for value in graph.output:
        if value.name in probe.values:
            for dim, axis in zip(value.type.tensor_type.shape.dim, probe.axes(value.name), strict=False):
                if isinstance(axis, str) and not dim.dim_param:
                    dim.dim_param = axis


def _loosened(proto: onnx.ModelProto, shapes: Mapping[str, Shape], path: Path) -> onnx.ModelProto:
    """Return the model with the lengths variable that `shapes` makes so: a copy, unless there are none."""
    inputs = inputs_of(proto.graph)
    loose = {
        name: shape
        for name, shape in shapes.items()
        if any(isinstance(a, int) and isinstance(b, str) for a, b in zip(axes_of(inputs[name]), shape, strict=False))
    }
    if not loose:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    fix_inputs(copy, {}, loose, path)
    return copy


def _check(
    original: onnx.ModelProto,
    result: Streamed,
    probe: Probe,
    carried: list[State],
    values: Mapping[str, Array],
    given: list[dict[str, Array]] | None,
    path: Path,
) -> None:
    """Compare the new model with the original one, and chunks with the whole; fill in `error` and `change`."""
    states, inputs = result.states, inputs_of(result.proto.graph)
    data = inputs.keys() - {state.input for state in states}
    if result.time is None:
        random = (random_feeds(result.proto, probe.sizes, seed) for seed in range(_CALLS))
        calls = given or [{name: array for name, array in feeds.items() if name in data} for feeds in random]
    else:
        sizes = dict(probe.sizes)
        if given is None:
            sizes[result.time] = result.unit * max(_CALLS, -(-sizes[result.time] // result.unit))
        feeds = given[0] if given else random_feeds(result.proto, sizes, steps=sizes[result.time])
        feeds = {name: array for name, array in feeds.items() if name in data}
        steps = steps_of(result.proto, feeds, result.time)
        if steps < 2 * result.unit:
            raise EdgernnError(
                f"{path}: data: expected a length {result.time} of at least {2 * result.unit}, got {steps}; give more"
            )
        calls = cut(result.proto, feeds, result.time, [steps - steps % result.unit])
        result.error = check_chunks(result.proto, states, calls[0], result.time, result.unit, path)
    if any(a.name == "layout" and a.i for node in original.graph.node for a in node.attribute):
        # ONNX Runtime has no kernel for it
        return
    old_states = [state for state in states if state in carried]
    types = {name: value.type.tensor_type for name, value in inputs_of(original.graph).items()}
    fixed = {
        name: np.full([dim.dim_value or 1 for dim in types[name].shape.dim], value).astype(
            onnx.helper.tensor_dtype_to_np_dtype(types[name].elem_type)
        )
        for name, value in values.items()
    }
    old = run_calls(
        Runner(original, path),
        [{**call, **fixed} for call in calls],
        old_states,
        zero_states(original, old_states, calls[0]),
    )
    # one model at a time is in memory
    runner = Runner(result.proto, path)
    start = zero_states(result.proto, states, calls[0])
    new = run_calls(runner, calls, states, start)
    limits = allowed(runner, {**calls[0], **start}, new[0])
    # without carried states, only the first call starts where the original does
    count = len(calls) if states == carried else 1
    result.change = 0.0
    for a, b in zip(old[:count], new[:count], strict=True):
        for name, y in a.items():
            if y.dtype.kind == "f" and not np.isfinite(y).all():
                raise EdgernnError(
                    f"{path}: {name}: expected finite numbers for the inputs of the check, got others; give inputs "
                    "that fit with --data, or check the weights"
                )
            error = difference(b[name], y)
            result.change = max(result.change, error)
            if not result.quantised and not error <= 8 * limits[name]:
                raise EdgernnError(
                    f"{path}: {name}: expected a difference of at most {8 * limits[name]:.1e} between the new file and "
                    f"the original, got {error:.1e}, so nothing was written; report a bug"
                )


def stream_file(
    path: Path,
    out: Path | None = None,
    *,
    values: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    pairs: Mapping[str, str] | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """Write a copy of an ONNX file whose states are inputs and outputs, so that a caller can run it in chunks.

    Args:
        path: The file.
        out: The ONNX file to write. Default: NAME-stream.onnx beside the file.
        values: Inputs that become constants.
        shapes: Shapes of inputs; a number is a fixed length, a name a variable one.
        pairs: For each input that is a state already, the output with its next value. Default: found by their shapes.
        data: npz file with inputs for the check, see `example` of `stream_model`. Default: random numbers.

    Returns:
        JSON-compatible dict: "model" (the file written), "bytes" (its size), "inputs" and "outputs" (name and axes of
        each that is no state), "states" (input, output and axes of each state), "time" (the variable axis that is time,
        or null if each call is one step), "unit" (number of which the steps of a call must be a multiple), "fused",
        "quantised" and "left" (see `Streamed`), "error" (largest difference of chunks from the whole) and "change"
        (largest difference from the original, or null).

    Raises:
        UsageError: The file has nothing to stream or reads the future, or another process is writing `out`.
        EdgernnError: The file cannot be read or does not run, or chunks give other outputs.
    """
    out = out or default_output(path.parent / f"{path.stem}-stream.onnx")
    output_file(out, path, *([] if data is None else [data]), option="OUT")
    proto = parse(read_model(path), path, external="read")
    if is_exported(proto):
        raise UsageError(
            f"{path}: expected a file of another tool, got one that edgernn exported, which has its states already; "
            "run it with: edgernn run --stream"
        )
    example = None if data is None else read_npz(data)
    result = stream_model(proto, path, values=values, shapes=shapes, pairs=pairs, example=example)
    content = result.proto.SerializeToString()
    with hold_file(out, option="OUT"):
        write_bytes(out, content)
    ends = {state.input for state in result.states} | {state.output for state in result.states}
    return {
        "model": str(out),
        "bytes": len(content),
        "inputs": _described(result.proto.graph.input, ends, result.proto),
        "outputs": _described(result.proto.graph.output, ends, result.proto),
        "states": [asdict(state) for state in result.states],
        **{key: getattr(result, key) for key in ("time", "unit", "fused", "quantised", "left", "error", "change")},
    }


def _described(values: Any, ends: set[str], proto: onnx.ModelProto) -> list[dict[str, Any]]:
    """Return the name and axes of each input or output that is no state."""
    constant = {tensor.name for tensor in proto.graph.initializer}
    return [{"name": v.name, "axes": axes_of(v)} for v in values if v.name not in ends and v.name not in constant]
