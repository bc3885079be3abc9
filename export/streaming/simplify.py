# SPDX-License-Identifier: Apache-2.0
"""Simplifies an ONNX file of another tool: fixes inputs, folds constants, and replaces an If of known condition."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxscript.optimizer import fold_constants, remove_unused_nodes

from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.export.graph_queries import STANDARD

Array = NDArray[Any]
# each pass may find constants that the one before made
_PASSES = 8
# numbers that all folded constants may have: this many for each byte of the file, and the second one
_TIMES, _FURTHER = 4, 1 << 20


def fix_inputs(
    proto: onnx.ModelProto, values: Mapping[str, Array], shapes: Mapping[str, Sequence[int | str]], path: Path
) -> None:
    """Replace inputs of a graph by constants, and declare the shapes of others.

    Args:
        proto: The model, changed in place.
        values: Values of the inputs that become constants.
        shapes: Shapes of inputs. A number is a fixed length, a name a variable one.
        path: Path of the file, for error messages.

    Raises:
        UsageError: The graph has no such input, or a shape has another number of axes.
    """
    graph = proto.graph
    inputs = {value.name: value for value in graph.input}
    for name in [*values, *shapes]:
        if name not in inputs:
            raise nearest("input", name, inputs)
    for name, array in values.items():
        dtype = helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
        declared = inputs[name].type.tensor_type.shape.dim
        value = array.reshape((1,) * len(declared)) if array.ndim == 0 else array
        graph.input.remove(inputs[name])
        graph.initializer.append(numpy_helper.from_array(value.astype(dtype), name))
    for name, shape in shapes.items():
        tensor = inputs[name].type.tensor_type
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
            raise UsageError(
                f"{path}: input {name}: expected a shape of {len(tensor.shape.dim)} axes, got {len(shape)}; give a "
                "length or a name for each axis"
            )
        inputs[name].CopyFrom(helper.make_tensor_value_info(name, tensor.elem_type, list(shape)))
    if shapes:
        # the shapes of other values may no longer hold
        del graph.value_info[:]
        for value in graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()


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
