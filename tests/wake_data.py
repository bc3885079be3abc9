# SPDX-License-Identifier: Apache-2.0
"""Small takes of a phrase and a bank of other speech, both of tones, for tests of wake words."""

from pathlib import Path

import numpy as np

from edgernn.frontends import FrontendConfig
from edgernn.runtime.wav import write_wav
from edgernn.training.tasks.mel_bank import read_recordings

RATE = 8000
CONFIG = FrontendConfig(
    name="logmel", sample_rate=RATE, hop=80, window_size=128, bands=8, stack=4, normalise="pcen", low_frequency=100.0
)
TOY = {
    "sample_rate": RATE,
    "hop": 80,
    "window_size": 128,
    "bands": 8,
    "low_frequency": 100.0,
    "hours": 0.01,
    "mined": 30,
}


def tones(*frequencies, seconds=0.25, level=0.2):
    """Play tones one after the other."""
    t = np.arange(int(seconds * RATE)) / RATE
    return np.concatenate([level * np.sin(2 * np.pi * f * t) for f in frequencies]).astype(np.float32)


def record(folder, sounds):
    """Write wav files from a dict of name to samples, with a quarter of a second of silence on either side."""
    for name, samples in sounds.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        quiet = np.zeros(RATE // 4, np.float32)
        write_wav(folder / name, np.concatenate([quiet, samples, quiet]), RATE)
    return folder


def write_wake_words(folder: Path) -> Path:
    """Write takes of a phrase of two tones by 5 speakers, and bank.npz of other tones and of noise; return the folder.

    The wav files of the bank are in the folders talk and hiss. words.npz is a bank of five words by four speakers.
    """
    random = np.random.default_rng(0)
    record(
        folder / "takes",
        {f"{s}/{i}.wav": tones(500 + 20 * s, 1500 + 50 * s + 20 * i) for s in range(5) for i in range(2)},
    )
    others = {f"{s}/{i}.wav": tones(*random.uniform(300, 3500, 20), seconds=0.2) for s in range(10) for i in range(4)}
    speech = read_recordings(record(folder / "talk", others), CONFIG)
    hiss = {f"{i}.wav": 0.01 * random.standard_normal(8 * RATE).astype(np.float32) for i in range(3)}
    noise = read_recordings(record(folder / "hiss", hiss), CONFIG, is_noise=True)
    speech.joined(noise).save(folder / "bank.npz")
    # each word is two tones
    random = np.random.default_rng(2)
    words = {
        f"{word}/{speaker}_nohash_{i}.wav": tones(*(400 + 500 * word + random.uniform(0, 50, 2)), seconds=0.2)
        for word in range(5)
        for speaker in range(4)
        for i in range(2)
    }
    read_recordings(record(folder / "words", words), CONFIG).joined(noise).save(folder / "words.npz")
    return folder
