# SPDX-License-Identifier: Apache-2.0
"""Latency of the models of a table of results, all timed together on this machine."""

import hashlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.export.run import default_file, export_run
from edgernn.files import EXAMPLE, read_bytes, read_json, write_json
from edgernn.machine import processor
from edgernn.npz import read_npz
from edgernn.runtime.info import read_model
from edgernn.runtime.library import library_path
from edgernn.runtime.packed import pack
from edgernn.runtime.probes import streamed
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.store import WEIGHTS
from edgernn.training.run_directory import LATENCY, RESULT
from edgernn.training.tasks.intended_use import use_rows

_ROUNDS = Rounds(rounds=9, warmup=1, block_ms=10.0)
# how a model is timed, now and in files of an earlier version, which do not say so
_CALL = "test sequences streamed step by step, called from C"
EARLIER_CALL = "a call with one test sequence from Python"


def latencies(out: Path, runs: Mapping[str, Path], *, allow_code: bool = False) -> dict[str, Any]:
    """Measure the latency per step of one model per row of a table, for one sequence at a time on one thread.

    Each model is exported to its run directory (`exported`), and the file is checked against torch. A timed call
    streams the model's first test sequences (example.npz) step by step: a loop in C calls the native library for each
    step, as an application on a device does. Each round times several calls of every model in turn. For each model, the
    median time of its calls is taken in each round, and then the median of these over the rounds. The latency is this
    median divided by the number of steps of the sequences. The result is written to latency.json in `out`. A later call
    for the same trained models on the same machine, with the same native library, measures nothing and returns the
    content of this file.

    Args:
        out: Folder of the table.
        runs: Dict from the name of a row to the directory of a finished run.
        allow_code: True if the cell.py of a run with a user-defined cell may be executed.

    Returns:
        A dict with "machine", "call" (a text that says what was timed) and three dicts whose keys are names of rows:
        "microseconds" (latency per step), "models" (run directory) and "errors" (why a model is not timed: it cannot be
        exported or packed, or the native library is missing). "hashes" has the SHA-256 of each model's weights, and
        "library" that of the native library, or None without one.
    """
    timed = {
        "machine": processor(),
        "library": _library_hash(),
        "call": _CALL,
        "models": {name: str(run) for name, run in runs.items()},
        "hashes": {name: _hash(run / WEIGHTS) for name, run in runs.items()},
    }
    cached = _read_cached(out / LATENCY)
    if timed.items() <= cached.items():
        return cached
    calls, steps, errors = {}, {}, {}
    for name, run in runs.items():
        try:
            model = exported(run, allow_code=allow_code)
            x = read_npz(run / EXAMPLE, ("x",))["x"]
            calls[name] = streamed(Stepper(pack(read_model(model), model), 1), x)
        except EdgernnError as error:
            errors[name] = str(error)
            continue
        steps[name] = x.shape[0] * x.shape[1]
    medians = {
        name: statistics.median(statistics.median(block) for block in blocks)
        for name, blocks in interleaved(calls, _ROUNDS).items()
    }
    result = {
        **timed,
        "microseconds": {name: 1e6 * seconds / steps[name] for name, seconds in medians.items()},
        "errors": errors,
    }
    write_json(out / LATENCY, result)
    return result


def measured(out: Path) -> dict[str, Any]:
    """Read the latencies that `latencies` has written to latency.json in the folder `out`; measure nothing.

    The dict has the keys that `latencies` describes. Models that were trained again since then are left out. Without a
    valid file, "machine" and "call" are None and the other values are empty dicts.
    """
    nothing: dict[str, Any] = {"machine": None, "call": None, "models": {}, "microseconds": {}, "errors": {}}
    cached = _read_cached(out / LATENCY) or nothing
    # a file of an earlier version has no hashes
    for name, digest in cached.get("hashes", {}).items():
        weights = Path(cached["models"].get(name, "")) / WEIGHTS
        if not weights.is_file() or _hash(weights) != digest:
            for kind in ("models", "microseconds", "errors"):
                cached[kind].pop(name, None)
    return cached


def exported(run: Path, *, allow_code: bool = False) -> Path:
    """Export the model of a finished run to its directory, with the type of weights that it was trained for.

    Nothing is written if up-to-date files exist.

    Args:
        run: The run directory.
        allow_code: True if the run's cell.py, the code of a user-defined cell, may be executed.

    Returns:
        Path of the ONNX file.

    Raises:
        EdgernnError: The model cannot be exported.
    """
    model = default_file(run, trained_weights(read_json(run / RESULT)))
    # the order in which they are written: an export that was stopped leaves no card, or an earlier one
    files = [run / RESULT, model, model.with_suffix(".md")]
    times = [file.stat().st_mtime_ns for file in files if file.is_file()]
    if len(times) < len(files) or times != sorted(times):
        export_run(run, model, notes=use_rows, allow_code=allow_code)
    return model


def trained_weights(result: Mapping[str, Any]) -> str:
    """Return the type of weights that a run was trained for, from the content of its result.json."""
    # an earlier version trained for float32 alone
    return str(result.get("weights", "float32"))


def _library_hash() -> str | None:
    try:
        return _hash(Path(library_path()))
    except EdgernnError:
        return None


def _hash(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, "a model file")).hexdigest()


def _read_cached(path: Path) -> dict[str, Any]:
    try:
        cached = read_json(path)
    except EdgernnError:
        return {}
    whole = isinstance(cached, dict) and {"models", "microseconds", "errors"} <= cached.keys()
    return {"call": EARLIER_CALL, **cached} if whole else {}
