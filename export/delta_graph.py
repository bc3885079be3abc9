# SPDX-License-Identifier: Apache-2.0
"""Replaces operators of an ONNX file, such as GRU and LSTM, by edgernn's layers with the update rule delta."""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgernn.config import RuleConfig
from edgernn.export.graph import IR_VERSION, add_layer, define_functions, layer_functions
from edgernn.export.linear_nodes import LinearNode
from edgernn.export.model_graph import ModelGraph
from edgernn.export.recurrent_nodes import RecurrentNode, RecurrentNodes
from edgernn.layer import RecurrentLayer
from edgernn.rules import Delta
from edgernn.runtime.graph_queries import nodes_for, values_read
from edgernn.runtime.library import DOMAIN


def with_delta(
    operators: RecurrentNodes,
    thresholds: Sequence[tuple[float, float]],
    counts: bool,
    maps: Sequence[LinearNode] = (),
) -> onnx.ModelProto:
    """Replace operators of an ONNX model by edgernn's layers with the update rule delta.

    Args:
        operators: The model with its GRU and LSTM operators; those in `RecurrentNodes.nodes` are replaced.
        thresholds: Θ_x and Θ_h of each of `RecurrentNodes.nodes` (see `Delta`), then those of `maps`, which have no h.
        counts: Add an output NAME.macs (B,) for each layer: the number of multiply-adds that it executed.
        maps: Linear maps that are replaced, too.

    Returns:
        The new model. If an operator reads its initial state from an input of the graph, the graph also gets an input
        NAME.STATE and an output NAME.STATE.next for each state of the rule of the new layer. All have the shape
        (B, width); the inputs are 0 before the first step.
    """
    proto, layers = operators.proto, []
    nodes: list[RecurrentNode | LinearNode] = [*operators.nodes, *maps]
    for operator, (theta_x, theta_h) in zip(nodes, thresholds, strict=True):
        cell = operator.cell
        rule = Delta(cell.input_size, cell.hidden_size, theta_x, theta_h)
        layers.append(RecurrentLayer(cell, rule).eval())
    functions = layer_functions(layers)
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph, builder = result.graph, ModelGraph()
    replaced = {operator.index: i for i, operator in enumerate(nodes)}
    for index, node in enumerate(proto.graph.node):
        if index not in replaced:
            builder.nodes.append(node)
            continue
        i = replaced[index]
        operator, layer = nodes[i], layers[i]
        if isinstance(operator, LinearNode):
            operator.add_rows(builder)
        _add_states(builder, graph, operator, layer)
        counters: dict[str, list[str]] = {"updates": [], "macs": []}
        needs_y = bool(node.output[0])
        y, _ = add_layer(builder, layer, functions[i], operator.name, operator.input("X"), needs_y, False, counters)
        # a recurrent operator has an axis of directions
        ends = [y, *(f"{operator.name}.{state}.next" for state in layer.cell.states)]
        if isinstance(operator, LinearNode):
            operator.add_result(builder, y)
            ends = []
        for axis, value, output in zip((1, 0, 0), ends, node.output, strict=False):
            if output:
                builder.node("Unsqueeze", [value, _axis(builder, operator.name, axis)], output)
        if counts:
            graph.output.append(helper.make_tensor_value_info(counters["macs"][0], TensorProto.INT64, ["B"]))
        else:
            (new,) = (n for n in builder.nodes if n.domain == DOMAIN and n.name == operator.name)
            new.output[1] = new.output[2] = ""
    del graph.node[:]
    graph.node.extend(builder.nodes)
    graph.initializer.extend(builder.weights)
    remove_unused(graph, {operator.input(name) for operator in nodes for name in "WRB"})
    if all(opset.domain != DOMAIN for opset in result.opset_import):
        result.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    result.functions.extend(define_functions(dict.fromkeys(functions)))
    result.ir_version = max(result.ir_version, IR_VERSION)
    return result


def _add_states(
    builder: ModelGraph, graph: onnx.GraphProto, recurrent: RecurrentNode | LinearNode, layer: RecurrentLayer
) -> None:
    """Add nodes, or inputs of the graph, that provide the states of a layer before its first step."""
    name, states = recurrent.name, layer.cell.states
    missing = [state for state in states if not recurrent.input(f"initial_{state}")]
    zero = missing + ([] if recurrent.carried else [state for state in layer.states if state not in states])
    for state in states:
        if state not in missing:
            values = [recurrent.input(f"initial_{state}"), _axis(builder, name, 0)]
            builder.node("Squeeze", values, f"{name}.{state}")
    if zero:
        builder.node("Shape", [recurrent.input("X")], f"{name}.batch", start=1, end=2)
    for state in zero:
        width = builder.weight(f"{name}.{state}.width", np.array([layer.widths[state]], np.int64))
        builder.node("Concat", [f"{name}.batch", width], f"{name}.{state}.shape", axis=0)
        builder.node("ConstantOfShape", [f"{name}.{state}.shape"], f"{name}.{state}")
    for state in layer.states:
        if state not in states and state not in zero:
            shape = [recurrent.batch, layer.widths[state]]
            graph.input.append(helper.make_tensor_value_info(f"{name}.{state}", TensorProto.FLOAT, shape))
            graph.output.append(helper.make_tensor_value_info(f"{name}.{state}.next", TensorProto.FLOAT, shape))


def _axis(builder: ModelGraph, name: str, axis: int) -> str:
    key = f"{name}.axis{axis}"
    if key not in {tensor.name for tensor in builder.weights}:
        builder.weight(key, np.array([axis], np.int64))
    return key


def remove_unused(graph: onnx.GraphProto, weights: Collection[str]) -> None:
    """Remove unused nodes and initialisers, such as the weights of the replaced operators.

    An initialiser that is also an input of the graph stays, unless its name is in `weights`, the names of the weights
    of the replaced operators.
    """
    outputs = {value.name for value in graph.output}
    kept = nodes_for(list(graph.node), outputs)
    read = outputs.union(*map(values_read, kept))
    inputs = [value for value in graph.input if value.name in read or value.name not in weights]
    names = read | {value.name for value in inputs}
    tensors = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    graph.input.extend(inputs)


def delta_config(thresholds: Sequence[tuple[float, float]]) -> RuleConfig:
    """Return the rule delta with thresholds of x and of h for each recurrent layer of a model."""
    options = [dict(zip(("theta_x", "theta_h"), pair, strict=True)) for pair in thresholds]
    return RuleConfig(Delta.name, options[0]) if len(set(thresholds)) == 1 else RuleConfig(Delta.name, layers=options)


class Layer(Protocol):
    """A node of a graph that computes a recurrent layer: its first input is X, and its first output Y."""

    name: str
    index: int


def watching(proto: onnx.ModelProto, layers: Sequence[Layer]) -> tuple[onnx.ModelProto, list[tuple[str, str]]]:
    """Copy a model, and add the input X and the output Y of each recurrent layer to the outputs of the copy.

    Args:
        proto: The model. It is not changed.
        layers: The layers.

    Returns:
        The copy, and for each layer the names of the values X (T, B, I) and Y (T, B, H), or (T, 1, B, H) for an
        operator of ONNX.
    """
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    names = []
    for layer in layers:
        node = result.graph.node[layer.index]
        if not node.output[0]:
            node.output[0] = f"{layer.name}.Y.watched"
        names.append((node.input[0], node.output[0]))
    return with_outputs(result, [value for pair in names for value in pair]), names


def with_outputs(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model, and add these values of floats to the outputs of the copy.

    Args:
        proto: The model. It is not changed.
        names: Names of values of the graph; its inputs and outputs are not added again.

    Returns:
        The copy.
    """
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    known = {value.name for value in [*result.graph.output, *result.graph.input]}
    for name in dict.fromkeys(names):
        if name not in known:
            result.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return result
