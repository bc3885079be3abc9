# SPDX-License-Identifier: Apache-2.0
"""Reproduce a paper's table of results: train its missing runs, and report our results beside the paper's numbers."""

import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnWarning, nearest
from edgernn.locks import hold_folder
from edgernn.progress import Progress
from edgernn.training.papers.agreement import agreement, count_verdicts
from edgernn.training.papers.known_runs import KnownRow, read_known_rows, shared_settings
from edgernn.training.papers.paper_table import MACHINE_COLUMNS, markdown
from edgernn.training.papers.recipe import Recipe, Table, load_table
from edgernn.training.papers.run_latency import measure_latency, summary
from edgernn.training.papers.table_pictures import draw_pictures
from edgernn.training.tables.jobs import Job, first_change, origin
from edgernn.training.tables.series import Series
from edgernn.training.tables.table import Failures, Row, finished_jobs, results_of, save, trained
from edgernn.training.tables.toml_settings import label, over
from edgernn.training.tables.trivial_baselines import baselines
from edgernn.training.tables.worker_processes import processes

# significant digits of series; more than a picture shows
_DIGITS = 5


@dataclass(frozen=True)
class RecipeRow(Row):
    """Row of a paper's table with its trainings, one per seed.

    `settings` is a dict with the row's values of the settings that the table varies (section [vary] of its TOML file).
    """

    recipe: Recipe

    @property
    def finished(self) -> list[Path]:
        """Run directories of the finished trainings, in the order of their seeds."""
        return [job.out for job in self.jobs if job.is_finished_here]

    def series(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Join the series of these names, such as "loss", that the finished trainings recorded.

        Each becomes a dict with "over" ("epoch" or "step"), "at" (numbers of the epochs or steps) and "values" (a list
        of values for each training). A series that one of the trainings did not record is left out.
        """
        finished = [job for job in self.jobs if job.seed in self.results]
        joined = {name: join_series([job.series(name) for job in finished]) for name in names}
        return {name: series for name, series in joined.items() if series is not None}


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    rows: list[str] | None = None,
    jobs: int | None = None,
    threads: int = 1,
    out: Path | None = None,
    data: Path | None = None,
    device: str = "auto",
    run: bool = True,
    measure: bool = False,
    known: Path | None = None,
) -> dict[str, Any]:
    """Train the missing runs of a paper's table, then write table.json, table.md and plots.

    Args:
        name: Name of the table.
        quick: True: train the cut-down version, with the settings in [quick] and one seed.
        seeds: Number of trainings of each row. Default: that in the table's TOML file.
        rows: Names of the rows to train. Default: all. The report has all rows in either case.
        jobs: Number of concurrent trainings. Default: the number of processors divided by `threads`.
        threads: Number of threads of each training.
        out: The folder of the runs and of the report. Default: runs/TABLE, or runs/TABLE-quick.
        data: The folder of data sets. Default: $EDGERNN_DATA.
        device: auto, cpu or cuda.
        run: False: train nothing, and report the finished runs.
        measure: True: at the end, time the models of all finished runs of `rows`, also those timed before.
        known: Path of an earlier table.json of this table. Runs in it that have the same settings are not trained
            again. Default: none.

    Returns:
        The content of table.json, and under "files" the paths of the files written.

    Raises:
        UsageError: A name is unknown, a setting is invalid, a run directory has other settings, another command trains
            in `out`, or `known` belongs to another table.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP was received. The same command resumes.
    """
    table = load_table(name)
    chosen = _chosen(table, rows)
    out = out or Path("runs") / (f"{name}-quick" if quick else name)
    count = 1 if quick else seeds or table.seeds
    wanted = table_rows(table, count, out, quick=quick)
    if known:
        wanted = _with_known(wanted, read_known_rows(known, name))
    workers = partial(processes, jobs=jobs, threads=threads, data=data, device=device)
    ours = [row for row in wanted if row.recipe in chosen]
    with trained(ours, out, workers if run else None) as failures:
        if measure:
            with nullcontext() if run else hold_folder(out):
                measure_latency((path for row in ours for path in row.finished), Progress(every=60.0))
        report = _report(table, wanted, failures, quick, seeds, data)
        files = save(report, markdown(report), out)
        runs = {(row.name, label(row.settings)): row.finished[0] for row in wanted if row.finished}
        return {**report, "files": files + list(map(str, draw_pictures(table.pictures, report, out, runs)))}


def table_rows(table: Table, seeds: int, out: Path, *, quick: bool = False) -> list[RecipeRow]:
    """List the rows of our table: one for each recipe and each combination of the settings in [vary].

    Args:
        table: The paper's table.
        seeds: Number of trainings of each row.
        out: Folder of the run directories.
        quick: True for the cut-down version of the table.

    Returns:
        The rows; nothing is trained.
    """
    rows = []
    for recipe, variant in product(table.rows, table.variants()):
        settings = over(over(recipe.settings, variant), table.quick if quick else {})
        place = "-".join([recipe.row, *([label(variant)] if variant else [])])
        jobs = tuple(
            Job(recipe.task, recipe.cell, recipe.rule, seed, settings, out / f"{place}-seed{seed}")
            for seed in range(seeds)
        )
        rows.append(RecipeRow(recipe.row, variant, jobs, recipe))
    return rows


def _report(
    table: Table, rows: list[RecipeRow], failures: Failures, quick: bool, seeds: int | None, data: Path | None
) -> dict[str, Any]:
    command = ["edgernn", "reproduce", table.name, *(["--quick"] if quick else [])]
    if seeds is not None and not quick:
        command += ["--seeds", str(seeds)]
    records = [_record(table, row, failures) for row in rows]
    common = shared_settings(record["settings"] for record in records)
    for record in records:
        record["settings"] = {key: value for key, value in record["settings"].items() if key not in common}
    timed = any(record["latency"] for record in records)
    command += ["--measure-latency"] * timed
    return {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "note": table.note,
        "command": shlex.join(command),
        "quick": quick,
        **origin(results_of(rows)),
        "paper_seeds": table.paper_seeds,
        "interval": table.interval,
        "vary": list(table.vary),
        "columns": table.columns,
        "latency": table.latency or timed,
        "settings": common,
        "rows": records,
        "baselines": baselines(finished_jobs(rows), table.columns, data),
        **compared(table, records),
    }


def compared(table: Table, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare our results with a paper's table: count the numbers that agree, and test the paper's claims.

    Args:
        table: The table.
        rows: Our results: the entry "rows" of table.json.

    Returns:
        Two entries of table.json. "agreement" is a dict from each verdict, such as "within", to the number of the
        paper's numbers that have it. "claims" is a list with a dict for each claim: the attributes of `Claim`, and as
        "result" the significance test of the claim (`Claim.test`), None with fewer than two seeds.
    """
    verdicts = [column["agreement"] for row in rows for column in row["columns"].values()]
    by_name = {(row["name"], label(row["variant"])): row for row in rows}
    claims = []
    for claim in table.claims:
        places = zip(claim.rows, (claim.variant, claim.variant if claim.than is None else claim.than), strict=True)
        # a column without a result has an empty list of values
        first, second = (
            dict(zip(row["seeds"], values, strict=True)) if (values := row["columns"][claim.column]["values"]) else {}
            for row in (by_name[place] for place in places)
        )
        claims.append({**asdict(claim), "rows": list(claim.rows), "result": claim.test(first, second)})
    return {"agreement": count_verdicts(verdicts), "claims": claims}


def _chosen(table: Table, rows: list[str] | None) -> list[Recipe]:
    by_name = {recipe.row: recipe for recipe in table.rows}
    for row in rows or []:
        if row not in by_name:
            raise nearest("row", row, by_name)
    return [by_name[row] for row in dict.fromkeys(rows)] if rows else table.rows


def _with_known(rows: list[RecipeRow], known: Mapping[tuple[str, str], KnownRow]) -> list[RecipeRow]:
    """Copy rows of a table, and give their jobs the results of runs in an earlier table.json."""
    result, changes = [], []
    for row in rows:
        known_row = known.get((row.name, label(row.settings)))
        runs = known_row.runs if known_row else {}
        if known_row and (change := first_change(known_row.settings, row.jobs[0].all_settings())):
            changes.append(f"{row.name}: {change}")
            runs = {}
        result.append(replace(row, jobs=tuple(replace(job, known=runs.get(job.seed)) for job in row.jobs)))
    if changes:
        text = f"known: the runs of {len(changes)} rows have other settings and are not used; the first: {changes[0]}"
        warnings.warn(text, EdgernnWarning, stacklevel=3)
    return result


def _record(table: Table, row: RecipeRow, failures: Failures) -> dict[str, Any]:
    return {
        **row.record(failures),
        "stands_for": row.recipe.stands_for,
        "variant": row.settings,
        "recipe": row.recipe.name,
        "seconds": row.spread("seconds")["mean"],
        "columns": {column: _compare(row, column) for column in table.columns},
        "latency": summary(result["latency"] for result in row.results.values()),
        "series": row.series(table.series),
        "settings": row.jobs[0].all_settings(),
        "runs": {str(seed): result for seed, result in row.results.items()},
    }


def _compare(row: RecipeRow, column: str) -> dict[str, Any]:
    """Compare a row's results in one column with the paper's number; return the entry of the column in table.json."""
    paper, ours = row.recipe.paper(row.settings, column), row.spread(column)
    reason = row.recipe.not_comparable.get(column, MACHINE_COLUMNS.get(column))
    return {
        "paper": None if paper is None else asdict(paper),
        **ours,
        "agreement": agreement(paper, ours, reason),
    }


def join_series(runs: Sequence[Series | None]) -> dict[str, Any] | None:
    """Merge the same series, such as the loss, of finished runs that differ only in their seed.

    The result has "over" ("epoch" or "step"), "at" (epochs or steps of the longest series) and "values" (a list of
    values for each run). It is None if a run lacks the series or there are no runs.
    """
    series = [run for run in runs if run is not None]
    if not series or len(series) < len(runs):
        return None
    longest = max(series, key=lambda run: len(run.at))
    return {"over": longest.over, "at": list(longest.at), "values": [_rounded(run.values) for run in series]}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
