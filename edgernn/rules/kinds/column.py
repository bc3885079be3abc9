# SPDX-License-Identifier: Apache-2.0
"""The kind of rules that decide for each value of x and h whether products read it anew (`PerColumn`)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.rules.base import CellInputs, Decision, UpdateRule


@dataclass(frozen=True)
class Sending(Decision):
    """Which values matrix products read at a step, under a rule of the kind `PerColumn`.

    All neurons change; u is 1 where the value of h is new.

    Attributes:
        sent: Tensors (B, columns of W) and (B, H) that products read in place of x and h. Each value is new or that of
            an earlier step.
        read: With learned thresholds: the values of `sent` with gradients to the thresholds. None if products read
            `sent`.
        sums: Pre-activations (B, P) of all gates that read x or h, computed from `operands` by `PerColumn.step`.
    """

    sent: tuple[Tensor, Tensor] = ()  # type: ignore[assignment]
    read: tuple[Tensor, Tensor] | None = None
    sums: Tensor | None = None

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        """Tensors that matrix products read in place of x and h: `read`, or else `sent`."""
        return self.sent if self.read is None else self.read


class PerColumn(UpdateRule):
    """The kind of rules with one decision for each value of x and h: products read its new value, or an older one.

    `decide` gets the cell's input in place of e. Kernels keep the sums of products from step to step, and add the
    effects of changed values.

    Kernels compute the sums in full every `period` steps, and at once if a value of x or h changes by more than
    `largest_change`. With `straight_through` the gradient of a value that products read goes to the current value of x
    or h even where products keep reading an old one.
    """

    kind = "COLUMN"
    by_hand = True
    schedules = False
    projects_ahead = False
    period: ClassVar[int]
    largest_change: ClassVar[float]
    straight_through: bool = True

    @classmethod
    def steerable(cls) -> bool:
        return True

    def decide(self, e: Tensor, state: State, memory: State) -> Sending:
        raise NotImplementedError(f"{self.name}: a rule of the kind {self.kind} needs a method decide(); define it")

    def step(self, cell: Cell, inputs: CellInputs, e: Tensor, memory: State) -> tuple[Decision, State]:
        _, x, state, constants, t = inputs
        decision = self.decide(x, state, memory)
        read_x, read_h = decision.operands
        sums = cell.sums(cell.project(read_x, t), read_h, constants, t)
        return replace(decision, sums=cell.joined_sums(sums)), cell.finish(sums, x, state, constants, t)
