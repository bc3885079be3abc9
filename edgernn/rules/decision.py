# SPDX-License-Identifier: Apache-2.0
"""Decision of an update rule at a step (`Decision`), its scope (`Kind`), and the states of a rule (`Memory`)."""

import enum
from dataclasses import dataclass

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
        score: Result of `UpdateRule.score`, from which u follows. None if the rule computes no score.
        sent: Only for the rule delta: tensors (B, columns of W) and (B, H) that matrix products read in place of x and
            h. Each value is new or that of an earlier step. All neurons change; u is 1 where the value of h is new.
        sent_inputs: Only for the rule delta: mask (B, columns of W), True where the value read in place of x is new.
        read: Only for the rule delta with learned thresholds: the values of `sent` with gradients to the thresholds,
            which matrix products read. None if they read `sent`.
        sums: Only for the rule delta: pre-activations (B, P) of all gates that read x or h, computed from `sent`.
    """

    u: Tensor | None
    likelihood: Tensor | None = None
    masks: tuple[Tensor, Tensor] | None = None
    score: Tensor | None = None
    sent: tuple[Tensor, Tensor] | None = None
    sent_inputs: Tensor | None = None
    read: tuple[Tensor, Tensor] | None = None
    sums: Tensor | None = None

    @property
    def operands(self) -> tuple[Tensor, Tensor] | None:
        """Tensors that matrix products read in place of x and h: `read`, or else `sent`."""
        return self.sent if self.read is None else self.read


class Kind(enum.Enum):
    """Scope of one decision of an update rule, such as a neuron or a whole sample, and the values it depends on."""

    TIME = enum.auto()
    """The index of the step alone determines the mask u, so that u of a whole sequence is known before it begins."""
    NEURON = enum.auto()
    """One decision for each neuron, or each group of `group_size` neurons, from the input and its own last state."""
    SAMPLE = enum.auto()
    """One decision for the whole state of a sample, from the rule's own states (`Memory`)."""
    COLUMN = enum.auto()
    """One decision for each value of x and h: products read either its new value or the one they read before."""
    GATE = enum.auto()
    """One decision for all neurons of a sample together, from the pre-activations of the cell's update gate."""

    @property
    def size(self) -> str:
        """Size of the states (`Memory`) that kernels support for rules with equations: "H" for NEURON, else "1"."""
        return "H" if self is Kind.NEURON else "1"

    @property
    def by_hand(self) -> bool:
        """True if the library's rules of this kind have no equations: kernels have their decisions written by hand."""
        return self in (Kind.COLUMN, Kind.GATE)


@dataclass(frozen=True)
class Memory:
    """State that an update rule carries from step to step, besides the states of the cell.

    Fused kernels, which run a layer in training or in the native library, support only states of the size `Kind.size`.
    One exception: kernels of rules that decide per value of x and h (`Kind.COLUMN`) support every size but "I".
    Where no kernel supports the size, the rule is trained without a fused kernel, and exported as a function of
    standard ONNX operators.

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
