# SPDX-License-Identifier: Apache-2.0
"""Order of the gates in the weights of ONNX's operators GRU and LSTM, and in those of edgernn's cells."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# order of the gates in the rows of the input weights W and the recurrent weights R; n and g are the candidate states
ONNX_GATES = {"gru": ("z", "r", "n"), "lstm": ("i", "o", "f", "g")}
CELL_GATES = {"gru": ("r", "z", "n"), "lstm": ("i", "f", "g", "o")}


def to_onnx_order(kind: str, weight: NDArray[Any]) -> NDArray[Any]:
    """Reorder the rows of a weight of edgernn's cell gru or lstm (`kind`) to the order of the ONNX operator."""
    return _reordered(weight, CELL_GATES[kind], ONNX_GATES[kind])


def to_cell_order(kind: str, weight: NDArray[Any]) -> NDArray[Any]:
    """Reorder the rows of a weight of ONNX's GRU or LSTM (`kind` is gru or lstm) to the order of edgernn's cell."""
    return _reordered(weight, ONNX_GATES[kind], CELL_GATES[kind])


def _reordered(weight: NDArray[Any], source: tuple[str, ...], target: tuple[str, ...]) -> NDArray[Any]:
    blocks = dict(zip(source, np.split(weight, len(source)), strict=True))
    return np.concatenate([blocks[gate] for gate in target])
