# SPDX-License-Identifier: Apache-2.0
"""What an update rule decides at a step (`Decision`), with which gradient, its states, and shares of work (`Rates`)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgernn.errors import UsageError

# sizes of a memory for each sample: one number, or one for each neuron, input, column of W, or row of the gates that
# read x or h
SIZES = ("1", "H", "I", "W", "P")


@dataclass(frozen=True)
class Decision:
    """Which neurons an update rule selects at one step.

    Attributes:
        u: Update mask (B, H) or (B, 1) in {0, 1}, or in [0, 1] for a soft rule. None if every neuron is updated.
        likelihood: Values that the penalty on updates sums in place of u. None if it sums u.
        masks: Factors (B, I) of x and (B, H) of the states that the cell reads. None if the rule masks neither.
        score: Result of `Scored.score`, from which u follows. None if the rule computes no score.
        sent_inputs: Mask (B, columns of W), True where products read the new value of x. None unless the rule keeps old
            values in products.
    """

    u: Tensor | None
    likelihood: Tensor | None = None
    masks: tuple[Tensor, Tensor] | None = None
    score: Tensor | None = None
    sent_inputs: Tensor | None = None


@dataclass(frozen=True)
class Memory:
    """State that an update rule carries from step to step, besides the states of the cell.

    Fused kernels, which run a layer in training or in the native library, support only states of the size
    `UpdateRule.memory_size`. One exception: kernels of rules that decide per value of x and h (`PerColumn`) support
    every size but "I". Where no kernel supports the size, the rule is trained without a fused kernel, and exported as a
    function of standard ONNX operators.

    Attributes:
        start: Initial value.
        size: Number of values for each sample: "1" for one, "H" for one per neuron, "I" per input, "W" per column of W
            (I, or 2I for x_t and x_{t-1}), "P" per pre-activation of gates that read x or h. Other text raises
            UsageError.
    """

    start: float
    size: str = "1"

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UsageError(f"memory size: expected one of {', '.join(SIZES)}, got {self.size!r}")


class Rates(NamedTuple):
    """How much of a layer's work its steps need, as means over steps and sequences.

    Attributes:
        updates: Share of the neurons that change at a step.
        busy: Share of the steps at which any neuron changes. All other steps also skip the work that neurons share.
            Default: 1, or 0 if no neuron changes.
        inputs: Only for the rule delta: share of the columns of W that products read. Default: `updates`, which is the
            share of the columns of R there.
        keeps_sums: False if kernels compute all products R h anew at each step: if an imputer decays h between steps,
            or the weights are stored as bfloat16 or int8.
    """

    updates: float
    busy: float | None = None
    inputs: float | None = None
    keeps_sums: bool = True

    @property
    def busy_steps(self) -> float:
        return float(self.updates > 0) if self.busy is None else self.busy


class StraightThrough(torch.autograd.Function):
    """Straight-through estimator: returns `result` in the dtype of `source`, to which it passes its gradient."""

    # transforms of torch.func need both
    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing for the backward pass."""

    @staticmethod
    def forward(result: Tensor, source: Tensor) -> Tensor:
        return result.to(source.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]
