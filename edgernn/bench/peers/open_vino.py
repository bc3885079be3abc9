# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's GRU and LSTM operators, at float32 and at the precision that it chooses by itself."""

from typing import Any

import numpy as np

from edgernn.bench.peers.base import Array, Peer, Problem, Sequence, Stream
from edgernn.bench.peers.operator import operator_model


class OpenVino(Peer):
    """One infer request for each direction between two buffers of the state; tensors share memory with arrays."""

    package = "openvino"

    def __init__(self, name: str, precision: str | None) -> None:
        self.name = name
        self._precision = precision

    def sequence(self, given: Problem) -> Sequence:
        y = np.empty((given.steps, 1, given.batch, given.hidden_size), np.float32)
        start = [value[None].copy() for value in given.states.values()]
        last = [np.empty_like(value) for value in start]
        request = _Request(self._compiled(given, given.steps), [given.x, *start], [y, *last])

        def call() -> tuple[Array, Array]:
            request.infer(share_outputs=True)
            return y[:, 0], last[0][0]

        return call

    def stream(self, given: Problem) -> Stream:
        compiled = self._compiled(given, 1)
        x = np.empty_like(given.x[:1])
        y: Array = np.empty((1, 1, given.batch, given.hidden_size), np.float32)
        buffers = [[value[None].copy() for value in given.states.values()] for _ in range(2)]
        requests = [_Request(compiled, [x, *buffers[turn]], [y, *buffers[1 - turn]]) for turn in range(2)]
        current: Array = y[0, 0]
        turn = 1

        def step(x_t: Array) -> Array:
            nonlocal turn
            turn = 1 - turn
            x[0] = x_t
            requests[turn].infer(share_outputs=True)
            return current

        return step

    def _compiled(self, given: Problem, steps: int) -> Any:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": given.threads,
            "ENABLE_CPU_PINNING": False,
        }
        if self._precision is not None:
            settings["INFERENCE_PRECISION_HINT"] = self._precision
        core = openvino.Core()
        return core.compile_model(core.read_model(operator_model(given, steps)), "CPU", settings)


class _Request:
    """An infer request on the memory of these arrays, which it does not keep alive by itself."""

    def __init__(self, compiled: Any, inputs: list[Array], outputs: list[Array]) -> None:
        import openvino

        self._memory = (inputs, outputs)
        request = compiled.create_infer_request()
        for i, value in enumerate(inputs):
            request.set_input_tensor(i, openvino.Tensor(value, shared_memory=True))
        for i, value in enumerate(outputs):
            request.set_output_tensor(i, openvino.Tensor(value, shared_memory=True))
        self.infer = request.infer
