# SPDX-License-Identifier: Apache-2.0
"""Costs before a model's first step: the size of the native library and the time to create a session."""

import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from benchmarks.peers import random_problem
from benchmarks.peers.onnx_runtime import OnnxRuntime, open_operator
from benchmarks.peers.operator import operator_model
from benchmarks.peers.pytorch import torch_module
from edgernn.bench.case import EDGERNN, Case, described
from edgernn.runtime.library import library_path
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, interleaved

LIBRARY_MB, SESSION_MS = 1.3, 20.0
LIMIT, LIBRARY_LIMIT = f"{SESSION_MS:.0f} ms", f"{LIBRARY_MB:g} MB"
GROUP = "Library and load time"


def measure_load(case: Case, settings: Rounds) -> dict[str, Any]:
    """Time the creation of a session for a GRU from a file: in edgernn with the native library, and in ONNX Runtime."""
    import edgernn
    from edgernn.export import to_onnx

    problem = random_problem("gru", *case.sizes, 1)
    with tempfile.TemporaryDirectory() as folder:
        path, operator = Path(folder) / "model.onnx", Path(folder) / "operator.onnx"
        operator.write_bytes(operator_model(problem, 1))
        module = cast(nn.GRU, torch_module(problem))
        to_onnx(edgernn.from_torch(module), path)
        seconds = interleaved(
            {
                EDGERNN: lambda: Session(path, backend="native"),
                OnnxRuntime.name: lambda: open_operator(str(operator), problem.threads),
            },
            settings,
        )
    times = {name: np.array([np.median(block) for block in rounds]) * 1e6 for name, rounds in seconds.items()}
    times[LIMIT] = np.full(settings.rounds, SESSION_MS * 1e3)
    size = Path(library_path()).stat().st_size
    report = described(case, times, {})
    share = size / (1e6 * LIBRARY_MB)
    report["targets"].append({"against": LIBRARY_LIMIT, "limit": 1.0, "value": share, "met": share <= 1})
    return report | {"left_out": {}, "library_bytes": size}
