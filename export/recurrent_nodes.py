# SPDX-License-Identifier: Apache-2.0
"""Finds the operators GRU and LSTM of any ONNX file, and converts their weights to edgernn's cells."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from edgernn.cells import CELLS, Cell
from edgernn.errors import UsageError
from edgernn.export.trace import OPSET
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.onnx_gates import to_cell_order

Array = NDArray[Any]
# names of the domain of ONNX's own operators
_STANDARD = ("", "ai.onnx")
# operators that move, mask or convert numbers; an initial state that comes from an input through these alone is carried
# from call to call
_MOVES = {
    *(
        "Identity",
        "Slice",
        "Split",
        "Gather",
        "GatherElements",
        "GatherND",
        "Squeeze",
        "Unsqueeze",
        "Reshape",
        "Flatten",
    ),
    *("Transpose", "Concat", "Expand", "Tile", "Pad", "ScatterElements", "ScatterND", "If"),
    *("Mul", "Div", "Add", "Sub", "Sum", "Neg", "Where", "Clip", "Min", "Max", "Dropout", "Cast", "CastLike"),
}
# types of a carried state
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# activations of the operators, the default
_ACTIVATIONS = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# other recurrent operators, and why no cell computes them
_UNREADABLE = {
    "DynamicQuantizeLSTM": "which quantize_dynamic wrote; calibrate the float32 file from which it was made",
    "RNN": "which edgernn does not convert",
}
# inputs of the operators, in their order; a node may leave out the last ones
_INPUTS = {
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
}


@dataclass
class RecurrentNode:
    """An operator GRU or LSTM of an ONNX graph that a layer with the update rule delta can replace.

    Attributes:
        name: Name of the node that replaces the operator. It is unique in the graph, where no other name begins with
            this name and a dot.
        index: Index of the operator in the graph's list of nodes.
        node: The operator.
        cell: edgernn's cell with the operator's weights.
        carried: True if the operator's initial state comes from an input of the graph, so that the caller carries the
            state from call to call. The states of the rule then become inputs and outputs of the graph, too.
    """

    name: str
    index: int
    node: onnx.NodeProto
    cell: Cell
    carried: bool

    @property
    def macs(self) -> int:
        """Multiply-adds of one step with nothing skipped."""
        return sum(self.cell.macs())

    def input(self, name: str) -> str:
        """Return the name of the value that the operator reads as its input `name`, such as X; "" if there is none."""
        return _inputs(self.node).get(name, "")


@dataclass
class RecurrentNodes:
    """The operators GRU and LSTM of an ONNX graph.

    Attributes:
        proto: The model, converted to the operator set of edgernn's functions.
        nodes: Operators that can be replaced, in the order of the graph.
        left: For each other operator, its name and the reason why it cannot be replaced.
        restarted: Names of the operators whose initial state the graph computes from its inputs, so that it may be
            carried from call to call, but the states of the rule start at 0 in each call.
    """

    proto: onnx.ModelProto
    nodes: list[RecurrentNode] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)


def find_recurrent_nodes(proto: onnx.ModelProto, path: str) -> RecurrentNodes:
    """Find a model's operators GRU and LSTM that layers with the update rule delta can replace.

    Args:
        proto: The model. It is not changed.
        path: Path of its file, for error messages.

    Returns:
        The operators.

    Raises:
        UsageError: The model has edgernn's operators, its operator set cannot be converted, or no operator can be
            replaced.
    """
    if _reads_domain(proto):
        raise UsageError(
            f"{path}: expected a file with ONNX's operators GRU or LSTM, or one that edgernn exported, got another "
            "with edgernn's operators, such as a result of `edgernn calibrate`; calibrate the original file"
        )
    operators = RecurrentNodes(_converted(proto, path))
    graph = operators.proto.graph
    names = _names(graph)
    for i, node in enumerate(graph.node):
        title = node.name or f"{node.op_type} number {i}"
        operators.left += [f"{title}: {text}" for text in _hidden(node)]
        if (reason := _UNREADABLE.get(node.op_type)) is not None:
            operators.left.append(f"{title}: expected GRU or LSTM, got {node.op_type}, {reason}")
        if not _is_recurrent(node):
            continue
        weights = _refusal(node) or _weights(operators.proto, node)
        if isinstance(weights, str):
            operators.left.append(f"{title}: {weights}")
            continue
        name = node.name or f"{node.op_type.lower()}{len(operators.nodes)}"
        while any(other.startswith(f"{name}.") or other == name for other in names - {node.name}):
            name += "_"
        names.add(name)
        recurrent = RecurrentNode(name, i, node, _cell(node, weights), False)
        starts = [recurrent.input(f"initial_{state}") for state in recurrent.cell.states]
        others = {other.op_type for other in graph.node} - {"Shape", "Size"}
        recurrent.carried = any(_comes_from_input(graph, start, _MOVES) for start in starts)
        if not recurrent.carried and any(_comes_from_input(graph, start, others) for start in starts):
            operators.restarted.append(name)
        operators.nodes.append(recurrent)
    for function in operators.proto.functions:
        if any(map(_is_recurrent, function.node)):
            operators.left.append(f"{function.name}: expected an operator of the graph, got one in a function")
    if not operators.nodes:
        reasons = "".join(f"; {text}" for text in operators.left)
        raise UsageError(f"{path}: expected an operator GRU or LSTM that can be calibrated, got none{reasons}")
    return operators


def _reads_domain(proto: onnx.ModelProto) -> bool:
    """Return True if a model has nodes or functions of edgernn; ONNX Runtime may list their domain without any."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while nodes:
        node = nodes.pop()
        if node.domain == DOMAIN:
            return True
        nodes += [inner for body in _bodies(node) for inner in body.node]
    return any(function.domain == DOMAIN for function in proto.functions)


def _is_recurrent(node: onnx.NodeProto) -> bool:
    """Return True for ONNX's own operators GRU and LSTM."""
    return node.domain in _STANDARD and node.op_type in _INPUTS


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a node: graphs in its attributes, as those of If, Loop and Scan."""
    return [body for attribute in node.attribute for body in [attribute.g, *attribute.graphs] if body.node]


def values_read(node: onnx.NodeProto) -> set[str]:
    """Return the names of the values that a node reads, those in its bodies included."""
    inner = [{value.name for value in body.output}.union(*map(values_read, body.node)) for body in _bodies(node)]
    return set(node.input).union(*inner)


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return all names in a graph and in the bodies of its nodes: of values, initialisers and nodes."""
    listed = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for node in graph.node:
        listed |= {node.name, *node.input, *node.output}
        listed = listed.union(*map(_names, _bodies(node)))
    return listed - {""}


def _hidden(node: onnx.NodeProto) -> list[str]:
    """Return one text for each GRU and LSTM in the subgraphs of a node, such as If: why delta cannot replace it."""
    inner = [one for body in _bodies(node) for one in body.node]
    here = [f"expected an operator of the graph, got {one.op_type} in its body" for one in inner if _is_recurrent(one)]
    return here + [text for one in inner for text in _hidden(one)]


def _converted(proto: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """Return a copy of a model, converted to operator set `OPSET` if it has an older one.

    The ONNX functions of edgernn's layers use operators of this set.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for entry in copy.opset_import:
        if entry.domain in _STANDARD:
            entry.domain = ""
    opset = next((entry.version for entry in copy.opset_import if not entry.domain), 0)
    if opset >= OPSET:
        return copy
    try:
        # the converter knows no functions
        return version_converter.convert_version(inline_local_functions(copy) if copy.functions else copy, OPSET)
    except Exception as error:  # the converter raises RuntimeError and others
        text = str(error).partition("\n")[0]
        raise UsageError(
            f"{path}: expected operator set {OPSET} or newer, got {opset}, which onnx cannot convert: {text}; export "
            f"the model again with opset_version={OPSET}"
        ) from None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _inputs(node: onnx.NodeProto) -> dict[str, str]:
    """Return a dict from the name of each input of an operator GRU or LSTM, such as X, to the value that it reads."""
    return dict(zip(_INPUTS[node.op_type], node.input, strict=False))


def _refusal(node: onnx.NodeProto) -> str | None:
    """Return why edgernn has no cell for an operator GRU or LSTM with these attributes and inputs, or None."""
    attributes, inputs = _attributes(node), _inputs(node)
    activations = [name.decode() for name in attributes.get("activations", [])]
    if (direction := attributes.get("direction", b"forward").decode()) != "forward":
        return f"direction: expected forward, got {direction}"
    if activations and [name.lower() for name in activations] != [name.lower() for name in _ACTIVATIONS[node.op_type]]:
        return f"activations: expected {', '.join(_ACTIVATIONS[node.op_type])}, got {', '.join(activations)}"
    for name in ("clip", "layout", "input_forget"):
        if attributes.get(name, 0):
            return f"{name}: expected 0, got {attributes[name]}"
    for name in ("sequence_lens", "P"):
        if inputs.get(name):
            return f"input {name}: expected none, got {inputs[name]}"
    return None


def _weights(proto: onnx.ModelProto, node: onnx.NodeProto) -> dict[str, Array] | str:
    """Return an operator's weights W, R and B, each without its axis of directions, or why they cannot be used."""
    inputs, weights = _inputs(node), {}
    for name in ("W", "R", "B"):
        value = inputs.get(name)
        if not value:
            continue
        constant = _constant(proto, value)
        if constant is None:
            return f"input {name}: expected a constant, got {value}, which the graph computes"
        if constant.dtype != np.float32:
            return f"input {name}: expected float32, got {constant.dtype}"
        weights[name] = constant[0]
    return weights


def _constant(proto: onnx.ModelProto, name: str) -> Array | None:
    """Return the value `name` if it does not depend on the inputs of the graph, or else None.

    An initialiser that is also an input of the graph, as in old files, counts as a constant. torch.onnx leaves large
    weights as slices of other constants, which are computed here.
    """
    graph = proto.graph
    nodes, leaves = _ancestors(graph, name)
    tensors = [tensor for tensor in graph.initializer if tensor.name in leaves]
    if leaves - {tensor.name for tensor in tensors}:
        return None
    if not nodes:
        value: Array = numpy_helper.to_array(tensors[0])
        return value
    part = helper.make_graph(nodes, "constant", [], [onnx.ValueInfoProto(name=name)], tensors)
    model = helper.make_model(part, opset_imports=proto.opset_import, functions=proto.functions)
    try:
        (computed,) = ReferenceEvaluator(model).run(None, {})
    except Exception:  # an operator of another domain; the classes of its errors have no common base
        return None
    return np.asarray(computed)


def _ancestors(
    graph: onnx.GraphProto, name: str, through: Container[str] | None = None
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Find what a value of a graph depends on.

    Args:
        graph: The graph.
        name: Name of the value.
        through: Types of the operators whose inputs are followed. Default: all.

    Returns:
        The nodes that compute the value, in the order of the graph, and the names of the values that no node computes.
    """
    producers = {output: node for node in graph.node for output in node.output}
    # values of a body are not among these
    known = producers.keys() | {value.name for value in [*graph.input, *graph.initializer]}
    seen, waiting, leaves = set(), [name], set()
    while waiting:
        value = waiting.pop()
        if not value or value in seen:
            continue
        seen.add(value)
        node = producers.get(value)
        if node is None:
            leaves.add(value)
        elif through is None or node.op_type in through:
            waiting += values_read(node) & known
    return [node for node in graph.node if seen & set(node.output)], leaves


def _cell(node: onnx.NodeProto, arrays: dict[str, Array]) -> Cell:
    """Return edgernn's cell with the weights of an operator GRU or LSTM; `arrays` is a result of `_weights`.

    A GRU with linear_before_reset = 0 becomes the cell gru-before. The update gate of this cell is 1 - z, where z is
    the update gate of the operator.
    """
    kind = node.op_type.lower()
    W, R = (to_cell_order(kind, arrays[name]) for name in "WR")
    rows, H = R.shape
    both = arrays.get("B", np.zeros(2 * rows, np.float32))
    b, recurrent = (to_cell_order(kind, half) for half in np.split(both, 2))
    before = kind == "gru" and not _attributes(node).get("linear_before_reset", 0)
    cell = CELLS["gru-before" if before else kind](W.shape[1], H)
    if before:
        b = b + recurrent
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


def _comes_from_input(graph: onnx.GraphProto, name: str, through: Container[str]) -> bool:
    """Return True if a value is an input of floats of the graph, or computed from one by these operators alone."""
    inputs = {value.name for value in graph.input if value.type.tensor_type.elem_type in _FLOATS}
    return bool(_ancestors(graph, name, through)[1] & (inputs - {tensor.name for tensor in graph.initializer}))
