# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's own GRU and LSTM operators, with IO binding and memory allocated once."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgernn.bench.peers.base import Array, Peer, Problem, Sequence, Stream, UnsupportedError
from edgernn.bench.peers.operator import operator_model
from edgernn.runtime.library import onnxruntime


class OnnxRuntime(Peer):
    """The state lies in two buffers in turn, with a binding for each direction."""

    name = "ONNX Runtime"
    package = "onnxruntime"

    def model(self, given: Problem, steps: int) -> bytes:
        return operator_model(given, steps)

    def sequence(self, given: Problem) -> Sequence:
        session = _session(given, self.model(given, given.steps))
        y = np.empty((given.steps, 1, given.batch, given.hidden_size), np.float32)
        last = {name: np.empty_like(value[None]) for name, value in given.states.items()}
        start = {name: value[None].copy() for name, value in given.states.items()}
        bound = _Binding(session, {"x": given.x, **start}, {"y": y, **{f"{n}.next": v for n, v in last.items()}})

        def call() -> tuple[Array, Array]:
            session.run_with_iobinding(bound.binding)
            return y[:, 0], last["h"][0]

        return call

    def stream(self, given: Problem) -> Stream:
        session = _session(given, self.model(given, 1))
        x = np.empty_like(given.x[:1])
        buffers = [{name: value[None].copy() for name, value in given.states.items()} for _ in range(2)]
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
    """Its LSTM with weights of one byte, DynamicQuantizeLSTM, as its own tool makes it."""

    name = "ONNX Runtime, int8"

    def model(self, given: Problem, steps: int) -> bytes:
        if given.cell != "lstm":
            raise UnsupportedError("it has no GRU with weights of one byte")
        from onnxruntime.quantization import quantize_dynamic

        with tempfile.TemporaryDirectory() as folder:
            whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
            whole.write_bytes(operator_model(given, steps))
            quantize_dynamic(whole, small, op_types_to_quantize=["LSTM"])
            return small.read_bytes()


def _session(given: Problem, model: bytes) -> Any:
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = given.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Binding:
    """An IO binding to the memory of these arrays, kept alive with it."""

    def __init__(self, session: Any, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
        ort = onnxruntime()
        self._memory = (inputs, outputs)
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(value))
        self.binding = binding
