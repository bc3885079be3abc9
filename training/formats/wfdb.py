# SPDX-License-Identifier: Apache-2.0
"""Reader of records of PhysioNet in the WFDB format: signals of format 212 and annotations of the MIT format.

Sources of the formats: the pages header(5), signal(5) and annot(5) of the WFDB Applications Guide,
https://physionet.org/physiotools/wag/.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import read_all
from edgernn.errors import EdgernnError
from edgernn.training.formats.csv_text import read_text

# symbols of the codes 0 to 41 of annotations; a space stands for codes without a symbol
_SYMBOLS = ' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'
# pseudo-annotations, which have no symbol: a long interval; numbers of the next annotation; a text
_SKIP, _NUMBERS, _TEXT = 59, (60, 61, 62), 63
_FORMAT = "212"
_AGAIN = "get the file again"
# samples per second and units of the converter per physical unit, if the header does not say them
_RATE, _GAIN = 250, 200.0
_REAL = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_RECORD_LINE = re.compile(
    rf"[^\s/]+(?:/(?P<segments>\d+))? (?P<signals>\d+)"
    rf"(?: (?P<rate>{_REAL})(?:/{_REAL}(?:\([^\s()]*\))?)?(?: (?P<samples>\d{{1,15}})(?: .*)?)?)?"
)
# all fields but file and format may be missing, from the last to the first
_SIGNAL_LINE = re.compile(
    rf"(?P<file>\S+) (?P<format>\d+)(?:x(?P<frame>\d+))?(?::(?P<skew>\d+))?(?:\+(?P<offset>\d{{1,15}}))?"
    rf"(?: (?P<gain>-?{_REAL})(?:\((?P<baseline>-?\d{{1,15}})\))?(?:/\S+)?"
    r"(?: \d+(?: (?P<zero>-?\d{1,15})(?: -?\d+(?: (?P<checksum>-?\d{1,15})(?: \d+(?: (?P<name>.*))?)?)?)?)?)?)?"
)
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
    offset: int
    gain: float
    zero: int
    checksum: int | None
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
            or the samples do not have the checksum that the header has.
    """
    header = folder / f"{name}.hea"
    rate, count, signals = _read_header(header)
    names = [one.name for one in signals]
    if signal not in names:
        raise EdgernnError(f"{header}: expected a signal {signal!r}, got {', '.join(names)}; leave the record out")
    chosen = names.index(signal)
    path = folder / signals[chosen].file
    samples = _unpack_212(path, signals[chosen].offset, len(signals), count)[:, chosen]
    # modulo 2^16, from -2^15
    total = (int(samples.sum(dtype=np.int64)) + 2**15) % 2**16 - 2**15
    if (checksum := signals[chosen].checksum) is not None and (total - checksum) % 2**16:
        raise EdgernnError(f"{path}: expected samples of {signal} with the checksum {checksum}, got {total}; {_AGAIN}")
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


def _read_header(path: Path) -> tuple[float, int | None, list[_Signal]]:
    """Return the sample rate, the number of samples of each signal if it is known, and the signals of a header."""
    text = read_text(path, _LARGEST_HEADER)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    wanted = "a line with name, number of signals, sample rate and number of samples"
    if not lines or (match := _RECORD_LINE.fullmatch(lines[0])) is None:
        raise EdgernnError(f"{path}: expected {wanted}, got another; {_AGAIN}")
    if match["segments"]:
        raise EdgernnError(f"{path}: expected a record of one segment, got {match['segments']}; join the segments")
    rows, frequency, samples = int(match["signals"]), float(match["rate"] or _RATE), int(match["samples"] or 0)
    if not 1 <= rows == len(lines) - 1 or not 0 < frequency < 2**31 or not samples < _LARGEST:
        raise EdgernnError(
            f"{path}: expected {wanted}, and then a line for each signal, got {lines[0][:80]!r} and "
            f"{len(lines) - 1} lines; {_AGAIN}"
        )
    signals = [_signal(path, line) for line in lines[1:]]
    if len({(one.file, one.offset) for one in signals}) > 1:
        raise EdgernnError(
            f"{path}: expected all signals in one file of samples, got several; convert the record to format {_FORMAT}"
        )
    # 0 is an unknown number
    return frequency, samples or None, signals


def _signal(path: Path, line: str) -> _Signal:
    if (match := _SIGNAL_LINE.fullmatch(line)) is None:
        raise EdgernnError(
            f"{path}: expected the file, format, gain, resolution, zero, first value, checksum, block size and name of "
            f"a signal, got {line[:80]!r}; {_AGAIN}"
        )
    if match["format"] != _FORMAT or int(match["frame"] or 1) != 1 or int(match["skew"] or 0):
        raise EdgernnError(
            f"{path}: expected signals of format {_FORMAT}, got {line.split()[1][:20]}; convert the record"
        )
    file, zero = match["file"], match["baseline"] or match["zero"] or 0
    checksum = None if match["checksum"] is None else int(match["checksum"])
    # a gain of 0 is an unknown one
    gain = float(match["gain"] or 0) or _GAIN
    signal = _Signal(file, int(match["offset"] or 0), gain, int(zero), checksum, match["name"] or "")
    if Path(file).name != file or not 0 < signal.gain < 2**31 or abs(signal.zero) >= 2**15:
        raise EdgernnError(
            f"{path}: expected a file of samples beside the header, a gain above 0 and a zero of 16 bits, got "
            f"{file[:40]}, {signal.gain:g} and {signal.zero}; {_AGAIN}"
        )
    return signal


def _unpack_212(path: Path, offset: int, width: int, length: int | None) -> npt.NDArray[np.int16]:
    """Read `length` samples of `width` signals, (length, width), after `offset` bytes; by default all of the file.

    A sample has 12 bits, so two take three bytes. The first byte has the low bits of the first sample, the third byte
    those of the second. The low half of the middle byte has the high bits of the first sample, its high half those of
    the second. Samples are two's complements.
    """
    content = read_all(path, _LARGEST)[offset:]
    if length is None:
        length = 2 * len(content) // 3 // width
    count = length * width
    size = (3 * count + 1) // 2
    if len(content) != size:
        raise EdgernnError(
            f"{path}: expected {size} bytes for {count} samples, as the header says, got {len(content)}; {_AGAIN}"
        )
    low, middle, high = np.frombuffer(content + bytes(-size % 3), np.uint8).reshape(-1, 3).astype(np.int16).T
    values = np.stack([low | (middle & 0x0F) << 8, high | (middle & 0xF0) << 4], 1).reshape(-1)[:count]
    return np.where(values >= 2**11, values - 2**12, values).astype(np.int16).reshape(length, width)


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
