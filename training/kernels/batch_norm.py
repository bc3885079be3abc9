# SPDX-License-Identifier: Apache-2.0
"""Recurrent batch normalisation in calls of the native training library."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgernn.cells.base import Cell
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.layer import RecurrentLayer

_POINTER = ctypes.c_void_p
# the products in the order of EdgernnTrainNorms
_PRODUCTS = ("W", "R", "C", "V")
_STATE = "c"
# of h = σ(o) ⊙ tanh(N(c)), in every cell that normalises c
_OUTPUT_GATE = "o"


class _Norm(ctypes.Structure):
    """EdgernnTrainNorm of runtime/csrc/train/norms.h, which says what each field is."""

    _fields_ = [(n, _POINTER) for n in ("gain", "shift", "mean", "var", "normalised", "gain_grad", "shift_grad")]

    def give(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())


class Norms(ctypes.Structure):
    """EdgernnTrainNorms, likewise."""

    _fields_ = [
        ("learns", ctypes.c_int64),
        ("output_gate", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("products", _Norm * len(_PRODUCTS)),
        ("state", _Norm),
    ]


@dataclass(frozen=True)
class BatchNorms:
    """The normalisations of a cell in one call.

    Attributes:
        names: Those of the cell, in its order: of W, R, C and V, and "c".
        learns: Whether the call makes the statistics, of the batch; else it is given them.
        means: The means of each step, (T, rows), by name; filled by a call that learns.
        variances: The biased variances, likewise.
        output_gate: The number of the output gate.
    """

    names: tuple[str, ...]
    learns: bool
    means: dict[str, Tensor]
    variances: dict[str, Tensor]
    output_gate: int

    @classmethod
    def of(cls, cell: Cell, first: int, steps: int) -> "BatchNorms":
        """The normalisations of a cell for the steps from `first` on."""
        means, variances = {}, {}
        for name, norm in cell.norms.items():
            assert isinstance(norm, RecurrentBatchNorm)
            if cell.training:
                means[name], variances[name] = (norm.mean.new_empty(steps, norm.mean.shape[1]) for _ in range(2))
            else:
                at = torch.arange(first, first + steps).clamp(max=len(norm.mean) - 1)
                means[name], variances[name] = norm.mean[at], norm.var[at]
        gates = [gate.name for gate in cell.gates]
        output = gates.index(_OUTPUT_GATE) if _STATE in means else -1
        return cls(tuple(means), cell.training, means, variances, output)

    @property
    def count(self) -> int:
        """How many vectors there are: a gain each, and the shift of the state."""
        return len(self.names) + (_STATE in self.names)

    @property
    def products(self) -> tuple[str, ...]:
        """The names without that of the state."""
        return tuple(name for name in self.names if name != _STATE)

    def allocate(self, steps: int, batch: int) -> list[Tensor]:
        """Memory for the normalised products of so many steps, (steps, B, rows) each."""
        return [torch.empty(steps, batch, self.means[name].shape[1]) for name in self.products]

    def describe(
        self,
        normalised: Sequence[Tensor],
        vectors: Sequence[Tensor | None],
        grads: Sequence[Tensor | None] = (),
    ) -> Norms:
        """What a call is given: the normalised products, the vectors, and where their gradients go."""
        norms = Norms(self.learns, self.output_gate, RecurrentBatchNorm.eps)
        grads = grads or [None] * len(vectors)
        for name, gain, grad in zip(self.names, vectors, grads, strict=False):
            norm = norms.state if name == _STATE else norms.products[_PRODUCTS.index(name)]
            norm.give(gain=gain, gain_grad=grad, mean=self.means[name], var=self.variances[name])
        for name, tensor in zip(self.products, normalised, strict=True):
            norms.products[_PRODUCTS.index(name)].give(normalised=tensor)
        if _STATE in self.names:
            norms.state.give(shift=vectors[-1], shift_grad=grads[-1])
        return norms

    def follow(self, cell: Cell, first: int) -> None:
        """Move the averages of a cell that is trained towards the statistics of the call."""
        for name, norm in cell.norms.items():
            assert isinstance(norm, RecurrentBatchNorm)
            end = max(first, min(len(norm.mean), first + len(self.means[name])))
            with torch.no_grad():
                norm.mean[first:end].lerp_(self.means[name][: end - first], norm.momentum)
                norm.var[first:end].lerp_(self.variances[name][: end - first], norm.momentum)


def has_statistics(cell: Cell, t: Tensor) -> bool:
    """Whether the statistics of a call are the same for all samples, and all of its own.

    Args:
        cell: The cell; in training its normalisations may share a batch with other processes.
        t: The step that each sample is at, (B, 1); in training all are at that of the first.
    """
    if cell.training:
        return all(isinstance(norm, RecurrentBatchNorm) and norm.total is None for norm in cell.norms.values())
    return bool((t == t[0]).all())


def vectors(cell: Cell) -> list[Tensor]:
    """The gains of a cell's normalisations, in their order, and the shift of its state."""
    norms = [norm for norm in cell.norms.values() if isinstance(norm, RecurrentBatchNorm)]
    gains: list[Tensor] = [norm.gain for norm in norms]
    return gains + [norm.shift for norm in norms if norm.shift is not None]


def refusal(layer: RecurrentLayer) -> str | None:
    """Why the kernels cannot normalise in a layer, or None where they can, or where there is nothing to normalise."""
    norm = layer.cell.norm
    if norm is None:
        return None
    if norm.name != RecurrentBatchNorm.name:
        return f"there is no kernel for {layer.kind}"
    if layer.rule.can_skip or not layer.rule.implied:
        return f"there is no kernel for {layer.kind}, which normalises under the rule {layer.rule.name}"
    return None
