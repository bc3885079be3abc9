# SPDX-License-Identifier: Apache-2.0
"""Finds the linear maps and 1×1 convolutions of an ONNX file that layers with the update rule delta can replace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper

from edgernn.cells.base import Cell, Gate, Gates, State
from edgernn.export.model_graph import ModelGraph
from edgernn.export.recurrent_nodes import unique_name
from edgernn.runtime.graph_queries import STANDARD, constant_of, names_in
from edgernn.runtime.weights import check_memory

Array = NDArray[Any]


class LinearMap(Cell):
    """A linear map as a cell: under the rule delta, it reads the columns of the values of x that moved.

    h_t = W x_t + b

    Shapes: x (B, I), h (B, H), W (H, I), b (H,).
    """

    name = "linear"
    gates: tuple[Gate, ...] = (Gate("a", h=False),)

    def update(self, p: Gates, state: State) -> State:
        return (p.a,)


@dataclass
class LinearNode:
    """A MatMul, Gemm or 1×1 Conv of an ONNX graph that a layer with the update rule delta can replace.

    Attributes:
        name: Name of the node that replaces the operator, unique as that of a `RecurrentNode`.
        index: Index of the operator in the graph's list of nodes.
        node: The operator.
        cell: The linear map with the operator's weights.
        axes: Axes of x in the order (T, rows ..., I); without T if each call is a step.
        has_time: True if the first of `axes` is T.
        batch: Number of rows that the graph fixes, or "B".
        carried: True, as for a `RecurrentNode` whose state a chunk begins with.
    """

    name: str
    index: int
    node: onnx.NodeProto
    cell: Cell
    axes: tuple[int, ...]
    has_time: bool
    batch: int | str
    carried: bool = True

    @property
    def macs(self) -> int:
        """Multiply-adds of one row with nothing skipped."""
        return sum(self.cell.macs())

    def input(self, name: str) -> str:
        """Return the name of the value that the new layer reads as X, or of the weights W and B of the operator."""
        places = {"W": 1, "B": 2}
        if name == "X":
            return f"{self.name}.rows"
        return self.node.input[places[name]] if len(self.node.input) > places.get(name, 9) else ""

    def arranged(self, array: Array, calls: int) -> Array:
        """Return values of x or of the result as (T, rows, width); those of several calls are joined along axis 0."""
        parts = [part.transpose(self.axes) for part in np.split(array, calls)]
        return np.concatenate([p.reshape(len(p) if self.has_time else 1, -1, p.shape[-1]) for p in parts])

    def add_rows(self, builder: ModelGraph) -> None:
        """Add nodes that arrange x as (T, rows, I), the X of the new layer."""
        name, x = self.name, self.node.input[0]
        if list(self.axes) != sorted(self.axes):
            x = builder.node("Transpose", [x], f"{name}.moved", perm=self.axes)
        sizes = builder.weight(f"{name}.sizes", np.array([-1, self.cell.input_size], np.int64))
        if self.has_time:
            first = builder.node("Shape", [x], f"{name}.steps", start=0, end=1)
        else:
            first = builder.weight(f"{name}.steps", np.array([1], np.int64))
        shape = builder.node("Concat", [first, sizes], f"{name}.rows.shape", axis=0)
        builder.node("Reshape", [x, shape], self.input("X"))
        builder.node("Shape", [x], f"{name}.leading", start=0, end=-1)

    def add_result(self, builder: ModelGraph, y: str) -> None:
        """Add nodes that give the output y (T, rows, O) of the new layer the axes of the operator's result."""
        name = self.name
        width = builder.weight(f"{name}.width", np.array([self.cell.hidden_size], np.int64))
        shape = builder.node("Concat", [f"{name}.leading", width], f"{name}.shape", axis=0)
        is_moved = list(self.axes) != sorted(self.axes)
        result = builder.node("Reshape", [y, shape], f"{name}.result" if is_moved else self.node.output[0])
        if is_moved:
            builder.node("Transpose", [result], self.node.output[0], perm=np.argsort(self.axes).tolist())


def find_linear_nodes(
    proto: onnx.ModelProto, times: Sequence[onnx.TensorShapeProto.Dimension], path: Path
) -> tuple[list[LinearNode], list[str]]:
    """Find the linear maps and 1×1 convolutions of a graph that layers with the update rule delta can replace.

    Args:
        proto: The model, in the operator set of edgernn's functions.
        times: The axis of time of each recurrent operator's X.
        path: Path of the file, for error messages.

    Returns:
        The maps with a constant matrix, and for each that is not replaced its name and the reason.

    Raises:
        EdgernnError: Operators share weights, whose copies need much more memory than the model.
    """
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    known = {v.name: v.type.tensor_type.shape.dim for v in [*inferred.input, *inferred.value_info, *inferred.output]}
    names, nodes, left = names_in(proto.graph), list[LinearNode](), list[str]()
    needed, symbols = 0, {dim.dim_param for dim in times if dim.dim_param}
    for index, node in enumerate(proto.graph.node):
        weights = _weights(proto, node) if node.domain in STANDARD else None
        dims = known.get(node.input[0], ()) if node.input else ()
        if weights is None or len(dims) < 2:
            continue
        feature = 1 if node.op_type == "Conv" else len(dims) - 1
        others = [axis for axis in range(len(dims)) if axis != feature]
        time = [axis for axis in others if dims[axis].dim_param in symbols and dims[axis].dim_param]
        rows = [axis for axis in others if axis not in time]
        count = math.prod(dims[axis].dim_value for axis in rows if dims[axis].HasField("dim_value"))
        is_fixed = all(dims[axis].HasField("dim_value") for axis in rows)
        title = node.name or f"{node.op_type} number {index}"
        if len(time) != bool(symbols) or any(dim.dim_value > 1 for dim in times):
            left.append(f"{title}: expected an input whose axis of time is variable and has a name, got another")
            continue
        if not is_fixed and count != 1:
            left.append(f"{title}: expected a fixed number of rows in each step, got a variable one; fix the batch")
            continue
        # each cell has a copy
        needed += weights[0].nbytes
        check_memory(needed, proto.ByteSize(), path)
        name = unique_name(node, f"{node.op_type.lower()}{index}", names)
        batch = count if is_fixed else "B"
        cell = LinearMap(weights[0].shape[1], len(weights[0]))
        with torch.no_grad():
            for parameter, value in zip((cell.W, cell.b), weights, strict=True):
                parameter.copy_(torch.from_numpy(np.array(value)))
        nodes.append(LinearNode(name, index, node, cell.eval(), (*time, *rows, feature), bool(time), batch))
    return nodes, left


def _weights(proto: onnx.ModelProto, node: onnx.NodeProto) -> tuple[Array, Array] | None:
    """Return the matrix W (O, I) and the bias b (O,) of a linear map or a 1×1 convolution; None for another node."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type not in ("MatMul", "Gemm", "Conv") or len(node.input) < 2:
        return None
    if constant_of(proto, node.input[0]) is not None or (W := constant_of(proto, node.input[1])) is None:
        return None
    b = constant_of(proto, node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1, np.float32)
    if W.dtype != np.float32 or b is None or b.size not in (1, W.shape[0], W.shape[-1]):
        return None
    if node.op_type == "Conv":
        plain = attributes.get("group", 1) == 1 and not any(attributes.get("pads", ()))
        if not plain or any(s != 1 for s in (*W.shape[2:], *attributes.get("strides", ()))):
            return None
        W = W.reshape(W.shape[:2])
    elif W.ndim != 2 or attributes.get("transA", 0) or any(attributes.get(key, 1) != 1 for key in ("alpha", "beta")):
        return None
    elif not attributes.get("transB", 0):
        W = W.T
    # the bias of a Gemm may be a column, which has a number for each row of x
    is_bias = b.size == 1 or b.shape[-1] == b.size == len(W)
    return (W, np.broadcast_to(b.reshape(-1), len(W)).copy()) if is_bias else None
