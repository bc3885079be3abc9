# SPDX-License-Identifier: Apache-2.0
"""The one table of a sweep: what its finished runs measured, row by row, what is on the front, and all as a page."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import read_json
from edgernn.store import CONFIG
from edgernn.training.api import command_words
from edgernn.training.report import COLUMNS, count, duration, figure, line, number
from edgernn.training.run import RunDirectory
from edgernn.training.sweep.plan import Row, Sweep
from edgernn.training.sweep.statistics import CONFIDENCE, Price, front, spread

# what fronts are of, beside the metric: keys of a row, and what a picture calls them
COSTS = {"work": "multiply-adds executed a step", "latency": "latency, µs a step"}


# how a row is trained again, beside what its jobs say: the device and the data folder
Repeat = tuple[str, Path | None]


@dataclass(frozen=True)
class Measured:
    """What the finished runs of a row are worth; results by seed, as result.json has them."""

    row: Row
    results: dict[int, dict[str, Any]]
    validation: dict[int, float]

    @property
    def best(self) -> Path | None:
        """The run that is best on the validation split, which stands for the row where one model is needed."""
        if not self.validation:
            return None
        sign = worth_sign(self.results)
        seed = max(self.validation, key=lambda seed: sign * self.validation[seed])
        return next(job.out for job in self.row.jobs if job.seed == seed)


def measure(row: Row) -> Measured:
    results = {job.seed: result for job in row.jobs if (result := job.result())}
    validation = {job.seed: _validation(job.out, results[job.seed]) for job in row.jobs if job.seed in results}
    return Measured(row, results, validation)


def _validation(run: Path, result: dict[str, Any]) -> float:
    """The metric on the validation split with the weights that the run has kept."""
    kept_best = read_json(run / CONFIG)["train"]["keep"] == "best" and result["best_validation"] is not None
    return float(result["best_validation"] if kept_best else RunDirectory(run).metrics()[-1][result["metric"]])


def worth_sign(results: Mapping[int, dict[str, Any]]) -> int:
    """1 where more of the metric is better, else -1."""
    return 1 if next(iter(results.values()))["higher_is_better"] else -1


def tabulate(
    sweep: Sweep, rows: list[Measured], failed: Mapping[Path, str], latency: Mapping[str, Any], repeat: Repeat
) -> dict[str, Any]:
    """The table as plain values. failed: reasons, by the run's directory. latency: of `latencies`."""
    made = [_row(found, failed, latency, repeat) for found in rows]
    metrics = sorted({row["metric"] for row in made if row["metric"]})
    if len(metrics) > 1:
        raise EdgernnError(f"{sweep.path}: expected runs of one metric, got {', '.join(metrics)}")
    sign = next((worth_sign(found.results) for found in rows if found.results), 1)
    worth = {row["name"]: sign * row["validation"]["mean"] for row in made if row["seeds"]}
    chosen = _chosen(rows, worth)
    fronts = {}
    for cost in COSTS:
        costs = {row["name"]: row[cost]["mean"] for row in made if row["name"] in chosen}
        prices = {name: Price(found, worth[name]) for name, found in costs.items() if found is not None}
        fronts[cost] = front(prices)
    for row in made:
        row["chosen"] = row["name"] in chosen
        row["front"] = [cost for cost in COSTS if row["name"] in fronts[cost]]
    return {
        "sweep": str(sweep.path),
        "task": sweep.task,
        "metric": next(iter(metrics), None),
        "higher_is_better": sign > 0,
        "seeds": list(sweep.seeds),
        "varied": list(sweep.varied),
        "searched": list(sweep.searched),
        "confidence": CONFIDENCE,
        "latency_machine": latency["machine"],
        "rows": made,
    }


def _chosen(rows: list[Measured], worth: Mapping[str, float]) -> set[str]:
    """Of each set of rivals the one that is best on the validation split."""
    rivals: dict[int, list[str]] = {}
    for found in rows:
        if found.row.name in worth:
            rivals.setdefault(found.row.rivals, []).append(found.row.name)
    return {max(names, key=lambda name: worth[name]) for names in rivals.values()}


def _row(found: Measured, failed: Mapping[Path, str], latency: Mapping[str, Any], repeat: Repeat) -> dict[str, Any]:
    row, results = found.row, list(found.results.values())
    first = results[0] if results else {}
    unit = COLUMNS.get(first.get("metric", ""), ("", 1.0))[1]
    timed = found.best is not None and latency["models"].get(row.name) == str(found.best)
    time = latency["microseconds"].get(row.name) if timed else None
    return {
        "name": row.name,
        "cell": row.cell,
        "rule": first.get("rule", row.rule),
        "settings": row.varied,
        "metric": first.get("metric"),
        "seeds": list(found.results),
        "failed": {job.seed: failed[job.out] for job in row.jobs if job.out in failed},
        "test": spread([value for r in results if (value := figure(r, r["metric"])) is not None]),
        "validation": spread([unit * value for value in found.validation.values()]),
        "skip_percent": spread([r["skip_percent"] for r in results]),
        "work": spread([r["macs_executed"] for r in results]),
        "latency": spread([] if time is None else [time]),
        "macs": first.get("macs"),
        "parameters": first.get("parameters"),
        "seconds": spread([r["seconds"] for r in results]),
        "best": None if found.best is None else str(found.best),
        "command": _command(row, repeat),
    }


def _command(row: Row, repeat: Repeat) -> str:
    """A command line that trains all seeds of a row again, in other directories."""
    job = row.jobs[0]
    again = Path("again") / job.out.name
    words = command_words(job.task, job.cell, job.rule, again, job.seed, *repeat, job.settings)
    if len(row.jobs) == 1:
        return shlex.join(words)
    variable = {str(again): str(again).removesuffix(str(job.seed)) + "$seed"}
    after = words.index("--seed") + 1
    repeated = " ".join("$seed" if i == after else variable.get(w, shlex.quote(w)) for i, w in enumerate(words))
    return f"for seed in {' '.join(str(job.seed) for job in row.jobs)}; do {repeated}; done"


def markdown(report: dict[str, Any]) -> str:
    """A report of `tabulate` as a page."""
    metric = report["metric"] or "metric"
    name = COLUMNS.get(metric, (metric.replace("_", " "), 1.0))[0]
    named = [*report["varied"], *report["searched"]]
    heads = ["cell", "rule", *named, f"{name}: mean ± sd", f"{100 * report['confidence']:.0f} % interval", "validation"]
    heads += ["skip, %", "executed a step", "µs a step", "parameters", "seeds", "time a run", "front"]
    lines = [line(heads), line("---" for _ in heads), *(line(_cells(row, named)) for row in report["rows"])]
    commands = [f"    {row['command']}" for row in report["rows"]]
    return "\n".join(
        [
            f"## {report['task']}: {report['sweep']}",
            "",
            *_about(report),
            "",
            *lines,
            "",
            "Each row again:",
            "",
            *commands,
        ]
    )


def _about(report: dict[str, Any]) -> list[str]:
    confidence = f"{100 * report['confidence']:.0f} %"
    lines = [
        f"`{report['command']}`; {report['machine']}, edgernn {report['edgernn']}. Figures are means over the seeds, "
        "on the test split unless they say otherwise. The deviation is that of the seeds; the interval is where their "
        f"mean lies with a confidence of {confidence} (Student's t), if seeds are normally distributed; it may "
        "reach beyond what the metric can be.",
        "Fronts and choices are made on the validation split: no other row has both a better mean there and a lower "
        "cost.",
    ]
    if report["searched"]:
        searched = ", ".join(report["searched"])
        lines.append(
            f"Of the rows that differ in {searched} alone, the one that is best there is chosen for the fronts."
        )
    if report["latency_machine"]:
        lines.append(
            f"Latency: {report['latency_machine']}, a call with one test sequence on one thread, over its steps; of "
            "the seed that is best on the validation split."
        )
    if any(row["failed"] for row in report["rows"]):
        lines.append("**Some runs failed; means are over those that did not, which may flatter a row.**")
    return lines


def _cells(row: dict[str, Any], named: list[str]) -> list[str]:
    test = row["test"]
    sd = f" ± {test['sd']:.2g}" if test["sd"] is not None else ""
    interval = "" if test["interval"] is None else " to ".join(number(bound) for bound in test["interval"])
    missing = f", {len(row['failed'])} failed" if row["failed"] else ""
    fronts = ", ".join(row["front"]) or ("" if row["chosen"] or not row["seeds"] else "not chosen")
    return [
        row["cell"],
        row["rule"] or "",
        *(str(row["settings"].get(key, "")) for key in named),
        f"{number(test['mean'])}{sd}" if row["seeds"] else "not run",
        interval,
        number(row["validation"]["mean"]),
        "" if row["skip_percent"]["mean"] is None else f"{row['skip_percent']['mean']:.1f}",
        "" if row["work"]["mean"] is None else f"{row['work']['mean']:,.0f}",
        number(row["latency"]["mean"]),
        count(row["parameters"]),
        f"{test['n']}{missing}",
        duration(row["seconds"]["mean"]),
        fronts,
    ]
