# SPDX-License-Identifier: Apache-2.0
"""The command line `edgernn`: one module per command, imported when the command is used; `frame` has shared code.

To add a command, write its module and list it in `frame.COMMANDS`.
"""
