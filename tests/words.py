# SPDX-License-Identifier: Apache-2.0
"""Small recordings of "words", tones of one pitch each, in the layouts of their publishers."""

import struct
import wave

import numpy as np

RATE = 16_000
PITCH = {"left": 300, "right": 700, "stop": 1500, "go": 3000}


def tone(word, seed=0, seconds=1.0):
    """A tone of the word's pitch in the middle of a clip with digital silence around: int16."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * RATE)) / RATE
    begin, length = rng.uniform(0.2, 0.4) * seconds, 0.4 * seconds
    loud = (t >= begin) & (t < begin + length)
    return (8000 * rng.uniform(0.3, 1) * loud * np.sin(2 * np.pi * PITCH[word] * t)).astype(np.int16)


def write_wav(path, samples, rate=RATE, channels=1, width=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples).astype("<i2").tobytes())
    return path


def write_extensible_wav(path, samples, kind=1):
    """Write a wav file whose header has the extensible format, as recorders write it; kind: Format of the samples."""
    guid = struct.pack("<H", kind) + bytes.fromhex("000000001000800000aa00389b71")
    form = struct.pack("<HHIIHHHHI", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4) + guid
    data = np.asarray(samples).astype("<i2").tobytes()
    chunks = [(b"fmt ", form), (b"data", data)]
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(chunk)) + chunk for name, chunk in chunks)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def write_rf64(path, samples, count=None, claimed=0xFFFFFFFF):
    """Write an RF64 file, as recorders do beyond 4 GB: the size of the samples is in a chunk of its own.

    count: Number of samples in that chunk, that of the samples by default; claimed: size in the chunk of the samples.
    """
    data = np.asarray(samples).astype("<i2").tobytes()
    count = len(samples) if count is None else count
    sizes = struct.pack("<QQQI", 80 + len(data), 2 * count, count, 0)
    form = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    head = b"ds64" + struct.pack("<I", len(sizes)) + sizes + b"fmt " + struct.pack("<I", len(form)) + form
    path.write_bytes(
        b"RF64\xff\xff\xff\xffWAVE" + head + b"data" + struct.pack("<I", claimed) + data + b"LIST\4\0\0\0abcd"
    )
    return path


def write_noise(folder, names=("hum", "rain", "wind")):
    for i, name in enumerate(names):
        rng = np.random.default_rng(100 + i)
        write_wav(folder / f"{name}.wav", rng.normal(0, 300, 6 * RATE).astype(np.int16))


def write_english(folder, words=("left", "right", "stop"), speakers=8):
    """The layout of Speech Commands: one speaker for validation, one for the test."""
    lists = {"validation_list.txt": [], "testing_list.txt": []}
    for i, word in enumerate(words):
        for speaker in range(speakers):
            name = f"{word}/{speaker:08x}_nohash_0.wav"
            write_wav(folder / name, tone(word, 10 * speaker + i))
            if speaker < 2:
                lists[list(lists)[speaker]].append(name)
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    write_noise(folder / "_background_noise_")
    return folder


def write_english_test_set(folder, speakers=10):
    """The layout of the test set of Speech Commands, with two of its ten words."""
    for word, sound in (("yes", "left"), ("no", "right"), ("_unknown_", "stop"), ("_silence_", "left")):
        for speaker in range(speakers):
            write_wav(folder / word / f"{speaker:08x}_nohash_0.wav", tone(sound, speaker))


def write_arabic(folder, words=("left", "right"), train=4, held_out=1):
    """The layout of the Arabic set: three tables beside a folder dataset."""
    for table, first, count in (("train", 0, train), ("val", 100, held_out), ("test", 200, held_out)):
        lines = ["file,class"]
        for word in words:
            for i in range(first, first + count):
                name = f"dataset/{word}/{i:08d}_NO_01.wav"
                write_wav(folder / name, tone(word, i))
                lines.append(f"{name},{word}")
        (folder / f"{table}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_own(folder, words=("left", "right"), count=10):
    for word in words:
        for i in range(count):
            write_wav(folder / word / f"{i}.wav", tone(word, i))
    return folder
