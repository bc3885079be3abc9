# SPDX-License-Identifier: Apache-2.0
"""Simplifies an ONNX file of another tool: fixes inputs, folds constants, and replaces an If of known condition."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxscript.optimizer import fold_constants, remove_unused_nodes

from edgernn.errors import EdgernnError
from edgernn.runtime.graph_queries import STANDARD

Array = NDArray[Any]
# each pass may find constants that the one before made
_PASSES = 8
# numbers that all folded constants may have: this many for each byte of the file, and the second one
_TIMES, _FURTHER = 4, 1 << 20


def folded(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return a copy of a model with folded constants, in which each If with a constant condition is its branch.

    onnxscript does the work. Constants are folded only while they take little more memory than the file.

    Args:
        proto: The model.
        path: Path of the file, for error messages.

    Returns:
        The copy. Functions are inlined, and names may differ, but not those of inputs and outputs.

    Raises:
        EdgernnError: The model is invalid.
    """
    left = _TIMES * proto.ByteSize() + _FURTHER

    def fits(node: Any) -> bool:
        nonlocal left
        shapes = [output.shape for output in node.outputs]
        if any(shape is None or not shape.is_static() for shape in shapes):
            return False
        left -= sum(int(math.prod(shape.numpy())) for shape in shapes)
        return bool(left >= 0)

    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for entry in result.opset_import:
        if entry.domain in STANDARD:
            entry.domain = ""
    try:
        if result.functions:
            result = onnx.inliner.inline_local_functions(result)
        for _ in range(_PASSES):
            if not fold_constants(result, onnx_shape_inference=True, should_fold=fits).modified:
                break
        remove_unused_nodes(result)
    except Exception as error:  # the classes of onnx's and onnxscript's errors have no common base
        text = str(error).partition("\n")[0]
        raise EdgernnError(
            f"{path}: expected a valid ONNX file, got one with an error: {text}; export it again"
        ) from None
    _lift_constants(result.graph)
    return result


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Turn the Constant nodes of a graph into initialisers."""
    kept = []
    for node in graph.node:
        value = next((a for a in node.attribute if a.name == "value"), None)
        if node.op_type != "Constant" or value is None:
            kept.append(node)
            continue
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def opset_of(proto: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return next((entry.version for entry in proto.opset_import if entry.domain in STANDARD), 1)


def constant(proto: onnx.ModelProto, name: str, value: Array) -> str:
    """Add an initialiser to a graph and return its name."""
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def axis_node(proto: onnx.ModelProto, op_type: str, value: str, axis: int, output: str) -> onnx.NodeProto:
    """Make a node Squeeze or Unsqueeze of one axis, whose form depends on the operator set of the model."""
    if opset_of(proto) < 13:
        return helper.make_node(op_type, [value], [output], f"{output}.{op_type}", axes=[axis])
    name = f"{output}.axis"
    return helper.make_node(op_type, [value, constant(proto, name, np.array([axis]))], [output], f"{output}.{op_type}")
