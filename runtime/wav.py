# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of wav files: one channel of 16-bit samples."""

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.files import write_bytes

_BYTES = 2
# the 16-bit sample that stands for 1.0
FULL_SCALE = 2**15
# largest file in bytes: 18 hours at 16 kHz
LIMIT = 1 << 31


def read_wav(path: Path, rate: int) -> NDArray[np.int16]:
    """Read a wav file of one channel with 16-bit PCM samples.

    Args:
        path: The file.
        rate: The sample rate that the file must have, in Hz.

    Returns:
        The S samples (S,), from -32768 to 32767.

    Raises:
        EdgernnError: The file is missing, truncated, empty, above 2 GiB, or not a wav file of this kind and rate.
    """
    try:
        if path.stat().st_size > LIMIT:
            raise EdgernnError(f"{path}: expected at most {LIMIT:,} bytes, got a larger file; split the recording")
        # a header that claims more samples than there are allocates nothing here
        content = path.read_bytes()
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, got_rate, count = file.getparams()[:4]
            samples = file.readframes(count)
    # a chunk that ends after the file raises RuntimeError
    except (wave.Error, EOFError, RuntimeError) as error:
        reason = str(error) or "a truncated header"
        raise EdgernnError(
            f"{path}: expected a wav file with 16-bit PCM samples, got another or a damaged one ({reason}); save it as "
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
        raise EdgernnError(f"{path}: has no samples; record it again")
    return np.frombuffer(samples, "<i2").astype(np.int16)


def write_wav(path: Path, samples: NDArray[np.float32], rate: int) -> None:
    """Write a wav file of one channel with 16-bit PCM samples; the file appears only when it is complete.

    Args:
        path: The file.
        samples: The S samples (S,), from -1 to 1. Numbers outside this range are clipped.
        rate: Sample rate in Hz.
    """
    whole = np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype("<i2")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(_BYTES)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    write_bytes(path, content.getvalue())
