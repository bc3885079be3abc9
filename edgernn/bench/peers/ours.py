# SPDX-License-Identifier: Apache-2.0
"""edgernn itself, as a user has it: the exported file in a Session with the native library."""

import tempfile
from pathlib import Path
from typing import cast

from torch import nn

from edgernn.bench.peers.base import Array, Peer, Problem, Sequence, Stream
from edgernn.bench.peers.pytorch import torch_module
from edgernn.runtime.packed import pack
from edgernn.runtime.session import Session
from edgernn.runtime.stepper import Stepper


class Edgernn(Peer):
    """`Session.run_from` for sequences, `Session.step` for streams, which start from zeros."""

    package = "edgernn"

    def __init__(self, name: str, weights: str) -> None:
        self.name, self._weights = name, weights

    def sequence(self, given: Problem) -> Sequence:
        session = _session(given, self._weights)
        start = dict(zip(session.state_names, given.states.values(), strict=True))
        (h, *_) = session.state_names

        def call() -> tuple[Array, Array]:
            y, state = session.run_from(given.x, start)
            return y, state[h]

        return call

    def stream(self, given: Problem) -> Stream:
        return _session(given, self._weights).step


def stepper_of(given: Problem) -> Stepper:
    """The same as a packed model."""
    with tempfile.TemporaryDirectory() as folder:
        path = _exported(given, "float32", folder)
        return Stepper(pack(path.read_bytes(), path), given.batch)


def _session(given: Problem, weights: str) -> Session:
    with tempfile.TemporaryDirectory() as folder:
        return Session(_exported(given, weights, folder), backend="native", threads=given.threads)


def _exported(given: Problem, weights: str, folder: str) -> Path:
    import edgernn
    from edgernn.export import to_onnx

    path = Path(folder) / "model.onnx"
    to_onnx(edgernn.from_torch(cast(nn.GRU | nn.LSTM, torch_module(given))), path, weights=weights)
    return path
