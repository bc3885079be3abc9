# SPDX-License-Identifier: Apache-2.0
"""Records of the calls of recurrent layers, for losses and statistics, and the names of a layer's own states."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

# name of the state with the previous input, for cells that read it
LAST = "x_last"
# name of the state with the number of steps, for cells that count them
COUNT = "t"


@dataclass(frozen=True)
class Trace:
    """Values that one forward pass of a layer records besides its output, for losses and statistics.

    Attributes:
        decisions: Mask of the updated neurons (T, B, H), or None if every neuron is updated at every step. A rule such
            as delta (`PerColumn`) updates every neuron, but keeps older values in products; the mask is then True
            where the products R h read the new value of h.
        budget: The penalty on updates, a scalar that training adds to the loss with the weight λ (setting lambda).
        imputed: The F features of the input (T, B, F) with missing values filled in, or None without an imputer.
        imputation_loss: Loss of the imputer, or None without an imputer.
        background: Mask (T, B), True at the steps that the task marks as background (no event), or None.
        sent_inputs: With a rule such as delta (`PerColumn`): mask (T, B, columns of W), True where the product
            W x reads the new value of x and not an older one. With any other rule: None.
    """

    decisions: Tensor | None
    budget: Tensor
    imputed: Tensor | None = None
    imputation_loss: Tensor | None = None
    background: Tensor | None = None
    sent_inputs: Tensor | None = None

    def only(self, steps: Tensor) -> "Trace":
        """Return the record of the steps that the mask `steps` (T, B) marks, as masks (number of steps, 1, ...)."""
        masks = {"decisions": self.decisions, "background": self.background, "sent_inputs": self.sent_inputs}
        return replace(self, **{n: mask[steps].unsqueeze(1) for n, mask in masks.items() if mask is not None})


def joined(traces: list[Trace]) -> Trace:
    """Merge the records (`Trace`) of a layer that ran over consecutive parts of a sequence.

    The merged record has the masks of all steps, and the sums of the penalties and of the imputer's losses. Its other
    fields are None. Masks of batches of unequal sizes are merged to one column of steps (T, 1, ...).
    """
    if len(traces) == 1:
        return traces[0]
    decisions = [trace.decisions for trace in traces if trace.decisions is not None]
    sent = [trace.sent_inputs for trace in traces if trace.sent_inputs is not None]
    losses = [trace.imputation_loss for trace in traces if trace.imputation_loss is not None]
    return Trace(
        _concatenated(decisions) if decisions else None,
        torch.stack([trace.budget for trace in traces]).sum(),
        imputation_loss=torch.stack(losses).sum() if losses else None,
        sent_inputs=_concatenated(sent) if sent else None,
    )


def _concatenated(masks: list[Tensor]) -> Tensor:
    if len({mask.shape[1] for mask in masks}) > 1:
        masks = [mask.flatten(0, 1).unsqueeze(1) for mask in masks]
    return torch.cat(masks)


# recurrent modules that each trace of torch.compile has called
_TRACED: "WeakKeyDictionary[Any, set[int]]" = WeakKeyDictionary()


class Recorder:
    """Base class of modules that keep the records of their calls in a training step.

    A step ends where `end_step` says so, where an optimiser has changed the weights, and where training mode or
    gradient mode changes. In a program of torch.compile, it begins with the program.

    Attributes:
        traces: Records of the last call, one per layer.
        earlier: Records of earlier calls in the same step.
        most_calls: Largest number of calls that are kept, as calls that nobody counts must not hold memory; None if
            the end of every step is known.
        training: Whether the module is in training mode, see `torch.nn.Module`.
    """

    traces: list[Trace]
    earlier: list[list[Trace]]
    most_calls: int | None = 8
    training: bool
    _mark: tuple[Any, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a copy has no records of forward passes, as their tensors with gradients cannot be copied
        return {**self.__dict__, "traces": [], "earlier": []}

    def recurrent_layers(self) -> "list[RecurrentLayer]":
        """List the layers in the order of their records."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method recurrent_layers(); define it")

    def record(self, traces: list[Trace]) -> None:
        """Keep the records of a call."""
        if torch.compiler.is_compiling():
            continues = not self._begins_program()
        else:
            weights = [w for layer in self.recurrent_layers() for w in layer.cell._parameters.values() if w is not None]
            versions = sum(0 if w.is_inference() else w._version for w in weights)
            mark = (torch.is_grad_enabled(), self.training, versions, type(traces[0].budget))
            continues, self._mark = mark == self._mark, mark
        earlier = [*self.earlier, self.traces] if continues and self.traces else []
        self.earlier = earlier if self.most_calls is None else earlier[1 - self.most_calls :]
        self.traces = traces

    def begin_pass(self) -> None:
        """Forget all calls before the forward pass of a network, whose calls all belong to one step."""
        self.traces, self.earlier, self.most_calls = [], [], None

    def end_step(self) -> None:
        """Let the next call begin a step."""
        self._mark = None

    def calls(self) -> list[Trace]:
        """Merge the records of all calls in the last step; one record per layer, or none without a call."""
        return [joined(list(traces)) for traces in zip(*self.earlier, self.traces, strict=True)]

    def _begins_program(self) -> bool:
        program = torch._guards.TracingContext.try_get()
        called = set() if program is None else _TRACED.setdefault(program, set())
        begins = id(self) not in called
        called.add(id(self))
        return begins

    # the mark of torch.compiler.assume_constant_result, which would import torch's compiler
    _begins_program._dynamo_marked_constant = True  # type: ignore[attr-defined]
