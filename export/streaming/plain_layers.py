# SPDX-License-Identifier: Apache-2.0
"""Rewrites recurrent operators that ONNX Runtime does not run, or that are its own, as those of ONNX."""

import numpy as np
import onnx
from onnx import helper

from edgernn.export.delta_graph import remove_unused
from edgernn.export.streaming.simplify import constant, opset_of
from edgernn.runtime.graph_queries import constant_of
from edgernn.runtime.graph_states import RECURRENT

QUANTISED = "DynamicQuantizeLSTM"
_MICROSOFT = "com.microsoft"


def plain_layers(proto: onnx.ModelProto) -> list[str]:
    """Rewrite the recurrent operators of a model, in place, as those that any ONNX Runtime runs.

    An operator with layout = 1 gets layout 0 between transpositions. A DynamicQuantizeLSTM becomes an LSTM, whose
    weights stay integers in front of it. It no longer rounds its inputs, so that it computes other numbers: the names
    of these operators are returned.
    """
    quantised: list[str] = []
    nodes: list[onnx.NodeProto] = []
    for i, original in enumerate(proto.graph.node):
        node = onnx.NodeProto.FromString(original.SerializeToString())
        name = node.name or f"{node.op_type.lower()}{i}"
        if node.op_type == QUANTISED and node.domain == _MICROSOFT and (before := _dequantised(proto, node, name)):
            quantised.append(name)
            nodes += before
        layout = next((a for a in node.attribute if a.name == "layout" and a.i == 1), None)
        if node.op_type in RECURRENT and layout is not None:
            node.attribute.remove(layout)
            nodes += _swapped(node, name)
        else:
            nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    if quantised:
        remove_unused(proto.graph, {tensor.name for tensor in proto.graph.initializer})
    return quantised


def _dequantised(proto: onnx.ModelProto, node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """Turn a DynamicQuantizeLSTM of one direction into an LSTM; return the nodes that convert its weights."""
    inputs = [*node.input, *[""] * (12 - len(node.input))]
    scales = [constant_of(proto, inputs[k]) for k in (8, 10)]
    zeros = [constant_of(proto, inputs[k]) for k in (9, 11)]
    weights = [constant_of(proto, inputs[k]) for k in (1, 2)]
    if any(value is None for value in (*scales, *zeros, *weights)) or weights[0].shape[0] != 1:  # type: ignore[union-attr]
        return []
    nodes = []
    for k, (letter, scale, zero) in enumerate(zip("WR", scales, zeros, strict=True)):
        # one number, or one for each column (1, 4 H)
        parts = [np.asarray(value).reshape(-1) for value in (scale, zero)]
        is_one = parts[0].size == 1
        names = [
            constant(proto, f"{name}.{letter}.{end}", part.reshape(()) if is_one else part)
            for end, part in zip(("scale", "zero"), parts, strict=True)
        ]
        options = {} if is_one or opset_of(proto) < 13 else {"axis": 2}
        floats, turned = f"{name}.{letter}.columns", f"{name}.{letter}"
        nodes.append(helper.make_node("DequantizeLinear", [inputs[1 + k], *names], [floats], floats, **options))
        nodes.append(helper.make_node("Transpose", [floats], [turned], turned, perm=[0, 2, 1]))
        inputs[1 + k] = turned
    del node.input[:]
    node.input.extend(inputs[:8])
    node.op_type, node.domain, node.name = "LSTM", "", name
    return nodes


def _swapped(node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """Return a node of layout 0 between transpositions of its inputs and outputs, which have the batch first."""
    before, after = [], []
    for k in (0, *RECURRENT[node.op_type].values()):
        if k < len(node.input) and node.input[k]:
            turned = f"{name}.input{k}"
            before.append(helper.make_node("Transpose", [node.input[k]], [turned], turned, perm=[1, 0, 2]))
            node.input[k] = turned
    for k, output in enumerate(node.output):
        if output:
            turned = f"{name}.output{k}"
            # Y has the axes T, directions, B, H
            perm = [2, 0, 1, 3] if k == 0 else [1, 0, 2]
            after.append(helper.make_node("Transpose", [turned], [output], turned, perm=perm))
            node.output[k] = turned
    return [*before, node, *after]
