# SPDX-License-Identifier: Apache-2.0
"""The command line: `frame` has the shared parts, and each command is a module that is imported when it is used."""
