# SPDX-License-Identifier: Apache-2.0
"""Reader of wav files, also RF64 files, as one channel of 16-bit samples, and writer of such files."""

import io
import struct
import warnings
import wave
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, EdgernnWarning
from edgernn.files import check_content, check_regular, write_bytes

_BYTES = 2
# formats of samples in a chunk "fmt "; an extensible one has the format in its first two bytes after 24 others
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# largest float sample: decoders overshoot 1 a little, and whole numbers that are stored as floats reach thousands
_LOUDEST = 8.0
_KINDS = {_FLOAT: "floating-point", 6: "A-law", 7: "mu-law", 17: "ADPCM", 85: "MP3"}
_SUBFORMAT = 24
# size of the longest chunk "fmt " that is known, an extensible one
_FORMAT = 40
# lowest and highest sample rate in Hz; a damaged header may claim others
_RATES = 1_000, 384_000
# the 16-bit sample that stands for 1.0
FULL_SCALE = 2**15
# size of the samples that stands for the one in the chunk "ds64"
_IN_DS64 = 0xFFFFFFFF
# a program that streams a wav file does not know its size, and claims this many bytes of samples or more
UNKNOWN_SIZE = 0x7FFF0000
# largest file in bytes: 18 hours at 16 kHz
LIMIT = 1 << 31


def read_wav(path: Path, rate: int) -> NDArray[np.int16]:
    """Read a wav file as one channel of 16-bit samples at a given rate.

    Samples of 8, 16, 24 or 32 bits and floats are read. Several channels are averaged, and another rate is resampled
    with scipy; a warning says so. If the header claims UNKNOWN_SIZE bytes of samples or more, the samples end with the
    file.

    Args:
        path: The file.
        rate: Sample rate of the result in Hz.

    Returns:
        The S samples (S,), from -32768 to 32767.

    Raises:
        EdgernnError: The file is missing, truncated, empty, above 2 GiB, or not a wav file of this kind, or has another
            rate and scipy is not installed.
    """
    try:
        check_regular(path, "a wav file")
        if path.stat().st_size > LIMIT:
            raise EdgernnError(f"{path}: expected at most {LIMIT:,} bytes, got a larger file; split the recording")
        # a header that claims more samples than there are allocates nothing here
        content = path.read_bytes()
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None
    check_content(path, content, "a wav file")
    try:
        header = _read_header(content)
    except ValueError as error:
        raise EdgernnError(
            f"{path}: expected a wav file with 16-bit PCM samples, got another or a damaged one ({error}); "
            f"{conversion(rate)}"
        ) from None
    _check_kind(path, header, rate)
    frame = header.frame
    present = len(content) - header.begin
    size = present if header.size >= UNKNOWN_SIZE else header.size
    if size > present:
        # the last bytes of an odd size count as a missing sample
        expected = -(-size // frame)
        raise EdgernnError(
            f"{path}: expected {expected} samples as its header says, got {present // frame}; the file is truncated: "
            "copy or record it again"
        )
    count = size // frame
    if not header.size and present >= frame:
        raise EdgernnError(
            f"{path}: expected the number of samples in the header, got 0 before {present} bytes: the recorder was "
            f"stopped before it wrote the number; {conversion(rate)}"
        )
    if not count:
        raise EdgernnError(f"{path}: expected samples, got none; record it again")
    if (header.kind, header.bits, header.channels, header.rate) == (_PCM, 8 * _BYTES, 1, rate):
        return np.frombuffer(content, "<i2", count, header.begin).astype(np.int16)
    warn_of_conversion(header.rate, header.channels, header.bits, rate)
    samples = _decoded(content, header, count).mean(1)
    if not np.isfinite(samples).all():
        raise EdgernnError(f"{path}: expected finite samples, got NaN or infinity; record it again")
    if header.kind == _FLOAT and (peak := float(np.abs(samples).max()) / FULL_SCALE) > _LOUDEST:
        raise EdgernnError(
            f"{path}: expected samples from -1 to 1, got up to {peak:.3g}; divide them by their full scale"
        )
    samples = _resampled(path, samples, header.rate, rate)
    return np.clip(np.rint(samples), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def clip_of(samples: NDArray[np.int16], length: int) -> NDArray[np.int16]:
    """Return `length` of the samples (S,): the stretch with the most energy, or all with zeros after them."""
    if len(samples) > length:
        energy = np.concatenate([[0], np.cumsum(samples.astype(np.float64) ** 2)])
        begin = int(np.argmax(energy[length:] - energy[:-length]))
        samples = samples[begin : begin + length]
    clip = np.zeros(length, np.int16)
    clip[: len(samples)] = samples
    return clip


@cache
def warn_of_conversion(old: int, channels: int, bits: int, new: int) -> None:
    """Warn once in a process that sound of one form, such as all files of a folder, is read as another."""
    form = f"{old:,} Hz, {'one channel' if channels == 1 else f'{channels} channels'} and {bits} bits"
    text = f"sound of {form} is read as one channel of 16 bits at {new:,} Hz"
    warnings.warn(text, EdgernnWarning, stacklevel=3)


def _check_kind(path: Path, header: "_Header", rate: int) -> None:
    """Raise EdgernnError for samples, channels or a rate that cannot be read."""
    widths = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}.get(header.kind, ())
    if not widths or (header.kind == _FLOAT and header.bits not in widths):
        raise EdgernnError(
            f"{path}: expected 16-bit PCM samples, got {_KINDS.get(header.kind, 'unknown')} samples of {header.bits} "
            f"bits; {conversion(rate)}"
        )
    if header.bits not in widths:
        raise EdgernnError(f"{path}: expected samples of 16 bits, got {header.bits}; {conversion(rate)}")
    if not header.channels:
        raise EdgernnError(f"{path}: expected one channel, got 0; {conversion(rate)}")
    if (size := header.channels * header.bits // 8) != header.frame:
        raise EdgernnError(
            f"{path}: expected {size} bytes for a sample of all channels, got {header.frame} in the header: they are "
            f"padded, or it is damaged; {conversion(rate)}"
        )
    if not _RATES[0] <= header.rate <= _RATES[1]:
        wanted = f"{_RATES[0]:,} to {_RATES[1]:,} samples per second"
        raise EdgernnError(f"{path}: expected {wanted}, got {header.rate:,}; {conversion(rate)}")


def _decoded(content: bytes, header: "_Header", count: int) -> NDArray[np.float32]:
    """Decode `count` samples of each channel to the range of 16-bit samples (count, channels)."""
    numbers, scale = count * header.channels, 2.0 ** (header.bits - 16)
    samples: NDArray[Any]
    if header.kind == _FLOAT:
        samples, scale = np.frombuffer(content, f"<f{header.bits // 8}", numbers, header.begin), 1 / FULL_SCALE
    elif header.bits == 8:
        # the only unsigned samples
        samples = np.frombuffer(content, np.uint8, numbers, header.begin) - np.float32(2**7)
    elif header.bits == 24:
        # the upper bytes of 32 bits
        octets = np.zeros((numbers, 4), np.uint8)
        octets[:, 1:] = np.frombuffer(content, np.uint8, 3 * numbers, header.begin).reshape(-1, 3)
        samples, scale = octets.view("<i4"), 2.0**16
    else:
        samples = np.frombuffer(content, f"<i{header.bits // 8}", numbers, header.begin)
    with np.errstate(over="ignore"):
        return samples.astype(np.float32).reshape(count, header.channels) / np.float32(scale)


def _resampled(path: Path, samples: NDArray[np.float32], old: int, new: int) -> NDArray[np.float32]:
    if old == new:
        return samples
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise EdgernnError(
            f"{path}: expected {new} samples per second, got {old}; install scipy to resample it, or {conversion(new)}"
        ) from None
    down, up = Fraction(old, new).as_integer_ratio()
    resampled: NDArray[np.float32] = resample_poly(samples, up, down, window=_low_pass(max(up, down)))
    return resampled


@lru_cache(maxsize=4)
def _low_pass(factor: int) -> NDArray[np.float32]:
    """Design the default filter of scipy's resample_poly, which takes long for rates without a common factor."""
    from scipy.signal import firwin

    taps: NDArray[np.float32] = firwin(20 * factor + 1, 1 / factor, window=("kaiser", 5.0)).astype(np.float32)
    return taps


@dataclass(frozen=True)
class _Header:
    """Header of a wav file; a sample of all channels takes `frame` bytes, and all take `size` from `begin` on."""

    kind: int
    channels: int
    rate: int
    bits: int
    frame: int
    begin: int
    size: int


def _read_header(content: bytes) -> _Header:
    """Read the chunks of a wav file up to its samples.

    Python's module wave reads the extensible format from version 3.12 on only.
    """
    if content[:4] not in (b"RIFF", b"RF64") or content[8:12] != b"WAVE":
        raise ValueError("it does not begin with RIFF, a size and WAVE")
    sizes: tuple[int, int, int, int, int] | None = None
    long_size = 0
    at = 12
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"data":
            if sizes is None:
                raise ValueError("no format before the samples")
            # an RF64 file may have the size of the samples in a chunk of its own
            return _Header(*sizes, begin=at, size=long_size if size == _IN_DS64 and long_size else size)
        if name == b"ds64" and at + 16 <= len(content):
            (long_size,) = struct.unpack_from("<Q", content, at + 8)
        if name == b"fmt ":
            sizes = _read_format(content, at, size)
        # chunks have even sizes
        at += size + size % 2
    raise ValueError("a truncated header")


def _read_format(content: bytes, at: int, size: int) -> tuple[int, int, int, int, int]:
    """Return format, channels, rate, bits and frame (`_Header`) from the chunk "fmt " of `size` bytes at this index."""
    if size > len(content) - at:
        raise ValueError("a truncated header")
    if size < 16:
        raise ValueError("unknown format")
    chunk = content[at : at + min(size, _FORMAT)]
    kind, channels, rate, frame, bits = struct.unpack_from("<HHI4xHH", chunk)
    if kind == _EXTENSIBLE and size >= _SUBFORMAT + 2:
        (kind,) = struct.unpack_from("<H", chunk, _SUBFORMAT)
    return kind, channels, rate, bits, frame


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
