# SPDX-License-Identifier: Apache-2.0
"""Tables of benchmark cases as Markdown, of `edgernn bench --device cuda` and of the suites in benchmarks/."""

import re
from collections.abc import Iterable
from typing import Any

from edgernn.bench.case import (
    BEST,
    COMPILED,
    DENSE,
    EDGERNN,
    FLOAT32,
    PORTABLE,
    PYTHON,
    ROOFLINE,
    WITH_INPUT,
)

# size of an error in the reason why a runtime is not timed
_ERROR = re.compile(r"\b\d\.\de[-+]\d+")
_OURS = (EDGERNN, FLOAT32, DENSE, PYTHON, COMPILED, PORTABLE, ROOFLINE, WITH_INPUT)


def tables(cases: list[dict[str, Any]]) -> list[str]:
    """Format a report's cases as Markdown sections: targets, where edgernn is slower, times, runtimes not timed."""
    finished, parts = [case for case in cases if "failed" not in case], []
    if any(case["targets"] for case in finished):
        parts += ["## Targets", targets_table(finished)]
    parts += ["## Where we lose", _losses(finished)]
    for group in dict.fromkeys(case["group"] for case in finished):
        parts += [f"## {group}", times_table([case for case in finished if case["group"] == group])]
        parts += [
            f"The stripped native library has {case['library_bytes']:,} bytes. The times are µs to create a session "
            "from a file, with the library registered."
            for case in finished
            if case["group"] == group and "library_bytes" in case
        ]
    return [*parts, "## Not timed", _left_out(cases)]


def targets_table(cases: list[dict[str, Any]]) -> str:
    """Format the targets of cases as a Markdown table, and whether they are met."""
    rows = []
    for case in cases:
        for target in case["targets"]:
            value = "-" if target["value"] is None else f"{target['value']:.3g}"
            met = {True: "yes", False: "**no**", None: "not measured"}[target["met"]]
            if _is_within_spread(case, target):
                met = f"{met.strip('*')}, within the spread"
            rows.append([case["name"], target["against"], value, f"{target['limit']:.3g}", met])
    return _table(["case", "ours by", "ratio", "at most", "met"], rows)


def _is_within_spread(case: dict[str, Any], target: dict[str, Any]) -> bool:
    """Return True if a target's limit lies between the quartiles of the ratio over the rounds."""
    name = case["best_peer"] if target["against"] == BEST else target["against"]
    entry = case["contenders"].get(name)
    return entry is not None and bool(entry["ratio_q1"] <= target["limit"] <= entry["ratio_q3"])


def _losses(cases: list[dict[str, Any]]) -> str:
    lines = []
    for case in cases:
        for name, other in case["contenders"].items():
            if name not in _OURS and other["ratio"] > 1:
                lines.append(f"- {case['name']}: {name} is {other['ratio']:.2f} x as fast")
        for target in case["targets"]:
            # a target of 1 x a peer is the line above
            listed = target["limit"] == 1 and target["against"] in (BEST, *case["contenders"])
            if target["met"] is False and not listed:
                lines.append(
                    f"- {case['name']}: {target['value']:.3g} x {target['against']}, not {target['limit']:.3g}"
                )
    return "\n".join(lines) or "Nowhere in this run."


def times_table(cases: list[dict[str, Any]]) -> str:
    """Format cases as a Markdown table of µs per step, quartiles and ratios: a row per runtime, a column per case."""
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    rows = []
    for name in names:
        rows.append([name, *(_figure(case["contenders"].get(name), name) for case in cases)])
    skipped = [case.get("skip_percent") for case in cases]
    if any(share is not None for share in skipped):
        rows.append(["updates skipped", *("-" if share is None else f"{share:.1f} %" for share in skipped)])
    if any("macs_executed" in case for case in cases):
        rows.append(["macs executed", *(f"{case.get('macs_executed', case.get('macs', 0)):,.0f}" for case in cases)])
    return _table(["µs (quartiles), ratio", *(case["name"] for case in cases)], rows)


def _figure(entry: dict[str, Any] | None, name: str) -> str:
    if entry is None:
        return "-"
    middle, low, high = (_number(entry[key]) for key in ("us", "us_q1", "us_q3"))
    text = f"{middle} ({low}-{high})"
    return text if name == EDGERNN else f"{text}, {entry['ratio']:.2f}"


def _number(us: float) -> str:
    return f"{us:,.0f}" if us >= 1000 else f"{us:.3g}"


def _left_out(cases: list[dict[str, Any]]) -> str:
    """List, in Markdown, why runtimes were not timed and in how many cases; then list the cases that failed."""
    reasons: dict[tuple[str, ...], list[list[str]]] = {}
    for case in cases:
        for name, why in case.get("left_out", {}).items():
            text = why.removeprefix("not timed: ")
            reasons.setdefault((name, *_ERROR.split(text)), []).append(_ERROR.findall(text))
    lines = []
    for (name, first, *others), errors in reasons.items():
        ranges = [_range(values) for values in zip(*errors, strict=True)]
        text = first + "".join(f"{span}{other}" for span, other in zip(ranges, others, strict=True))
        lines.append(f"- {name}: {text} ({len(errors)} case{'s' * (len(errors) > 1)})")
    lines += [f"- {case['name']}: {case['failed']}" for case in cases if "failed" in case]
    return "\n".join(lines) or "All contenders were timed."


def _range(values: Iterable[str]) -> str:
    """Format the smallest and the largest of numbers, which are given as texts, such as "2.4e-03 to 1.1e-02"."""
    ordered = sorted(values, key=float)
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
