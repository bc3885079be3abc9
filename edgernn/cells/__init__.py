# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells, one file per family. To add a cell, write its file and list it in CELLS."""

from edgernn.cells.base import Cell, Gate, Gates, State, UpdateGate
from edgernn.cells.decaynet import DecayNet
from edgernn.cells.eins import EINS
from edgernn.cells.fastgrnn import FastGRNN, FastGRNNSplit
from edgernn.cells.forget import ForgetBias
from edgernn.cells.gru import GRU, GRUBefore
from edgernn.cells.irc import IHCLSTM, IRCGRU, IRCLSTM, IRCSRU, IRCTLSTM, IRCFastGRNN
from edgernn.cells.lstm import LSTM, LSTMPeephole
from edgernn.cells.pru import PRU
from edgernn.cells.rnn import RNN
from edgernn.cells.sru import SRU
from edgernn.cells.tlstm import TLSTM
from edgernn.cells.vector import Vector

CELLS: dict[str, type[Cell]] = {
    cell.name: cell
    for cell in (
        RNN,
        GRU,
        GRUBefore,
        LSTM,
        LSTMPeephole,
        PRU,
        DecayNet,
        SRU,
        TLSTM,
        EINS,
        IRCGRU,
        IRCLSTM,
        IRCSRU,
        IRCTLSTM,
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
    "IRCSRU",
    "IRCTLSTM",
    "LSTM",
    "PRU",
    "RNN",
    "SRU",
    "TLSTM",
    "Cell",
    "DecayNet",
    "FastGRNN",
    "FastGRNNSplit",
    "ForgetBias",
    "GRUBefore",
    "Gate",
    "Gates",
    "IRCFastGRNN",
    "LSTMPeephole",
    "State",
    "UpdateGate",
    "Vector",
]
