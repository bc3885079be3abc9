# SPDX-License-Identifier: Apache-2.0
"""The kind of rules that decide from the index of the time step alone (`Timed`)."""

import abc
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.rules.base import Decision, Memory, UpdateRule


class Timed(UpdateRule, abc.ABC):
    """The kind of rules whose mask u follows from the index of the step alone, and is known before a sequence begins.

    A subclass defines `share`. The rule's state rule_t (B, 1) counts the steps.
    """

    memory: ClassVar[Mapping[str, Memory]] = {"rule_t": Memory(0)}

    @abc.abstractmethod
    def share(self, t: Tensor) -> Tensor:
        """Return the update mask u (..., H) at the steps t (..., 1): 0 keeps a neuron's state, 1 updates it fully."""

    def shares(self, steps: int, memory: State) -> Tensor:
        t = memory[0] + torch.arange(steps, device=memory[0].device)[:, None, None]
        if t.requires_grad or type(t) is not Tensor:
            # in the second case there may be no values to compare, as in a traced program
            return self.share(t)
        # most sequences of a batch share the same t
        distinct, indices = torch.unique(t.squeeze(-1), return_inverse=True)
        return self.share(distinct.unsqueeze(1))[indices]

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        return Decision(self.share(memory[0]))

    def advanced(self, memory: State, steps: int) -> State:
        return (memory[0] + steps,)

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        return self.advanced(memory, 1)
