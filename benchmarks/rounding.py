# SPDX-License-Identifier: Apache-2.0
"""Compares int8 weights after training with training for them: `python -m benchmarks.rounding FOLDER --out FILE`.

Each model is trained for float32 and for int8 in FOLDER; finished runs are not trained again. The float32 run is also
exported with int8 weights, and the metric of the rounded weights is measured. EDGERNN_DATA is the folder of data sets.
"""

import argparse
from pathlib import Path
from typing import Any

import edgernn
from edgernn.bench.provenance import machine
from edgernn.export.run import export_run
from edgernn.files import write_json
from edgernn.progress import Progress
from edgernn.training import train
from edgernn.training.evaluate import scorer

ADDING = {"T": 100, "hidden_size": 64, "stop_solved": False, "keep": "best"}
# the settings of models/engine-life-sarnn
ENGINES = {"lr": 0.004, "lr_decay": 0.92, "epochs": 25, "keep": "best", "dropout_input": 0.2, "dropout_output": 0.3}
ENGINES |= {"hidden_size": 32, "skip": 0.7, "group_size": 8}
# name of a row: task, cell, settings and number of seeds
ROWS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "adding-gru": ("adding", "gru", ADDING, 1),
    "adding-sarnn": ("adding", "sarnn", ADDING, 1),
    "activity-gru": ("activity", "gru", {"keep": "best"}, 3),
    "seizures-gru": ("seizures", "gru", {"keep": "best"}, 3),
    "remaining-life-sarnn": ("remaining-life", "sarnn", ENGINES, 3),
}


def measure(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Return the metric on the test split: trained for float32, the same rounded to int8, and trained for int8."""
    task, cell, settings, _ = ROWS[name]
    results = {}
    for weights in ("float32", "int8"):
        out = folder / f"{name}-{weights}-{seed}"
        results[weights] = train(
            task, cell, out=out, seed=seed, resume=True, settings={**settings, "weights": weights}, progress=Progress()
        )
    metric = results["float32"]["metric"]
    run = folder / f"{name}-float32-{seed}"
    rounded = export_run(run, weights="int8", score=scorer(run))["loss"]["after"]
    trained = export_run(folder / f"{name}-int8-{seed}")
    return {
        "metric": metric,
        "higher_is_better": results["float32"]["higher_is_better"],
        "float32": results["float32"][metric],
        "rounded": rounded,
        "trained": results["int8"][metric],
        "skip_percent": {weights: result["skip_percent"] for weights, result in results.items()},
        "bytes": trained["bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.rows:
        task, cell, settings, seeds = ROWS[name]
        by_seed = [measure(arguments.folder, name, seed) for seed in range(seeds)]
        rows.append({"task": task, "cell": cell, "settings": settings, "runs": by_seed})
    report = {"machine": machine(), "edgernn": edgernn.__version__, "rows": rows}
    write_json(arguments.out, report)


if __name__ == "__main__":
    main()
