# SPDX-License-Identifier: Apache-2.0
"""LiteRT: the cell of one step as its graph of built-in operators, written as a flatbuffer; a call for each step.

The format also has a loop over subgraphs, which takes several times as long as the calls from Python do, and a fused
LSTM operator, which takes twice as long.
"""

from typing import Any

import numpy as np

from edgernn.bench.peers.base import GATES, Array, Peer, Problem, Sequence, Stream, by_steps


class LiteRt(Peer):
    """The new state is written to the interpreter's inputs at the next call."""

    name = "LiteRT"
    package = "ai-edge-litert"

    def sequence(self, given: Problem) -> Sequence:
        step, reset = _stepper(given)
        return by_steps(step, reset, given)

    def stream(self, given: Problem) -> Stream:
        return _stepper(given)[0]


def _stepper(given: Problem) -> tuple[Stream, Any]:
    """The call of one step, and what starts over from the problem's state."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=_model(given), num_threads=given.threads)
    interpreter.allocate_tensors()
    x, *inputs = (detail["index"] for detail in interpreter.get_input_details())
    outputs = [detail["index"] for detail in interpreter.get_output_details()]
    state: list[Array] = []

    def reset() -> None:
        state[:] = list(given.states.values())

    def step(x_t: Array) -> Array:
        interpreter.set_tensor(x, x_t)
        for index, value in zip(inputs, state, strict=True):
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        state[:] = [interpreter.get_tensor(index) for index in outputs]
        return state[0]

    reset()
    return step, reset


class _Subgraph:
    """A model of one subgraph in the making; methods return the index of a new tensor (B, columns)."""

    def __init__(self, batch: int) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.batch = batch
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.description, self.model.subgraphs = 3, "cell", [self.graph]
        self.model.operatorCodes, self.model.buffers = [], [schema.BufferT()]
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def tensor(self, shape: tuple[int, ...], value: np.ndarray[Any, Any] | None = None) -> int:
        made = self.schema.TensorT()
        made.name, made.shape, made.buffer = f"t{len(self.graph.tensors)}", list(shape), 0
        whole = value is not None and value.dtype == np.int32
        made.type = self.schema.TensorType.INT32 if whole else self.schema.TensorType.FLOAT32
        if value is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(value.tobytes(), np.uint8)
            made.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def constant(self, value: np.ndarray[Any, Any]) -> int:
        return self.tensor(value.shape, value)

    def input(self, columns: int) -> int:
        self.graph.inputs.append(self.tensor((self.batch, columns)))
        return int(self.graph.inputs[-1])

    def op(self, name: str, inputs: list[int], columns: int, options: Any = None, count: int = 1) -> list[int]:
        code, made = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = code.builtinCode, 1
        made.opcodeIndex, made.inputs = len(self.model.operatorCodes), inputs
        made.outputs = [self.tensor((self.batch, columns)) for _ in range(count)]
        if options is not None:
            made.builtinOptions = options
            made.builtinOptionsType = getattr(self.schema.BuiltinOptions, type(options).__name__[:-1])
        self.model.operatorCodes.append(code)
        self.graph.operators.append(made)
        return list(made.outputs)

    def bytes(self, outputs: list[int]) -> bytes:
        import flatbuffers

        self.graph.outputs = outputs
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _model(given: Problem) -> bytes:
    """Inputs x (B, I), h and of lstm c (B, H); outputs the new h and c."""
    graph, H, count = _Subgraph(given.batch), given.hidden_size, len(GATES[given.cell])
    schema = graph.schema
    x, *state = [graph.input(size) for size in (given.input_size, *(H for _ in given.states))]

    def linear(value: int, weight: Array, bias: Array) -> int:
        inputs = [value, graph.constant(weight), graph.constant(bias)]
        return graph.op("FULLY_CONNECTED", inputs, count * H, schema.FullyConnectedOptionsT())[0]

    def split(value: int) -> list[int]:
        options = schema.SplitOptionsT()
        options.numSplits = count
        return graph.op("SPLIT", [graph.constant(np.array(1, np.int32)), value], H, options, count)

    def binary(name: str, a: int, b: int, columns: int = H) -> int:
        options = {"ADD": schema.AddOptionsT, "MUL": schema.MulOptionsT, "SUB": schema.SubOptionsT}[name]()
        return graph.op(name, [a, b], columns, options)[0]

    def unary(name: str, a: int) -> int:
        return graph.op(name, [a], H)[0]

    from_x, from_h = linear(x, given.W, given.b_x), linear(state[0], given.R, given.b_h)
    if given.cell == "gru":
        (r_x, z_x, n_x), (r_h, z_h, n_h) = split(from_x), split(from_h)
        r, z = (unary("LOGISTIC", binary("ADD", *pair)) for pair in ((r_x, r_h), (z_x, z_h)))
        n = unary("TANH", binary("ADD", n_x, binary("MUL", r, n_h)))
        return graph.bytes([binary("ADD", n, binary("MUL", z, binary("SUB", state[0], n)))])
    i, f, g, o = split(binary("ADD", from_x, from_h, count * H))
    kept = binary("MUL", unary("LOGISTIC", f), state[1])
    c = binary("ADD", kept, binary("MUL", unary("LOGISTIC", i), unary("TANH", g)))
    return graph.bytes([binary("MUL", unary("LOGISTIC", o), unary("TANH", c)), c])
