# SPDX-License-Identifier: Apache-2.0
"""The cells, one file a family. To add one: its file, a line in CELLS."""

from edgernn.cells.base import Cell, Gate, Gates, State, Vector
from edgernn.cells.eins import EINS
from edgernn.cells.fastgrnn import FastGRNN, FastGRNNSplit
from edgernn.cells.gru import GRU, GRUBefore
from edgernn.cells.irc import IHCLSTM, IRCGRU, IRCLSTM, IRCFastGRNN
from edgernn.cells.lstm import LSTM
from edgernn.cells.pru import PRU
from edgernn.cells.rnn import RNN

CELLS: dict[str, type[Cell]] = {
    cell.name: cell
    for cell in (
        RNN,
        GRU,
        GRUBefore,
        LSTM,
        PRU,
        EINS,
        IRCGRU,
        IRCLSTM,
        IRCFastGRNN,
        IHCLSTM,
        FastGRNN,
        FastGRNNSplit,
    )
}

__all__ = [
    "CELLS",
    "EINS",
    "GRU",
    "IHCLSTM",
    "IRCGRU",
    "IRCLSTM",
    "LSTM",
    "PRU",
    "RNN",
    "Cell",
    "FastGRNN",
    "FastGRNNSplit",
    "GRUBefore",
    "Gate",
    "Gates",
    "IRCFastGRNN",
    "State",
    "Vector",
]
