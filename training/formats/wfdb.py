# SPDX-License-Identifier: Apache-2.0
"""Reader of records of PhysioNet in the WFDB format: signals of format 212 and annotations of the MIT format.

Sources of the formats: the pages header(5), signal(5) and annot(5) of the WFDB Applications Guide,
https://physionet.org/physiotools/wag/.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.training.formats.byte_source import read_all
from edgernn.training.formats.csv_text import read_text

# symbols of the codes 0 to 41 of annotations; a space stands for codes without a symbol
_SYMBOLS = ' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'
# pseudo-annotations, which have no symbol: a long interval; numbers of the next annotation; a text
_SKIP, _NUMBERS, _TEXT = 59, (60, 61, 62), 63
_FORMAT = "212"
_AGAIN = "get the file again"
# fields of a line of the header about a signal, before its description
_FIELDS = 8
_LARGEST_HEADER, _LARGEST = 1 << 16, 1 << 28


@dataclass(frozen=True)
class WfdbRecord:
    """One signal of a record, with the annotations of the record.

    Attributes:
        name: Name of the record.
        rate: Samples per second.
        signal: Name of the signal, such as MLII.
        samples: Samples (S,) in units of the converter.
        gain: Units of the converter per physical unit, such as mV.
        zero: Sample that stands for 0.
        ann_sample: Sample number of each annotation (A,), as the file has them.
        ann_symbol: Symbol of each annotation, such as N.
    """

    name: str
    rate: float
    signal: str
    samples: npt.NDArray[np.int16]
    gain: float
    zero: int
    ann_sample: npt.NDArray[np.int64]
    ann_symbol: list[str]


@dataclass(frozen=True)
class _Signal:
    """A line of the header about a signal."""

    file: str
    gain: float
    zero: int
    checksum: int
    name: str


def read_wfdb(folder: Path, name: str, signal: str) -> WfdbRecord:
    """Read a signal of a record, and its annotations in the file NAME.atr.

    Args:
        folder: Folder with NAME.hea, NAME.atr and the file of samples that the header names.
        name: Name of the record, such as 100.
        signal: Name of the signal, such as MLII.

    Returns:
        The signal and the annotations.

    Raises:
        EdgernnError: A file is missing or invalid, the header describes another format, the record has no such signal,
            or the samples do not have the checksum in the header.
    """
    header = folder / f"{name}.hea"
    rate, count, signals = _read_header(header)
    names = [one.name for one in signals]
    if signal not in names:
        raise EdgernnError(f"{header}: expected a signal {signal!r}, got {', '.join(names)}; leave the record out")
    chosen = names.index(signal)
    path = folder / signals[chosen].file
    samples = _unpack_212(path, len(signals) * count).reshape(count, len(signals))[:, chosen]
    # modulo 2^16, from -2^15
    total = (int(samples.sum(dtype=np.int64)) + 2**15) % 2**16 - 2**15
    if total != signals[chosen].checksum:
        raise EdgernnError(
            f"{path}: expected samples of {signal} with the checksum {signals[chosen].checksum}, got {total}; get the "
            "file again"
        )
    places, symbols = _read_annotations(folder / f"{name}.atr")
    return WfdbRecord(
        name,
        rate,
        signal,
        samples,
        signals[chosen].gain,
        signals[chosen].zero,
        np.array(places, np.int64),
        symbols,
    )


def _read_header(path: Path) -> tuple[float, int, list[_Signal]]:
    """Return the sample rate, the number of samples of each signal, and the signals of a header."""
    text = read_text(path, _LARGEST_HEADER)
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    wanted = "a line with name, number of signals, sample rate and number of samples"
    try:
        _, number, rate, count, *_ = lines[0]
        rows, frequency, samples = int(number), float(rate), int(count)
    except (IndexError, ValueError):
        raise EdgernnError(f"{path}: expected {wanted}, got another; get the file again") from None
    if not 1 <= rows == len(lines) - 1 or not 0 < frequency < 2**31 or not 0 < samples < _LARGEST:
        raise EdgernnError(
            f"{path}: expected {wanted}, and then a line for each signal, got {' '.join(lines[0])[:80]!r} and "
            f"{len(lines) - 1} lines; get the file again"
        )
    signals = [_signal(path, fields) for fields in lines[1:]]
    if len({one.file for one in signals}) > 1:
        raise EdgernnError(
            f"{path}: expected all signals in one file of samples, got several; convert the record to format {_FORMAT}"
        )
    return frequency, samples, signals


def _signal(path: Path, fields: list[str]) -> _Signal:
    try:
        file, form, gain, _, zero, _, checksum, _ = fields[:_FIELDS]
        signal = _Signal(file, float(gain.partition("/")[0]), int(zero), int(checksum), " ".join(fields[_FIELDS:]))
    except ValueError:
        raise EdgernnError(
            f"{path}: expected the file, format, gain, resolution, zero, first value, checksum, block size and name of "
            f"a signal, got {' '.join(fields)[:80]!r}; get the file again"
        ) from None
    if form != _FORMAT:
        raise EdgernnError(f"{path}: expected signals of format {_FORMAT}, got {form[:20]}; convert the record")
    if Path(file).name != file or not 0 < signal.gain < 2**31 or abs(signal.zero) >= 2**15:
        raise EdgernnError(
            f"{path}: expected a file of samples beside the header, a gain above 0 and a zero of 16 bits, got "
            f"{file[:40]}, {signal.gain:g} and {signal.zero}; get the file again"
        )
    return signal


def _unpack_212(path: Path, count: int) -> npt.NDArray[np.int16]:
    """Read `count` samples of 12 bits, of which two take three bytes.

    The first byte has the low bits of the first sample, the third byte those of the second. The low half of the middle
    byte has the high bits of the first sample, its high half those of the second. Samples are two's complements.
    """
    size = (3 * count + 1) // 2
    content = read_all(path, _LARGEST)
    if len(content) != size:
        raise EdgernnError(
            f"{path}: expected {size} bytes for {count} samples, as the header says, got {len(content)}; get the file "
            "again"
        )
    low, middle, high = np.frombuffer(content + bytes(-size % 3), np.uint8).reshape(-1, 3).astype(np.int16).T
    values = np.stack([low | (middle & 0x0F) << 8, high | (middle & 0xF0) << 4], 1).reshape(-1)[:count]
    return np.where(values >= 2**11, values - 2**12, values).astype(np.int16)


def _read_annotations(path: Path) -> tuple[list[int], list[str]]:
    """Read the sample numbers and the symbols of annotations.

    An annotation is a word of 16 bits: a code in the upper 6, and in the lower 10 the samples since the annotation
    before. A word of zeros ends the file. SKIP is followed by an interval of 32 bits, its upper half first. TEXT is
    followed by as many bytes as its lower bits say, and a byte of padding if their number is odd.
    """
    content = read_all(path, _LARGEST)
    words = np.frombuffer(content[: len(content) // 2 * 2], "<u2").tolist()
    places, symbols, sample, i = list[int](), list[str](), 0, 0
    while i < len(words) and words[i]:
        code, value = divmod(words[i], 2**10)
        i += 1
        if code == _SKIP:
            upper, lower = words[i : i + 2] if i + 2 <= len(words) else (0, 0)
            sample += (upper - 2**16 if upper >= 2**15 else upper) << 16 | lower
            i += 2
        elif code == _TEXT:
            i += (value + 1) // 2
        elif code not in _NUMBERS:
            if code >= len(_SYMBOLS):
                raise EdgernnError(f"{path}: expected codes of annotations below {len(_SYMBOLS)}, got {code}; {_AGAIN}")
            sample += value
            places.append(sample)
            symbols.append(_SYMBOLS[code])
    if i >= len(words) or words[i]:
        raise EdgernnError(f"{path}: expected a word of zeros at the end of the annotations, got none; {_AGAIN}")
    return places, symbols
