# SPDX-License-Identifier: Apache-2.0
"""Base class of cells whose published equations give the forget gate no bias: an option adds one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import torch

from edgernn.cells.base import Cell, Parts
from edgernn.errors import UsageError


class ForgetBias(Cell):
    """Base class of cells with an optional learned bias (H,) of the forget gate, which their papers' equations lack.

    The option forget_bias is the initial value of the bias; None means no bias. The class attribute `forget_gate` is
    the name of the gate that gets the bias. `forget_sign` is 1 if this gate is the forget gate f. It is -1 if the gate
    is an input gate i = 1 - f: its bias then starts at -forget_bias.
    """

    forget_gate: ClassVar[str] = "f"
    forget_sign: ClassVar[int] = 1
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"forget_bias": (None, 0.0)}

    def __init__(
        self, input_size: int, hidden_size: int, forget_bias: float | None = None, **parts: Unpack[Parts]
    ) -> None:
        if forget_bias is not None:
            if isinstance(forget_bias, bool) or not isinstance(forget_bias, int | float):
                raise UsageError(f"forget_bias: expected a number, or None for no bias, got {forget_bias!r}")
            self.gates = tuple(replace(g, bias=True) if g.name == self.forget_gate else g for g in self.gates)
        self.forget_bias = forget_bias
        super().__init__(input_size, hidden_size, **parts)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.forget_bias is not None:
            self._biases()[self.forget_gate].fill_(self.forget_sign * self.forget_bias)
