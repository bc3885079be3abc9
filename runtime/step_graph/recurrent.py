# SPDX-License-Identifier: Apache-2.0
"""Recurrent operators of ONNX, and the nodes of edgernn's own layers, as steps of a plan."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.graph_facts import kernel_of
from edgernn.runtime.onnx_gates import to_cell_order
from edgernn.runtime.packed_format import custom_cell, group_size
from edgernn.runtime.step_graph.builder import Builder, Tensor
from edgernn.runtime.step_graph.operators import Node, joined, reshaped, sliced
from edgernn.runtime.step_graph.steps import Layer, Operand, Recurrent
from edgernn.runtime.step_graph.views import View, dense
from edgernn.runtime.weights import Weight

Array = NDArray[Any]
_ACTIVATIONS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}
# states by the number of the input that is their start
STATES = {"GRU": [5], "RNN": [5], "LSTM": [5, 6]}
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def recurrent(builder: Builder, node: Node) -> list[Tensor]:
    """Return Y, Y_h and, for LSTM, Y_c of an operator GRU, LSTM or RNN."""
    kind = node.proto.op_type
    x = node.tensor(0)
    if len(x.shape) != 3:
        raise node.refuse("x (T, B, I)", str(tuple(x.shape)), "fix the shapes with --shape")
    if node.attribute("layout", 0):
        raise node.refuse("layout 0", "1", "run `edgernn stream` on the file first")
    for name in ("clip", "input_forget"):
        if node.attribute(name, 0):
            raise node.refuse(f"{name} 0", str(node.attribute(name)), "train the model without it")
    if len(node.inputs) > 7 and node.inputs[7] is not None:
        raise node.refuse("no peepholes", "an input P", "train the model without them")
    lengths = node.constant(4)
    if lengths is not None and (lengths != x.shape[0]).any():
        raise node.refuse(f"sequences of {x.shape[0]} steps", str(lengths.max()), "export the model without lengths")
    turns = _DIRECTIONS[node.attribute("direction", "forward")]
    activations = [name.decode().lower() for name in node.attribute("activations") or []]
    if activations and activations != _ACTIVATIONS[kind] * len(turns):
        raise node.refuse(" and ".join(_ACTIVATIONS[kind]), ", ".join(activations), "train the model with those")
    steps, rows = x.shape[:2]
    initial = [node.inputs[k] if k < len(node.inputs) else None for k in STATES[kind]]
    if steps == 1 and all(start is None or isinstance(start, np.ndarray) for start in initial):
        raise node.refuse(
            "its state as an input of the graph",
            "one that is the same at each step",
            "give the file its states with: edgernn stream",
        )
    outputs: list[list[Tensor]] = [[] for _ in range(1 + len(STATES[kind]))]
    for direction, backwards in enumerate(turns):
        layer, hidden = _layer(node, kind, direction)
        sequence = sliced(builder, x, 0, steps - 1, steps, -1) if backwards and steps > 1 else x
        starts: list[Tensor] = []
        for start in initial:
            starts.append(
                np.zeros((1, rows, hidden), np.float32) if start is None else sliced(builder, start, 0, direction, 1)
            )
        y, *states = run_layer(builder, layer, sequence, starts, hidden)
        if backwards and steps > 1:
            turned = y.sliced(0, steps - 1, steps, -1)
            assert turned is not None
            y = turned
        outputs[0].append(reshaped(builder, y, [steps, 1, rows, hidden]))
        for parts, state in zip(outputs[1:], states, strict=True):
            parts.append(reshaped(builder, state, [1, rows, hidden]))
    return [joined(builder, parts, axis) for parts, axis in zip(outputs, (1, 0, 0), strict=False)]


def run_layer(builder: Builder, layer: Layer, x: Tensor, starts: list[Tensor], hidden: int) -> list[View]:
    """Add the step of a layer: x (T, rows, I) and states of (…, rows, width) give y (T, rows, H) and the states."""
    steps, rows, inputs = x.shape
    source = builder.rows(x)
    target = builder.arena(steps * rows * hidden)
    views, states, widths = [dense(target, [steps, rows, hidden])], [], []
    zero = all(isinstance(start, np.ndarray) and not start.any() for start in starts)
    for start in starts:
        width = start.shape[-1]
        state = dense(builder.arena(rows * width), [rows, width])
        if not zero:
            builder.store(reshaped(builder, start, [rows, width]), state)
        states.append(Operand(state.value, 0, []))
        widths.append(width)
        views.append(state)
    builder.add(
        Recurrent(
            layer,
            steps,
            rows,
            inputs,
            hidden,
            Operand(source.value, source.offset, []),
            Operand(target, 0, []),
            states,
            widths,
            zero,
        )
    )
    return views


def _layer(node: Node, kind: str, direction: int) -> tuple[Layer, int]:
    """Return a direction of an operator as a layer of edgernn, and its number of neurons."""
    arrays = []
    for k in (1, 2, 3):
        array = node.constant(k)
        arrays.append(None if array is None else np.asarray(array, np.float32)[direction])
    W, R, both = arrays
    assert W is not None
    assert R is not None
    rows, H = R.shape
    halves = np.split(np.zeros(2 * rows, np.float32) if both is None else both, 2)
    if kind == "RNN":
        return Layer("rnn", [Weight(W), Weight(R), Weight(halves[0] + halves[1])]), H
    W, R, b, c = (to_cell_order(kind.lower(), array) for array in (W, R, *halves))
    if kind == "LSTM":
        return Layer("lstm", [Weight(W), Weight(R), Weight(b + c)]), H
    if node.attribute("linear_before_reset", 0):
        # only the candidate state keeps a second bias
        b = np.concatenate([(b + c)[: 2 * H], b[2 * H :], c[2 * H :]])
        return Layer("gru", [Weight(W), Weight(R), Weight(b)]), H
    b = b + c
    for weight in (W, R, b):
        # the update gate of gru-before is 1 - z
        weight[H : 2 * H] *= -1
    return Layer("gru-before", [Weight(W), Weight(R[: 2 * H]), Weight(R[2 * H :]), Weight(b)]), H


def own_layer(builder: Builder, node: Node, weights: list[Weight], path: Path) -> list[Tensor | None]:
    """Return Y, updates and macs, which are None, and the last states of a node of edgernn."""
    count = len(node.proto.output) - 3
    starts = [node.tensor(k) for k in range(len(node.inputs) - count, len(node.inputs))]
    layer = Layer(
        kernel_of(node.proto, path),
        weights,
        custom_cell(node.proto, path),
        group_size(node.proto, path),
        node.attribute("rule", "always") != "always",
    )
    x = node.tensor(0)
    if len(x.shape) != 3 or count < 1:
        raise EdgernnError(f"{path}: {node.title}: expected x (T, B, I) and states, got others; export the model again")
    y, *states = run_layer(builder, layer, x, starts, starts[0].shape[-1])
    return [y, None, None, *states]


OPERATORS = dict.fromkeys(STATES, recurrent)
