# SPDX-License-Identifier: Apache-2.0
"""Folders of numbered wav files, in which nothing is overwritten."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.wav import FULL_SCALE, write_wav


def write_numbered(folder: Path, name: str, samples: NDArray[np.int16], rate: int) -> Path:
    """Write a wav file of one channel with 16-bit samples under the next free number.

    Args:
        folder: The folder, which is created if it is missing.
        name: Name of the file, with {} for its number, which has four digits.
        samples: The samples (S,), from -32768 to 32767.
        rate: Sample rate in Hz.

    Returns:
        The file. Its number is larger than those of all files of this name in the folder, in upper or lower case, as a
        file system may not tell them apart.
    """
    before, after = name.split("{}")
    pattern = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}", re.IGNORECASE)
    files = folder.iterdir() if folder.is_dir() else ()
    number = 1 + max((int(match[1]) for file in files if (match := pattern.fullmatch(file.name))), default=0)
    path = folder / name.format(f"{number:04d}")
    write_wav(path, samples.astype(np.float32) / np.float32(FULL_SCALE), rate)
    return path
