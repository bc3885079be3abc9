# SPDX-License-Identifier: Apache-2.0
"""Markdown page of a paper's table of results, with the paper's numbers beside ours."""

import math
from collections.abc import Sequence
from typing import Any

from edgernn.training.papers.agreement import INCOMPARABLE, VERDICTS
from edgernn.training.pictures import COLUMNS
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

# columns that depend on the machine, and are not comparable with a paper's
MACHINE_COLUMNS = {"seconds_per_epoch": "another machine"}
LATENCY_HEADS = ["multiply-adds executed a step", COLUMNS["microseconds"][0], "of a dense gru's time"]


def markdown(report: dict[str, Any]) -> str:
    """Format the report on a paper's table, the content of its table.json, as a Markdown page; return the text."""
    columns: list[str] = report["columns"]
    names = [COLUMNS.get(column, (column.replace("_", " "), 1.0))[0] for column in columns]
    varied = list(report["vary"])
    heads = ["row", *varied]
    for name in names:
        heads += [f"{name}: paper", "ours"]
    times = bool(report.get("latency"))
    heads += LATENCY_HEADS * times
    heads += ["parameters", "seeds", "time a run"]
    lines = []
    reasons: dict[str, int] = {}
    for row in report["rows"]:
        cells = [row["name"], *(str(row["variant"][key]) for key in varied)]
        for column in columns:
            entry = row["columns"][column]
            cells += [_paper(entry["paper"]), _ours(entry, reasons)]
        cells += latency_cells(row.get("latency")) * times
        lines.append([*cells, count(row["parameters"]), seeds_done(row), duration(row["seconds"])])
    for entry in shown_baselines(report):
        cells = [baseline_name(entry, report, varied), *(str(entry["settings"].get(key, "")) for key in varied)]
        for column in columns:
            cells += ["", with_interval(entry["columns"][column]) if column in entry["columns"] else ""]
        lines.append([*cells, *[""] * (len(LATENCY_HEADS) * times + 1), str(len(entry["seeds"])), ""])
    notes = [f"{place}. Not comparable: {reason}." for reason, place in reasons.items()]
    parts = [_about(report), grid(heads, lines), notes, _claims(report["claims"])]
    return "\n".join([f"## {report['title']}", *("\n".join(["", *part]) for part in parts if part), ""])


def agreement_line(counts: dict[str, int]) -> str:
    """Format, as a sentence, how many of the numbers that a paper prints agree with ours.

    `counts` is a dict from each verdict, such as "within", to the number of the paper's numbers that have it.
    """
    printed = sum(counts.values())
    if not printed:
        return "The paper prints no figures that could be compared."
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return f"Of {printed} printed figures that were measured: {parts}."


def _about(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['paper']}. `{report['command']}`"]
    if report["quick"]:
        lines.append("**A cut-down version, which shows that the recipes run; its figures say nothing of the paper.**")
    if report["paper_seeds"]:
        lines.append(f"The paper has {report['paper_seeds']} runs a row.")
    if report["interval"]:
        lines.append(f"Paper: {report['interval']}.")
    where = f"{report['machine']}, edgernn {report['edgernn']}"
    lines.append(f"Ours: mean ± half of its 95 % confidence interval over the seeds; {where}.")
    if "seconds_per_epoch" in report["columns"]:
        lines.append("Seconds include validation and checkpoints, and several trainings share the processor.")
    if report.get("latency"):
        lines.append(latency_line([row.get("latency") for row in report["rows"]]))
    lines.append(agreement_line(report["agreement"]))
    lines += baseline_lines(report)
    return [*lines, *([report["note"]] if report["note"] else [])]


def _paper(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    # %g would drop the trailing zeros that a paper prints
    decimals = max(0, -round(math.log10(figure["rounding"])))
    mean = f"{figure['mean']:.{decimals}f}" if 1e-3 <= abs(figure["mean"]) < 1e5 else number(figure["mean"])
    return mean + (f" ± {figure['interval']:.2g}" if figure["interval"] is not None else "")


def _ours(entry: dict[str, Any], reasons: dict[str, int]) -> str:
    """Format a table cell with our result and whether it agrees with the paper's."""
    if entry["mean"] is None:
        return "not run"
    text = with_interval(entry)
    verdict, _, reason = (entry["agreement"] or "").partition(": ")
    if verdict == INCOMPARABLE:
        return f"{text} ({reasons.setdefault(reason, len(reasons) + 1)})"
    return f"{text}, {verdict}" if verdict else text


def _claims(claims: list[dict[str, Any]]) -> list[str]:
    lines = []
    for claim in claims:
        where = f" ({claim['variant']})" if claim["variant"] and not claim.get("than") else ""
        lines.append(f"- Claim: {claim['text']}{where}. {_tested(claim)}")
    return lines


def _tested(claim: dict[str, Any]) -> str:
    result = claim["result"]
    if result is None:
        return "Not tested: it takes two seeds of both rows."
    first, second = claim["rows"]
    if claim.get("than"):
        first, second = f"{first} ({claim['variant']})", f"{second} ({claim['than']})"
    unit = COLUMNS.get(claim["column"], (claim["column"].replace("_", " "), 1.0))[0]
    seeds = " and ".join(str(n) for n in dict.fromkeys(result["seeds"]))
    p = None if result["p"] is None else f"p = {result['p']:.2g}"
    test = f"{result['test']}, {seeds} seeds, {p or 'all differences are equal'}"
    if claim["kind"] == "spread":
        what = f"the standard deviation of {first} is {number(result['value'])} times that of {second}"
        if result["value"] is None:
            what = f"the values of {second} are all equal, those of {first} are not"
        # two values always are, and so are equal ones
        test = test if p else f"{seeds} seeds, no test: in each row all values are equally far from the median"
    else:
        low, high = result["interval"]
        what = f"{first} less {second} is {number(result['value'])}, 95 % interval {number(low)} to {number(high)}"
    paper = f"; in the paper {number(claim['size'])}" if claim["size"] is not None else ""
    return f"**{result['verdict'].capitalize()}**: {unit}, {what}{paper} ({test})."


def latency_cells(latency: dict[str, Any] | None) -> list[str]:
    """Format the three cells of a table row that show the latency of its models, from `run_latency.summary` or None.

    They are the multiply-adds executed per step, the time per sequence in µs, and the ratio of this time to that of a
    dense GRU; or "", "not measured" and "".
    """
    if latency is None or not latency["ratio"]["n"]:
        return ["", "not measured", ""]
    executed, time = latency["macs_executed"]["mean"], latency["microseconds"]["mean"]
    return [f"{executed:,.0f}", number(time), with_interval(latency["ratio"])]


def latency_line(rows: Sequence[dict[str, Any] | None]) -> str:
    """Describe in sentences how the latencies in a table were measured, and why some are missing.

    `rows` has the latency of each row of the table, a dict from `run_latency.summary`; None if it is not measured.
    """
    measured = [row for row in rows if row is not None]
    errors = sorted({error for row in measured for error in row["errors"]})
    if not any(row["ratio"]["n"] for row in measured):
        reason = f"; {'; '.join(errors)}" if errors else ""
        return f"Time a sequence: not measured{reason}. `--measure-latency` measures the runs that are at hand."
    machines = "; ".join(sorted({machine for row in measured for machine in row["machines"]}))
    counts = " or ".join(sorted({str(n) for row in measured for n in row["sequences"]}))
    line = (
        f"Time a sequence: {counts} test sequences streamed step by step through the exported model, called from C, "
        f"batch 1, one thread, on {machines}; the multiply-adds are those executed for these sequences. A dense gru of "
        "the same sizes with random weights is timed in the same rounds; compare rows by its ratio alone."
    )
    return f"{line} Not measured: {'; '.join(errors)}." if errors else line


def with_interval(entry: dict[str, Any]) -> str:
    """Format the mean of a result over the seeds, followed by ± half the width of its 95 % confidence interval.

    `entry` is a dict from `statistics.spread`. If its "interval" is None, the text is the mean alone.
    """
    text = number(entry["mean"])
    if entry["interval"] is None:
        return text
    return f"{text} ± {(entry['interval'][1] - entry['interval'][0]) / 2:.2g}"
