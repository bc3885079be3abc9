# SPDX-License-Identifier: Apache-2.0
"""Example of a custom cell, which the native library interprets: the equations of `gru` under another name."""

from edgernn.cells import GRU


class OwnGRU(GRU):
    """The gated recurrent unit as a custom cell; see `edgernn.cells.gru`."""

    name = "own-gru"
