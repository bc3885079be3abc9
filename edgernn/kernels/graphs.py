# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of a layer's loop over time steps, forward and backward.

They run layers with a normalisation, which have no fused kernels on a GPU, and layers so wide that the fused kernels
would be slower. All kernel launches of a sequence are recorded once for each input shape, and replayed by one call.
cuBLAS computes the matrix products.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.kernels.common import Saved, check
from edgernn.layer_trace import Trace

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

Recorded = Callable[..., tuple[Tensor, ...]]
Capture = Callable[[nn.Module, tuple[Tensor, ...]], Recorded]
# limit of the recordings per layer; each holds all intermediate tensors of a sequence
_MOST_RECORDINGS = 4


class _Steps(nn.Module):
    """Module that runs a layer's loop over time steps and returns a flat tuple of tensors, as CUDA graphs need.

    The tuple has the outputs y (T, B, H), the final states, the penalty on updates (scalar) and the masks `decisions`
    and `sent_inputs` of `Trace`. A mask that is None is left out.
    """

    def __init__(self, layer: "RecurrentLayer") -> None:
        super().__init__()
        self.layer = layer
        self.train(layer.training)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        y, last, trace = self.layer(x, state)
        masks = (mask for mask in (trace.decisions, trace.sent_inputs) if mask is not None)
        return (y, *last, trace.budget, *masks)


def _capture(steps: nn.Module, examples: tuple[Tensor, ...]) -> Recorded:
    record: Any = torch.cuda.make_graphed_callables
    recorded: Recorded = record(steps, examples, allow_unused_input=True)
    return recorded


class GraphUnroller:
    """Runs all steps of one layer by replaying a CUDA graph of its loop over time steps.

    A call returns the outputs, the final state and the trace of updates, as `RecurrentLayer.forward` does. It returns
    None in these cases, so that the layer runs its own loop in torch: tensors on another device; a forward pass without
    gradients; weights other than those recorded, such as weights after dropout; a layer with
    `step_weights`; batch statistics that several processes share; and a second forward pass before the backward pass of
    the first, because it would overwrite tensors of the first. `Plan.replays` is False for trainings in which some of
    these cases occur at every step.

    Args:
        capture: Function that records a module on example inputs and returns a function that replays it. Default:
            `torch.cuda.make_graphed_callables`.
        device: Device type of the tensors, such as "cuda".

    Attributes:
        name: "graphs", the name of this implementation of the loop over time steps.
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

    def __call__(
        self, layer: "RecurrentLayer", x: Tensor, state: State, saved: Saved | None = None
    ) -> tuple[Tensor, State, Trace] | None:
        if self._inside or self._open or saved is not None or not torch.is_grad_enabled():
            return None
        if layer.step_weights is not None:
            return None
        if any(getattr(norm, "total", None) is not None for norm in layer.cell.norms.values()):
            return None
        weights = list(layer.parameters())
        if any(tensor.device.type != self._device for tensor in (x, *state, *weights)):
            return None
        # weights after dropout, and rounded ones, are new tensors at every step
        if not all(isinstance(weight, nn.Parameter) for weight in weights):
            return None
        check(layer, x, state)
        if not self._recorded:
            self._weights = weights
        if len(weights) != len(self._weights) or any(a is not b for a, b in zip(weights, self._weights, strict=True)):
            return None
        # a rule's slope is a constant of a recording
        key = (
            *((t.shape, t.dtype, t.requires_grad) for t in (x, *state)),
            *(t.requires_grad for t in weights),
            layer.training,
            getattr(layer.rule, "slope", None),
        )
        self._inside = True
        try:
            outputs = (self._recorded.get(key) or self._record(key, layer, (x, *state)))(x, *state)
        finally:
            self._inside = False
        if outputs[0].grad_fn is not None:
            self._open = True
            outputs[0].grad_fn.register_hook(self._close)
        # the next replay overwrites the outputs
        y, *others = (tensor.clone() for tensor in outputs)
        count = len(layer.states)
        decisions, sent_inputs = (*others[count + 1 :], None, None)[:2]
        return y, tuple(others[:count]), Trace(decisions, others[count], sent_inputs=sent_inputs)

    def _record(self, key: tuple[object, ...], layer: "RecurrentLayer", tensors: tuple[Tensor, ...]) -> Recorded:
        while len(self._recorded) >= _MOST_RECORDINGS:
            self._recorded.pop(next(iter(self._recorded)))
        examples = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors)
        # recording runs the steps several times, which must not change the moving averages of a normalisation
        before = [buffer.clone() for buffer in layer.buffers()]
        self._recorded[key] = self._capture(_Steps(layer), examples)
        with torch.no_grad():
            for buffer, value in zip(layer.buffers(), before, strict=True):
                buffer.copy_(value)
        return self._recorded[key]

    def _close(self, *_: object) -> None:
        self._open = False
