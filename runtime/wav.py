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
    except IsADirectoryError:
        raise EdgernnError(f"{path}: expected a wav file, got a folder; name a file in it") from None
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, got_rate, count = file.getparams()[:4]
            samples = file.readframes(count)
    # a chunk that ends after the file raises RuntimeError
    except (wave.Error, EOFError, RuntimeError) as error:
        reason = str(error) or "a truncated header"
        raise EdgernnError(
            f"{path}: expected a wav file with 16-bit PCM samples, got another or a damaged one ({reason}); "
            f"{conversion(rate)}"
        ) from None
    if width != _BYTES:
        raise EdgernnError(f"{path}: expected samples of 16 bits, got {8 * width}; {conversion(rate)}")
    if channels != 1:
        raise EdgernnError(f"{path}: expected one channel, got {channels}; {conversion(rate)}")
    if got_rate != rate:
        raise EdgernnError(f"{path}: expected {rate} samples per second, got {got_rate}; {conversion(rate)}")
    if len(samples) != count * _BYTES:
        raise EdgernnError(
            f"{path}: expected {count} samples as its header says, got {len(samples) // _BYTES}; the file is "
            "truncated: copy or record it again"
        )
    if not count:
        raise EdgernnError(f"{path}: expected samples, got none; record it again")
    return np.frombuffer(samples, "<i2").astype(np.int16)


def conversion(rate: int) -> str:
    """Return the advice how to convert a sound file to one that `read_wav` reads; `rate` is the sample rate in Hz."""
    return f"convert it with ffmpeg -i FILE -ac 1 -ar {rate} -c:a pcm_s16le NEW.wav"


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
