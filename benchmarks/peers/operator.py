# SPDX-License-Identifier: Apache-2.0
"""Model of a single ONNX GRU or LSTM operator, for the runtimes that read ONNX."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers.base import Problem
from edgernn.runtime.onnx_gates import ONNX_GATES


def operator_model(problem: Problem, steps: int) -> bytes:
    """Build a serialised ONNX model with one GRU or LSTM operator.

    The inputs are x (T, B, I), h (1, B, H) and, for lstm, c; the outputs y (T, 1, B, H), h.next and c.next.
    """
    order, H, B = ONNX_GATES[problem.cell], problem.hidden_size, problem.batch
    weights = {
        "W": problem.gates(problem.W, order)[None],
        "R": problem.gates(problem.R, order)[None],
        "B": np.concatenate([problem.gates(problem.b_x, order), problem.gates(problem.b_h, order)])[None],
    }
    states = list(problem.states)
    extra = {"linear_before_reset": 1} if problem.cell == "gru" else {}
    node = helper.make_node(
        problem.cell.upper(),
        ["x", *weights, "", *states],
        ["y", *(f"{name}.next" for name in states)],
        hidden_size=H,
        **extra,
    )

    def info(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node],
        problem.cell,
        [info("x", steps, B, problem.input_size), *(info(name, 1, B, H) for name in states)],
        [info("y", steps, 1, B, H), *(info(f"{name}.next", 1, B, H) for name in states)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
