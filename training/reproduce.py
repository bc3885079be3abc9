# SPDX-License-Identifier: Apache-2.0
"""Train what a paper's table needs, several runs at once, and lay the table out beside the paper's."""

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import edgernn
from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import read_json, write_json, write_text
from edgernn.machine import processor
from edgernn.store import CONFIG
from edgernn.training.plan import choose
from edgernn.training.progress import Watch
from edgernn.training.recipe import Recipe, Settings, Table, combinations, label, load_table, over
from edgernn.training.report import figure, markdown, summary
from edgernn.training.run import RESULT, RunDirectory

REPORT = "table"
# what config.json says of where a run was made
ORIGIN = ("machine", "edgernn", "threads", "device")


@dataclass(frozen=True)
class Job:
    """One training of a table."""

    recipe: Recipe
    variant: Settings
    seed: int
    settings: Settings
    out: Path

    def result(self) -> dict[str, Any] | None:
        """Of a finished training, with what it ran on."""
        if not (self.out / RESULT).is_file():
            return None
        config = read_json(self.out / CONFIG)
        return {**{key: config[key] for key in ORIGIN}, **read_json(self.out / RESULT)}

    def check(self) -> None:
        """Raises UsageError for a bad setting, and where a training with others is in the directory."""
        recipe = self.recipe
        choice = choose(recipe.task, recipe.cell, recipe.rule, self.settings)
        if not (self.out / CONFIG).is_file():
            return
        there = read_json(self.out / CONFIG)
        ours = {"seed": self.seed, **choice.config.record(), **asdict(choice.task)}  # type: ignore[call-overload]
        theirs = {"seed": there["seed"], **there["train"], **there["task"]["settings"]}
        options = {"cell": recipe.cell, "cell_options": choice.cell_options, "rule_options": choice.rule_options}
        for key in options.keys() & there["model"].keys():
            ours[key], theirs[key] = options[key], there["model"][key]
        for key, value in ours.items():
            if key in theirs and theirs[key] != value:
                hint = "remove it, or give another --out"
                raise UsageError(f"{self.out}: trained with {key}={theirs[key]}, now it is {value}; {hint}")


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
        Job(recipe, variant, seed, _settings(table, recipe, variant, quick), _place(out, recipe, variant, seed))
        for recipe in table.rows
        for variant in table.variants()
        for seed in range(count)
    ]
    failed = _run([job for job in wanted if job.recipe in chosen], jobs, threads, data, device) if run else {}
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
        **_origin([result for job in wanted if (result := job.result())]),
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
            wanted.append(Job(recipe, tried, 0, settings, _place(out, recipe, tried, 0)))
    if not wanted:
        raise UsageError(f"search: no [search] in {', '.join(rows or [name])}: there is nothing to try")
    failed = _run(wanted, jobs, threads, data, device)
    lines = []
    for job in wanted:
        line: dict[str, Any] = {"row": job.recipe.path.stem, "settings": job.variant}
        if result := job.result():
            last = RunDirectory(job.out).metrics()[-1]
            line |= {"metric": result["metric"], "value": last[result["metric"]], "best": result["best_validation"]}
            line |= {"skip_percent": last["skip_percent"], "seconds": result["seconds"]}
        else:
            line["failed"] = failed.get(job.out, "not run")
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


def _place(out: Path, recipe: Recipe, variant: Settings, seed: int) -> Path:
    return out / "-".join([recipe.path.stem, *([label(variant)] if variant else []), f"seed{seed}"])


def _run(wanted: list[Job], jobs: int | None, threads: int, data: Path | None, device: str) -> dict[Path, str]:
    """Train what is not finished; what went wrong, by the run's directory."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs: expected at least 1, got {jobs}")
    for job in wanted:
        job.check()
    missing = [job for job in wanted if job.result() is None]
    if not missing:
        return {}
    count = min(len(missing), jobs or max(1, (os.cpu_count() or 1) // threads))
    failed: dict[Path, str] = {}
    watch = Watch(len(wanted), len(wanted) - len(missing))
    with _environment(threads), ProcessPoolExecutor(count, get_context("spawn")) as pool:
        running: dict[Future[None], Job] = {}
        try:
            while missing or running:
                # no more than there are workers: what a pool has queued it cannot always take back
                while missing and len(running) < count:
                    job = missing.pop(0)
                    running[pool.submit(_train, job, data, device)] = job
                for future in wait(running, timeout=2, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    error = future.exception()
                    if isinstance(error, (KeyboardInterrupt, BrokenProcessPool)):
                        raise error
                    if error is not None:
                        kind = "" if isinstance(error, EdgernnError) else f"{type(error).__name__}: "
                        failed[job.out] = f"{kind}{error}"
                    watch.done(job.out, failed.get(job.out))
                watch.look([job.out for job in running.values()])
        except BaseException:
            # a worker that was interrupted saves its run before it ends
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failed


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """What the workers inherit: read when torch is loaded there."""
    ours = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _train(job: Job, data: Path | None, device: str) -> None:
    """In a worker."""
    from edgernn.training.api import train

    recipe = job.recipe
    train(
        recipe.task,
        recipe.cell,
        recipe.rule,
        out=job.out,
        seed=job.seed,
        device=device,
        data=data,
        resume=True,
        settings=job.settings,
    )


def _origin(results: list[dict[str, Any]]) -> dict[str, str]:
    """What the runs ran on, and with."""
    if not results:
        return {"machine": processor(), "edgernn": edgernn.__version__}
    machines = {
        f"{r['machine']}, {r['threads']} thread{'s' * (r['threads'] > 1)} each" if r["device"] == "cpu" else r["device"]
        for r in results
    }
    return {"machine": "; ".join(sorted(machines)), "edgernn": ", ".join(sorted({r["edgernn"] for r in results}))}


def _row(table: Table, recipe: Recipe, variant: Settings, wanted: list[Job], failed: dict[Path, str]) -> dict[str, Any]:
    jobs = [job for job in wanted if (job.recipe, job.variant) == (recipe, variant)]
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
