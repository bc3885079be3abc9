# SPDX-License-Identifier: Apache-2.0
"""Rounding of matrices to the types in which an exported file stores them, in training too."""

import torch
from torch import Tensor, nn

from edgernn.weight_types import WEIGHTS, WeightType


def whole(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a matrix W to int8 as W_ij = s_i q_ij; return q (rows, columns) and the bfloat16 scales s (rows, 1).

    The largest |q| of a row is 127, unless all numbers of the row are zero or below 1e-36 in absolute value.
    """
    largest = matrix.abs().amax(1, keepdim=True)
    # bfloat16 rounds s by at most 1/512, so that the largest |W_ij| / s_i rounds to 127, except below 1e-36
    scale = (largest / 127).to(torch.bfloat16)
    return (matrix / torch.where(scale == 0, 1, scale)).round().clamp(-127, 127).to(torch.int8), scale


def rounded_matrix(matrix: Tensor, weights: str) -> Tensor:
    """Round a matrix to values that an exported file of the type `weights` can hold; rounding again changes nothing."""
    if weights == "float32":
        return matrix
    if weights == "bfloat16":
        return matrix.to(torch.bfloat16).to(matrix.dtype)
    q, scale = whole(matrix)
    return q * scale.to(matrix.dtype)


def matrices(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module that an exported file stores in its type of weights, as a dict by name.

    They are all matrices: those of cells, of update rules, of imputers and of the head, and the embedding. Vectors are
    stored as float32.
    """
    return {name: parameter for name, parameter in module.named_parameters() if parameter.ndim == 2}


class Rounding:
    """Rounding of the matrices of a model in its forward passes, so that it is trained for an exported file.

    A matrix W takes part in a forward pass as

        W + a (q(W) - W)

    where q rounds as the export does (`rounded_matrix`). The gradient with respect to W is that with respect to this
    value, as if q(W) were W (straight-through). The optimiser changes W, which checkpoints hold in float32. In
    evaluation, a = 1. In training, a is `share`, which `ramp` raises from 0 to 1, so that the network is first trained
    without the errors of rounding.

    Source: rounded weights in the forward pass and float weights that are updated, as in Jacob et al., "Quantization
    and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018,
    https://arxiv.org/abs/1712.05877, section 3. The ramp is not from there. Training does not quantise
    activations, because the native library quantises them finely, to integers of up to 16 bits.

    Args:
        weights: Type of the matrices in the exported file; float32 rounds nothing.

    Attributes:
        weights: Type of the matrices in the exported file.
        share: The number a of a forward pass in training, from 0 to 1. It is 1 unless `ramp` sets it.
        applied: True if the parameters are those of an exported file of this type. Forward passes then round nothing.
    """

    weights: WeightType
    share: float = 1.0
    applied: bool = False

    def __init__(self, weights: WeightType = "float32") -> None:
        self.weights = weights

    def ramp(self, step: int, steps: int) -> None:
        """Set `share` for a training step: 0 in the first third of the steps, a linear rise in the second, then 1.

        Args:
            step: Index of the training step, from 0.
            steps: Total number of training steps.
        """
        self.share = min(1.0, max(0.0, 3 * step / steps - 1))

    def is_full(self, step: int, steps: int) -> bool:
        """True if the training step with index `step` of `steps` has full rounding, or nothing is rounded."""
        return self.weights == "float32" or 3 * step >= 2 * steps

    def matrix(self, matrix: Tensor, training: bool) -> Tensor:
        """Return W + a (q(W) - W) for a matrix W; a is `share` if `training` is True, else 1."""
        if self.weights == "float32" or self.applied:
            return matrix
        weight = matrix.detach()
        value = torch.lerp(weight, rounded_matrix(weight, self.weights), self.share if training else 1.0)
        # the difference is exactly 0 and has the gradient 1
        return value + (matrix - weight)

    def of(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the rounded values of all matrices of a module, by name; {} if nothing is to be rounded."""
        if self.weights == "float32" or self.applied:
            return {}
        return {name: self.matrix(parameter, module.training) for name, parameter in matrices(module).items()}

    def bytes_saved(self, module: nn.Module) -> int:
        """Count the bytes that this type of weight saves for the matrices of a module, compared with float32.

        An int8 matrix also stores a scale of two bytes for each row, which is subtracted.
        """
        bits = WEIGHTS[self.weights]
        saved = sum(parameter.numel() * (32 - bits) // 8 for parameter in matrices(module).values())
        scales = sum(2 * len(parameter) for parameter in matrices(module).values()) if self.weights == "int8" else 0
        return saved - scales
