# SPDX-License-Identifier: Apache-2.0
"""Recordings of the ten words of the model `english-room-delta` in noise, and how alike the apps detect them.

`python -m tests.spoken_words` builds RECORDINGS such recordings and prints the number of words detected in C, and how
many of these the parts of the page detect in Node within TOLERANCE seconds. `--write FILE.wav` writes the recording of
the tests instead. EDGERNN_DATA must be set to a folder with `FOLDERS`.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgernn.runtime.packed import pack_file
from edgernn.runtime.wav import FULL_SCALE, write_wav
from edgernn.runtime.word_detection import PostProcessing
from edgernn.runtime.zoo import find_model
from edgernn.training.data import data_folder
from edgernn.training.tasks.mixing import spoken_part
from edgernn.training.tasks.recordings import noise_parts, read_clips, word_files
from edgernn.training.tasks.rooms import Acoustics
from tests.apps import ROOT, c_program, run

RATE, HOP = 16_000, 320
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
FOLDERS = ("speech-commands-test", "speech-noise")
SECONDS = 20
# signal-to-noise ratio in dB
RATIO = 15.0
# most seconds between two detections of the same word in the same recording
TOLERANCE = 0.25
RECORDINGS = 12
# random seed of a recording in which no detection is close to another one
CLEAR = 8

Detection = tuple[float, str]
DEFAULTS = PostProcessing()


def missing_data() -> str | None:
    """Return what is missing to build the recordings, or None."""
    root = data_folder(None)
    if root is None:
        return "EDGERNN_DATA is not set"
    missing = [folder for folder in FOLDERS if not (root / folder).is_dir()]
    return f"no folder {missing[0]} in {root}" if missing else None


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


def detected_in_c(packed: object, recording: Path, settings: PostProcessing = DEFAULTS) -> list[Detection]:
    """Detect words with examples/c; return the seconds, in hundredths, and the word of each."""
    options = ["-s", settings.smoothing, "-t", settings.threshold, "-r", settings.refractory]
    process = run(c_program().parent / "words", *options, packed, recording)
    assert process.returncode == 0, process.stderr
    lines = [line.split() for line in process.stdout.splitlines()[:-1]]
    return [(float(seconds), word) for seconds, _, word, _ in lines]


def detected_in_node(
    packed: object, recording: Path, settings: PostProcessing = DEFAULTS, *, rate: int = RATE, first: int = 0
) -> list[Detection]:
    """Detect words with the parts of the page, from the sample `first` on, through a microphone of this rate."""
    words = json.dumps(dataclasses.asdict(settings))
    process = run("node", ROOT / "tests" / "detect_words.mjs", packed, recording, words, rate, first)
    assert process.returncode == 0, process.stderr
    return [(round(word["seconds"], 2), word["word"]) for word in json.loads(process.stdout)]


def alike(detections: list[Detection], others: list[Detection]) -> int:
    """Count the detections for which `others` has the same word within TOLERANCE seconds."""
    return sum(
        any(word == other and abs(seconds - at) <= TOLERANCE for at, other in others) for seconds, word in detections
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE.wav", help="Write the recording of the tests.")
    arguments = parser.parse_args()
    if missing := missing_data():
        raise SystemExit(missing)
    if arguments.write:
        print(" ".join(write_spoken(arguments.write, CLEAR)))
    else:
        print(json.dumps(compare(), indent=2))


def compare() -> dict[str, Any]:
    """Compare the detections of the parts of the page with those of C: counts by model and by way of the samples."""
    ways: dict[str, dict[str, int]] = {
        "the same samples": {},
        "one sample later": {"first": 1},
        "half a step later": {"first": HOP // 2},
        "through 48 kHz": {"rate": 48_000},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recordings = [folder / f"{seed}.wav" for seed in range(RECORDINGS)]
        for seed, path in enumerate(recordings):
            write_spoken(path, seed)
        report: dict[str, Any] = {}
        for model in ("english-room-delta", "english-room-gru"):
            packed = pack_file(find_model(Path(model)), folder / "model.edgernn")["packed"]
            in_c = [detected_in_c(packed, path) for path in recordings]
            report[model] = {"in C": sum(map(len, in_c))}
            for way, microphone in ways.items():
                heard = [detected_in_node(packed, path, **microphone) for path in recordings]
                pairs = list(zip(in_c, heard, strict=True))
                report[model][way] = {
                    "alike": sum(alike(detections, others) for detections, others in pairs),
                    "identical recordings": sum(detections == others for detections, others in pairs),
                    "further words": sum(len(others) - alike(others, detections) for detections, others in pairs),
                }
    return report


if __name__ == "__main__":
    main()
