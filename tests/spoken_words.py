# SPDX-License-Identifier: Apache-2.0
"""Recordings of the ten words of the model `english-room-delta` in noise.

`python -m tests.spoken_words FILE.wav` writes the recording of the tests, and prints its words. EDGERNN_DATA must be
set to a folder with `FOLDERS`.
"""

import argparse
from pathlib import Path

import numpy as np

from edgernn.runtime.wav import FULL_SCALE, write_wav
from edgernn.training.datasets.find import data_folder
from edgernn.training.tasks.mixing import spoken_part
from edgernn.training.tasks.recordings import noise_parts, read_clips, word_files
from edgernn.training.tasks.rooms import Acoustics

RATE, HOP = 16_000, 320
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
FOLDERS = ("speech-commands-test", "speech-noise")
SECONDS = 20
# signal-to-noise ratio in dB
RATIO = 15.0
# random seed of a recording in which no detection is close to another one
CLEAR = 8


def missing_data() -> str | None:
    """Return what is missing to build the recordings, or None."""
    root = data_folder(None)
    if root is None:
        return "EDGERNN_DATA is not set"
    missing = [folder for folder in FOLDERS if next((root / folder).rglob("*.wav"), None) is None]
    return f"no wav files in {root / missing[0]}" if missing else None


def write_spoken(path: Path, seed: int) -> list[str]:
    """Write a wav file with each word once, in random order and in noise, by speakers whom the training has not heard.

    Args:
        path: The wav file.
        seed: Random seed of speakers, order, times, level and noise.

    Returns:
        The words in the order in which they are spoken.
    """
    root = data_folder(None)
    assert root is not None
    rng = np.random.default_rng(seed)
    # the split of the training, whose seed is 0
    files = word_files(root / FOLDERS[0], 0, RATE)["test"]
    order = [WORDS[label] for label in rng.permutation(len(WORDS))]
    chosen = []
    for word in order:
        of_word = [file for file in files if file.word == word]
        chosen.append(of_word[rng.integers(len(of_word))])
    clips = read_clips(chosen, RATE, RATE).astype(np.float32) / np.float32(FULL_SCALE)
    words = [(label, spoken_part(clip, HOP)) for label, clip in enumerate(clips)]
    noise = noise_parts(root / FOLDERS[1], RATE, RATE)["test"]
    scene = Acoustics(noise, 1.0, RATIO, RATIO, HOP, RATE).scene(rng, words, SECONDS * RATE, fade=1.0)
    write_wav(path, scene.samples, RATE)
    return order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE.wav", help="File to write.")
    arguments = parser.parse_args()
    if missing := missing_data():
        raise SystemExit(missing)
    print(" ".join(write_spoken(arguments.file, CLEAR)))


if __name__ == "__main__":
    main()
