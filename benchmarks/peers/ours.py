# SPDX-License-Identifier: Apache-2.0
"""edgernn itself: the exported file in a Session with the native library."""

import tempfile
from pathlib import Path
from typing import cast

from torch import nn

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream
from benchmarks.peers.pytorch import torch_module
from edgernn.runtime.packed import pack
from edgernn.runtime.session import Session
from edgernn.runtime.stepper import Stepper


class Edgernn(Peer):
    """Adapter of edgernn.

    Sequences run in `Session.run_from`, from the problem's initial state. Streams run in `Session.step`, from zeros.
    """

    package = "edgernn"

    def __init__(self, name: str, weights: str) -> None:
        self.name, self._weights = name, weights

    def sequence(self, problem: Problem) -> Sequence:
        session = _session(problem, self._weights)
        start = dict(zip(session.state_names, problem.states.values(), strict=True))
        (h, *_) = session.state_names

        def call() -> tuple[Array, Array]:
            y, state = session.run_from(problem.x, start)
            return y, state[h]

        return call

    def stream(self, problem: Problem) -> Stream:
        return _session(problem, self._weights).step


def stepper_of(problem: Problem) -> Stepper:
    """Convert a problem's GRU or LSTM to a packed model (for C programs), and load it with zero initial states."""
    with tempfile.TemporaryDirectory() as folder:
        path = _exported(problem, "float32", folder)
        return Stepper(pack(path.read_bytes(), path), problem.batch)


def _session(problem: Problem, weights: str) -> Session:
    with tempfile.TemporaryDirectory() as folder:
        return Session(_exported(problem, weights, folder), backend="native", threads=problem.threads)


def _exported(problem: Problem, weights: str, folder: str) -> Path:
    import edgernn
    from edgernn.export import to_onnx

    path = Path(folder) / "model.onnx"
    to_onnx(edgernn.from_torch(cast(nn.GRU | nn.LSTM, torch_module(problem))), path, weights=weights)
    return path
