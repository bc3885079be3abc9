# SPDX-License-Identifier: Apache-2.0
"""Tables of wake words for docs/how-to/wake-word.md, measured by `python -m benchmarks.wake_words`."""

from typing import Any

import numpy as np

from benchmarks.tables import table
from benchmarks.tables.measured import filled, read_report
from edgernn.errors import counted
from edgernn.runtime.event_rate import poisson_interval
from edgernn.training.tasks.confusion import interval

_SOURCES = {
    "arabic": "Arabic words, dense",
    "english": "English words, dense",
    "voices": "synthetic voices",
    "noise": "noise",
}
_STARTS = {
    "front": "all weights, from a front",
    "frozen": "upper layer, above a frozen front",
    "random": "all weights, from random ones",
}


# shares of the phrases of the validation part that a threshold must detect; the first one chose that of the files
_WANTED = (0.95, 0.9)
# what was to be reached: least hits, and most false alarms an hour, bytes, and multiply-adds a second
_HITS, _BYTES, _MACS = 0.9, 75_000, 2_200_000
_ALARMS = {
    "general speech and noise": (("english", "voices", "noise"), 0.5),
    "dense talk with the halves of the phrase": (("arabic",), 3.0),
}


def wake_words() -> dict[str, str]:
    """Return the generated part of the page, as a dict from the name of its marker to its text."""
    runs = read_report("wake-words")["runs"]
    if "start" not in runs[0]:
        text = f'One training of "{runs[0]["phrase"]}" from random weights, by an earlier form of the command: '
        return {"wake": f"{filled(f'{text}{_hits(runs)} hits.')}\n\n{_by_source(runs)}"}
    starts = {start: [run for run in runs if run["start"] == start] for start in _STARTS}
    shown = next(rows for rows in starts.values() if rows)
    kinds = [counted(len({run[kind] for run in shown}), kind) for kind in ("phrase", "fold", "seed")]
    text = (
        f"{counted(len(shown), 'training')} of {', '.join(kinds)}: {_STARTS[shown[0]['start']]}, "
        f"{shown[0]['steps']:,} steps. A threshold is the highest one that detects this share of the phrases of the "
        "validation part. Intervals: 95 %; those of hits take the phrases of a training as depending on each other."
    )
    parts = [_targets(shown), filled(text), _by_source(shown), _by_phrase(shown), *_compared(starts)]
    return {"wake": "\n\n".join(parts)}


def _at(run: dict[str, Any], wanted: float) -> dict[str, Any]:
    """Return the hits and the false alarms of a training at the threshold with this share of hits in validation."""
    series = run["series"]
    i = max((i for i, hits in enumerate(series["validation_hits"]) if hits >= wanted), default=0)
    return run | {name: values[i] for name, values in series.items()}


def _targets(runs: list[dict[str, Any]]) -> str:
    """Return the table of what was to be reached, and what is measured."""
    head = ["", "to reach", *(f"threshold at {100 * wanted:.0f} % hits in validation" for wanted in _WANTED)]
    at = [[_at(run, wanted) for run in runs] for wanted in _WANTED]
    rows = [["hits of unseen speakers", f"at least {100 * _HITS:.0f} %"]]
    rows[0] += [_verdict(_hits(part), _share(part) >= _HITS) for part in at]
    for title, (names, most) in _ALARMS.items():
        counts = [_heard(part, *names) for part in at]
        cells = [_verdict(_rate(hours, alarms), alarms <= most * hours) for hours, alarms in counts]
        rows.append([f"false alarms an hour in {title}", f"at most {most:g}", *cells])
    sizes = [run["file_int8"]["packed_bytes"] for run in runs if "file_int8" in run]
    if sizes:
        rows.append(
            ["bytes, packed, int8", f"at most {_BYTES:,}", _verdict(f"{max(sizes):,}", max(sizes) <= _BYTES), ""]
        )
    macs = 25 * (runs[0]["macs"] + runs[0]["frontend_macs"])
    rows.append(["multiply-adds a second", f"at most {_MACS:,}", _verdict(f"{macs:,.0f}", macs <= _MACS), ""])
    return table(head, rows)


def _verdict(cell: str, is_reached: bool) -> str:
    return cell if is_reached else f"{cell}, missed"


def _by_source(runs: list[dict[str, Any]]) -> str:
    head = ["sound of the test parts", "distinct minutes in each", "hours heard", "false alarms", "an hour"]
    rows = []
    for name, title in _SOURCES.items():
        minutes = np.mean([run[f"{name}_minutes"] for run in runs])
        hours, alarms = _heard(runs, name)
        rows.append([title, f"{minutes:.1f}", f"{hours:,.1f}", f"{alarms:.0f}", _rate(hours, alarms)])
    return f"{_threshold()}:\n\n{table(head, rows)}"


def _by_phrase(runs: list[dict[str, Any]]) -> str:
    head = ["phrase", "trainings", "hits", *(f"false alarms an hour in {title}" for title in _ALARMS)]
    rows = []
    for phrase in dict.fromkeys(run["phrase"] for run in runs):
        part = [run for run in runs if run["phrase"] == phrase]
        rows.append([phrase, str(len(part)), f"{100 * _share(part):.1f} %", *_rates(part)])
    return f"{_threshold()}, by phrase:\n\n{table(head, rows)}"


def _threshold() -> str:
    return f"At the threshold with {100 * _WANTED[0]:.0f} % hits in the validation part"


def _compared(starts: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table of the starts that have the same phrases of one fold and seed, if there are two or more."""
    compared = {
        start: [run for run in rows if (run["fold"], run["seed"]) == (0, 0)] for start, rows in starts.items() if rows
    }
    common = set.intersection(*({run["phrase"] for run in rows} for rows in compared.values()))
    if len(compared) < 2 or not common:
        return []
    head = ["trained", "steps", "hits", *(f"false alarms an hour in {title}" for title in _ALARMS)]
    rows = []
    for start, trained in compared.items():
        part = [run for run in trained if run["phrase"] in common]
        rows.append([_STARTS[start], f"{part[0]['steps']:,}", _hits(part), *_rates(part)])
    return [f"The same {counted(len(common), 'phrase')} of one fold and seed:\n\n{table(head, rows)}"]


def _share(runs: list[dict[str, Any]]) -> float:
    return float(sum(run["hits"] * run["phrases"] for run in runs) / sum(run["phrases"] for run in runs))


def _hits(runs: list[dict[str, Any]]) -> str:
    """Return the share of hits and its Wilson interval, in which the phrases of one training depend on each other."""
    cases = np.array([float(run["phrases"]) for run in runs])
    hits = np.array([run["hits"] for run in runs]) * cases
    share = f"{100 * _share(runs):.1f} %"
    if len(runs) == 1:
        return share
    low, high = interval(hits, cases)
    return f"{share} ({100 * low:.1f} to {100 * high:.1f})"


def _heard(runs: list[dict[str, Any]], *sources: str) -> tuple[float, float]:
    """Return the hours of these sources, and the number of false alarms in them."""
    hours, alarms = (
        sum(run[f"{name}_{kind}"] for run in runs for name in sources) for kind in ("hours", "false_alarms")
    )
    return hours, alarms


def _rate(hours: float, alarms: float) -> str:
    low, high = (bound / hours for bound in poisson_interval(alarms))
    return f"{alarms / hours:.2f} ({low:.2f} to {high:.2f})"


def _rates(runs: list[dict[str, Any]]) -> list[str]:
    return [_rate(*_heard(runs, *names)) for names, _ in _ALARMS.values()]
