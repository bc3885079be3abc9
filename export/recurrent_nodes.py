# SPDX-License-Identifier: Apache-2.0
"""Replacement of the operators GRU and LSTM in any ONNX file by edgernn's layers with the update rule delta."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from edgernn.cells import CELLS, Cell
from edgernn.errors import UsageError
from edgernn.export.graph import IR_VERSION, ModelGraph, add_layer, define_functions, layer_functions
from edgernn.export.trace import OPSET
from edgernn.layer import RecurrentLayer
from edgernn.rules import Delta
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.onnx_gates import to_cell_order

Array = NDArray[Any]
# operators that read the shape of a value, but none of its numbers
_SHAPE_OPS = ("Shape", "Size")
# activations of the operators, the default
_ACTIVATIONS = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# inputs of the operators, in their order; a node may leave out the last ones
_INPUTS = {
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
}


@dataclass
class RecurrentNode:
    """An operator GRU or LSTM of an ONNX graph that can be replaced.

    Attributes:
        name: Name of the new node, unique in the graph.
        node: The operator.
        cell: edgernn's cell with the operator's weights.
        carried: True if the operator's initial state comes from an input of the graph, so that the caller carries the
            state from call to call. The states of the rule then become inputs and outputs of the graph, too.
    """

    name: str
    node: onnx.NodeProto
    cell: Cell
    carried: bool

    def input(self, name: str) -> str:
        """Return the name of the value that the operator reads as its input `name`, such as X; "" if there is none."""
        names = _INPUTS[self.node.op_type]
        listed = dict(zip(names, self.node.input, strict=False))
        return str(listed.get(name, ""))


@dataclass
class RecurrentNodes:
    """The operators GRU and LSTM of an ONNX graph.

    Attributes:
        proto: The model, converted to the operator set of edgernn's functions.
        nodes: Operators that can be replaced, in the order of the graph.
        left: For each other operator, its name and the reason why it cannot be replaced.
    """

    proto: onnx.ModelProto
    nodes: list[RecurrentNode] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def find_recurrent_nodes(proto: onnx.ModelProto, path: str) -> RecurrentNodes:
    """Find the operators GRU and LSTM of a model that can get the update rule delta.

    Args:
        proto: The model. It is not changed.
        path: Path of its file, for error messages.

    Returns:
        The operators.

    Raises:
        UsageError: The model was exported by edgernn, its operator set is too old, or no operator can be replaced.
    """
    if any(opset.domain == DOMAIN for opset in proto.opset_import):
        raise UsageError(
            f"{path}: expected a file with ONNX's operators GRU or LSTM, got one that edgernn exported; calibrate its "
            "run directory, or the SequenceModel with calibrate_output"
        )
    operators = RecurrentNodes(_converted(proto, path))
    graph = operators.proto.graph
    names = {node.name for node in graph.node}
    for i, node in enumerate(graph.node):
        if node.domain or node.op_type not in _INPUTS:
            continue
        title = node.name or f"{node.op_type} number {i}"
        reason = _refusal(node) or _unknown_weights(operators.proto, node)
        if reason is not None:
            operators.left.append(f"{title}: {reason}")
            continue
        name = node.name or f"{node.op_type.lower()}{len(operators.nodes)}"
        while name in names and name != node.name:
            name += "_"
        names.add(name)
        recurrent = RecurrentNode(name, node, _cell(operators.proto, node), False)
        recurrent.carried = _reads_input(graph, recurrent.input("initial_h"))
        operators.nodes.append(recurrent)
    if not operators.nodes:
        reasons = "".join(f"; {text}" for text in operators.left)
        raise UsageError(f"{path}: expected an operator GRU or LSTM that can be calibrated, got none{reasons}")
    return operators


def _converted(proto: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """Return a copy of a model with operator set `OPSET` or newer, of which edgernn's functions consist."""
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset >= OPSET:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        return copy
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as error:  # the converter raises RuntimeError and others
        text = str(error).partition("\n")[0]
        raise UsageError(
            f"{path}: expected operator set {OPSET} or newer, got {opset}, which onnx cannot convert: {text}; export "
            f"the model again with opset_version={OPSET}"
        ) from None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _refusal(node: onnx.NodeProto) -> str | None:
    """Return why edgernn has no cell for an operator GRU or LSTM with these attributes and inputs, or None."""
    attributes = _attributes(node)
    inputs = dict(zip(_INPUTS[node.op_type], node.input, strict=False))
    activations = [name.decode() for name in attributes.get("activations", [])]
    if (direction := attributes.get("direction", b"forward").decode()) != "forward":
        return f"direction: expected forward, got {direction}"
    if activations and activations != _ACTIVATIONS[node.op_type]:
        return f"activations: expected {', '.join(_ACTIVATIONS[node.op_type])}, got {', '.join(activations)}"
    for name in ("clip", "layout", "input_forget"):
        if attributes.get(name, 0):
            return f"{name}: expected 0, got {attributes[name]}"
    for name in ("sequence_lens", "P"):
        if inputs.get(name):
            return f"input {name}: expected none, got {inputs[name]}"
    return None


def _unknown_weights(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    inputs = dict(zip(_INPUTS[node.op_type], node.input, strict=False))
    for name in ("W", "R", "B"):
        value = inputs.get(name)
        if not value:
            continue
        constant = _constant(proto, value)
        if constant is None:
            return f"input {name}: expected a constant, got {value}, which the graph computes"
        if constant.dtype != np.float32:
            return f"input {name}: expected float32, got {constant.dtype}"
    return None


def _constant(proto: onnx.ModelProto, name: str) -> Array | None:
    """Return the value `name` if it does not depend on the inputs of the graph, or else None.

    torch.onnx leaves large weights as slices of other constants, which are computed here.
    """
    graph = proto.graph
    nodes, leaves = _ancestors(graph, name)
    tensors = [tensor for tensor in graph.initializer if tensor.name in leaves]
    if leaves - {tensor.name for tensor in tensors} or leaves & {value.name for value in graph.input}:
        return None
    if not nodes:
        value: Array = numpy_helper.to_array(tensors[0])
        return value
    part = helper.make_graph(nodes, "constant", [], [onnx.ValueInfoProto(name=name)], tensors)
    model = helper.make_model(part, opset_imports=proto.opset_import)
    (computed,) = ReferenceEvaluator(model).run(None, {})
    return np.asarray(computed)


def _ancestors(graph: onnx.GraphProto, name: str, without: Sequence[str] = ()) -> tuple[list[onnx.NodeProto], set[str]]:
    """Find what a value of a graph depends on.

    Args:
        graph: The graph.
        name: Name of the value.
        without: Types of operators whose inputs are not followed.

    Returns:
        The nodes that compute the value, in the order of the graph, and the names of the values that no node computes.
    """
    producers = {output: node for node in graph.node for output in node.output}
    seen, waiting, leaves = set(), [name], set()
    while waiting:
        value = waiting.pop()
        if not value or value in seen:
            continue
        seen.add(value)
        node = producers.get(value)
        if node is None:
            leaves.add(value)
        elif node.op_type not in without:
            waiting += node.input
    return [node for node in graph.node if seen & set(node.output)], leaves


def _cell(proto: onnx.ModelProto, node: onnx.NodeProto) -> Cell:
    """Return edgernn's cell with the weights of an operator GRU or LSTM.

    A GRU with linear_before_reset = 0 is the cell gru-before, whose update gate is 1 - z.
    """
    inputs = dict(zip(_INPUTS[node.op_type], node.input, strict=False))
    kind = node.op_type.lower()
    W, R = (to_cell_order(kind, _floats(proto, inputs[name])[0]) for name in ("W", "R"))
    rows, H = R.shape
    both = _floats(proto, inputs["B"])[0] if inputs.get("B") else np.zeros(2 * rows, np.float32)
    b, recurrent = (to_cell_order(kind, half) for half in np.split(both, 2))
    before = kind == "gru" and not _attributes(node).get("linear_before_reset", 0)
    cell = CELLS["gru-before" if before else kind](W.shape[1], H)
    if before:
        W, R, b = W.copy(), R.copy(), b + recurrent
        for weight in (W, R, b):
            weight[H : 2 * H] *= -1
        weights = {"W": W, "R": R[: 2 * H], "V": R[2 * H :], "b": b}
    elif kind == "gru":
        # only the candidate state keeps a second bias
        weights = {"W": W, "R": R, "b": np.concatenate([(b + recurrent)[: 2 * H], b[2 * H :], recurrent[2 * H :]])}
    else:
        weights = {"W": W, "R": R, "b": b + recurrent}
    with torch.no_grad():
        for name, value in weights.items():
            getattr(cell, name).copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return cell.eval()


def _floats(proto: onnx.ModelProto, name: str) -> NDArray[np.float32]:
    value = _constant(proto, name)
    assert value is not None
    return value.astype(np.float32)


def _reads_input(graph: onnx.GraphProto, name: str) -> bool:
    """Return True if the numbers of a value depend on an input of the graph, and not only on the shape of one."""
    inputs = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    return bool(_ancestors(graph, name, _SHAPE_OPS)[1] & inputs)


def with_delta(operators: RecurrentNodes, thresholds: Sequence[tuple[float, float]], counts: bool) -> onnx.ModelProto:
    """Replace the operators of a model by edgernn's layers with the update rule delta.

    Args:
        operators: The operators.
        thresholds: Θ_x and Θ_h of each of `RecurrentNodes.nodes` (see `Delta`).
        counts: Add an output NAME.macs (B,) for each layer: the number of multiply-adds that it executed.

    Returns:
        The new model. The layers of operators whose state the caller carries add inputs NAME.STATE and outputs
        NAME.STATE.next for the states of the rule, all of shape (B, width) and initially 0.
    """
    layers = []
    for recurrent, (theta_x, theta_h) in zip(operators.nodes, thresholds, strict=True):
        cell = recurrent.cell
        rule = Delta(cell.input_size, cell.hidden_size, theta_x, theta_h)
        layers.append(RecurrentLayer(cell, rule).eval())
    functions = layer_functions(layers)
    result = onnx.ModelProto()
    result.CopyFrom(operators.proto)
    graph, builder = result.graph, ModelGraph()
    replaced = {recurrent.node.output[0] or recurrent.node.output[1]: i for i, recurrent in enumerate(operators.nodes)}
    for node in operators.proto.graph.node:
        i = next((replaced[output] for output in node.output if output in replaced), None)
        if i is None:
            builder.nodes.append(node)
            continue
        recurrent, layer = operators.nodes[i], layers[i]
        _add_states(builder, graph, recurrent, layer)
        counters: dict[str, list[str]] = {"updates": [], "macs": []}
        needs_y = bool(node.output[0])
        y, _ = add_layer(builder, layer, functions[i], recurrent.name, recurrent.input("X"), needs_y, False, counters)
        # the operator has an axis of directions
        ends = [y, *(f"{recurrent.name}.{state}.next" for state in layer.cell.states)]
        for axis, value, output in zip((1, 0, 0), ends, node.output, strict=False):
            if output:
                builder.node("Unsqueeze", [value, _axis(builder, recurrent.name, axis)], output)
        if counts:
            graph.output.append(helper.make_tensor_value_info(counters["macs"][0], TensorProto.INT64, ["B"]))
        else:
            (new,) = (n for n in builder.nodes if n.domain == DOMAIN and n.name == recurrent.name)
            new.output[1] = new.output[2] = ""
    del graph.node[:]
    graph.node.extend(builder.nodes)
    graph.initializer.extend(builder.weights)
    _remove_unused(graph)
    result.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    result.functions.extend(define_functions(dict.fromkeys(functions)))
    result.ir_version = max(result.ir_version, IR_VERSION)
    return result


def _add_states(builder: ModelGraph, graph: onnx.GraphProto, recurrent: RecurrentNode, layer: RecurrentLayer) -> None:
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
            shape = ["B", layer.widths[state]]
            graph.input.append(helper.make_tensor_value_info(f"{name}.{state}", TensorProto.FLOAT, shape))
            graph.output.append(helper.make_tensor_value_info(f"{name}.{state}.next", TensorProto.FLOAT, shape))


def _axis(builder: ModelGraph, name: str, axis: int) -> str:
    key = f"{name}.axis{axis}"
    if key not in {tensor.name for tensor in builder.weights}:
        builder.weight(key, np.array([axis], np.int64))
    return key


def _remove_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes and initialisers whose results are not read, such as the weights of the replaced operators."""
    nodes, read = list(graph.node), {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    # a node comes before those that read its outputs
    for node in reversed(nodes):
        if read & set(node.output):
            kept.append(node)
            read |= _read(node)
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept[::-1])
    graph.initializer.extend(tensors)


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the names of the values that a node reads, those in the bodies of If, Loop and Scan included."""
    bodies = [body for attribute in node.attribute for body in [attribute.g, *attribute.graphs]]
    inner = [{value.name for value in body.output}.union(*map(_read, body.node)) for body in bodies]
    return set(node.input).union(*inner)


def watching(operators: RecurrentNodes) -> tuple[onnx.ModelProto, list[tuple[str, str]]]:
    """Return the model with further outputs: what each replaceable operator reads and computes.

    Args:
        operators: The operators.

    Returns:
        The model, and for each of `RecurrentNodes.nodes` the names of the values X (T, B, I) and Y (T, 1, B, H).
    """
    result = onnx.ModelProto()
    result.CopyFrom(operators.proto)
    graph, names = result.graph, []
    known = {value.name for value in [*graph.output, *graph.input]}
    for node in graph.node:
        recurrent = next((r for r in operators.nodes if list(r.node.output) == list(node.output)), None)
        if recurrent is None:
            continue
        if not node.output[0]:
            node.output[0] = f"{recurrent.name}.Y.watched"
        names.append((recurrent.input("X"), node.output[0]))
        for value in names[-1]:
            if value not in known:
                known.add(value)
                graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    return result, names
