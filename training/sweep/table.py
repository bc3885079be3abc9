# SPDX-License-Identifier: Apache-2.0
"""Table of a sweep: results of its finished runs by row, Pareto fronts, and a Markdown page of both."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgernn.cell_files import is_network
from edgernn.errors import EdgernnError
from edgernn.rules import RULES
from edgernn.settings import options_of
from edgernn.training.api import command_words
from edgernn.training.pictures import COLUMNS
from edgernn.training.statistics import CONFIDENCE, Price, front, spread
from edgernn.training.sweep.plan import Sweep, SweepRow
from edgernn.training.tables.table import Failures, finished_jobs
from edgernn.training.tables.table_text import (
    baseline_lines,
    baseline_name,
    count,
    duration,
    grid,
    number,
    seeds_done,
    shown_baselines,
)
from edgernn.training.tables.trivial_baselines import baselines

# costs that have a Pareto front: a dict from the key of a row in table.json to the axis label
COSTS = {
    "work": "multiply-adds executed per step",
    "latency": "latency, µs per step",
    "bytes": "bytes of weights",
}


# device and the user's data folder (or None), as options of the command that trains a row again
Repeat = tuple[str, Path | None]


def tabulate(sweep: Sweep, failures: Failures, latency: Mapping[str, Any], repeat: Repeat) -> dict[str, Any]:
    """Build the table of a sweep from its finished runs, and determine the Pareto fronts.

    Args:
        sweep: Plan of the sweep.
        failures: Dict from the run directory of each failed run to its error message.
        latency: Measured latencies of the models, the dict that `table_latency.latencies` returns.
        repeat: Device ("cpu" or "cuda") and the user's data folder or None. For each row, the table shows a command
            that trains it again; the two values are options of this command.

    Returns:
        The content of table.json, except the command, the machine and the version.

    Raises:
        EdgernnError: The runs have different metrics.
    """
    records = [_record(row, failures, latency, repeat) for row in sweep.rows]
    metrics = sorted({record["metric"] for record in records if record["metric"]})
    if len(metrics) > 1:
        raise EdgernnError(
            f"{sweep.path}: expected runs with the same metric, got {', '.join(metrics)}; use one task for all runs"
        )
    sign = next((row.sign for row in sweep.rows if row.results), 1)
    worth = {record["name"]: sign * record["validation"]["mean"] for record in records if record["seeds"]}
    chosen = sweep.chosen()
    fronts = {}
    for cost in COSTS:
        costs = {record["name"]: record[cost]["mean"] for record in records if record["name"] in chosen}
        prices = {name: Price(value, worth[name]) for name, value in costs.items() if value is not None}
        fronts[cost] = front(prices)
    for record in records:
        record["chosen"] = record["name"] in chosen
        record["front"] = [cost for cost in COSTS if record["name"] in fronts[cost]]
    return {
        "sweep": str(sweep.path),
        "task": sweep.task,
        "metric": next(iter(metrics), None),
        "higher_is_better": sign > 0,
        "seeds": list(sweep.seeds),
        "search_seeds": sweep.search_seeds,
        "varied": list(sweep.varied),
        "searched": list(sweep.searched),
        "confidence": CONFIDENCE,
        "latency_machine": latency["machine"],
        "latency_call": latency["call"],
        "latency_errors": latency["errors"],
        "choices": [
            {**asdict(choice), "row": choice.among([record for record in records if record["chosen"]], sign)}
            for choice in sweep.choices
        ],
        "rows": records,
        "baselines": baselines(finished_jobs(sweep.rows), [*metrics, "skip_percent"], repeat[1]),
    }


def _record(row: SweepRow, failures: Failures, latency: Mapping[str, Any], repeat: Repeat) -> dict[str, Any]:
    first = next(iter(row.results.values()), {})
    metric = first.get("metric")
    unit = COLUMNS.get(metric or "", ("", 1.0))[1]
    timed = row.best is not None and latency["models"].get(row.name) == str(row.best)
    time = latency["microseconds"].get(row.name) if timed else None
    return {
        **row.record(failures),
        "cell": row.cell,
        "rule": first.get("rule", row.rule),
        "settings": row.settings,
        "metric": metric,
        "test": row.spread(metric or ""),
        "validation": spread([unit * value for value in row.validation.values()]),
        "skip_percent": row.spread("skip_percent"),
        "work": row.spread("work"),
        "latency": spread([] if time is None else [time]),
        "bytes": spread([_weight_bytes(first)] if "parameters" in first else []),
        "seconds": row.spread("seconds"),
        "best": None if row.best is None else str(row.best),
        "command": _command(row, repeat),
    }


def _weight_bytes(result: Mapping[str, Any]) -> int:
    """Return the bytes of a model's weights in its exported file; `result` is the content of its result.json."""
    # an earlier version trained for float32 alone
    return int(result.get("weight_bytes", 4 * result["parameters"]))


def _command(row: SweepRow, repeat: Repeat) -> str:
    """Return a shell command that trains all seeds of a row again, with run directories in the folder "again"."""
    job = row.jobs[0]
    again = Path("again") / job.out.name
    option = "--network" if is_network(job.cell) else "--cell"
    words = command_words(job.task, job.cell, job.rule, again, job.seed, *repeat, job.settings, option=option)
    if len(row.jobs) == 1:
        return shlex.join(words)
    variable = {str(again): str(again).removesuffix(str(job.seed)) + "$seed"}
    after = words.index("--seed") + 1
    repeated = " ".join("$seed" if i == after else variable.get(w, shlex.quote(w)) for i, w in enumerate(words))
    return f"for seed in {' '.join(str(job.seed) for job in row.jobs)}; do {repeated}; done"


def markdown(report: dict[str, Any]) -> str:
    """Format a sweep's results as a Markdown page; `report` is the content of its table.json."""
    metric = report["metric"] or "metric"
    name = COLUMNS.get(metric, (metric.replace("_", " "), 1.0))[0]
    named = [*report["varied"], *report["searched"]]
    heads = ["cell", "rule", *named, f"{name}: mean ± sd", f"{100 * report['confidence']:.0f} % interval", "validation"]
    heads += ["skip, %", "executed per step", "µs per step", "parameters", "seeds", "time per run", "front"]
    rows = [_cells(row, named) for row in report["rows"]]
    lines = grid(heads, rows + [_baseline_cells(entry, report, named) for entry in shown_baselines(report)])
    commands = [f"    {row['command']}" for row in report["rows"]]
    return "\n".join(
        [
            f"## {report['task']}: {report['sweep']}",
            "",
            *_about(report),
            "",
            *lines,
            "",
            *(f"{choice_text(choice)}: {choice['row'] or 'none'}." for choice in report["choices"]),
            *[""] * bool(report["choices"]),
            "Commands that repeat each row:",
            "",
            *commands,
            "",
        ]
    )


def choice_text(choice: Mapping[str, Any]) -> str:
    """Describe a choice of a sweep, an entry of "choices" of table.json, without the model that it chose."""
    among = f"models with the rule {' or '.join(choice['rules'])}" if choice["rules"] else "all models"
    return (
        f"{choice['name']}: of {among} at most {choice['within']:g} worse on the validation split than the best of "
        f"them, the one with the least {choice['cost']}"
    )


def _about(report: dict[str, Any]) -> list[str]:
    confidence = f"{100 * report['confidence']:.0f} %"
    lines = [
        f"`{report['command']}`; {report['machine']}, edgernn {report['edgernn']}. Figures are means over the seeds, "
        "on the test split unless stated otherwise. The deviation is the standard deviation over seeds. The interval "
        f"is the {confidence} confidence interval of their mean (Student's t), which assumes a normal distribution and "
        "may exceed the range of the metric.",
        "Rows on the front, and choices, are determined on the validation split: no other row has both a better mean "
        "there and a lower cost.",
    ]
    if report["searched"]:
        searched = ", ".join(report["searched"])
        few = report["search_seeds"] < len(report["seeds"])
        by = f", with {report['search_seeds']} of the {len(report['seeds'])} seeds" * few
        lines.append(f"Among rows that differ only in {searched}, the best one there is chosen for the fronts{by}.")
    if report["latency_machine"]:
        lines.append(
            f"Latency: {report['latency_call']}, on one thread of {report['latency_machine']}, divided by the number "
            "of steps, for the best seed on the validation split."
        )
    lines += baseline_lines(report)
    lines += [f"Not timed: {name}: {error}." for name, error in report["latency_errors"].items()]
    if any(row["failed"] for row in report["rows"]):
        lines.append("**Some runs failed. Means are over the other runs, which may favour a row.**")
    return lines


def _cells(row: dict[str, Any], named: list[str]) -> list[str]:
    fronts = ", ".join(row["front"]) or ("" if row["chosen"] or not row["seeds"] else "not chosen")
    return [
        row["cell"],
        row["rule"] or "",
        *(str(row["settings"].get(key, "")) for key in named),
        *(_test_cells(row["test"]) if row["seeds"] else ["not run", ""]),
        number(row["validation"]["mean"]),
        "" if row["skip_percent"]["mean"] is None else f"{row['skip_percent']['mean']:.1f}",
        "" if row["work"]["mean"] is None else f"{row['work']['mean']:,.0f}",
        number(row["latency"]["mean"]),
        count(row["parameters"]),
        seeds_done(row),
        duration(row["seconds"]["mean"]),
        fronts,
    ]


def _baseline_cells(entry: dict[str, Any], report: dict[str, Any], named: list[str]) -> list[str]:
    """Format the row of a trivial baseline; it has neither cell nor cost."""
    test, skipped = entry["columns"][report["metric"]], entry["columns"].get("skip_percent")
    return [
        baseline_name(entry, report, named),
        "",
        *(str(entry["settings"].get(key, "")) for key in named),
        *_test_cells(test),
        "",
        "" if skipped is None else f"{skipped['mean']:.1f}",
        *[""] * 3,
        str(len(entry["seeds"])),
        *[""] * 2,
    ]


def _test_cells(test: dict[str, Any]) -> list[str]:
    """Format mean and standard deviation, and the interval, of a metric on the test split."""
    sd = f" ± {test['sd']:.2g}" if test["sd"] is not None else ""
    interval = "" if test["interval"] is None else " to ".join(number(bound) for bound in test["interval"])
    return [f"{number(test['mean'])}{sd}", interval]


def naming_settings(report: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """List the settings that name a row of a sweep, beside its cell and rule.

    These are the row's settings, except those in the table [search] of the sweep file, and options of the rule with the
    same value in all rows of this cell and rule.

    Args:
        report: Content of the sweep's table.json.
        row: Entry of the row in "rows" of table.json.

    Returns:
        The names of these settings.
    """
    alike = [other["settings"] for other in report["rows"] if all(other[key] == row[key] for key in ("cell", "rule"))]
    shared = {key for key in options_of(RULES[row["rule"]]) if len({str(settings.get(key)) for settings in alike}) == 1}
    return [key for key in row["settings"] if key not in shared and key not in report["searched"]]
