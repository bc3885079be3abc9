# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's GRU and LSTM operators, with IO binding to preallocated buffers."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream, UnsupportedError
from benchmarks.peers.operator import operator_model
from edgernn.runtime.library import onnxruntime


class OnnxRuntime(Peer):
    """Adapter of ONNX Runtime. A stream's state alternates between two buffers, with one IO binding per direction."""

    name = "ONNX Runtime"
    package = "onnxruntime"

    def model(self, problem: Problem, steps: int) -> bytes:
        return operator_model(problem, steps)

    def sequence(self, problem: Problem) -> Sequence:
        session = open_operator(self.model(problem, problem.steps), problem.threads)
        y = np.empty((problem.steps, 1, problem.batch, problem.hidden_size), np.float32)
        last = {name: np.empty_like(value[None]) for name, value in problem.states.items()}
        start = {name: value[None].copy() for name, value in problem.states.items()}
        bound = _Binding(session, {"x": problem.x, **start}, {"y": y, **{f"{n}.next": v for n, v in last.items()}})

        def call() -> tuple[Array, Array]:
            session.run_with_iobinding(bound.binding)
            return y[:, 0], last["h"][0]

        return call

    def stream(self, problem: Problem) -> Stream:
        session = open_operator(self.model(problem, 1), problem.threads)
        x = np.empty_like(problem.x[:1])
        buffers = [{name: value[None].copy() for name, value in problem.states.items()} for _ in range(2)]
        bindings = [
            _Binding(session, {"x": x, **buffers[turn]}, {f"{n}.next": v for n, v in buffers[1 - turn].items()})
            for turn in range(2)
        ]
        outputs: list[Array] = [buffers[1]["h"][0], buffers[0]["h"][0]]
        turn = 1

        def step(x_t: Array) -> Array:
            nonlocal turn
            turn = 1 - turn
            x[0] = x_t
            session.run_with_iobinding(bindings[turn].binding)
            return outputs[turn]

        return step


class DynamicLstm(OnnxRuntime):
    """Adapter of DynamicQuantizeLSTM, the int8 LSTM that ONNX Runtime's quantize_dynamic produces."""

    name = "ONNX Runtime, int8"

    def model(self, problem: Problem, steps: int) -> bytes:
        if problem.cell != "lstm":
            raise UnsupportedError("ONNX Runtime has an LSTM with int8 weights (DynamicQuantizeLSTM) but no GRU")
        from onnxruntime.quantization import quantize_dynamic

        with tempfile.TemporaryDirectory() as folder:
            whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
            whole.write_bytes(operator_model(problem, steps))
            quantize_dynamic(whole, small, op_types_to_quantize=["LSTM"])
            return small.read_bytes()


def open_operator(model: bytes | str, threads: int) -> Any:
    """Create the session of a model of one operator, from its content or the path of its file."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Binding:
    """An IO binding of a session's inputs and outputs to NumPy arrays, which this object keeps alive."""

    def __init__(self, session: Any, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
        ort = onnxruntime()
        self._memory = (inputs, outputs)
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(value))
        self.binding = binding
