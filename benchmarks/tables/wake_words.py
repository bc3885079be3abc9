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


def wake_words() -> dict[str, str]:
    """Return the generated part of the page, as a dict from the name of its marker to its text."""
    report = read_report("wake-words")
    runs = report["runs"]
    starts = {start: [run for run in runs if run.get("start", "random") == start] for start in _STARTS}
    shown = next(rows for rows in starts.values() if rows)
    head = [
        "sound of the test parts",
        "distinct minutes in each",
        "hours heard",
        "false alarms",
        "an hour, 95 % interval",
    ]
    minutes = {name: np.mean([run[f"{name}_minutes"] for run in shown]) for name in _SOURCES}
    rows = [[title, f"{minutes[name]:.1f}", *_pooled(shown, f"{name}_")] for name, title in _SOURCES.items()]
    spoken = sum(minutes.values()) - minutes["noise"]
    rows.append(["the three kinds of speech", f"{spoken:.1f}", *_pooled(shown)])
    phrases, folds = {run["phrase"] for run in shown}, {run.get("fold", 0) for run in shown}
    trainings = (
        f"{counted(len(shown), 'training')} of {counted(len(phrases), 'phrase')} and {counted(len(folds), 'fold')}"
    )
    if "planned" not in report:
        trainings = f'One training of "{shown[0]["phrase"]}" from random weights, by an earlier form of the command'
    text = (
        f"{trainings}: at the threshold with 95 % hits in the validation part, {_hits(shown)} of those of the test "
        f"part are heard. A training takes {shown[0]['steps']:,} steps"
    )
    parts = [table(head, rows), f"{filled(text)}."]
    compared = {
        start: [run for run in rows if (run.get("fold", 0), run["seed"]) == (0, 0)] for start, rows in starts.items()
    }
    common = set.intersection(*({run["phrase"] for run in rows} for rows in compared.values()))
    if common:
        head = ["trained", "steps", "hits", "false alarms an hour in speech, 95 % interval"]
        lines = []
        for start, title in _STARTS.items():
            rows = [run for run in compared[start] if run["phrase"] in common]
            lines.append([title, f"{rows[0]['steps']:,}", _hits(rows), _pooled(rows)[-1]])
        parts.append(f"The same {len(common)} phrases of one fold and seed:\n\n{table(head, lines)}")
    return {"wake": "\n\n".join(parts)}


def _hits(runs: list[dict[str, Any]]) -> str:
    """Return the share of hits and its Wilson interval, in which the phrases of one training depend on each other."""
    cases = np.array([float(run["phrases"]) for run in runs])
    hits = np.array([run["hits"] for run in runs]) * cases
    share = f"{100 * hits.sum() / cases.sum():.1f} %"
    if len(runs) == 1:
        return share
    low, high = interval(hits, cases)
    return f"{share} ({100 * low:.1f} to {100 * high:.1f})"


def _pooled(runs: list[dict[str, Any]], prefix: str = "") -> list[str]:
    """Return the hours, the number of false alarms, and their rate with its interval."""
    hours = sum(run[f"{prefix}hours"] for run in runs)
    alarms = sum(run[f"{prefix}false_alarms"] for run in runs)
    low, high = (bound / hours for bound in poisson_interval(alarms))
    return [f"{hours:.3g}", f"{alarms}", f"{alarms / hours:.1f} ({low:.1f} to {high:.1f})"]
