# SPDX-License-Identifier: Apache-2.0
"""Benchmark cases on a GPU: `python -m benchmarks.suite --device cuda`."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.suite import FULL, QUICK
from edgernn.bench.case import EDGERNN, Case, Target
from edgernn.bench.gpu_cases import empty_report
from edgernn.bench.gpu_times import measure_on_gpu, require
from edgernn.bench.measure import GRU
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.files import write_json
from edgernn.progress import Progress, Silent
from edgernn.runtime.timing import Rounds

ALONE, MANY = "One sequence on a GPU", "Batches on a GPU"


def cases(only: str | None = None) -> list[Case]:
    """Select the benchmark cases for a GPU by name."""
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
    path: Path, chosen: Sequence[Case], settings: Rounds = FULL, *, command: str = "", progress: Progress | None = None
) -> dict[str, Any]:
    """Time benchmark cases on a GPU, with random weights; rewrite the report after each case.

    If a case fails, the report has the reason, and the next case runs.
    """
    from edgernn.export import to_onnx
    from edgernn.random_models import random_model

    require()
    report = empty_report(settings, command, settings == QUICK)
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


def summary(entry: dict[str, Any]) -> str:
    """Describe a case's entry in a GPU report in one line: µs per step, and ratios to other runtimes' times."""
    if "failed" in entry:
        return f"{entry['name']}: {entry['failed']}"
    listed = entry["contenders"]
    others = [f"{each['ratio']:.2f} x {name}" for name, each in listed.items() if name != EDGERNN]
    return f"{entry['name']}: {listed[EDGERNN]['us']:.3g} µs, {', '.join(others)}"
