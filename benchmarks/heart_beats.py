# SPDX-License-Identifier: Apache-2.0
"""Trains heart beat models with other options and seeds: `python -m benchmarks.heart_beats FOLDER --out FILE`.

The command on the card of models/heartbeats-gru is run with the options in VARIANTS and with five seeds. The runs are
in FOLDER; finished ones are not trained again. Then a number, the offset, is added to the output of the class S of the
dense models, before the class with the largest output is taken. FILE is the JSON file to write. The metrics of all
seeds are also written to the entries and cards of the two models. EDGERNN_DATA is the folder of data sets.
"""

import shlex
from pathlib import Path
from typing import Any

import torch

import edgernn
from benchmarks import command_of
from benchmarks.trained_runs import card_arguments, parse, train_once
from benchmarks.zoo import ROOT, write
from edgernn.files import write_json
from edgernn.kernels import attach
from edgernn.model import SequenceModel
from edgernn.runtime.zoo import entries
from edgernn.store import load_model
from edgernn.training.calibration.calibrate import calibrate
from edgernn.training.evaluate import open_task
from edgernn.training.tasks.ecg import CLASSES, BeatTally, Ecg
from edgernn.training.tasks.sources import Batch, Split

MODEL = "heartbeats-gru"
# from the trained models to the runs of all seeds in the report
RUNS = {MODEL: "dense", "heartbeats-delta": "delta"}
SEEDS = range(5)
# stands in the options for the dense run of the same seed
DENSE = "DENSE"
DELTA = f"--rule delta skip=0.8 theta_x=0.2 theta_h=0.1 start_run={DENSE} lr=0.001 lr_decay=0.85"
# options that the card's command gets, in addition or in place of its own
VARIANTS = (
    f"--cell sarnn skip=0.8 start_run={DENSE}",
    f"--cell sarnn skip=0.6 start_run={DENSE} epochs=24 lr_decay=0.88",
    f"--cell gru --rule skip skip=0.8 start_run={DENSE} epochs=12 lr=0.001 lr_decay=0.85",
    "--cell sarnn skip=0.8",
    DELTA,
    f"--rule delta skip=0.8 theta_x=0.1 theta_h=0.05 learn_thresholds=true start_run={DENSE} lr=0.001 lr_decay=0.85",
)
LOSS = 1.0
OFFSETS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
# beats that a model classifies at once
_BEATS = 1024


@torch.no_grad()
def outputs(model: SequenceModel, split: Split) -> list[tuple[torch.Tensor, Batch]]:
    """Return a model's outputs (beats, classes) for each batch of a split, and the batch."""
    return [(model(batch.x)[0], batch) for batch in split.chunks(_BEATS)]


def rates(task: Ecg, pairs: list[tuple[torch.Tensor, Batch]]) -> list[dict[str, float]]:
    """Return the metrics of the task for outputs and their batches, with each offset added to the output of S."""
    rows = []
    for offset in OFFSETS:
        added = torch.tensor([offset if name == "S" else 0.0 for name in CLASSES])
        tally = BeatTally(None, task.frame, task.delay)
        for y, batch in pairs:
            tally.add(y + added, batch)
        rows.append({"offset": offset, **tally.result()})
    return rows


def write_seeds(report: dict[str, Any]) -> None:
    """Write the metrics of all seeds of a report to the entries and cards of the trained models."""
    for entry in entries(ROOT / "models"):
        if run := RUNS.get(entry["name"]):
            metrics = {
                split: {str(row["seed"]): row[run][key] for row in report["seeds"]}
                for split, key in (("validation", "best_validation"), ("test", entry["metric"]))
            }
            command = entry["command"]
            seeds = {"model": command[command.index("--seed") + 1], **metrics}
            folder = Path(entry.pop("folder"))
            write(folder, {**entry, "seeds": seeds})


def main() -> None:
    arguments = parse(__doc__)
    folder, command = arguments.folder, card_arguments(MODEL)

    def run(name: str, seed: int, options: str = "") -> dict[str, Any]:
        words = shlex.split(options.replace(DENSE, str(folder / f"dense-{seed}")))
        return train_once(folder / f"{name}-{seed}", seed, command, words)

    seeds = []
    validation: list[tuple[torch.Tensor, Batch]] = []
    for seed in SEEDS:
        dense, delta = run("dense", seed), run("delta", seed, DELTA)
        model, task = load_model(folder / f"dense-{seed}")[0], open_task(folder / f"dense-{seed}")
        attach(model, "auto", "cpu")
        assert isinstance(task, Ecg)
        validation += outputs(model, task.validation)
        offsets = rates(task, outputs(model, task.test))
        seeds.append({"seed": seed, "dense": dense, "delta": delta, "offsets": offsets})
    variants = [
        {
            "options": options.replace(DENSE, str(folder / "dense-0")),
            **(seeds[0]["delta"] if options == DELTA else run(f"variant{number}", 0, options)),
        }
        for number, options in enumerate(VARIANTS)
    ]
    calibrated = calibrate(folder / "dense-0", loss=LOSS)
    report = {
        "command": command_of("heart_beats"),
        "edgernn": edgernn.__version__,
        "seeds": seeds,
        "dense": str(folder / "dense-0"),
        "variants": variants,
        "baselines": task.baselines(),
        "calibrated": {"loss": LOSS, "macs": seeds[0]["dense"]["macs"], **calibrated["test"]},
        # over the validation records of all seeds together
        "validation": rates(task, validation),
    }
    write_json(arguments.out, report)
    write_seeds(report)


if __name__ == "__main__":
    main()
