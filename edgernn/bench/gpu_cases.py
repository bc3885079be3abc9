# SPDX-License-Identifier: Apache-2.0
"""Benchmarks on a GPU (`edgernn bench --device cuda`): time one model, or all GPU cases, and write a report."""

import datetime
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgernn.bench.case import EDGERNN, Case, Target
from edgernn.bench.gpu_times import COPIED, CPU, measure_on_gpu, require
from edgernn.bench.measure import GRU, Settings, example_input
from edgernn.bench.page import tables
from edgernn.bench.provenance import gpu, machine
from edgernn.bench.suite import FULL, QUICK
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.files import write_json, write_text
from edgernn.progress import Progress, Silent
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds
from edgernn.settings import load

ALONE, MANY = "One sequence on a GPU", "Batches on a GPU"


def cases(only: str | None = None) -> list[Case]:
    """Select the benchmark cases for a GPU by name.

    Args:
        only: Text that the names contain, or None for all cases.

    Returns:
        The cases.

    Raises:
        UsageError: No name contains `only`.
    """
    known = []
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group, steps, batch, cores in ((ALONE, 500, 1, 1), (MANY, 100, 256, threads)):
        for cell in ("gru", "lstm"):
            for sizes in ((2, 128), (64, 128), (128, 256)):
                # one sequence has a target at H = 128 only
                limit = 0.5 if batch == 1 else 1.0
                has_target = cell == "gru" and (batch > 1 or sizes[1] == 128)
                targets = (Target(GRU, limit),) * has_target
                known.append(Case(group, ModelConfig.of(cell, *sizes), steps, batch, cores, targets=targets))
        for cell, skip in (("sarnn", 0.9), ("skiprnn", 0.8)):
            known.append(Case(group, ModelConfig.of(cell, 2, 128), steps, batch, cores, skip=skip))
    matches = [case for case in known if only is None or only in case.name]
    if not matches:
        raise UsageError(f"--only: expected a part of a benchmark case's name, such as {known[0].name!r}, got {only!r}")
    return matches


def run_cases(
    path: Path,
    chosen: Sequence[Case],
    settings: Rounds = FULL,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time benchmark cases on a GPU, with random weights; rewrite the report after each case.

    If a case fails, the report has the reason, and the next case runs.

    Args:
        path: JSON file of the report.
        chosen: Cases to measure.
        settings: Number of timing rounds of each case, their length and warm-up.
        command: Command line to name in the report.
        progress: Progress bar. Default: none.

    Returns:
        The report; `gpu_page` formats it.

    Raises:
        EdgernnError: No GPU can be used.
    """
    from edgernn.export import to_onnx
    from edgernn.random_models import random_model

    require()
    report = _report(settings, command)
    progress = progress or Silent()
    for done, case in enumerate(chosen):
        random = np.random.default_rng(0)
        x = random.standard_normal((case.steps, case.batch, case.sizes[0])).astype(np.float32)
        try:
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder) / "model.onnx"
                to_onnx(random_model(case.model, skip=case.skip or 0.0, x=torch.from_numpy(x)), model)
                entry = measure_on_gpu(model, case, x, settings)
        except Exception as error:  # a driver or a runtime may raise any exception
            entry = {"name": case.name, "group": case.group, "failed": " ".join(str(error).split())}
        report["cases"].append(entry)
        write_json(path, report)
        progress.note(f"[{done + 1}/{len(chosen)}] {summary(entry)}")
    return report


def bench_on_gpu(
    path: Path,
    folder: Path,
    settings: Settings | None = None,
    *,
    x: NDArray[Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check and time an exported model on a GPU, and write cuda.json and cuda.md.

    Args:
        path: The exported file.
        folder: Folder to write the report to.
        settings: Sizes, threads and rounds of the benchmark. Default: `Settings()`.
        x: Inputs (T, B, I), or word indices (T, B). Default: `example.npz` beside the model, else random numbers.
        progress: Progress bar. Default: none.

    Returns:
        The JSON-compatible report, with the paths of both files as `files`.

    Raises:
        EdgernnError: No GPU can be used, or the outputs are wrong.
        UsageError: The shape of x does not fit the model.
    """
    require()
    settings = settings or Settings()
    session = Session(path, backend="portable")
    x, source = example_input(path, session, settings, x)
    info, (T, B) = session.info, x.shape[:2]
    case = Case(path.name, load(ModelConfig, info["model"], str(path)), T, B, settings.threads)
    rounds = Rounds(settings.rounds, settings.warmup, settings.block_ms)
    report = {**_report(rounds, "edgernn bench --device cuda"), "input": source}
    report["cases"].append(measure_on_gpu(path, case, x, rounds, progress))
    files = [folder / "cuda.json", folder / "cuda.md"]
    write_json(files[0], report)
    write_text(files[1], gpu_page(report))
    return {**report, "files": list(map(str, files))}


def _report(settings: Rounds, command: str) -> dict[str, Any]:
    return {
        "device": "cuda",
        "quick": settings == QUICK,
        "command": command,
        "begun": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {**machine(), **gpu()},
        "settings": {"rounds": settings.rounds, "block_ms": settings.block_ms},
        "cases": [],
    }


def summary(entry: dict[str, Any]) -> str:
    """Describe a case's entry in a GPU report in one line: µs per step, and ratios to other runtimes' times."""
    if "failed" in entry:
        return f"{entry['name']}: {entry['failed']}"
    listed = entry["contenders"]
    others = [f"{each['ratio']:.2f} x {name}" for name, each in listed.items() if name != EDGERNN]
    return f"{entry['name']}: {listed[EDGERNN]['us']:.3g} µs, {', '.join(others)}"


def gpu_page(report: dict[str, Any]) -> str:
    """Format a benchmark report of a GPU as Markdown."""
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    clocks = sorted({case["clock"] for case in report["cases"] if "clock" in case})
    threads = sorted({case["cpu_threads"] for case in report["cases"] if "clock" in case})
    short = "**A quick run, whose figures are rough.** " if report["quick"] else ""
    parts = [
        f"{machine['gpu']}, driver {machine['driver']}; {machine['cpu']}, {machine['cores']} cores, instruction set "
        f"{machine['instruction_set']}; Python {machine['python']}, {versions}. Begun {report['begun']} by "
        f"`{report['command']}`.",
        f"{short}All contenders are verified first. Then each of {settings['rounds']} rounds times a block of "
        f"{settings['block_ms']:g} ms of each contender, in shuffled order. A figure is the median over rounds of the "
        "block medians, in µs per step of the whole batch. A ratio is the median over rounds of our time divided by "
        f"the other's in the same round: below 1 we are faster. The clock is: {' or '.join(clocks) or 'none'}. Calls "
        f"follow one another, with x, y and all states on the GPU. `{COPIED}` is `Session.run_from`, which reads and "
        f"returns NumPy arrays; `{CPU}` uses {' or '.join(map(str, threads)) or 'no'} threads and the CPU's memory. "
        "ONNX Runtime and torch run cuDNN in tf32, their default; ours is float32.",
        _processor(report["cases"]),
    ]
    return "\n\n".join([*parts, *tables(report["cases"])]) + "\n"


def _processor(cases: list[dict[str, Any]]) -> str:
    """Return a sentence that names the cases in which edgernn is faster on the CPU than on the GPU."""
    wins = [case["name"] for case in cases if case.get("contenders", {}).get(CPU, {"ratio": 0.0})["ratio"] > 1]
    if not any(CPU in case.get("contenders", {}) for case in cases):
        return "Our kernel on the CPU was not measured."
    if not wins:
        return "Our kernel on the CPU is slower in all cases."
    return f"Our kernel on the CPU is faster than ours on the GPU in: {'; '.join(wins)}."
