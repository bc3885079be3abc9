# SPDX-License-Identifier: Apache-2.0
"""Benchmark cases as Markdown: the tables of `edgernn bench --device cuda` and of docs/background/performance.md."""

import re
from collections.abc import Iterable
from typing import Any

from edgernn.bench.case import (
    BEST,
    COMPILED,
    DENSE,
    EDGERNN,
    FLOAT32,
    PAUSE_MS,
    PORTABLE,
    PYTHON,
    ROOFLINE,
    ROUNDED,
    WITH_INPUT,
)

# size of an error in the reason why a runtime is not timed
_ERROR = re.compile(r"\b\d\.\de[-+]\d+")
_OURS = (EDGERNN, FLOAT32, DENSE, PYTHON, COMPILED, PORTABLE, ROOFLINE, WITH_INPUT)


def page(report: dict[str, Any]) -> str:
    """Format a report of `run_suite` as Markdown: machine, method, targets, where others are faster, and all times."""
    return "\n\n".join([_machine(report), _explained(report), *tables(report["cases"])]) + "\n"


def section(report: dict[str, Any]) -> str:
    """Format a second report, such as one from another machine, as a Markdown section: machine, targets and times."""
    cases = [case for case in report["cases"] if "failed" not in case]
    return "\n\n".join([_machine(report), _targets(cases), _group(cases)])


def tables(cases: list[dict[str, Any]]) -> list[str]:
    """Format a report's cases as Markdown sections: targets, where edgernn is slower, times, runtimes not timed."""
    finished, parts = [case for case in cases if "failed" not in case], []
    if any(case["targets"] for case in finished):
        parts += ["## Targets", _targets(finished)]
    parts += ["## Where we lose", _losses(finished)]
    for group in dict.fromkeys(case["group"] for case in finished):
        parts += [f"## {group}", _group([case for case in finished if case["group"] == group])]
        parts += [
            f"The stripped native library has {case['library_bytes']:,} bytes. The times are µs to create a session "
            "from a file, with the library registered."
            for case in finished
            if case["group"] == group and "library_bytes" in case
        ]
    return [*parts, "## Not timed", _left_out(cases)]


def _machine(report: dict[str, Any]) -> str:
    machine, peers = report["machine"], report["peers"]
    # contenders of the same runtime share one entry
    versions = {
        **machine["versions"],
        **{re.split(r"[ ,]", name)[0]: version for name, version in peers.items() if version},
    }
    versions = {name: version for name, version in versions.items() if name not in ("ONNX", "PyTorch")}
    listed = [f"{name} {version}" for name, version in versions.items()]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, instruction set "
        f"{machine['instruction_set']}; Python {machine['python']}, {', '.join(listed)}. Begun {report['begun']}"
        + (f" by `{report['command']}`." if report["command"] else ".")
    )


def _explained(report: dict[str, Any]) -> str:
    short = "**A quick run, whose figures are rough.** " if report["quick"] else ""
    rounds, block = report["settings"]["rounds"], report["settings"]["block_ms"]
    return (
        f"{short}`gru (2, 128), T=500, B=32` is a gru with 2 inputs and 128 neurons on 32 sequences of 500 steps. "
        "Without B it is one sequence, and T=1 is one step a call. Peers are the other runtimes. `OpenVINO f32` "
        "computes in float32, and `OpenVINO` in the precision that it selects. `JAX, input first` multiplies the whole "
        "input by W before the first step.\n\n"
        "The targets are this project's own. They limit the ratio of our time to another's. *Within the spread*: the "
        "limit lies between the quartiles of this ratio over the rounds.\n\n"
        "Each case runs in a process of its own, limited to as many processors as it has threads. All "
        f"contenders are verified first. Then each of {rounds} rounds times a block of {block:g} ms of each contender, "
        "in shuffled order. A figure is the median over rounds of the block medians, in µs per step. A ratio is the "
        "median over rounds of our time divided by the other's in the same round: below 1 we are faster. With several "
        f"threads, a pause of {PAUSE_MS:g} ms before each block lets the other contenders' threads stop spinning. "
        "All contenders are called from Python, once for all T steps; LiteRT is called once for each step, because its "
        "forms of a whole sequence are slower. Steps from C are calls of a packed model (`edgernn pack`) in a loop "
        "without Python.\n\n"
        "The roofline is measured in the same rounds. For one sequence it is the product with the recurrent weights "
        "alone, packed and warm in cache; at T=1 it includes the input weights. For other cells and for low rank it is "
        "a product with as many multiply-adds as are executed. For a batch it is all multiply-adds at the peak rate of "
        f"one thread times the number of threads. `{WITH_INPUT}` adds the products with a sequence's input weights at "
        f"the peak rate. With weights of fewer bits, edgernn and peers that round may be off by {ROUNDED:g}, and the "
        "best peer is the fastest one in float32."
    )


def _targets(cases: list[dict[str, Any]]) -> str:
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


def _group(cases: list[dict[str, Any]]) -> str:
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
