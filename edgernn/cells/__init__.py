# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells, one file per family.

`base` has the base class, `gate`, `vector`, `recurrent` and `norm` its parts, and `forget` an option of several cells.
To add a cell, write its file, list its class, and add its equations in NumPy to `tests/oracle_cells.py`. List it in
COMPILED if the native libraries get a compiled kernel for it. List it in CELLS alone if the libraries are to interpret
its equations. See `docs/how-to/add-a-cell.md`.
"""

from edgernn.extras import needed_by

with needed_by("edgernn.cells"):
    from edgernn.cells.base import Cell, Gate, Gates, State, UpdateGate
    from edgernn.cells.decaynet import DecayNet
    from edgernn.cells.egru import EGRU
    from edgernn.cells.eins import EINS
    from edgernn.cells.fastgrnn import FastGRNN, FastGRNNSplit
    from edgernn.cells.forget import ForgetBias
    from edgernn.cells.gru import GRU, GRUBefore
    from edgernn.cells.irc import IHCLSTM, IRCGRU, IRCLSTM, IRCSRU, IRCTLSTM, IRCFastGRNN
    from edgernn.cells.lru import LRU
    from edgernn.cells.lstm import LSTM, LSTMPeephole
    from edgernn.cells.minimal import MinGRU, MinLSTM
    from edgernn.cells.pru import PRU
    from edgernn.cells.rnn import RNN
    from edgernn.cells.sru import SRU
    from edgernn.cells.tlstm import TLSTM
    from edgernn.cells.vector import Vector


def _by_name(*cells: type[Cell]) -> dict[str, type[Cell]]:
    return {cell.name: cell for cell in cells}


# cells whose kernels are compiled into the native libraries; runtime/csrc/generate.py writes their C++ code
COMPILED = _by_name(
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
# all cells of the package; the libraries run the other ones as they run a user's cell, from the equations as data
CELLS = COMPILED | _by_name(MinGRU, MinLSTM, LRU, EGRU)

__all__ = [
    "CELLS",
    "COMPILED",
    "EGRU",
    "EINS",
    "GRU",
    "IHCLSTM",
    "IRCGRU",
    "IRCLSTM",
    "IRCSRU",
    "IRCTLSTM",
    "LRU",
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
    "MinGRU",
    "MinLSTM",
    "State",
    "UpdateGate",
    "Vector",
]
