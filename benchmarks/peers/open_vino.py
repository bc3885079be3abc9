# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's GRU and LSTM operators, in float32 and in the precision that OpenVINO selects."""

from typing import Any

import numpy as np

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream
from benchmarks.peers.operator import operator_model


class OpenVino(Peer):
    """Adapter of OpenVINO.

    A stream's state alternates between two buffers: one infer request reads the first and writes the second, another
    one does the reverse. Tensors share the memory of NumPy arrays, so that nothing is copied.
    """

    package = "openvino"

    def __init__(self, name: str, precision: str | None) -> None:
        """Select the inference precision."""
        self.name = name
        self._precision = precision

    def sequence(self, problem: Problem) -> Sequence:
        y = np.empty((problem.steps, 1, problem.batch, problem.hidden_size), np.float32)
        start = [value[None].copy() for value in problem.states.values()]
        last = [np.empty_like(value) for value in start]
        request = _Request(self._compiled(problem, problem.steps), [problem.x, *start], [y, *last])

        def call() -> tuple[Array, Array]:
            request.infer(share_outputs=True)
            return y[:, 0], last[0][0]

        return call

    def stream(self, problem: Problem) -> Stream:
        compiled = self._compiled(problem, 1)
        x = np.empty_like(problem.x[:1])
        y: Array = np.empty((1, 1, problem.batch, problem.hidden_size), np.float32)
        buffers = [[value[None].copy() for value in problem.states.values()] for _ in range(2)]
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

    def _compiled(self, problem: Problem, steps: int) -> Any:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": problem.threads,
            "ENABLE_CPU_PINNING": False,
        }
        if self._precision is not None:
            settings["INFERENCE_PRECISION_HINT"] = self._precision
        core = openvino.Core()
        return core.compile_model(core.read_model(operator_model(problem, steps)), "CPU", settings)


class _Request:
    """An infer request that reads and writes NumPy arrays without a copy, and keeps them alive."""

    def __init__(self, compiled: Any, inputs: list[Array], outputs: list[Array]) -> None:
        import openvino

        self._memory = (inputs, outputs)
        request = compiled.create_infer_request()
        for i, value in enumerate(inputs):
            request.set_input_tensor(i, openvino.Tensor(value, shared_memory=True))
        for i, value in enumerate(outputs):
            request.set_output_tensor(i, openvino.Tensor(value, shared_memory=True))
        self.infer = request.infer
