# SPDX-License-Identifier: Apache-2.0
"""Operators of torch that torch.onnx.export translates to ONNX as given here, in place of its own translation."""

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnxscript import opset18, opset20

from edgernn.surrogate import EVENT


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    # torch's decomposition branches on the weight; this is as exact for weights in [0, 1], with a third of the nodes
    return opset20.Add(start, opset20.Mul(weight, opset20.Sub(end, start)))


def _event(v: Any, height: float, width: float) -> Any:
    # the surrogate derivative is for training alone
    return opset20.Cast(opset20.Greater(v, opset20.Constant(value_float=0.0)), to=onnx.TensorProto.FLOAT)


def _cast(value: Any, dtype: int, non_blocking: bool = False, copy: bool = False, memory_format: Any = None) -> Any:
    # the nodes of torch's decomposition, which takes more time than all else of an export
    return opset18.Cast(value, to=dtype)


def _subtract_from(value: Any, number: float, alpha: float = 1) -> Any:
    # the nodes of torch's decomposition too
    product = value if alpha == 1 else opset20.Mul(value, opset20.CastLike(alpha, value))
    return opset20.Sub(opset20.CastLike(number, value), product)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.lerp.Tensor: _lerp,
    torch.ops.aten.to.dtype: _cast,
    torch.ops.aten.rsub.Scalar: _subtract_from,
    EVENT: _event,
}
