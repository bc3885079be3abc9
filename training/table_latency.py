# SPDX-License-Identifier: Apache-2.0
"""How long the models of a table take, all timed in one run on this machine."""

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.export.export_run import export_run
from edgernn.files import EXAMPLE, read_arrays, read_json, write_json
from edgernn.machine import processor
from edgernn.runtime import Session
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.training.run_directory import LATENCY, RESULT

MODEL = "model.onnx"
_ROUNDS = Rounds(rounds=9, warmup=1, block_ms=10.0)


def latencies(out: Path, runs: Mapping[str, Path]) -> dict[str, Any]:
    """µs a step of one sequence at a time on one thread, by the name of a row; and what was measured, and on what.

    runs: a finished run for each row. Each is exported to model.onnx in its directory, which is checked against torch;
    then all are timed by turns: a figure is the median over rounds of the median of a round's calls, and a call is a
    whole test sequence from its initial state. What was measured is kept in latency.json in `out`, until there is
    another run to measure. What cannot be exported has the reason in "errors" instead.
    """
    models = {name: str(run) for name, run in runs.items()}
    kept = _kept(out / LATENCY)
    if kept.get("models") == models and kept.get("machine") == processor():
        return kept
    calls, steps, errors = {}, {}, {}
    for name, run in runs.items():
        try:
            session = Session(exported(run), threads=1)
        except EdgernnError as error:
            errors[name] = str(error)
            continue
        x = read_arrays(run / EXAMPLE, ("x",))["x"][0]
        calls[name], steps[name] = partial(session.run, x), len(x)
    medians = {
        name: statistics.median(statistics.median(block) for block in blocks)
        for name, blocks in interleaved(calls, _ROUNDS).items()
    }
    found = {
        "machine": processor(),
        "models": models,
        "microseconds": {name: 1e6 * seconds / steps[name] for name, seconds in medians.items()},
        "errors": errors,
    }
    write_json(out / LATENCY, found)
    return found


def measured(out: Path) -> dict[str, Any]:
    """What was measured before, or nothing."""
    return _kept(out / LATENCY) or {"machine": None, "models": {}, "microseconds": {}, "errors": {}}


def exported(run: Path) -> Path:
    """The model file of a finished run, made now unless it is there and newer. Raises EdgernnError if it cannot be."""
    model = run / MODEL
    if not model.is_file() or model.stat().st_mtime < (run / RESULT).stat().st_mtime:
        export_run(run, model)
    return model


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept = read_json(path)
    except EdgernnError:
        return {}
    return kept if isinstance(kept, dict) and {"models", "microseconds", "errors"} <= kept.keys() else {}
