# SPDX-License-Identifier: Apache-2.0
"""The variants of layers that have CUDA kernels (`Form`), for the checks and timings of `gpu_ops`."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from edgernn.cells import COMPILED, EINS, Cell, ForgetBias
from edgernn.cells.recurrent import recurrent_weights
from edgernn.layer import RecurrentLayer
from edgernn.random_models import search_thresholds
from edgernn.rules import RULES, PerColumn, PerSample

# rules that have CUDA kernels
ON_GPU = tuple(
    name
    for name, rule in RULES.items()
    if rule.is_dense() or rule.by_hand or (rule.has_equations() and not (issubclass(rule, PerSample) and rule.pool))
)
GROUPS = "gru+selective in groups of 16"
_RANK, _SHARE = 4, 0.4
# steps and batch size of the input on which thresholds are searched
_SEARCHED = (120, 8)
_OPTIONS: tuple[tuple[str, Callable[..., Cell]], ...] = (
    *COMPILED.items(),
    ("eins", partial(EINS, a="x")),
    ("eins", partial(EINS, a="x", forget_bias=1.0)),
    *((name, partial(cell, forget_bias=1.0)) for name, cell in COMPILED.items() if issubclass(cell, ForgetBias)),
)


@dataclass(frozen=True)
class Form:
    """A variant of a layer (cell, update rule, biases, rank) that has a CUDA kernel of its own.

    Attributes:
        kernel_name: Name of the kernel (`RecurrentLayer.kernel_name`).
        biases: True if gates with an optional bias have one.
        make: Builds the cell from I and H.
        rule: Name of the update rule.
        rank: Rank of the recurrent weights R, or 0 if R is a full matrix.
        square: True if the kernel needs I = H.
        group_size: Number of adjacent neurons that the rule updates or skips together, at most H.
    """

    kernel_name: str
    biases: bool
    make: Callable[..., Cell]
    rule: str
    rank: int
    square: bool
    group_size: int = 1

    def layer(self, I: int, H: int) -> RecurrentLayer:
        """Build the layer; a weight with n columns is drawn from N(0, 1/(4n)), so small that rounding errors decay."""
        cell = self.make(I, H, recurrent=recurrent_weights(self.rank or None))
        options = {} if self.group_size == 1 else {"group_size": min(self.group_size, H)}
        layer = RecurrentLayer(cell, RULES[self.rule](I, H, **options))
        for parameter in cell.parameters():
            nn.init.normal_(parameter, std=0.5 / parameter.shape[-1] ** 0.5)
        if isinstance(layer.rule, PerColumn):
            # the share that thresholds let through depends on the cell
            search_thresholds(layer, torch.randn(*_SEARCHED, I), _SHARE)
        elif layer.rule.can_skip:
            layer.rule.force(_SHARE)
        return layer.eval()


def forms() -> dict[str, Form]:
    """Return a dict from name to `Form` (variant of a layer), for all cells with all rules that have CUDA kernels.

    In the layers of the last two entries, groups of adjacent neurons share an update decision.
    """
    from edgernn.export.native_kernels import without_kernel

    known: dict[str, Form] = {}
    for square, rank, rule, (_, make) in itertools.product((False, True), (0, _RANK), ON_GPU, _OPTIONS):
        sizes = (5, 5) if square else (3, 5)
        cell = make(*sizes)
        # a cell without recurrent weights has no rank
        if RULES[rule].refusal(cell) is not None or (rank and "R" not in dict(cell.named_parameters())):
            continue
        biases = isinstance(cell, ForgetBias) and cell.forget_bias is not None
        layer = RecurrentLayer(make(*sizes, recurrent=recurrent_weights(rank or None)), RULES[rule](*sizes))
        if without_kernel([layer]) is not None:
            continue
        form = Form(layer.kernel_name, biases, make, rule, rank, square)
        known.setdefault(form_name(layer.kernel_name, biases), form)
    known[GROUPS] = replace(known["gru+selective"], group_size=16)
    known["lstm+selective in groups of 7"] = replace(known["lstm+selective"], group_size=7)
    return known


def form_name(kernel_name: str, biases: bool) -> str:
    """Return the name of a layer's variant in reports: that of its kernel, and "with biases" if it has them."""
    return f"{kernel_name} with biases" if biases else kernel_name
