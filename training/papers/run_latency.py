# SPDX-License-Identifier: Apache-2.0
"""Latency of the models of finished training runs, per test sequence and relative to a reference model.

A model streams the run's test sequences (example.npz) step by step through the native library, called from C: batch 1,
one thread, each sequence from the initial state. The reference is a dense `gru` of the same sizes with random weights.
Both are timed in the same rounds, so that other load on the machine cancels out in their ratio.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.config import InputConfig, LayerConfig
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.files import EXAMPLE, read_json, write_json
from edgernn.machine import processor
from edgernn.npz import read_npz
from edgernn.progress import Progress, Silent
from edgernn.random_models import random_model
from edgernn.runtime.info import read_model
from edgernn.runtime.library import instruction_set
from edgernn.runtime.packed import pack
from edgernn.runtime.probes import streamed
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.store import load_model
from edgernn.training.run_directory import LATENCY, RESULT
from edgernn.training.statistics import spread
from edgernn.training.tables.table_latency import exported

REFERENCE = "gru"
# a timed call runs all sequences; a short call is repeated to fill a block
_ROUNDS = Rounds(rounds=15, warmup=2, block_ms=10.0)
_FIGURES = ("microseconds", "reference_microseconds", "ratio", "macs_executed", "skip_percent")


def measure_latency(runs: Iterable[Path], progress: Progress | None = None) -> None:
    """Time the models of finished runs and write latency.json into their directories.

    The model is compared with a reference model: a dense GRU of the same sizes with random weights. Both stream the
    run's test sequences, in turn, in several rounds.

    latency.json has these keys. microseconds and reference_microseconds: time that the model and the reference model
    take for a sequence (mean over sequences, median over rounds). ratio: time of the model divided by time of the
    reference model (median over rounds). skip_percent: percentage of skipped neuron updates of the model.
    macs_executed: mean number of multiply-adds that the model executes per step. sequences and steps: number and length
    of the sequences. reference: name of the reference model's cell. machine and instruction_set: processor and SIMD
    instructions of the measurement. For a model that cannot be exported or streamed, the file has only machine,
    instruction_set and error, the error message.

    Args:
        runs: The run directories.
        progress: Progress bar. Default: none.
    """
    chosen, progress = list(runs), progress or Silent()
    references: dict[str, bytes] = {}
    progress.begin("models timed", len(chosen))
    try:
        for done, run in enumerate(chosen, 1):
            try:
                figures = _measured(run, references)
            except EdgernnError as error:
                figures = {"error": str(error)}
            write_json(run / LATENCY, {"machine": processor(), "instruction_set": instruction_set(), **figures})
            progress.update(done)
    finally:
        progress.close()


def _measured(run: Path, references: dict[str, bytes]) -> dict[str, Any]:
    """Time the model of the run in directory `run` and a reference model, a GRU of the same sizes."""
    model = exported(run)
    x = read_npz(run / EXAMPLE, ("x",))["x"]
    stepper = Stepper(pack(read_model(model), model), 1)
    reference = Stepper(_reference(run, references), 1)
    calls = {"model": streamed(stepper, x), "reference": streamed(reference, x)}
    blocks = interleaved(calls, _ROUNDS)
    ours, theirs = ([1e6 * statistics.median(block) / len(x) for block in blocks[name]] for name in calls)
    return {
        "sequences": len(x),
        "steps": x.shape[1],
        "microseconds": statistics.median(ours),
        "reference": REFERENCE,
        "reference_microseconds": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        **_work(stepper, x, read_json(run / RESULT)),
    }


def _reference(run: Path, references: dict[str, bytes]) -> bytes:
    """Build the reference model for the run in directory `run`: a dense GRU of the same sizes with random weights."""
    model, _ = load_model(run)
    config = dataclasses.replace(
        model.config,
        layer=LayerConfig().named(REFERENCE),
        input=InputConfig(size=model.input_size, vocabulary=model.vocabulary),
    )
    key = repr(config)
    if key not in references:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "reference.onnx"
            to_onnx(random_model(config), path)
            references[key] = pack(read_model(path), path)
    return references[key]


def _work(stepper: Stepper, x: NDArray[Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Stream N sequences x (N, T, I) through a model; count executed multiply-adds and skipped updates."""
    updates, macs = [], []
    for sequence in x:
        stepper.restart()
        for x_t in sequence:
            stepper.x[...] = x_t
            if not stepper.step():
                raise EdgernnError(
                    f"{EXAMPLE}: the exported model rejects x: {stepper.refusal()}; correct the task's data, and "
                    "train again"
                )
            if stepper.updates is not None and stepper.macs is not None:
                updates.append(int(stepper.updates[0]))
                macs.append(int(stepper.macs[0]))
    if not updates:
        return {"macs_executed": float(result["macs"]), "skip_percent": 0.0}
    return {
        "macs_executed": float(np.mean(macs)),
        "skip_percent": 100 * (1 - float(np.mean(updates)) / result["neurons"]),
    }


def summary(latencies: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Summarise the content of latency.json of runs that differ in their seed alone; None for a run not timed.

    The result has statistics over the runs (`statistics.spread`) of "microseconds", "reference_microseconds", "ratio",
    "macs_executed" and "skip_percent", and three sorted lists without duplicates: "sequences" (numbers of test
    sequences), "machines" (processors and their instruction sets) and "errors". It is None if no run was timed.
    """
    measured = [each for each in latencies if each is not None]
    if not measured:
        return None
    timed = [each for each in measured if "error" not in each]
    return {
        **{name: spread([each[name] for each in timed]) for name in _FIGURES},
        "sequences": sorted({each["sequences"] for each in timed}),
        "machines": sorted({f"{each['machine']}, {each['instruction_set']}" for each in measured}),
        "errors": sorted({each["error"] for each in measured if "error" in each}),
    }
