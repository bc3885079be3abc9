# SPDX-License-Identifier: Apache-2.0
"""Train what a paper's table needs, several runs at once, and lay the table out beside the paper's."""

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgernn.errors import UsageError, nearest
from edgernn.files import write_json, write_text
from edgernn.training.jobs import Job, origin, processes, run_missing
from edgernn.training.recipe import Recipe, Settings, Table, combinations, label, load_table, over
from edgernn.training.report import figure, markdown, summary
from edgernn.training.run import RunDirectory

REPORT = "table"


@dataclass(frozen=True)
class Entry:
    """One training of a table, and the row and the variant that it is for."""

    recipe: Recipe
    variant: Settings
    job: Job


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
) -> dict[str, Any]:
    """Run or resume what is missing of a table, then write table.json and table.md in `out` and return the former.

    quick: the cut-down version. seeds: trainings a row, else what the table says.
    rows: train only these; the table has all. jobs: trainings at once, each with `threads` threads; else what the
    processors can bear.
    out: runs/TABLE, or runs/TABLE-quick. run: False only lays out what is there.
    Raises UsageError for unknown names, bad settings and a run of other settings in its place; KeyboardInterrupt after
    Ctrl-C: what was running can be resumed then.
    """
    table = load_table(name)
    chosen = _chosen(table, rows)
    out = out or Path("runs") / (f"{name}-quick" if quick else name)
    count = 1 if quick else seeds or table.seeds
    wanted = [
        _entry(recipe, variant, seed, _settings(table, recipe, variant, quick), out)
        for recipe in table.rows
        for variant in table.variants()
        for seed in range(count)
    ]
    trained = [entry.job for entry in wanted if entry.recipe in chosen] if run else []
    failed = run_missing(trained, partial(processes, jobs=jobs, threads=threads, data=data, device=device))
    command = ["edgernn", "reproduce", name, *(["--quick"] if quick else [])]
    if seeds is not None and not quick:
        command += ["--seeds", str(seeds)]
    report = {
        "table": name,
        "title": table.title,
        "paper": table.paper,
        "note": table.note,
        "command": shlex.join(command),
        "quick": quick,
        **origin([result for entry in wanted if (result := entry.job.result())]),
        "paper_seeds": table.paper_seeds,
        "vary": list(table.vary),
        "columns": table.columns,
        "rows": [_row(table, recipe, variant, wanted, failed) for recipe in table.rows for variant in table.variants()],
    }
    write_json(out / f"{REPORT}.json", report)
    write_text(out / f"{REPORT}.md", markdown(report))
    return {**report, "files": [str(out / f"{REPORT}.{kind}") for kind in ("json", "md")]}


def search(
    name: str,
    *,
    rows: list[str] | None = None,
    jobs: int | None = None,
    threads: int = 1,
    out: Path | None = None,
    data: Path | None = None,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Train every combination in the [search] of each row, with the first variant and seed 0; a line for each.

    A line has the row, the settings, and the metric and skip percentage of the last evaluation on the validation split.
    """
    table = load_table(name)
    out = out or Path("runs") / f"{name}-search"
    variant = table.variants()[0]
    wanted = []
    for recipe in _chosen(table, rows):
        for tried in combinations(recipe.search) if recipe.search else []:
            settings = {**_settings(table, recipe, variant, False), **tried}
            wanted.append(_entry(recipe, tried, 0, settings, out))
    if not wanted:
        raise UsageError(f"search: no [search] in {', '.join(rows or [name])}: there is nothing to try")
    trained = [entry.job for entry in wanted]
    failed = run_missing(trained, partial(processes, jobs=jobs, threads=threads, data=data, device=device))
    lines = []
    for entry in wanted:
        line: dict[str, Any] = {"row": entry.recipe.path.stem, "settings": entry.variant}
        if result := entry.job.result():
            last = RunDirectory(entry.job.out).metrics()[-1]
            line |= {"metric": result["metric"], "value": last[result["metric"]], "best": result["best_validation"]}
            line |= {"skip_percent": last["skip_percent"], "seconds": result["seconds"]}
        else:
            line["failed"] = failed.get(entry.job.out, "not run")
        lines.append(line)
    write_json(out / "search.json", lines)
    return lines


def _chosen(table: Table, rows: list[str] | None) -> list[Recipe]:
    by_name = {recipe.path.stem: recipe for recipe in table.rows}
    for row in rows or []:
        if row not in by_name:
            raise nearest("row", row, by_name)
    return [by_name[row] for row in dict.fromkeys(rows)] if rows else table.rows


def _settings(table: Table, recipe: Recipe, variant: Settings, quick: bool) -> Settings:
    settings = over(recipe.settings, variant)
    return over(settings, table.quick) if quick else settings


def _entry(recipe: Recipe, variant: Settings, seed: int, settings: Settings, out: Path) -> Entry:
    place = out / "-".join([recipe.path.stem, *([label(variant)] if variant else []), f"seed{seed}"])
    return Entry(recipe, variant, Job(recipe.task, recipe.cell, recipe.rule, seed, settings, place))


def _row(
    table: Table, recipe: Recipe, variant: Settings, wanted: list[Entry], failed: dict[Path, str]
) -> dict[str, Any]:
    jobs = [entry.job for entry in wanted if (entry.recipe, entry.variant) == (recipe, variant)]
    results = {job.seed: result for job in jobs if (result := job.result())}
    columns = {}
    for column in table.columns:
        values = [value for result in results.values() if (value := figure(result, column)) is not None]
        ours = summary(values) if values else {"mean": None, "sd": None, "values": []}
        columns[column] = {"paper": recipe.paper(variant, column), **ours}
    first = next(iter(results.values()), {})
    return {
        "name": recipe.path.stem,
        "stands_for": recipe.stands_for,
        "variant": variant,
        "recipe": recipe.name,
        "seeds": list(results),
        "failed": {job.seed: failed[job.out] for job in jobs if job.out in failed},
        "parameters": first.get("parameters"),
        "macs": first.get("macs"),
        "seconds": summary([result["seconds"] for result in results.values()])["mean"] if results else None,
        "columns": columns,
    }
