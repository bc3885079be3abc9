# SPDX-License-Identifier: Apache-2.0
"""LiteRT: one step of the cell as a graph of built-in operators, called once for each step.

Two other forms of the model are slower: a while loop over subgraphs takes several times as long as calls from Python,
and the fused LSTM operator twice as long.
"""

from typing import Any

import numpy as np

from benchmarks.peers.base import GATES, Array, Peer, Problem, Sequence, Stream, by_steps


class LiteRt(Peer):
    """Adapter of LiteRT, which copies the state to the interpreter's inputs before each step."""

    name = "LiteRT"
    package = "ai-edge-litert"

    def sequence(self, problem: Problem) -> Sequence:
        step, reset = _stepper(problem)
        return by_steps(step, reset, problem)

    def stream(self, problem: Problem) -> Stream:
        return _stepper(problem)[0]


def _stepper(problem: Problem) -> tuple[Stream, Any]:
    """Return a function that runs one step of the problem, and a function that restores its initial state."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=_model(problem), num_threads=problem.threads)
    interpreter.allocate_tensors()
    x, *inputs = (detail["index"] for detail in interpreter.get_input_details())
    outputs = [detail["index"] for detail in interpreter.get_output_details()]
    state: list[Array] = []

    def reset() -> None:
        state[:] = list(problem.states.values())

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
    """Builder of a LiteRT model with one subgraph; a tensor is denoted by its index, an int."""

    def __init__(self, batch: int) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.batch = batch
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.description, self.model.subgraphs = 3, "cell", [self.graph]
        self.model.operatorCodes, self.model.buffers = [], [schema.BufferT()]
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def tensor(self, shape: tuple[int, ...], value: np.ndarray[Any, Any] | None = None) -> int:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = f"t{len(self.graph.tensors)}", list(shape), 0
        is_integer = value is not None and value.dtype == np.int32
        tensor.type = self.schema.TensorType.INT32 if is_integer else self.schema.TensorType.FLOAT32
        if value is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(value.tobytes(), np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def constant(self, value: np.ndarray[Any, Any]) -> int:
        return self.tensor(value.shape, value)

    def input(self, columns: int) -> int:
        self.graph.inputs.append(self.tensor((self.batch, columns)))
        return int(self.graph.inputs[-1])

    def op(self, name: str, inputs: list[int], columns: int, options: Any = None, count: int = 1) -> list[int]:
        code, operator = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = code.builtinCode, 1
        operator.opcodeIndex, operator.inputs = len(self.model.operatorCodes), inputs
        operator.outputs = [self.tensor((self.batch, columns)) for _ in range(count)]
        if options is not None:
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, type(options).__name__[:-1])
        self.model.operatorCodes.append(code)
        self.graph.operators.append(operator)
        return list(operator.outputs)

    def bytes(self, outputs: list[int]) -> bytes:
        import flatbuffers

        self.graph.outputs = outputs
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _model(problem: Problem) -> bytes:
    """Build a serialised model of one step: inputs x (B, I), h and, for lstm, c (B, H); outputs are the new h and c."""
    graph, H, count = _Subgraph(problem.batch), problem.hidden_size, len(GATES[problem.cell])
    schema = graph.schema
    x, *state = [graph.input(size) for size in (problem.input_size, *(H for _ in problem.states))]

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

    from_x, from_h = linear(x, problem.W, problem.b_x), linear(state[0], problem.R, problem.b_h)
    if problem.cell == "gru":
        (r_x, z_x, n_x), (r_h, z_h, n_h) = split(from_x), split(from_h)
        r, z = (unary("LOGISTIC", binary("ADD", *pair)) for pair in ((r_x, r_h), (z_x, z_h)))
        n = unary("TANH", binary("ADD", n_x, binary("MUL", r, n_h)))
        return graph.bytes([binary("ADD", n, binary("MUL", z, binary("SUB", state[0], n)))])
    i, f, g, o = split(binary("ADD", from_x, from_h, count * H))
    forget = binary("MUL", unary("LOGISTIC", f), state[1])
    c = binary("ADD", forget, binary("MUL", unary("LOGISTIC", i), unary("TANH", g)))
    return graph.bytes([binary("MUL", unary("LOGISTIC", o), unary("TANH", c)), c])
