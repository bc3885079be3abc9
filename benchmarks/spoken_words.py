# SPDX-License-Identifier: Apache-2.0
"""Measures how alike the apps detect the same words: `python -m benchmarks.spoken_words FILE`.

It builds RECORDINGS recordings of `tests.spoken_words`. FILE is the JSON file to write: the number of words that the
program in C detects, how many of these the parts of the page detect in Node within TOLERANCE seconds, and how many
others, for each model and each way to change the samples. EDGERNN_DATA must be set to a folder with the data of the
recordings.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import edgernn
from benchmarks import command_of, parser_of
from edgernn.files import write_json
from edgernn.machine import processor
from edgernn.runtime.packed import pack_file
from edgernn.runtime.word_detection import PostProcessing
from edgernn.runtime.zoo import find_model
from tests.apps import ROOT, c_program, run
from tests.spoken_words import HOP, RATE, missing_data, write_spoken

# most seconds between two detections of the same word in the same recording
TOLERANCE = 0.25
RECORDINGS = 12

Detection = tuple[float, str]
DEFAULTS = PostProcessing()


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
    process = run("node", ROOT / "benchmarks" / "detect_words.mjs", packed, recording, words, rate, first)
    assert process.returncode == 0, process.stderr
    return [(round(word["seconds"], 2), word["word"]) for word in json.loads(process.stdout)]


def alike(detections: list[Detection], others: list[Detection]) -> int:
    """Count the detections for which `others` has the same word within TOLERANCE seconds."""
    return sum(
        any(word == other and abs(seconds - at) <= TOLERANCE for at, other in others) for seconds, word in detections
    )


def compare() -> dict[str, Any]:
    """Compare the detections of the parts of the page with those of C: counts by model and by way of the samples."""
    ways: dict[str, dict[str, int]] = {
        "the file": {},
        "the file without its first sample": {"first": 1},
        "the file without its first half step": {"first": HOP // 2},
        "the file, converted to 48 kHz and back": {"rate": 48_000},
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
            figures: dict[str, Any] = {}
            for way, microphone in ways.items():
                heard = [detected_in_node(packed, path, **microphone) for path in recordings]
                pairs = list(zip(in_c, heard, strict=True))
                figures[way] = {
                    "alike": sum(alike(detections, others) for detections, others in pairs),
                    "further": sum(len(others) - alike(others, detections) for detections, others in pairs),
                }
            report[model] = {"in_c": sum(map(len, in_c)), "samples": figures}
    return report


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path, metavar="FILE", help="JSON file to write.")
    out = parser.parse_args().out
    if missing := missing_data():
        raise SystemExit(missing)
    node = run("node", "--version").stdout.strip()
    report = {
        "command": command_of("spoken_words"),
        "edgernn": edgernn.__version__,
        "processor": processor(),
        "node": node,
        "recordings": RECORDINGS,
        "models": compare(),
    }
    write_json(out, report)


if __name__ == "__main__":
    main()
