# SPDX-License-Identifier: Apache-2.0
"""A whole sweep: what is missing is trained, what is finished is laid out."""

import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import EXAMPLE, write_bytes
from edgernn.names import parts
from edgernn.training.jobs import origin
from edgernn.training.pictures import Point, fronts
from edgernn.training.sweep.cluster import device_of, load, on_ray
from edgernn.training.sweep.sweep_plan import LAMBDA, load_sweep
from edgernn.training.sweep.sweep_table import COSTS, markdown, tabulate
from edgernn.training.table import results_of, save, trained
from edgernn.training.table_latency import MODEL, exported, latencies, measured

FRONT = "front"
_SYMBOLS = {LAMBDA: "λ"}


def sweep(
    path: Path,
    *,
    out: Path | None = None,
    address: str | None = None,
    jobs: int | None = None,
    threads: int = 1,
    gpus: float = 0.0,
    data: Path | None = None,
    latency: bool = True,
    export: bool = False,
    run: bool = True,
) -> dict[str, Any]:
    """Train or go on with what is missing of a sweep on Ray, then write its table and picture in `out`; the table.

    path: the sweep file (`plan`). out: runs/ and its name. address: of a Ray cluster, else this machine is one.
    jobs: trainings at once, else what fits; threads, gpus: of each, which trains on the CPU if it is to have no GPU.
    latency: time the models, too.
    export: copy the models of the front to `out`/front, a folder each. run: False only lays out what is there.
    What fails has its reason in the table; the others go on.
    Raises UsageError for bad words in the file, a run of other settings in the place of one of its own and another
    sweep that is going on in `out`; EdgernnError for other mistakes in the file, a cluster that cannot be reached and a
    full disk; Interrupted after Ctrl-C, SIGTERM or SIGHUP. The same command then goes on where it was.
    """
    out = out or Path("runs") / path.stem
    plan = load_sweep(path, out)
    if run:
        load(address)
        for copy, content in plan.cell_files.items():
            write_bytes(copy, content)
    workers = partial(on_ray, out=out, address=address, jobs=jobs, threads=threads, gpus=gpus, data=data)
    with trained(plan.rows, out, workers if run else None) as failures:
        best = {row.name: row.best for row in plan.rows if row.best is not None}
        times = latencies(out, best) if latency and run and best else measured(out)
        report = {
            "command": shlex.join(["edgernn", "sweep", str(path)]),
            **origin(results_of(plan.rows)),
            **tabulate(plan, failures, times, (device_of(gpus), data)),
        }
        files = [*save(report, markdown(report), out), *_draw(report, out), *(_export(report, out) if export else [])]
        return {**report, "files": list(map(str, files))}


def _draw(report: dict[str, Any], out: Path) -> list[Path]:
    """Draw the front, unless nothing is measured; the files."""
    points = _points(report)
    files = [out / f"{FRONT}.{kind}" for kind in ("png", "svg") if points]
    for file in files:
        fronts(file, points, COSTS, report["metric"])
    return files


def _points(report: dict[str, Any]) -> list[Point]:
    return [
        Point(
            group=", ".join(parts(row["cell"], row["rule"])),
            label=", ".join(f"{_SYMBOLS.get(key, key)} = {row['settings'][key]}" for key in _told(report, row)),
            value=row["test"]["mean"],
            interval=row["test"]["interval"],
            costs={cost: row[cost]["mean"] for cost in COSTS if row[cost]["mean"] is not None},
            fronts=row["front"],
        )
        for row in report["rows"]
        if row["chosen"]
    ]


def _told(report: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """The settings that tell a point of the picture from others of its group."""
    return [key for key in row["settings"] if key not in report["searched"]]


def _export(report: dict[str, Any], out: Path) -> list[Path]:
    """Copy the models of the front, of each row's best run, with cards and examples. Raises EdgernnError for none."""
    made = []
    for row in report["rows"]:
        if not row["front"]:
            continue
        folder = out / FRONT / row["name"]
        folder.mkdir(parents=True, exist_ok=True)
        model = exported(Path(row["best"]))
        for file in (model, model.with_suffix(".md"), model.with_name(EXAMPLE)):
            shutil.copy2(file, folder / file.name)
        made.append(folder / MODEL)
    if not made:
        raise EdgernnError(f"{out}: there is no finished run whose model could be exported")
    return made
