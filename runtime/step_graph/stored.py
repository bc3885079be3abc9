# SPDX-License-Identifier: Apache-2.0
"""Rounds the matrices of a plan to a smaller storage type."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.step_graph.steps import Layer, Linear, Recurrent, Step
from edgernn.runtime.weights import Weight
from edgernn.weight_types import WeightType

# share of the weights that is small, as 1 / _SMALL
_SMALL = 16


def stored(matrix: NDArray[Any], weights: WeightType) -> Weight:
    """Round a matrix W (rows, columns) to a storage type.

    bfloat16: the upper half of a float32, rounded to nearest. int8: W_ij = s_i q_ij with one scale s_i per row i,
    s_i = max_j |W_ij| / 127 rounded to bfloat16, and q_ij = W_ij / s_i rounded.
    """
    values = np.asarray(matrix, np.float32)
    if weights == "float32":
        return Weight(values)
    if weights == "bfloat16":
        return Weight(_bfloat16(values))
    scales = Weight(_bfloat16(np.abs(values).max(1, keepdims=True) / np.float32(127))).floats
    whole = np.rint(values / np.where(scales == 0, np.float32(1), scales)).clip(-127, 127)
    return Weight(whole.astype(np.int8), scales)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def store_matrices(steps: Sequence[Step], weights: WeightType, *, are_rounded: bool = False) -> None:
    """Round the float32 matrices of linear maps and layers to a storage type.

    The smallest maps and layers, up to a sixteenth of all weights, stay bfloat16 in place of int8: this costs little
    memory, and they often have the last word. Vectors and the weights of depthwise convolutions stay float32.

    Args:
        steps: The steps, which are changed. Steps that share a layer still do afterwards.
        weights: The storage type.
        are_rounded: True if the matrices have values of this type; then the small ones are stored in it, too.
    """
    parts: dict[int, Linear | Layer] = {}
    for step in steps:
        if isinstance(step, Linear | Recurrent):
            part = step if isinstance(step, Linear) else step.layer
            parts[id(part)] = part
    types, small = dict.fromkeys(parts, weights), sum(map(_size, parts.values())) // _SMALL
    for key in sorted(parts, key=lambda key: _size(parts[key])) if weights == "int8" and not are_rounded else ():
        small -= _size(parts[key])
        if small < 0:
            break
        types[key] = "bfloat16"
    layers = {key: _stored(part, types[key]) for key, part in parts.items() if isinstance(part, Layer)}
    for step in steps:
        if isinstance(step, Linear):
            step.stored = stored(step.W, types[id(step)])
        elif isinstance(step, Recurrent):
            step.layer = layers[id(step.layer)]


def _is_matrix(weight: Weight) -> bool:
    return weight.values.ndim == 2 and weight.values.dtype.kind == "f"


def _size(part: Linear | Layer) -> int:
    if isinstance(part, Linear):
        return part.W.size
    return sum(weight.values.size for weight in part.weights if _is_matrix(weight))


def _stored(layer: Layer, weights: WeightType) -> Layer:
    return replace(layer, weights=[stored(w.values, weights) if _is_matrix(w) else w for w in layer.weights])
