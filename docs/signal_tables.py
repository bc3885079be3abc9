# SPDX-License-Identifier: Apache-2.0
"""Tables of the pages about a signal, from the results of a sweep."""

import json
from typing import Any

from edgernn.names import parts
from edgernn.training.paper_table import number
from measured_tables import RESULTS, filled

_COSTS = {"work": "multiply-adds", "latency": "time", "bytes": "bytes"}


def signal(task: str) -> str:
    """Return the table of a signal: the models on a Pareto front, and the best model of each dense cell.

    It reads docs/results/sweep-TASK.json, the table.json of `edgernn sweep training/recipes/sweeps/TASK.toml`.
    """
    report = json.loads((RESULTS / f"sweep-{task}.json").read_text(encoding="utf-8"))
    sign = 1 if report["higher_is_better"] else -1
    chosen = [row for row in report["rows"] if row["chosen"]]
    dense: dict[str, dict[str, Any]] = {}
    for row in chosen:
        if _is_dense(row) and ((best := dense.get(row["cell"])) is None or _worth(row, sign) > _worth(best, sign)):
            dense[row["cell"]] = row
    shown = {row["name"]: row for row in [*dense.values(), *(row for row in chosen if row["front"])]}
    metric = report["metric"]
    heads = ["cell and rule", "neurons", "settings", f"{metric}, 95 % interval", "skipped", "multiply-adds", "µs"]
    heads += ["kB", "best for"]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---|---:|---:|---:|---:|---:|---|"]
    for row in sorted(shown.values(), key=lambda row: row["work"]["mean"]):
        lines.append(f"| {' | '.join(_cells(row, report['searched']))} |")
    how = (
        f"Means over {len(report['seeds'])} seeds on the test split, with the 95 % confidence interval of the mean. "
        "Multiply-adds and µs are those of a step with one sequence, float32 weights. Best for: no other model of the "
        f"{len(chosen)} has both a better mean on the validation split and a lower cost of this kind. Times on "
        f"{report['latency_machine']}. Made by `{report['command']}`, {len(report['rows'])} combinations of cell, "
        "rule, size and learning rate."
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def _is_dense(row: dict[str, Any]) -> bool:
    """Return True for a row whose model updates every neuron at every step, with dense weights of full rank."""
    return row["rule"] == "always" and not {"rank", "density"} & row["settings"].keys()


def _worth(row: dict[str, Any], sign: int) -> float:
    return float(sign * row["validation"]["mean"])


def _cells(row: dict[str, Any], searched: list[str]) -> list[str]:
    settings = {key: value for key, value in row["settings"].items() if key not in ("hidden_size", *searched)}
    interval = row["test"]["interval"]
    return [
        " + ".join(parts(row["cell"], row["rule"])),
        str(row["settings"]["hidden_size"]),
        ", ".join(f"{key}={value}" for key, value in settings.items()),
        f"{number(row['test']['mean'])} ({' to '.join(number(bound) for bound in interval)})" if interval else "",
        f"{row['skip_percent']['mean']:.0f} %",
        f"{row['work']['mean']:,.0f}",
        "" if row["latency"]["mean"] is None else number(row["latency"]["mean"]),
        f"{row['bytes']['mean'] / 1000:.1f}",
        ", ".join(_COSTS[cost] for cost in row["front"]),
    ]
