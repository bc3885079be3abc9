# SPDX-License-Identifier: Apache-2.0
"""Measures how a heart beat model trades precision for sensitivity: `python -m tests.measure_operating_points FILE`.

A number is added to the output of the class S, before the largest output is taken. FILE is the JSON file to write.
EDGERNN_DATA is the folder of data sets.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import edgernn
from edgernn.runtime import Session
from edgernn.training.tasks.ecg import CLASSES, Ecg

MODEL = Path(__file__).resolve().parent.parent / "models" / "heartbeats-gru" / "model.onnx"
OFFSETS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
# beats that the session classifies at once
_BEATS = 1024


def outputs() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the model's outputs (beats, classes) for the beats of the test records, and their classes (beats,)."""
    task = Ecg(positions=True)
    task.open(None, 0)
    session = Session(MODEL)
    chunks = list(task.test.chunks(_BEATS))
    y = np.concatenate([session.run(chunk.x.numpy()) for chunk in chunks])
    return y, np.concatenate([chunk.target.numpy() for chunk in chunks])


def rates(y: npt.NDArray[np.float32], target: npt.NDArray[np.int64], offset: float) -> dict[str, Any]:
    """Return sensitivity and precision of each class, in percent, with `offset` added to the output of S."""
    added = np.array([offset if name == "S" else 0.0 for name in CLASSES])
    chosen = (y + added).argmax(-1)
    row: dict[str, Any] = {"offset": offset}
    for label, name in enumerate(CLASSES):
        hits = int(((chosen == label) & (target == label)).sum())
        row[name] = {
            "sensitivity": 100 * hits / int((target == label).sum()),
            "precision": 100 * hits / max(1, int((chosen == label).sum())),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    y, target = outputs()
    rows = [rates(y, target, offset) for offset in OFFSETS]
    report = {"edgernn": edgernn.__version__, "model": MODEL.parent.name, "beats": len(target), "rows": rows}
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
