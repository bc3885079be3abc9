# SPDX-License-Identifier: Apache-2.0
"""What a model costs before its first step: the library's size, and the time until a session is ready."""

import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from edgernn.bench.case import EDGERNN, Case, described
from edgernn.bench.peers import PEERS, problem
from edgernn.bench.peers.pytorch import torch_module
from edgernn.runtime.library import library_path
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, interleaved

LIBRARY_BYTES, SESSION_MS = 1_000_000, 20.0
LIMIT = f"{SESSION_MS:.0f} ms"
GROUP = "Library and load time"


def measure_load(case: Case, settings: Rounds) -> dict[str, Any]:
    """The case's model: register the library and create the session, and ONNX Runtime's own for its GRU.

    The times are of a session, in µs.
    """
    import edgernn
    from edgernn.export import to_onnx

    given = problem("gru", *case.sizes, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        module = cast(nn.GRU, torch_module(given))
        to_onnx(edgernn.from_torch(module), path)
        seconds = interleaved(
            {
                EDGERNN: lambda: Session(path, backend="native"),
                PEERS[0].name: lambda: PEERS[0].stream(given),
            },
            settings,
        )
    times = {name: np.array([np.median(block) for block in rounds]) * 1e6 for name, rounds in seconds.items()}
    times[LIMIT] = np.full(settings.rounds, SESSION_MS * 1e3)
    size = Path(library_path()).stat().st_size
    made = described(case, times, {})
    made["targets"].append(
        {"against": "1 MB", "limit": 1.0, "value": size / LIBRARY_BYTES, "met": size <= LIBRARY_BYTES}
    )
    return made | {"left_out": {}, "library_bytes": size}
