# SPDX-License-Identifier: Apache-2.0
"""Wav files that a program here does not read, by their fault, and the error of its reader."""

import struct

from tests.words import tone, write_wav


def replace_header(path, begin, content):
    data = bytearray(path.read_bytes())
    data[begin : begin + len(content)] = content
    path.write_bytes(data)


def broken_wav(kind, path):
    """Replace the file of a clip by one that is broken, or of another kind."""
    samples = tone("left")
    if kind == "rate":
        write_wav(path, samples, rate=44_100)
    elif kind == "stereo":
        write_wav(path, samples, channels=2)
    elif kind == "24 bits":
        write_wav(path, samples[:15_999], width=3)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    elif kind == "half a sample":
        replace_header(path, 40, struct.pack("<I", 2 * len(samples) + 1))
    elif kind == "cut header":
        path.write_bytes(path.read_bytes()[:30])
    elif kind == "float":
        replace_header(path, 20, struct.pack("<H", 3))
    elif kind == "no bytes":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("no sound")
    elif kind == "padded":
        replace_header(path, 32, struct.pack("<H", 4))
    elif kind == "unfinished":
        replace_header(path, 40, struct.pack("<I", 0))
    elif kind == "empty":
        write_wav(path, [])


# errors of the reader of wav files, by fault
_CONVERT = "convert it with ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le NEW.wav"
_ANOTHER = "expected a wav file with 16-bit PCM samples, got another or a damaged one"
# Python converts these, the apps refuse them
CONVERTED = {
    "rate": f"expected 16000 samples per second, got 44100; {_CONVERT}",
    "stereo": f"expected one channel, got 2; {_CONVERT}",
    "24 bits": f"expected samples of 16 bits, got 24; {_CONVERT}",
}
BROKEN = {
    "truncated": "expected 16000 samples as its header says, got 15500; the file is truncated: copy or record it again",
    "half a sample": "expected 16001 samples as its header says, got 16000; the file is truncated: copy or record it "
    "again",
    "cut header": f"{_ANOTHER} (a truncated header); {_CONVERT}",
    "float": f"expected 16-bit PCM samples, got floating-point samples of 16 bits; {_CONVERT}",
    "no bytes": "expected a wav file, got an empty file; copy or make it again",
    "text": f"{_ANOTHER} (it does not begin with RIFF, a size and WAVE); {_CONVERT}",
    "padded": "expected 2 bytes for a sample of all channels, got 4 in the header: they are padded, or it is damaged; "
    + _CONVERT,
    "unfinished": "expected the number of samples in the header, got 0 before 32000 bytes: the recorder was stopped "
    f"before it wrote the number; {_CONVERT}",
    "empty": "expected samples, got none; record it again",
}
