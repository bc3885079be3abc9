# SPDX-License-Identifier: Apache-2.0
"""The default update rule, which updates every neuron at every step, as in an ordinary recurrent network."""

from torch import Tensor

from edgernn.cells.base import State
from edgernn.rules.base import Decision, UpdateRule


class Always(UpdateRule):
    """Every neuron changes at every step: u_t = 1."""

    name = "always"
    can_skip = False
    skips_zeros = True

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        return Decision(None)
