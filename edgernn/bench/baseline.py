# SPDX-License-Identifier: Apache-2.0
"""Networks of ONNX GRU or LSTM operators with the sizes of an exported model, to time beside the model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgernn.errors import EdgernnError
from edgernn.runtime.info import block, feature_size, layer_sizes
from edgernn.runtime.onnx_gates import ONNX_GATES, to_onnx_order
from edgernn.runtime.weights import Weight

Array = NDArray[np.float32]


def _reordered(kind: str, weight: Array) -> Array:
    return to_onnx_order(kind, weight)[None]


def _operator(kind: str, W: Array, R: Array, b: Array) -> dict[str, Array]:
    """Convert weights (3H, I) or (4H, I), (…, H) and (4H,) to the inputs W, R and B of ONNX's GRU or LSTM."""
    H = R.shape[1]
    if kind == "lstm":
        bias = _reordered(kind, b)
        return {"W": _reordered(kind, W), "R": _reordered(kind, R), "B": np.concatenate([bias, 0 * bias], -1)}
    # in our gru only the candidate gate n has a bias of its recurrent product, the last H numbers of b
    recurrent = np.concatenate([np.zeros(2 * H, np.float32), b[3 * H :]])
    bias = np.concatenate([_reordered(kind, b[: 3 * H]), _reordered(kind, recurrent)], -1)
    return {"W": _reordered(kind, W), "R": _reordered(kind, R), "B": bias}


def _shapes(kind: str, info: dict[str, Any]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the shapes of W, R and b of a GRU or LSTM, one tuple per layer, for the sizes in an export's metadata."""
    gates, directions, size = len(ONNX_GATES[kind]), _directions(info), feature_size(info)
    layers: list[tuple[tuple[int, ...], ...]] = []
    for H in layer_sizes(info):
        layers.append(((gates * H, size), (gates * H, H), (4 * H,)))
        size = H * directions
    return layers


# prefix of the names of a front end's values in an exported file
_FRONTEND = "frontend."


def _directions(info: dict[str, Any]) -> int:
    return 2 if info["model"]["bidirectional"] else 1


def parameters(kind: str, info: dict[str, Any]) -> int:
    """Count the parameters of a GRU or LSTM (`kind`) with the layer sizes in an exported file's metadata `info`."""
    return _directions(info) * sum(math.prod(shape) for layer in _shapes(kind, info) for shape in layer)


def is_same(kind: str, info: dict[str, Any]) -> bool:
    """Check if all layers of an exported file compute the same function as the ONNX operator `kind`.

    Args:
        kind: The operator, gru or lstm.
        info: Metadata of the exported file.

    Returns:
        True if the functions are the same, so that the operator can use the file's weights. False for layers in
        residual blocks, as the operator has no block.
    """
    return bool(info["kernels"] == [kind]) and block(info) is None


def zero_states(session: Any, batch: int) -> dict[str, NDArray[np.float32]]:
    """Return states of zeros for a batch, by name, for an ONNX Runtime session of a model that `baseline` returned.

    The states of an operator are (directions, B, H), those of a front end (B, size).
    """
    shapes = {i.name: [batch if axis == "B" else axis for axis in i.shape] for i in session.get_inputs()[1:]}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def baseline(
    kind: str, info: dict[str, Any], weights: Mapping[str, Weight], source: onnx.GraphProto | None = None
) -> onnx.ModelProto:
    """Build a stack of ONNX GRU or LSTM operators, without residual blocks, with the head of an exported file.

    Args:
        kind: The operator, gru or lstm.
        info: Metadata of the exported file, which has the sizes.
        weights: Weights of the file. They are used if the operator computes the same function as the file's layers,
            else random weights.
        source: Graph of the file, from which the nodes of an audio front end are copied. Default: no front end.

    Returns:
        The ONNX model. Its inputs are x (T, B, I), or word indices (T, B) as int64, and the initial states.

    Raises:
        EdgernnError: A weight of the file has another shape than the sizes in the metadata require.
    """
    directions = _directions(info)
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    initialisers: dict[str, Array] = {}
    x = "x"
    if "embedding.E" in weights:
        inputs = [helper.make_tensor_value_info(x, TensorProto.INT64, ("T", "B"))]
        initialisers["embedding.E"] = weights["embedding.E"].floats
        nodes.append(helper.make_node("Gather", ["embedding.E", x], ["rows"]))
        x = "rows"
    else:
        inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ("T", "B", info["model"]["input"]["size"]))]
    front = [] if source is None else [node for node in source.node if node.name.startswith(_FRONTEND)]
    if front:
        nodes += front
        x = front[-1].output[0]
    if "input.mean" in weights:
        initialisers |= {"mean": weights["input.mean"].floats, "std": weights["input.std"].floats}
        nodes += [
            helper.make_node("Sub", [x, "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "std"], ["xs"]),
        ]
        x = "xs"
    for layer, shapes in enumerate(_shapes(kind, info)):
        H = shapes[1][1]
        parts = []
        for direction in range(directions):
            name = f"layer{layer}{'.reverse' * direction}"
            if is_same(kind, info):
                W, R, b = (weights[f"{name}.{p}"].floats for p in ("W", "R", "b"))
                if (W.shape, R.shape, b.shape) != shapes:
                    raise EdgernnError(
                        f"{name}: expected W, R and b of the shapes {shapes}, got {(W.shape, R.shape, b.shape)}; "
                        "export the model again"
                    )
            else:
                W, R, b = ((random.standard_normal(s) / (2 * np.sqrt(H))).astype(np.float32) for s in shapes)
            parts.append(_operator(kind, W, R, b))
        for key in parts[0]:
            initialisers[f"{layer}.{key}"] = np.concatenate([p[key] for p in parts]).astype(np.float32)
        states = [f"h{layer}"] + ([f"c{layer}"] if kind == "lstm" else [])
        inputs += [helper.make_tensor_value_info(s, TensorProto.FLOAT, (directions, "B", H)) for s in states]
        extra = {"linear_before_reset": 1} if kind == "gru" else {}
        nodes.append(
            helper.make_node(
                kind.upper(),
                [x, f"{layer}.W", f"{layer}.R", f"{layer}.B", "", *states],
                [f"{layer}.Y", *(f"{s}.next" for s in states)],
                hidden_size=H,
                direction="bidirectional" if directions == 2 else "forward",
                **extra,
            )
        )
        # (T, directions, B, H) to (T, B, directions * H)
        initialisers["sequence_shape"] = np.array([0, 0, -1], np.int64)
        nodes += [
            helper.make_node("Transpose", [f"{layer}.Y"], [f"{layer}.t"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"{layer}.t", "sequence_shape"], [f"{layer}.out"]),
        ]
        x = f"{layer}.out"
    if info["model"]["head"]["output"] == "last":
        initialisers["last_shape"] = np.array([0, -1], np.int64)
        last = f"h{info['model']['layers'] - 1}.next"
        nodes += [
            helper.make_node("Transpose", [last], ["last"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["last", "last_shape"], ["top"]),
        ]
        x = "top"
    if "head.b" in weights:
        # a tied head shares the embedding's matrix
        matrix = weights["head.W.T" if "head.W.T" in weights else "embedding.E"].floats.T
        initialisers |= {"head.W": np.ascontiguousarray(matrix), "head.b": weights["head.b"].floats}
        nodes += [
            helper.make_node("MatMul", [x, "head.W"], ["product"]),
            helper.make_node("Add", ["product", "head.b"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", [x], ["y"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    outputs += [helper.make_tensor_value_info(f"{i.name}.next", TensorProto.FLOAT, None) for i in inputs[1:]]
    tensors = [numpy_helper.from_array(value, name) for name, value in initialisers.items()]
    if source is not None:
        inputs += [value for value in source.input if value.name.startswith(_FRONTEND)]
        outputs += [value for value in source.output if value.name.startswith(_FRONTEND)]
        tensors += [tensor for tensor in source.initializer if tensor.name.startswith(_FRONTEND)]
    graph = helper.make_graph(nodes, kind, inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
