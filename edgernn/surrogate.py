# SPDX-License-Identifier: Apache-2.0
"""A step function with a surrogate derivative, for cells whose neurons emit events."""

from typing import Any

import torch
from torch import Tensor

from edgernn.errors import UsageError

# an operator of torch, and not an autograd function alone, so that tracing and ONNX export see it as one operation
_LIBRARY: Any = torch.library.Library("edgernn", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("event(Tensor v, float height, float width) -> Tensor")
EVENT = torch.ops.edgernn.event.default


def event(v: Tensor, height: float = 0.7, width: float = 1.0) -> Tensor:
    """Return 1 where v > 0, else 0; the gradient is that of a surrogate, a triangle around v = 0.

    d event / d v = height · max(0, 1 - |v| / width)

    A step function has the derivative 0 almost everywhere, so that nothing would learn when to step. Only training
    reads the surrogate: `update` and `mid` of a cell may call this function, and exported files have a comparison in
    its place.

    Args:
        v: Tensor of any shape.
        height: The surrogate derivative at v = 0.
        width: Distance from 0 at which the surrogate derivative becomes 0, above 0.

    Returns:
        A tensor of zeros and ones with the shape and dtype of `v`; 0 where v is NaN.

    Raises:
        UsageError: `width` is not above 0.
    """
    if not width > 0:
        raise UsageError(f"width: expected above 0, got {width}")
    result: Tensor = EVENT(v, height, width)
    return result


def _step(v: Tensor, height: float, width: float) -> Tensor:
    return (v > 0).to(v.dtype)


class _Event(torch.autograd.Function):
    """The step function forwards, the surrogate derivative backwards."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, height: float, width: float) -> Tensor:
        ctx.save_for_backward(v)
        ctx.height, ctx.width = height, width
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = EVENT(v, height, width)
            return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (v,) = ctx.saved_tensors
        return grads[0] * (ctx.height * (1 - v.abs() / ctx.width).clamp_min(0)), None, None


def _differentiable(v: Tensor, height: float, width: float) -> Tensor:
    result: Tensor = _Event.apply(v, height, width)  # type: ignore[no-untyped-call]
    return result


_LIBRARY.impl("event", _step, "CompositeExplicitAutograd")
_LIBRARY.impl("event", _differentiable, "Autograd")
