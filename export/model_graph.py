# SPDX-License-Identifier: Apache-2.0
"""Builder of an ONNX graph: nodes, and weights in the storage type of the export."""

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edgernn.rounded_weights import whole


class ModelGraph:
    """Builder of an ONNX graph's nodes and initialisers; `type` is the storage type of matrices, such as int8."""

    def __init__(self, type: str = "float32") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.type = type

    def weight(self, name: str, value: Any) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def matrix(self, name: str, value: Tensor) -> str:
        """Add a weight as an initialiser and return the name of its float32 value in the graph.

        A learned matrix is stored in the type of the export, such as int8; nodes then convert it to float32.
        """
        if self.type == "float32" or value.ndim != 2 or not isinstance(value, nn.Parameter):
            return self.weight(name, value)
        return self.floats(name, self.kept(name, value))

    def kept(self, name: str, value: Tensor) -> tuple[str, str | None]:
        """Store a matrix as bfloat16 or int8; return the names of its initialiser and of its int8 scales (or None)."""
        names = self.kept_names(name)
        if names[1] is None:
            self._bfloat16(names[0], value)
        else:
            q, scale = whole(value)
            self.weight(names[0], q)
            self._bfloat16(names[1], scale)
        return names

    def _bfloat16(self, name: str, value: Tensor) -> None:
        raw = value.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        self.weights.append(helper.make_tensor(name, TensorProto.BFLOAT16, tuple(value.shape), raw, raw=True))

    def kept_names(self, name: str) -> tuple[str, str | None]:
        """Return the names of a stored matrix's initialisers: values (bfloat16 or int8), and int8 scales or None."""
        return (f"{name}.b", None) if self.type == "bfloat16" else (f"{name}.q", f"{name}.s")

    def floats(self, name: str, kept: tuple[str, str | None]) -> str:
        """Add nodes that convert a stored matrix, or rows of it, to float32; return `name`, the name of the result.

        `kept` is the pair of the names of the bfloat16 or int8 values, and of the int8 scales (rows, 1) or None.
        """
        value, scale = kept
        if scale is None:
            return self._cast(value, name)
        return self.node("Mul", [self._cast(value, f"{name}.q32"), self._cast(scale, f"{name}.s32")], name)

    def _cast(self, value: str, output: str) -> str:
        return self.node("Cast", [value], output, to=TensorProto.FLOAT)

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def reversed(self, value: str, output: str) -> str:
        """Add a node that reverses the first axis (time) of `value`; return `output`, the name of the result."""
        ends = (("last", [-1]), ("first", [-(2**31)]), ("time", [0]), ("back", [-1]))
        known = {w.name for w in self.weights}
        for name, number in ends:
            if f"reverse.{name}" not in known:
                self.weight(f"reverse.{name}", np.array(number, np.int64))
        return self.node("Slice", [value, *(f"reverse.{name}" for name, _ in ends)], output)
