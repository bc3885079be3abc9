# SPDX-License-Identifier: Apache-2.0
"""C99 source of a model for microcontrollers: constant weights, the code that this model needs, and nothing else."""

from edgernn.runtime.firmware.folder import pack_folder

__all__ = ["pack_folder"]
