# SPDX-License-Identifier: Apache-2.0
"""The cells, one file a family. To add one: its file, a line in CELLS."""

from edgernn.cells.base import Cell, Gate, Gates, State
from edgernn.cells.gru import GRU, GRUBefore
from edgernn.cells.lstm import LSTM
from edgernn.cells.pru import PRU

CELLS: dict[str, type[Cell]] = {
    cell.name: cell
    for cell in (
        GRU,
        GRUBefore,
        LSTM,
        PRU,
    )
}

__all__ = ["CELLS", "GRU", "LSTM", "PRU", "Cell", "GRUBefore", "Gate", "Gates", "State"]
