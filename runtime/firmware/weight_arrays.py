# SPDX-License-Identifier: Apache-2.0
"""Order of the weights in memory for the generated C code, whose products read four columns at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.model_content import LayerContent, biased_gates, gate_rows
from edgernn.runtime.weights import Weight

# columns that a product reads at a time
BLOCK = 4


def padded(columns: int) -> int:
    """Round a number of columns up to a multiple of 4; rows of int8 weights are padded with zeros to this length."""
    return -(-columns // BLOCK) * BLOCK


def gate_matrix(layer: LayerContent, name: str, term: int, gates: Sequence[int], columns: slice) -> Weight:
    """Select the rows of some gates from a stacked weight and reshape them to (rows, gates, columns).

    Args:
        layer: The layer.
        name: Name of the weight: W, R, C or V.
        term: The weight's term as a bit of `CellTable.gates`.
        gates: Indices of gates that have the same number of rows.
        columns: Columns to select.

    Returns:
        The values (rows, gates, columns), and for int8 weights the scales (rows, gates).
    """
    weight, rows = layer.weights[name], gate_rows(layer, name, term)
    parts = [slice(first, first + count) for first, count in (rows[gate] for gate in gates)]
    values = np.stack([weight.values[part, columns] for part in parts], 1)
    if weight.scales is None:
        return Weight(values)
    return Weight(values, np.stack([weight.scales[part, 0] for part in parts], 1))


def gate_biases(layer: LayerContent, gates: Sequence[int]) -> NDArray[np.float32]:
    """Return the biases (H or size of m, gates) of the gates with these indices, 0 for a gate without bias."""
    rows, biased = gate_rows(layer, "b", 0), biased_gates(layer)
    count = layer.cell.rows(gates[0], layer.hidden, layer.inputs)
    biases = np.zeros((count, len(gates)), np.float32)
    for i, gate in enumerate(gates):
        if gate in biased:
            first, length = rows[gate]
            biases[:, i] = layer.weights["b"].floats[first : first + length]
    return biases


def in_blocks(matrix: Weight) -> Weight:
    """Reorder a matrix (rows, gates, columns) to (rows, gates * columns), the order in which the C code reads it.

    A row has the weights of all gates for one neuron, in the order [block of four columns][gate][column]. Columns after
    the last whole block follow as [column][gate]. The columns of int8 weights are first padded with zeros to whole
    blocks.
    """
    values = matrix.values
    rows, gates, columns = values.shape
    if matrix.scales is not None:
        values = np.concatenate([values, np.zeros((rows, gates, padded(columns) - columns), values.dtype)], 2)
    whole = values.shape[2] // BLOCK * BLOCK
    blocks = values[:, :, :whole].reshape(rows, gates, -1, BLOCK).transpose(0, 2, 1, 3).reshape(rows, -1)
    ordered = np.concatenate([blocks, values[:, :, whole:].transpose(0, 2, 1).reshape(rows, -1)], 1)
    return Weight(np.ascontiguousarray(ordered), matrix.scales)
