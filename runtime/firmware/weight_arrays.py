# SPDX-License-Identifier: Apache-2.0
"""Order of the weights in memory for the generated C code, whose products read four columns at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.model_content import LayerContent, biased_gates, gate_rows
from edgernn.runtime.weights import Weight

# columns that a product reads at a time
BLOCK = 4
# rows that a product of int8 weights computes at a time, and neurons whose sums a step computes before their states
GROUP_ROWS, BLOCK_ROWS = 4, 16
# C types of the elements of matrices, by the name that the functions of engine/edgernn_products.h have for them
C_TYPES = {"float": "float", "bfloat16": "uint16_t", "int8": "int8_t"}


def type_of(matrix: Weight) -> str:
    """Return the name of a matrix's type: float, bfloat16 or int8."""
    if matrix.scales is not None:
        return "int8"
    return "bfloat16" if matrix.values.dtype.kind == "u" else "float"


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
    the last whole block follow as [column][gate]. Those of int8 weights are first padded with zeros to a multiple of
    four; a block has the order [half of the columns][pair of gates][column][gate], in which the bytes of the first gate
    of a pair are larger by 128, and those of a gate without a partner follow in the order of columns 0, 2, 1, 3.
    """
    values = matrix.values
    rows, gates, columns = values.shape
    if matrix.scales is not None:
        values = np.pad(values, ((0, 0), (0, 0), (0, padded(columns) - columns)))
        paired, blocks = gates // 2 * 2, values.shape[2] // BLOCK
        pairs = values[:, :paired].reshape(rows, paired // 2, 2, blocks, 2, 2).transpose(0, 3, 4, 1, 5, 2).copy()
        # w + 128 without a sign has the bits of w with the highest one turned
        pairs[..., 0] ^= -128
        last = values[:, paired:].reshape(rows, gates - paired, blocks, BLOCK)[..., [0, 2, 1, 3]].swapaxes(1, 2)
        parts = pairs.reshape(rows, blocks, BLOCK * paired), last.reshape(rows, blocks, BLOCK * (gates - paired))
        return Weight(np.concatenate(parts, 2).reshape(rows, -1), matrix.scales)
    whole = columns // BLOCK * BLOCK
    in_whole = values[:, :, :whole].reshape(rows, gates, -1, BLOCK).transpose(0, 2, 1, 3).reshape(rows, -1)
    ordered = np.concatenate([in_whole, values[:, :, whole:].transpose(0, 2, 1).reshape(rows, -1)], 1)
    return Weight(np.ascontiguousarray(ordered))


def in_groups(values: NDArray[Any], size: int) -> NDArray[Any]:
    """Reorder (rows, gates, ...) to (groups * gates, size, ...): each gate of `size` rows, which are padded with 0."""
    rows, gates, *columns = values.shape
    values = np.concatenate([values, np.zeros((-rows % size, gates, *columns), values.dtype)])
    return np.moveaxis(values.reshape(-1, size, gates, *columns), 1, 2).reshape(-1, size, *columns)


def in_fours(matrix: Weight) -> tuple[Weight, int]:
    """Reorder a matrix (rows, columns) for linear maps, and count the rows that are in groups of four.

    A group has the order of `in_blocks` for four gates. The rows after the last whole group follow one by one.
    """
    rows = len(matrix.values)
    grouped = rows // 4 * 4
    parts = []
    for part, gates in ((matrix.values[:grouped], 4), (matrix.values[grouped:], 1)):
        if not len(part):
            continue
        scales = None if matrix.scales is None else np.zeros((len(part) // gates, gates), np.float32)
        parts.append(in_blocks(Weight(part.reshape(-1, gates, part.shape[1]), scales)).values.ravel())
    return Weight(np.concatenate(parts), matrix.scales), grouped
