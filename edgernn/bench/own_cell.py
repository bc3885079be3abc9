# SPDX-License-Identifier: Apache-2.0
"""A custom cell whose equations the native library interprets: those of `gru` under another name."""

from edgernn.cells import GRU


class OwnGRU(GRU):
    """The gated recurrent unit; see `edgernn.cells.gru`."""

    name = "own-gru"
