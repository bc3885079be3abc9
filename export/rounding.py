# SPDX-License-Identifier: Apache-2.0
"""Weights of fewer bytes: how matrices are rounded, and how a file carries them."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from edgernn.errors import UsageError, nearest
from edgernn.layer import RecurrentLayer
from edgernn.model import SequenceModel

# the bits of a weight, by the name of its type
WEIGHTS = {"float32": 32, "bfloat16": 16, "int8": 8}
# of int8 in the native library, which multiplies with whole numbers of 16 bits
WHOLE_NUMBERS = 1e-3


# how much worse a metric may be: one of which more is better, and so a share of 1, by so much; others by this share
POINTS, SHARE = 0.005, 0.02


@dataclass(frozen=True)
class Loss:
    """A metric on the test sequences with float32 and with rounded weights."""

    metric: str
    before: float
    after: float
    higher_is_better: bool

    @property
    def is_large(self) -> bool:
        """Whether it is worse by more than half a point or, where less is better, by more than 2 %."""
        if self.higher_is_better:
            return self.before - self.after > POINTS
        return self.after - self.before > SHARE * abs(self.before)


def rounded(model: SequenceModel, weights: str) -> SequenceModel:
    """The model with its matrices as a file with such weights has them; itself for float32.

    bfloat16: the upper half of a float32, rounded to the nearest. int8: W_ij = s_i q_ij with a scale a row,
    s_i = max_j |W_ij| / 127 rounded to bfloat16, and q_ij = W_ij / s_i rounded. Vectors stay as they are.
    Raises UsageError for another type.
    """
    if weights not in WEIGHTS:
        raise nearest("weights", weights, WEIGHTS)
    if weights == "float32":
        return model
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(_rounded(parameter, weights))
    return model


def _rounded(matrix: Tensor, weights: str) -> Tensor:
    if weights == "bfloat16":
        return matrix.to(torch.bfloat16).to(matrix.dtype)
    q, scale = whole(matrix)
    return q * scale.to(matrix.dtype)


def whole(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Q (rows, columns), of which one a row is 127 or -127, and s (rows, 1)."""
    most = matrix.abs().amax(1, keepdim=True)
    # rounded by at most 1/512, so that the most is 126.75 to 127.25 of it: 127; but of numbers below 1e-36
    scale = (most / 127).to(torch.bfloat16)
    return (matrix / torch.where(scale == 0, 1, scale)).round().clamp(-127, 127).to(torch.int8), scale


def check_goes_with(layers: list[RecurrentLayer], weights: str) -> None:
    """Raises UsageError where smaller weights would undo what makes a model small otherwise."""
    if weights != "float32" and any(layer.cell.is_sparse for layer in layers):
        raise UsageError(f"weights: {weights} does not go with density, whose blocks of zeros are left out of float32")
