# SPDX-License-Identifier: Apache-2.0
"""Simplifies an ONNX file of another tool: fixes inputs, folds constants, and replaces an If of known condition."""

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxscript import ir
from onnxscript.ir.passes.common import LiftConstantsToInitializersPass
from onnxscript.optimizer import fold_constants, remove_unused_nodes

from edgernn.errors import EdgernnError
from edgernn.runtime.graph_queries import STANDARD

Array = NDArray[Any]
# each pass may find constants that the one before made
_PASSES = 8
# numbers that all folded constants may have: this many for each byte of the file, and the second one
_TIMES, _FURTHER = 4, 1 << 20
# bytes of a model that are not left to Python's own collection of cycles; one takes half a second beside torch
_LARGE = 1 << 24


def folded(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Fold the constants of a model, and put its branch in place of each If with a constant condition.

    onnxscript does the work. Constants are folded only while they take little more memory than the file.

    Args:
        proto: The model, which may be changed in place.
        path: Path of the file, for error messages.

    Returns:
        The new model. Functions are inlined, and names may differ, but not those of inputs and outputs.

    Raises:
        EdgernnError: The model is invalid.
    """
    left = _TIMES * proto.ByteSize() + _FURTHER

    def fits(node: Any) -> bool:
        nonlocal left
        shapes = [output.shape for output in node.outputs]
        # the turns of a loop are not known
        if any(attribute.type.name == "GRAPH" for attribute in node.attributes.values()):
            return False
        if any(shape is None or not shape.is_static() for shape in shapes):
            return False
        left -= sum(int(math.prod(shape.numpy())) for shape in shapes)
        return bool(left >= 0)

    for entry in proto.opset_import:
        if entry.domain in STANDARD:
            entry.domain = ""
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        # its tensors refer to those of the model; a model of protobuf would keep the weights of each pass
        model = ir.from_proto(proto)
        for _ in range(_PASSES):
            if not fold_constants(model, onnx_shape_inference=True, should_fold=fits).modified:
                break
        remove_unused_nodes(model)
        LiftConstantsToInitializersPass(size_limit=0)(model)
        proto = ir.to_proto(model)
    except Exception as error:  # the classes of onnx's and onnxscript's errors have no common base
        text = str(error).partition("\n")[0]
        raise EdgernnError(
            f"{path}: expected a valid ONNX file, got one with an error: {text}; export it again"
        ) from None
    # the model refers to itself, and keeps the weights
    del model
    if proto.ByteSize() > _LARGE:
        gc.collect()
    return proto


def opset_of(proto: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return next((entry.version for entry in proto.opset_import if entry.domain in STANDARD), 1)


def constant(proto: onnx.ModelProto, name: str, value: Array) -> str:
    """Add an initialiser to a graph and return its name."""
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def first_axis_node(proto: onnx.ModelProto, op_type: str, value: str, output: str) -> onnx.NodeProto:
    """Make a node Squeeze or Unsqueeze of axis 0, whose form depends on the operator set of the model."""
    if opset_of(proto) < 13:
        return helper.make_node(op_type, [value], [output], f"{output}.{op_type}", axes=[0])
    name = f"{output}.axis"
    return helper.make_node(op_type, [value, constant(proto, name, np.array([0]))], [output], f"{output}.{op_type}")
