# SPDX-License-Identifier: Apache-2.0
"""Recurrent batch normalisation for the native training library."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgernn.cells.base import Cell
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.layer import RecurrentLayer

_POINTER = ctypes.c_void_p
# normalised products in the order of EdgernnTrainNorms
_PRODUCTS = ("W", "R", "C", "V")
_STATE = "c"
# the gate o of h = σ(o) ⊙ tanh(N(c)), in every cell that normalises c
_OUTPUT_GATE = "o"


class _Norm(ctypes.Structure):
    """EdgernnTrainNorm; runtime/csrc/train/norms.h describes the fields."""

    _fields_ = [(n, _POINTER) for n in ("gain", "shift", "mean", "var", "normalised", "gain_grad", "shift_grad")]

    def set_tensors(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())


class Norms(ctypes.Structure):
    """EdgernnTrainNorms; runtime/csrc/train/norms.h describes the fields."""

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
        names: Names of the cell's normalisations, in its order: W, R, C and V, if normalised, and "c" for the state.
        learns: True if the call computes the statistics of the batch; false if it reads them.
        means: Means of each step, (T, rows), by name; written by a call that learns.
        variances: Biased variances of each step, (T, rows), by name; written by a call that learns.
        output_gate: Index of the output gate.
    """

    names: tuple[str, ...]
    learns: bool
    means: dict[str, Tensor]
    variances: dict[str, Tensor]
    output_gate: int

    @classmethod
    def of(cls, cell: Cell, first: int, steps: int) -> "BatchNorms":
        """Build the normalisations of a cell for `steps` steps from step `first` on."""
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
        """Number of parameter vectors: one gain per normalisation, and the shift of the state."""
        return len(self.names) + (_STATE in self.names)

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the normalised products, without the state."""
        return tuple(name for name in self.names if name != _STATE)

    def allocate(self, steps: int, batch: int) -> list[Tensor]:
        """Allocate the normalised products of all steps, (steps, B, rows) each."""
        return [torch.empty(steps, batch, self.means[name].shape[1]) for name in self.products]

    def describe(
        self,
        normalised: Sequence[Tensor],
        vectors: Sequence[Tensor | None],
        grads: Sequence[Tensor | None] = (),
    ) -> Norms:
        """Build the C structure of a call.

        Args:
            normalised: Normalised products, as returned by `allocate`.
            vectors: Gains and shift, as returned by `vectors`.
            grads: Tensors for the gradients of the vectors, in a backward call.

        Returns:
            The structure; the tensors must outlive it.
        """
        norms = Norms(self.learns, self.output_gate, RecurrentBatchNorm.eps)
        grads = grads or [None] * len(vectors)
        for name, gain, grad in zip(self.names, vectors, grads, strict=False):
            norm = norms.state if name == _STATE else norms.products[_PRODUCTS.index(name)]
            norm.set_tensors(gain=gain, gain_grad=grad, mean=self.means[name], var=self.variances[name])
        for name, tensor in zip(self.products, normalised, strict=True):
            norms.products[_PRODUCTS.index(name)].set_tensors(normalised=tensor)
        if _STATE in self.names:
            norms.state.set_tensors(shift=vectors[-1], shift_grad=grads[-1])
        return norms

    def follow(self, cell: Cell, first: int) -> None:
        """Update the running statistics of a cell in training by those of the call, from step `first` on."""
        for name, norm in cell.norms.items():
            assert isinstance(norm, RecurrentBatchNorm)
            end = max(first, min(len(norm.mean), first + len(self.means[name])))
            with torch.no_grad():
                norm.mean[first:end].lerp_(self.means[name][: end - first], norm.momentum)
                norm.var[first:end].lerp_(self.variances[name][: end - first], norm.momentum)


def has_statistics(cell: Cell, t: Tensor) -> bool:
    """Check that one call can normalise all samples alike, from its own batch.

    Args:
        cell: The cell. In training, its statistics may be summed over several processes.
        t: Current step of each sample (B, 1). In training, all are equal.

    Returns:
        True if the statistics are those of this process, and the same for all samples.
    """
    if cell.training:
        return all(isinstance(norm, RecurrentBatchNorm) and norm.total is None for norm in cell.norms.values())
    return bool((t == t[0]).all())


def vectors(cell: Cell) -> list[Tensor]:
    """Gains of a cell's normalisations, in their order, and the shift of its state."""
    norms = [norm for norm in cell.norms.values() if isinstance(norm, RecurrentBatchNorm)]
    gains: list[Tensor] = [norm.gain for norm in norms]
    return gains + [norm.shift for norm in norms if norm.shift is not None]


def refusal(layer: RecurrentLayer) -> str | None:
    """Reason why the kernels cannot normalise in a layer; None if they can, or if it has no normalisation."""
    norm = layer.cell.norm
    if norm is None:
        return None
    if norm.name != RecurrentBatchNorm.name:
        return f"there is no kernel for {layer.kind}"
    if layer.rule.can_skip or not layer.rule.implied:
        return f"there is no kernel for {layer.kind}, with a normalisation under the rule {layer.rule.name}"
    return None
