# SPDX-License-Identifier: Apache-2.0
"""Measures what thresholds of delta save in a trained word model: `python -m benchmarks.calibration FILE`.

The dense model of isolated Arabic words gets the thresholds that `edgernn calibrate` finds for several losses, and is
not trained. FILE is the JSON file to write: accuracy and multiply-adds on the test clips, and microseconds for a second
of audio, see `benchmarks.room_times`. EDGERNN_DATA is the folder of data sets. Nothing else may run on the machine.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import command_of, parser_of
from benchmarks.room_times import Array, report, timed_rows
from benchmarks.step_times import timer
from benchmarks.zoo_entry import part_figures
from edgernn.export.exported_model import read_exported
from edgernn.files import write_json
from edgernn.kernels import attach
from edgernn.model import SequenceModel
from edgernn.runtime.zoo import find_model
from edgernn.training.calibration.calibrate import calibrate_on
from edgernn.training.evaluate import evaluate
from edgernn.training.evaluate_model import open_entry
from edgernn.training.tasks.base import Task

DENSE = Path("arabic-words-gru")
LOSSES = (0.1, 0.3, 0.5)
# test clips that are timed, one after the other
CLIPS = 40


def clips(task: Task) -> Array:
    """Return the samples of the first test clips, one after the other (steps, hop)."""
    x = next(task.test.chunks(CLIPS)).x
    return np.ascontiguousarray(x.transpose(0, 1).reshape(-1, x.shape[-1]).numpy(), np.float32)


def figures(model: SequenceModel, task: Task) -> dict[str, Any]:
    """Return the metrics on all test clips, and under "words" the figures of those that have a word."""
    return {**evaluate(model, task, task.test), "words": part_figures(model, task)["words"]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("out", metavar="FILE", type=Path, help="JSON file to write.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = find_model(DENSE)
    dense, _ = read_exported(path)
    attach(dense, "auto", "cpu")
    task = open_entry(path.with_name("entry.json"), {})
    models = {"dense": dense}
    rows: list[dict[str, Any]] = [{"loss": None, **figures(dense, task)}]
    for loss in LOSSES:
        calibration = calibrate_on(dense, task, loss=loss)
        models[f"{loss}"] = calibration.model
        attach(calibration.model, "auto", "cpu")
        rows.append(
            {
                "loss": loss,
                "thresholds": calibration.point.thresholds,
                "validation": {"dense": calibration.dense, "accuracy": calibration.point.value},
                **figures(calibration.model, task),
            }
        )
    x = clips(task)
    assert dense.frontend is not None
    seconds, library = x.size / dense.frontend.config.sample_rate, timer()
    timed = [row for name, model in models.items() for row in timed_rows(library, name, model, x)]
    times = report(timed, seconds, command_of("calibration"))
    result = {
        **{key: value for key, value in times.items() if key != "rows"},
        "model": str(DENSE),
        "clips": CLIPS,
        "macs": sum(layer.macs() for layer in dense.recurrent_layers()),
        "rows": rows,
        "times": times["rows"],
    }
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
