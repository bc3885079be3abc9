# SPDX-License-Identifier: Apache-2.0
"""The bias that a forget gate may have as an option."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import torch

from edgernn.cells.base import Cell, Parts
from edgernn.errors import UsageError


class ForgetBias(Cell):
    """A cell whose forget gate has a learned bias (H,) as an option, and none in its paper's equations.

    forget_bias: the value at which the bias starts; None: no bias.
    forget_gate: name of the gate. forget_sign: -1 where it is the input gate 1 - f, whose bias starts at minus that
    value.
    """

    forget_gate: ClassVar[str] = "f"
    forget_sign: ClassVar[int] = 1
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"forget_bias": (None, 0.0)}

    def __init__(
        self, input_size: int, hidden_size: int, forget_bias: float | None = None, **parts: Unpack[Parts]
    ) -> None:
        if forget_bias is not None:
            if isinstance(forget_bias, bool) or not isinstance(forget_bias, int | float):
                raise UsageError(f"forget_bias: expected a number or None, got {forget_bias!r}")
            self.gates = tuple(replace(g, bias=True) if g.name == self.forget_gate else g for g in self.gates)
        self.forget_bias = forget_bias
        super().__init__(input_size, hidden_size, **parts)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.forget_bias is not None:
            self._biases()[self.forget_gate].fill_(self.forget_sign * self.forget_bias)
