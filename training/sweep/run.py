# SPDX-License-Identifier: Apache-2.0
"""A whole sweep, as `edgernn sweep` runs it: train the missing runs, and report the finished ones."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import EXAMPLE, read_bytes, write_bytes
from edgernn.names import parts
from edgernn.training.pictures import WAYS, Point, fronts
from edgernn.training.sweep.plan import LAMBDA, Sweep, load_sweep
from edgernn.training.sweep.table import COSTS, markdown, naming_settings, tabulate
from edgernn.training.tables.jobs import WHOLE, Part, Pool, origin
from edgernn.training.tables.table import Failures, results_of, save, trained
from edgernn.training.tables.table_latency import exported, latencies, measured
from edgernn.training.tables.worker_processes import processes

FRONT = "front"
_SYMBOLS = {LAMBDA: "λ", "hidden_size": "H"}


def sweep(
    path: Path,
    *,
    out: Path | None = None,
    jobs: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    part: str | None = None,
    data: Path | None = None,
    latency: bool = True,
    export: bool = False,
    run: bool = True,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Run a sweep in processes of this machine, and write its table and pictures.

    Missing runs are trained, and interrupted runs are resumed. A failed run does not stop the others; its error message
    is in the table. After an interrupt or an error, the same call resumes the sweep.

    Args:
        path: The sweep file, see `load_sweep`.
        out: Folder of the runs, the table and the pictures. Default: runs/NAME for NAME.toml.
        jobs: Maximal number of trainings at once. Default: 1 on a GPU, else the number of processors divided by
            `threads`.
        threads: Threads of each training.
        device: auto, cpu or cuda.
        part: "K/N" to train the K-th of N parts of the trainings, without a table, pictures and times. The parts may
            run at the same time, on machines that share `out`. Default: all trainings.
        data: The user's folder of data sets. None: the folder in the environment variable EDGERNN_DATA.
        latency: True: also measure the latency of the best trained model of each row. Among rows that differ only in
            settings of [search], only the best row is measured.
        export: True: export the models on a Pareto front to ONNX, in the folder front/ROW of `out`.
        run: False: only report the existing runs; nothing is trained or timed.
        allow_code: True if the Python files of user-defined cells that the sweep file names may be executed.

    Returns:
        The content of table.json, and under "files" the paths of the files written.

    Raises:
        CodeError: The sweep file names a Python file, and `allow_code` is False.
        UsageError: The sweep file has an unknown name or a bad setting, a run directory has other settings, another
            sweep is running in `out`, `part` is not K/N, or `export` is True for a part.
        EdgernnError: The sweep file has another mistake.
        OSError: A file cannot be written, for example because the disk is full.
        Interrupted: SIGINT (Ctrl-C), SIGTERM or SIGHUP was received.
    """
    out = out or Path("runs") / path.stem
    chosen_part = WHOLE if part is None else _part(part)
    if part is not None and export:
        raise UsageError(f"export: expected a whole sweep, got its part {part}; leave export or part out")
    plan = load_sweep(path, out, allow_code=allow_code)
    if run:
        for copy, content in plan.cell_files.items():
            write_bytes(copy, content)
    pool = partial(processes, jobs=jobs, threads=threads, data=data, device=device) if run else None
    with _all_trained(plan, out, pool, chosen_part) as (plan, failures):
        chosen = plan.chosen()
        best = {row.name: row.best for row in plan.rows if row.best is not None and row.name in chosen}
        times = (
            latencies(out, best, allow_code=allow_code) if latency and run and best and part is None else measured(out)
        )
        report = {
            "command": shlex.join(["edgernn", "sweep", str(path), *(["--allow-code"] * allow_code)]),
            **origin(results_of(plan.rows)),
            **tabulate(plan, failures, times, (device, data)),
        }
        if part is not None:
            # another part may write these files at the same time
            return {**report, "files": []}
        pictures = [out / f"{FRONT}.{kind}" for kind in ("png", "svg")]
        drawn = [picture for picture in pictures if draw_front(report, picture)]
        files = [*save(report, markdown(report), out), *drawn, *(_export(report, out, allow_code) if export else [])]
        return {**report, "files": list(map(str, files))}


@contextmanager
def _all_trained(plan: Sweep, out: Path, pool: Pool | None, part: Part) -> Iterator[tuple[Sweep, Failures]]:
    """Train the runs of the search, then the further seeds of the rows that it chooses; hold the lock of the folder."""
    if plan.search_seeds == len(plan.seeds):
        with trained(plan.rows, out, pool, part) as failures:
            yield plan, failures
        return
    searched = plan.narrowed(())
    with trained(searched.rows, out, pool, part) as failures:
        if part != WHOLE and any(job.result() is None for row in searched.rows for job in row.jobs):
            # the other parts of the search decide which rows have further seeds
            yield searched, failures
            return
        chosen = searched.chosen()
    while True:
        narrowed = plan.narrowed(chosen)
        with trained(narrowed.rows, out, pool, part) as failures:
            before, chosen = chosen, narrowed.chosen()
            if chosen == before:
                yield narrowed, failures
                return


def _part(text: str) -> Part:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"part: expected K/N, such as 3/10 for the third of ten parts, got {text!r}")
    return int(match[1]), int(match[2])


def draw_front(report: dict[str, Any], file: Path) -> bool:
    """Plot the Pareto fronts of a sweep into an image file, unless no run is finished.

    Args:
        report: Content of the sweep's table.json.
        file: The image file to write.

    Returns:
        True if the file was written.
    """
    points = _points(report)
    if points:
        fronts(file, points, COSTS, report["metric"], report["higher_is_better"])
    return bool(points)


def _weights(row: dict[str, Any]) -> list[str]:
    """Return how a row's model makes its weights smaller, such as ["int8"]."""
    settings = row["settings"]
    return [name for name in ("rank", "density") if name in settings] + ["int8"] * (settings.get("weights") == "int8")


def _points(report: dict[str, Any]) -> list[Point]:
    dense, skipping, smaller = WAYS
    return [
        Point(
            way=skipping if row["rule"] != "always" else smaller if _weights(row) else dense,
            group=", ".join([*parts(row["cell"], row["rule"]), *_weights(row)]),
            label=", ".join(
                f"{_SYMBOLS.get(key, key)} = {row['settings'][key]}"
                for key in naming_settings(report, row)
                if key != "weights"
            ),
            value=row["test"]["mean"],
            interval=row["test"]["interval"],
            costs={cost: row[cost]["mean"] for cost in COSTS if row[cost]["mean"] is not None},
            fronts=row["front"],
        )
        for row in report["rows"]
        if row["chosen"]
    ]


def _export(report: dict[str, Any], out: Path, allow_code: bool = False) -> list[Path]:
    """Export the best run of each row on a Pareto front, and copy its model files to the folder front/ROW of `out`."""
    models = []
    for row in report["rows"]:
        if not row["front"]:
            continue
        folder = out / FRONT / row["name"]
        model = exported(Path(row["best"]), allow_code=allow_code)
        for file in (model, model.with_suffix(".md"), model.with_name(EXAMPLE)):
            write_bytes(folder / file.name, read_bytes(file, "a file of a model"))
        models.append(folder / model.name)
    if not models:
        raise EdgernnError(f"{out}: expected a finished run to export, got none; run the sweep without --table-only")
    _remove_others(out / FRONT, {model.parent.name for model in models})
    return models


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove the models that an earlier call exported to `folder`, except those in the subfolders `names`."""
    for model in folder.glob("*/model*.onnx"):
        if model.parent.name not in names:
            for file in (model, model.with_suffix(".md"), model.with_name(EXAMPLE)):
                file.unlink(missing_ok=True)
            with suppress(OSError):
                # a folder that is not empty is kept
                model.parent.rmdir()
