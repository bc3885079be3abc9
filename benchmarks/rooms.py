# SPDX-License-Identifier: Apache-2.0
"""Measures how well and at what work the Arabic word models listen: `python -m benchmarks.rooms FILE [RUN ...]`.

FILE is the JSON file to write; EDGERNN_DATA is the folder of data sets; speech-noise, the folder with recordings of
noise, must be in the current folder. Each model is tested in ten hours of room with words, in one hour with a single
word, and on a minute of digital silence. Each RUN, the directory of a training with other settings, and the dense model
with thresholds of delta but without further training, are tested in ten hours. Each test of ten hours has one in a room
of the validation part beside it, by which settings are chosen. What FILE has already is kept.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edgernn
from benchmarks import parser_of
from edgernn.export.exported_model import read_exported
from edgernn.files import read_json, write_json
from edgernn.kernels import attach
from edgernn.machine import processor
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.wav import write_wav
from edgernn.runtime.zoo import find_model
from edgernn.store import read_config
from edgernn.training.calibration.calibrate import with_thresholds
from edgernn.training.evaluate import evaluate
from edgernn.training.evaluate_model import evaluate_model, open_entry

DENSE = Path("arabic-room-gru")
MODELS = (DENSE, Path("arabic-room-sarnn"), Path("arabic-room-delta"))
# the model whose DET curve the page shows
PICTURED = MODELS[-1]
HOURS = 10.0
# so little of the time that a room has one word
ONE_WORD = 1e-6
# another detection threshold in the table
STRICTER = 0.7
# thresholds of x and h for the dense model without training
UNTRAINED = ((0.21, 0.05), (0.32, 0.075), (0.43, 0.1), (0.85, 0.2))
# a setting is chosen if it has the most hits in the room of the validation part, with at most this share of the work
MOST_WORK = 0.1
# settings of a training that tell the runs apart
_SETTINGS = ("period", "theta_x", "theta_h", "lambda", "background", "lr_decay", "epochs")


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a result of `evaluate_model`, with those at the stricter detection threshold."""
    series = result["series"]
    at = series["room_threshold"].index(STRICTER)
    names = ("hits", "wrong", "missed", "false_alarms_an_hour")
    metrics = {**result["metrics"], "stricter": {name: series[f"room_{name}"][at] for name in names}}
    if result["model"] == str(find_model(PICTURED)):
        metrics["curve"] = {name: series[f"room_{name}"] for name in ("threshold", *names)}
    return metrics


def in_rooms(model: Path) -> dict[str, Any]:
    """Return the figures of a model or run in the room of the test, with those of the validation part's room."""
    validation = evaluate_model(model, {"room": HOURS}, part="validation")["metrics"]
    return {"validation": validation, **figures(evaluate_model(model, {"room": HOURS}))}


def silence(model: Path) -> dict[str, float]:
    """Return the updates and multiply-adds a second of a model in a minute of digital silence."""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "silence.wav"
        write_wav(wav, np.zeros(60 * 16_000, np.float32), 16_000)
        result = run_stream(find_model(model), wav)
    return {name: result[name] for name in ("updates_a_second", "macs_a_second")}


def untrained() -> Iterator[dict[str, Any]]:
    """Yield the metrics of the dense model with thresholds of the rule delta, without further training."""
    path = find_model(DENSE)
    dense, _ = read_exported(path)
    test, validation = (open_entry(path.with_name("entry.json"), {"room": HOURS}) for _ in range(2))
    validation.test_on_validation()
    for theta_x, theta_h in UNTRAINED:
        model = with_thresholds(dense, [(theta_x, theta_h)] * len(dense.recurrent_layers()))
        attach(model, "auto", "cpu")
        heard = [evaluate(model, task, task.test) for task in (validation, test)]
        yield {"theta_x": theta_x, "theta_h": theta_h, "validation": heard[0], **heard[1]}


def told_apart(run: Path) -> dict[str, str]:
    """Return the settings of a run that tell it apart."""
    words = dict(word.split("=", 1) for word in read_config(run)["command"] if "=" in word)
    return {name: words[name] for name in _SETTINGS if name in words}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = {"edgernn": edgernn.__version__, "processor": processor(), "threshold": STRICTER, "most_work": MOST_WORK}
    start |= {"models": {}, "runs": []}
    report: dict[str, Any] = read_json(arguments.out) if arguments.out.is_file() else start

    def save() -> None:
        # each measurement takes minutes
        write_json(arguments.out, report)

    for name in MODELS:
        if str(name) not in report["models"]:
            report["models"][str(name)] = {
                "room": in_rooms(name),
                "one_word": evaluate_model(name, {"talk": ONE_WORD})["metrics"],
                "silence": silence(name),
            }
            save()
    for run in arguments.runs:
        settings = told_apart(run)
        if settings not in [known["settings"] for known in report["runs"]]:
            report["runs"].append({"settings": settings, **in_rooms(run)})
            save()
    if "untrained" not in report:
        report["untrained"] = [*untrained()]
        save()


if __name__ == "__main__":
    main()
