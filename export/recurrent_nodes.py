# SPDX-License-Identifier: Apache-2.0
"""Finds the operators GRU and LSTM of any ONNX file, and converts their weights to edgernn's cells."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, version_converter
from onnx.inliner import inline_local_functions

from edgernn.cells import CELLS, Cell
from edgernn.errors import UsageError
from edgernn.export.layer_functions import OPSET
from edgernn.runtime.graph_queries import MOVES, STANDARD, bodies_of, comes_from_input, constant_of, names_in
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.onnx_gates import to_cell_order
from edgernn.runtime.weights import check_memory

Array = NDArray[Any]
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
        batch: Number of sequences that the graph fixes, or "B".
    """

    name: str
    index: int
    node: onnx.NodeProto
    cell: Cell
    carried: bool
    batch: int | str = "B"

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
        times: Axis of time of the operators that can be replaced, if its length or name is known.
    """

    proto: onnx.ModelProto
    nodes: list[RecurrentNode] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    times: list[onnx.TensorShapeProto.Dimension] = field(default_factory=list)


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
        EdgernnError: Operators share weights, whose copies need much more memory than the model.
    """
    if reads_domain(proto):
        raise UsageError(
            f"{path}: expected a file with ONNX's operators GRU or LSTM, or one that edgernn exported, got another "
            "with edgernn's operators, such as a result of `edgernn calibrate`; calibrate the original file"
        )
    operators = RecurrentNodes(_converted(proto, path))
    graph = operators.proto.graph
    names = names_in(graph)
    inferred = onnx.shape_inference.infer_shapes(operators.proto).graph
    shapes = {v.name: v.type.tensor_type.shape.dim for v in [*inferred.input, *inferred.value_info]}
    needed = 0
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
        # each cell has a copy
        needed += sum(array.nbytes for array in weights.values())
        check_memory(needed, proto.ByteSize(), Path(path))
        name = unique_name(node, f"{node.op_type.lower()}{len(operators.nodes)}", names)
        dims = shapes.get(node.input[0], ())
        batch = dims[1].dim_value if len(dims) == 3 else 0
        operators.times += [*dims][:1]
        recurrent = RecurrentNode(name, i, node, _cell(node, weights), False, batch or "B")
        starts = [recurrent.input(f"initial_{state}") for state in recurrent.cell.states]
        others = {other.op_type for other in graph.node} - {"Shape", "Size"}
        recurrent.carried = any(comes_from_input(graph, start, MOVES) for start in starts)
        if not recurrent.carried and any(comes_from_input(graph, start, others) for start in starts):
            operators.restarted.append(name)
        operators.nodes.append(recurrent)
    for function in operators.proto.functions:
        if any(map(_is_recurrent, function.node)):
            operators.left.append(f"{function.name}: expected an operator of the graph, got one in a function")
    if not operators.nodes:
        reasons = "".join(f"; {text}" for text in operators.left)
        raise UsageError(f"{path}: expected an operator GRU or LSTM that can be calibrated, got none{reasons}")
    return operators


def unique_name(node: onnx.NodeProto, default: str, names: set[str]) -> str:
    """Return a name for the layer in place of a node: its own or `default`, changed until no other is or begins so.

    Args:
        node: The node.
        default: The name if the node has none.
        names: All names of the graph, to which the new one is added.

    Returns:
        The name.
    """
    name = node.name or default
    # ONNX Runtime names a node without a name after its first output
    others = names if node.name in node.output else names - {node.name}
    while any(other.startswith(f"{name}.") or other == name for other in others):
        name += "_"
    names.add(name)
    return name


def reads_domain(proto: onnx.ModelProto) -> bool:
    """Return True if a model has nodes or functions of edgernn; ONNX Runtime may list their domain without any."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while nodes:
        node = nodes.pop()
        if node.domain == DOMAIN:
            return True
        nodes += [inner for body in bodies_of(node) for inner in body.node]
    return any(function.domain == DOMAIN for function in proto.functions)


def _is_recurrent(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD and node.op_type in _INPUTS


def _hidden(node: onnx.NodeProto) -> list[str]:
    """Return one text for each GRU and LSTM in the subgraphs of a node, such as If: why delta cannot replace it."""
    inner = [one for body in bodies_of(node) for one in body.node]
    here = [f"expected an operator of the graph, got {one.op_type} in its body" for one in inner if _is_recurrent(one)]
    return here + [text for one in inner for text in _hidden(one)]


def _converted(proto: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """Return a copy of a model, converted to operator set `OPSET` if it has an older one."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for entry in copy.opset_import:
        if entry.domain in STANDARD:
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
        constant = constant_of(proto, value)
        if constant is None:
            return f"input {name}: expected a constant, got {value}, which the graph computes"
        if constant.dtype != np.float32:
            return f"input {name}: expected float32, got {constant.dtype}"
        if not constant.size or not np.isfinite(constant).all():
            return f"input {name}: expected finite numbers, got {'NaN or infinity' if constant.size else 'none'}"
        weights[name] = constant[0]
    return weights


def _cell(node: onnx.NodeProto, arrays: dict[str, Array]) -> Cell:
    """Return edgernn's cell with the weights of an operator GRU or LSTM; `arrays` is a result of `_weights`."""
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
