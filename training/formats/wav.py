# SPDX-License-Identifier: Apache-2.0
"""Reader of wav files: one channel of 16-bit samples."""

import io
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.training.formats.byte_source import LIMIT, read_all

_BYTES = 2


def read_wav(path: Path, rate: int, limit: int = LIMIT) -> npt.NDArray[np.int16]:
    """Read a wav file of one channel with 16-bit PCM samples.

    Args:
        path: The file.
        rate: The sample rate that the file must have, in Hz.
        limit: Maximal size in bytes.

    Returns:
        The samples (S,).

    Raises:
        EdgernnError: The file is no such wav file, or truncated.
    """
    content = bytes(read_all(path, limit))
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, got_rate, count = file.getparams()[:4]
            samples = file.readframes(count)
    except (wave.Error, EOFError) as error:
        reason = str(error) or "a truncated header"
        raise EdgernnError(
            f"{path}: expected a wav file with 16-bit PCM samples, got another or a corrupt one ({reason}); save it as "
            "16-bit PCM wav"
        ) from None
    if width != _BYTES:
        raise EdgernnError(f"{path}: expected samples of 16 bits, got {8 * width}; save it as 16-bit PCM wav")
    if channels != 1:
        raise EdgernnError(f"{path}: expected one channel, got {channels}; convert it to mono")
    if got_rate != rate:
        raise EdgernnError(f"{path}: expected {rate} samples per second, got {got_rate}; resample it to {rate} Hz")
    if len(samples) != count * _BYTES:
        raise EdgernnError(
            f"{path}: expected {count} samples as its header says, got {len(samples) // _BYTES}; the file is "
            "truncated: copy or record it again"
        )
    if not count:
        raise EdgernnError(f"{path}: expected samples, got none; record it again")
    return np.frombuffer(samples, "<i2").astype(np.int16)
