# SPDX-License-Identifier: Apache-2.0
"""The command line `edgernn`: one module per command, imported when it is used; `frame` has the shared parts."""
