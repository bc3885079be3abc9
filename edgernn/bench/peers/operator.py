# SPDX-License-Identifier: Apache-2.0
"""A problem as a model of one ONNX GRU or LSTM operator, for the runtimes that read ONNX."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgernn.bench.peers.base import Problem

ORDER = {"gru": ("z", "r", "n"), "lstm": ("i", "o", "f", "g")}


def operator_model(given: Problem, steps: int) -> bytes:
    """T is `steps`. Inputs x (T, B, I), h (1, B, H) and of lstm c; outputs y (T, 1, B, H), h.next and c.next."""
    order, H, B = ORDER[given.cell], given.hidden_size, given.batch
    weights = {
        "W": given.gates(given.W, order)[None],
        "R": given.gates(given.R, order)[None],
        "B": np.concatenate([given.gates(given.b_x, order), given.gates(given.b_h, order)])[None],
    }
    states = list(given.states)
    extra = {"linear_before_reset": 1} if given.cell == "gru" else {}
    node = helper.make_node(
        given.cell.upper(),
        ["x", *weights, "", *states],
        ["y", *(f"{name}.next" for name in states)],
        hidden_size=H,
        **extra,
    )

    def info(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node],
        given.cell,
        [info("x", steps, B, given.input_size), *(info(name, 1, B, H) for name in states)],
        [info("y", steps, 1, B, H), *(info(f"{name}.next", 1, B, H) for name in states)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
