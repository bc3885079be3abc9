# SPDX-License-Identifier: Apache-2.0
"""The loop over time as one CUDA graph each way: for layers with a normalisation, which have no kernels on a GPU, and
for states so wide that our kernels do not pay.

All launches of a sequence are recorded once a shape, and then replayed by one call; the products are cuBLAS's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.layer import RecurrentLayer, Trace
from edgernn.training.kernels.common import check

Recorded = Callable[..., tuple[Tensor, ...]]
Capture = Callable[[nn.Module, tuple[Tensor, ...]], Recorded]
# of one layer; a recording holds all that its sequences make
_KEPT = 4


class _Steps(nn.Module):
    """A layer's loop, from and to tensors alone: y, the last state, the budget, and the decisions if there are any."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer
        self.train(layer.training)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        y, last, trace = self.layer(x, state)
        return (y, *last, trace.budget, *(() if trace.decisions is None else (trace.decisions,)))


def _capture(steps: nn.Module, given: tuple[Tensor, ...]) -> Recorded:
    record: Any = torch.cuda.make_graphed_callables
    recorded: Recorded = record(steps, given, allow_unused_input=True)
    return recorded


class GraphUnroller:
    """Replays the loop of the layer that it is called for.

    It leaves to the loop: tensors on other devices, forwards without gradients, weights that stand in for the layer's
    own for one forward, a second forward before the first one's backward, whose values it would overwrite, and a batch
    whose statistics several processes share.
    capture: records a module for inputs of some shapes.
    """

    name = "graphs"

    def __init__(
        self, capture: Callable[..., Callable[..., tuple[Tensor, ...]]] = _capture, device: str = "cuda"
    ) -> None:
        self._capture, self._device = capture, device
        self._recorded: dict[tuple[object, ...], Recorded] = {}
        self._weights: list[nn.Parameter] = []
        self._inside = self._open = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphUnroller":
        return GraphUnroller(self._capture, self._device)

    def __call__(self, layer: RecurrentLayer, x: Tensor, state: State) -> tuple[Tensor, State, Trace] | None:
        if self._inside or self._open or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if any(getattr(norm, "total", None) is not None for norm in layer.cell.norms.values()):
            return None
        weights = list(layer.parameters())
        if any(tensor.device.type != self._device for tensor in (x, *state, *weights)):
            return None
        check(layer, x, state)
        if not self._recorded:
            self._weights = weights
        if len(weights) != len(self._weights) or any(a is not b for a, b in zip(weights, self._weights, strict=True)):
            return None
        # a rule's slope is a number that a recording does not see change
        key = (
            *((t.shape, t.dtype, t.requires_grad) for t in (x, *state)),
            *(t.requires_grad for t in weights),
            layer.training,
            getattr(layer.rule, "slope", None),
        )
        self._inside = True
        try:
            made = (self._recorded.get(key) or self._record(key, layer, (x, *state)))(x, *state)
        finally:
            self._inside = False
        if made[0].grad_fn is not None:
            self._open = True
            made[0].grad_fn.register_hook(self._close)
        # the next replay writes to the same memory
        y, *rest = (tensor.clone() for tensor in made)
        count = len(layer.states)
        decisions = rest[count + 1] if len(rest) > count + 1 else None
        return y, tuple(rest[:count]), Trace(decisions, rest[count])

    def _record(self, key: tuple[object, ...], layer: RecurrentLayer, given: tuple[Tensor, ...]) -> Recorded:
        while len(self._recorded) >= _KEPT:
            self._recorded.pop(next(iter(self._recorded)))
        examples = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in given)
        # recording runs the steps some times, which must not move the averages of a normalisation
        before = [buffer.clone() for buffer in layer.buffers()]
        self._recorded[key] = self._capture(_Steps(layer), examples)
        with torch.no_grad():
            for buffer, value in zip(layer.buffers(), before, strict=True):
                buffer.copy_(value)
        return self._recorded[key]

    def _close(self, *_: object) -> None:
        self._open = False
