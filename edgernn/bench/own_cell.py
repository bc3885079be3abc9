# SPDX-License-Identifier: Apache-2.0
"""A custom cell that the native library runs by its program: the equations of `gru` under another name."""

from edgernn.cells import GRU


class OwnGRU(GRU):
    """The gated recurrent unit; see `edgernn.cells.gru`."""

    name = "own-gru"
