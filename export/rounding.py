# SPDX-License-Identifier: Apache-2.0
"""Rounding of a model's weight matrices to bfloat16 and int8."""

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch

from edgernn.errors import UsageError, nearest
from edgernn.layer import RecurrentLayer
from edgernn.model import SequenceModel
from edgernn.own_network import OwnNetwork
from edgernn.rounded_weights import matrices, rounded_matrix
from edgernn.weight_types import WEIGHTS

# a larger loss of the metric is reported: POINTS is absolute, if higher is better; SHARE is relative, if lower is
POINTS, SHARE = 0.005, 0.02


@dataclass(frozen=True)
class Loss:
    """Metric of a model on the test sequences before and after the export rounded its weights, such as to int8."""

    metric: str
    before: float
    after: float
    higher_is_better: bool

    @property
    def is_large(self) -> bool:
        """True if rounding made the metric clearly worse.

        That is a fall by more than 0.005 (half a percentage point) if higher is better, else a rise by more than 2 %.
        """
        if self.higher_is_better:
            return self.before - self.after > POINTS
        return self.after - self.before > SHARE * abs(self.before)


Model = TypeVar("Model", bound=SequenceModel | OwnNetwork)


def rounded(model: Model, weights: str) -> Model:
    """Round the weight matrices W of a model to values that an exported file of the storage type `weights` can hold.

    bfloat16: the upper half of a float32, rounded to nearest. int8: W_ij = s_i q_ij with one scale s_i per row i,
    s_i = max_j |W_ij| / 127 rounded to bfloat16, and q_ij = W_ij / s_i rounded. Vectors are not rounded. Of a network
    of one's own, the matrices are those of recurrent layers, linear maps, embeddings, and convolutions, whose W_i has
    all weights of the output channel i.

    Args:
        model: The model. If it was trained with rounded weights (setting `weights`), these are rounded further.
        weights: Storage type of the matrices: "float32", "bfloat16" or "int8".

    Returns:
        A copy with rounded parameters, whose forward pass rounds nothing; the model itself if nothing is to be rounded.

    Raises:
        UsageError: The type is unknown.
    """
    if weights not in WEIGHTS:
        raise nearest("weights", weights, WEIGHTS)
    if {model.rounding.weights, weights} == {"float32"}:
        return model
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in (matrices(model) if isinstance(model, SequenceModel) else model.stored()).values():
            matrix = rounded_matrix(rounded_matrix(parameter.flatten(1), model.rounding.weights), weights)
            parameter.copy_(matrix.view_as(parameter))
    # the blocks of the model share this object
    model.rounding.weights = "float32"
    return model


def check_goes_with(layers: list[RecurrentLayer], weights: str) -> None:
    """Raise UsageError if a layer has block-sparse recurrent weights and the storage type `weights` is not float32."""
    if weights != "float32" and any(layer.cell.is_sparse for layer in layers):
        raise UsageError(f"weights: expected float32 for a model with block-sparse weights, got {weights}; use float32")
