# SPDX-License-Identifier: Apache-2.0
"""Conversion of a model to C99 source for microcontrollers: its weights, and only the code that it needs."""

from edgernn.runtime.firmware.folder import pack_folder

__all__ = ["pack_folder"]
