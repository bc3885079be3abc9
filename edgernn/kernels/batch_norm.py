# SPDX-License-Identifier: Apache-2.0
"""Recurrent batch normalisation in the native training library.

The module builds the arguments of the library's C functions, and updates the running statistics after a call.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from edgernn.cells.base import Cell
from edgernn.cells.norm import RecurrentBatchNorm

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

_POINTER = ctypes.c_void_p
# weights of the products W x, R h, C c and V m, which can be normalised, in the order of EdgernnTrainNorms
_PRODUCTS = ("W", "R", "C", "V")
_STATE = "c"
# the gate o of h = σ(o) ⊙ tanh(N(c)), in every cell that normalises c
_OUTPUT_GATE = "o"


class _Norm(ctypes.Structure):
    """C struct EdgernnTrainNorm: one batch normalisation; runtime/csrc/train/norms.h describes the fields."""

    _fields_ = [(n, _POINTER) for n in ("gain", "shift", "mean", "var", "normalised", "gain_grad", "shift_grad")]

    def set_tensors(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())


class Norms(ctypes.Structure):
    """C struct EdgernnTrainNorms: all normalisations of a cell; runtime/csrc/train/norms.h describes the fields."""

    _fields_ = [
        ("learns", ctypes.c_int64),
        ("output_gate", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("products", _Norm * len(_PRODUCTS)),
        ("state", _Norm),
    ]


@dataclass(frozen=True)
class BatchNorms:
    """The batch normalisations of a cell, as arguments of one call of the training library, which runs T steps.

    Attributes:
        names: Normalised quantities, in the order of `Cell.norms`. "W", "R", "C" and "V" stand for the products of
            these weights with the input x, the state h, the cell state c and the intermediate vector m (`Cell.mid`).
            "c" stands for the cell state itself.
        learns: True in training, where the call computes the statistics of the batch. False in evaluation, where it
            reads the running statistics.
        means: Dict from each of `names` to the means at each step (T, features). In training, the call writes them.
        variances: Dict from each of `names` to the biased variances (T, features). In training, the call writes them.
        output_gate: Index in `Cell.gates` of the output gate o, which multiplies tanh of the normalised cell state; -1
            if the cell state is not normalised.
    """

    names: tuple[str, ...]
    learns: bool
    means: dict[str, Tensor]
    variances: dict[str, Tensor]
    output_gate: int

    @classmethod
    def of(cls, cell: Cell, first: int, steps: int) -> "BatchNorms":
        """Create the arguments of a call that runs a cell for `steps` time steps of a sequence, from step `first` on.

        In training, the means and variances are allocated but not filled. In evaluation, they are copies of the cell's
        running statistics, which it has for each step.
        """
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
        """Number of learned vectors: one gain per normalisation, and a shift if the cell state is normalised."""
        return len(self.names) + (_STATE in self.names)

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the weight matrices whose products are normalised, such as "W" for W x with the input x."""
        return tuple(name for name in self.names if name != _STATE)

    def allocate(self, steps: int, batch: int) -> list[Tensor]:
        """Allocate a tensor (steps, batch, features) for each normalised product, in the order of `products`."""
        return [torch.empty(steps, batch, self.means[name].shape[1]) for name in self.products]

    def describe(
        self,
        normalised: Sequence[Tensor],
        vectors: Sequence[Tensor | None],
        grads: Sequence[Tensor | None] = (),
    ) -> Norms:
        """Build the C structure with the normalisations of a call.

        Args:
            normalised: Tensors for the normalised products, from `allocate`.
            vectors: Learned gains and shift, from the function `vectors` of this module.
            grads: Tensors that a backward call fills with the gradients of `vectors`; empty for a forward call.

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
        """Update a cell's running statistics with the `means` and `variances` that a training call computed.

        `first` is the index of the call's first step in the sequence. Steps after the last one that has running
        statistics are ignored.
        """
        for name, norm in cell.norms.items():
            assert isinstance(norm, RecurrentBatchNorm)
            end = max(first, min(len(norm.mean), first + len(self.means[name])))
            with torch.no_grad():
                norm.mean[first:end].lerp_(self.means[name][: end - first], norm.momentum)
                norm.var[first:end].lerp_(self.variances[name][: end - first], norm.momentum)


def has_statistics(cell: Cell, t: Tensor) -> bool:
    """Check whether one call of the training library can compute or read the statistics that a batch needs.

    Args:
        cell: The cell.
        t: Number of steps that each sample has done before the call (B, 1). In training, all are equal.

    Returns:
        True if it can. In training, it cannot if the statistics are summed over several processes. In evaluation, it
        cannot if samples are at different steps, which need different running statistics.
    """
    if cell.training:
        return all(isinstance(norm, RecurrentBatchNorm) and norm.total is None for norm in cell.norms.values())
    return bool((t == t[0]).all())


def vectors(cell: Cell) -> list[Tensor]:
    """List the learned vectors of a cell's batch normalisations.

    The list has the gain of each normalisation, in the order of `Cell.norms`. Only the normalisation of the cell state
    has a shift; if there is one, it is the last element.
    """
    norms = [norm for norm in cell.norms.values() if isinstance(norm, RecurrentBatchNorm)]
    gains: list[Tensor] = [norm.gain for norm in norms]
    return gains + [norm.shift for norm in norms if norm.shift is not None]


def refusal(layer: "RecurrentLayer") -> str | None:
    """Return the reason why the CPU kernels cannot run the normalisation of a layer.

    None is returned if they can run it, or if the layer has no normalisation.
    """
    norm = layer.cell.norm
    if norm is None:
        return None
    if norm.name != RecurrentBatchNorm.name:
        return (
            f"there is no kernel for {layer.kernel_name}: kernels support no normalisation but "
            f"norm={RecurrentBatchNorm.name}"
        )
    if layer.rule.can_skip:
        return (
            f"there is no kernel for {layer.kernel_name}: no kernel has both a normalisation and the rule "
            f"{layer.rule.name}"
        )
    return None
