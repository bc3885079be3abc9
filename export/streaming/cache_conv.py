# SPDX-License-Identifier: Apache-2.0
"""Gives each causal convolution over time of an ONNX graph its last inputs as a state."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from edgernn.errors import UsageError
from edgernn.export.delta_graph import remove_unused
from edgernn.export.streaming.open_states import add_state, new_name
from edgernn.export.streaming.probe import Probe, is_along
from edgernn.export.streaming.simplify import constant, opset_of
from edgernn.runtime.graph_queries import MOVES, ancestors, constant_of
from edgernn.runtime.graph_states import State
from edgernn.runtime.interface import NEXT


@dataclass(frozen=True)
class _Window:
    """Reach of a convolution along the axis of time, together with a Pad before it and a Slice behind it.

    Attributes:
        width: Number of steps from the first to the last that an output reads.
        stride: Steps from an output to the next.
        before: Zeros before the first step.
        after: Zeros after the last step, less the outputs that the Slice cuts off.
        pad: The node Pad, or None.
        cut: The node Slice that cuts off the last outputs, or None.
    """

    width: int
    stride: int
    before: int
    after: int
    pad: onnx.NodeProto | None
    cut: onnx.NodeProto | None


def cache_convs(
    proto: onnx.ModelProto, probe: Probe, time: str, carried: Collection[str], path: Path
) -> tuple[list[State], int]:
    """Give each causal convolution over time its last inputs as a state, in place of zeros before its first input.

    Args:
        proto: The model, changed in place.
        probe: Shapes of the inputs X of the convolutions.
        time: The variable axis that is time.
        carried: Inputs of the graph that are states already.
        path: Path of the file, for error messages.

    Returns:
        The new states, and the number of which the steps of a call must be a multiple: the product of all strides.

    Raises:
        UsageError: A convolution reads steps that a stream does not have yet.
    """
    graph, states, unit = proto.graph, list[State](), 1
    for node in [node for node in graph.node if node.op_type == "Conv"]:
        axes = probe.axes(node.input[0])
        axis = next((k for k, one in enumerate(axes) if k > 1 and is_along(one, time)), None)
        if axis is None:
            continue
        name = node.name or node.output[0]
        window = _window(proto, node, axis, len(axes))
        keeps = window.before == window.after == 0 and ancestors(graph, node.input[0], MOVES)[1] & set(carried)
        # the caller may pass the last inputs already
        if not keeps and (window.after or not window.width - window.stride <= window.before < window.width):
            raise UsageError(
                f"{path}: {name}: expected a causal convolution, with {window.width - 1} zeros before the first step "
                f"and none after the last, got {window.before} before and {window.after} after; pad it on the left "
                "alone, as edgernn.nn.CausalConv1d does, or fix the length with --shape if each call is one frame"
            )
        unit *= window.stride
        if window.before:
            states.append(_cache(proto, node, window, axis, probe))
    remove_unused(graph, {tensor.name for tensor in graph.initializer})
    return states, unit


def list_uncached(proto: onnx.ModelProto, probe: Probe) -> list[str]:
    """List the convolutions that read zeros in place of the calls before, in a model of one step a call."""
    reasons = []
    for node in (node for node in proto.graph.node if node.op_type == "Conv"):
        axes = probe.axes(node.input[0])
        windows = [_window(proto, node, axis, len(axes)) for axis in range(2, len(axes)) if axes[axis] == 1]
        if any(window.after == 0 < window.before == window.width - 1 for window in windows):
            reasons.append(
                f"{node.name or node.output[0]}: reads zeros before the one step of a call, so it has no state; if its "
                "axis of length 1 is time, name it with --shape"
            )
    return reasons


def _window(proto: onnx.ModelProto, node: onnx.NodeProto, axis: int, axes: int) -> _Window:
    """Return what a convolution reads along an axis of its input, which has so many axes."""
    graph, k = proto.graph, axis - 2
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    weight = constant_of(proto, node.input[1])
    kernel = attributes.get("kernel_shape") or list(weight.shape[2:] if weight is not None else [1] * (axes - 2))
    dilation = (attributes.get("dilations") or [1] * (axes - 2))[k]
    stride = (attributes.get("strides") or [1] * (axes - 2))[k]
    width = dilation * (kernel[k] - 1) + 1
    pads = attributes.get("pads") or [0] * (2 * (axes - 2))
    before, after = pads[k], pads[k + axes - 2]
    if (auto := attributes.get("auto_pad", b"NOTSET").decode()) in ("SAME_UPPER", "SAME_LOWER"):
        total = max(width - stride, 0)
        before, after = (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
    pad = next((n for n in graph.node if n.op_type == "Pad" and node.input[0] in n.output), None)
    padding = None if pad is None else _padding(proto, pad, axes)
    if padding is None:
        pad = None
    else:
        before, after = before + padding[axis], after + padding[axis + axes]
    readers = [n for n in graph.node if node.output[0] in n.input]
    is_kept = node.output[0] in {value.name for value in graph.output}
    cut = readers[0] if len(readers) == 1 and readers[0].op_type == "Slice" and not is_kept else None
    removed = 0 if cut is None else _cut_off(proto, cut, axis)
    return _Window(width, stride, before, after - removed * stride, pad, cut if removed else None)


def _padding(proto: onnx.ModelProto, pad: onnx.NodeProto, axes: int) -> list[int] | None:
    """Return the numbers of zeros that a Pad adds at the begin and end of each axis, or None if it adds others."""
    attributes = {a.name: helper.get_attribute_value(a) for a in pad.attribute}
    value = attributes.get("value", 0.0)
    if len(pad.input) > 2 and pad.input[2]:
        value = constant_of(proto, pad.input[2])
    pads = attributes.get("pads") if len(pad.input) < 2 else constant_of(proto, pad.input[1])
    if pads is None or value is None or np.any(value) or attributes.get("mode", b"constant") != b"constant":
        return None
    chosen = constant_of(proto, pad.input[3]) if len(pad.input) > 3 and pad.input[3] else np.arange(axes)
    if chosen is None:
        return None
    result, count = [0] * (2 * axes), len(chosen)
    for i, one in enumerate(chosen):
        result[int(one) % axes], result[int(one) % axes + axes] = int(pads[i]), int(pads[i + count])
    return result


def _cut_off(proto: onnx.ModelProto, cut: onnx.NodeProto, axis: int) -> int:
    """Return how many values a Slice removes at the end of an axis, and nothing else; 0 if it is another Slice."""
    parts = [constant_of(proto, name) if name else None for name in cut.input[1:]]
    parts += [None] * (4 - len(parts))
    starts, ends, chosen, steps = parts[0], parts[1], parts[2], parts[3]
    if starts is None or ends is None or chosen is None or chosen.size != 1 or int(chosen[0]) != axis:
        return 0
    is_plain = int(starts[0]) == 0 and int(ends[0]) < 0 and (steps is None or int(steps[0]) == 1)
    return -int(ends[0]) if is_plain else 0


def _cache(proto: onnx.ModelProto, node: onnx.NodeProto, window: _Window, axis: int, probe: Probe) -> State:
    """Put a state with the last inputs of a convolution in place of its zeros."""
    graph, axes = proto.graph, probe.axes(node.input[0])
    count = len(axes)
    name = new_name(graph, f"{node.name or node.output[0]}.x")
    x, before = node.input[0], list[onnx.NodeProto]()
    shape = list(axes)
    if window.pad is not None:
        x = window.pad.input[0]
        padding = _padding(proto, window.pad, count) or [0] * (2 * count)
        padding[axis] = padding[axis + count] = 0
        if any(padding):
            inputs, options = [x, constant(proto, f"{name}.pads", np.array(padding))], {}
            if opset_of(proto) < 11:
                inputs, options = [x], {"pads": padding}
            before.append(helper.make_node("Pad", inputs, [f"{name}.padded"], f"{name}.padded", **options))
            x = f"{name}.padded"
    shape[axis] = window.before
    before.append(helper.make_node("Concat", [name, x], [f"{name}.joined"], f"{name}.joined", axis=axis))
    ends = [[-window.before], [2**63 - 1], [axis]]
    if opset_of(proto) < 10:
        options = dict(zip(("starts", "ends", "axes"), ends, strict=True))
        inputs = []
    else:
        options, inputs = {}, [constant(proto, f"{name}.{i}", np.array(end)) for i, end in enumerate(ends)]
    before.append(helper.make_node("Slice", [f"{name}.joined", *inputs], [name + NEXT], name + NEXT, **options))
    pads = next((list(a.ints) for a in node.attribute if a.name == "pads"), [0] * (2 * (count - 2)))
    pads[axis - 2] = pads[axis + count - 4] = 0
    conv = onnx.NodeProto.FromString(node.SerializeToString())
    kept = [a for a in conv.attribute if a.name not in ("pads", "auto_pad")]
    del conv.attribute[:]
    conv.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    conv.input[0] = f"{name}.joined"
    nodes: list[onnx.NodeProto] = []
    for other in graph.node:
        if other == node:
            nodes += [*before, conv]
        elif window.cut is not None and other == window.cut:
            nodes.append(helper.make_node("Identity", [other.input[0]], [other.output[0]], other.name))
        else:
            nodes.append(onnx.NodeProto.FromString(other.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)
    return add_state(graph, name, shape, probe.values[node.input[0]].dtype)
