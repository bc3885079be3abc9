# SPDX-License-Identifier: Apache-2.0
"""The command line: `frame`, and one module for each command, imported when the command is used."""
