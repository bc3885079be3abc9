# SPDX-License-Identifier: Apache-2.0
"""Makes the states of the recurrent operators of an ONNX graph its inputs and outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from edgernn.errors import UsageError
from edgernn.export.delta_graph import remove_unused
from edgernn.export.streaming.plain_layers import QUANTISED
from edgernn.export.streaming.probe import Probe, is_along
from edgernn.runtime.graph_queries import MOVES, ancestors, bodies_of, comes_from_input, names_in
from edgernn.runtime.graph_states import RECURRENT, State, inputs_of, reaches
from edgernn.runtime.interface import NEXT


def recurrent_in(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the recurrent operators of a graph itself."""
    return [node for node in graph.node if node.op_type in (*RECURRENT, QUANTISED)]


def check_bodies(graph: onnx.GraphProto, path: Path) -> None:
    """Raise UsageError if the body of a node, such as If, Loop or Scan, has a recurrent operator."""
    for node in graph.node:
        hidden = [inner for body in bodies_of(node) for inner in find_layers(body)]
        if hidden:
            remedy = (
                "fix the inputs on which its condition depends, with --value NAME=NUMBER or --shape NAME=LENGTH,LENGTH"
                if node.op_type == "If"
                else "export the model with the operator itself"
            )
            raise UsageError(
                f"{path}: {node.op_type} {node.name or node.output[0]}: expected {hidden[0].op_type} in the graph "
                f"itself, got one in the body of this node; {remedy}"
            )


def find_layers(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the recurrent operators of a graph and of the bodies of its nodes."""
    inner = [found for node in graph.node for body in bodies_of(node) for found in find_layers(body)]
    return [*recurrent_in(graph), *inner]


def open_layers(proto: onnx.ModelProto, probe: Probe, time: str | None, path: Path) -> tuple[list[State], list[str]]:
    """Make the states of the recurrent operators over time inputs and outputs of a graph.

    A state that the caller passes already stays as it is. A start other than zeros is added to the new input, and
    subtracted from the new output, so that each new input starts at zeros.

    Args:
        proto: The model, changed in place.
        probe: Shapes and values of the inputs X and of the initial states of the operators.
        time: The variable axis that is time, or None if each call is one step.
        path: Path of the file, for error messages.

    Returns:
        The new states, and for each operator over another axis, why it has none.

    Raises:
        UsageError: An operator reads the sequence backwards, or its initial state comes from an input, but its last
            state leads to no output, or is computed from the inputs.
    """
    graph, states, left = proto.graph, list[State](), list[str]()
    nodes: list[onnx.NodeProto] = []
    data = inputs_of(graph).keys()
    for i, original in enumerate(graph.node):
        node = onnx.NodeProto.FromString(original.SerializeToString())
        nodes.append(node)
        if node.op_type not in RECURRENT:
            continue
        name = node.name or f"{node.op_type.lower()}{i}"
        steps, batch, _ = probe.axes(node.input[0])
        if not is_along(steps, time) and not (time is None and steps == 1):
            left.append(f"{name}: runs over an axis of {steps} within a call, so it has no state")
            continue
        direction = next((a.s.decode() for a in node.attribute if a.name == "direction"), "forward")
        if direction != "forward":
            raise UsageError(
                f"{path}: {name}: expected the direction forward, got {direction}, which reads the end of the sequence "
                "first; a stream has no end: train the model with one direction"
            )
        if len(node.input) > 4 and node.input[4] in {tensor.name for tensor in graph.initializer}:
            raise UsageError(
                f"{path}: {name}: sequence_lens: expected an input of the graph, or none, got constant lengths, which "
                "are those of whole sequences; export the model without them"
            )
        for k, (state, place) in enumerate(RECURRENT[node.op_type].items()):
            while len(node.input) <= place:
                node.input.append("")
            while len(node.output) <= 1 + k:
                node.output.append("")
            start = node.input[place]
            if start and comes_from_input(graph, start, MOVES):
                _check_carried(graph, start, node.output[1 + k], f"{path}: {name}: state {state}")
                continue
            if start and _depends_on(graph, start) & data:
                raise UsageError(
                    f"{path}: {name}: state {state}: expected an initial state that is an input or a constant, got one "
                    "that the graph computes from its inputs; export the model so that it is an input"
                )
            hidden = next(a.i for a in node.attribute if a.name == "hidden_size")
            new, last = new_name(graph, f"{name}.{state}"), node.output[1 + k] or f"{name}.{state}.last"
            node.input[place], node.output[1 + k] = new, last
            if start and np.any(probe.values[start]):
                node.input[place] = f"{new}.start"
                nodes.insert(-1, helper.make_node("Add", [new, start], [f"{new}.start"], f"{new}.start"))
                nodes.append(helper.make_node("Sub", [last, start], [new + NEXT], new + NEXT))
            else:
                nodes.append(helper.make_node("Identity", [last], [new + NEXT], new + NEXT))
            states.append(add_state(graph, new, [1, batch, hidden], probe.values[node.input[0]].dtype))
    del graph.node[:]
    graph.node.extend(nodes)
    remove_unused(graph, {tensor.name for tensor in graph.initializer})
    return states, left


def _check_carried(graph: onnx.GraphProto, start: str, last: str, where: str) -> None:
    """Raise UsageError if no output of the graph holds the last state of an operator, whose first one is an input."""
    (source, *_) = sorted(ancestors(graph, start, MOVES)[1] & inputs_of(graph).keys())
    if not last or not any(reaches(graph, value.name, last) for value in graph.output):
        raise UsageError(
            f"{where}: expected its last value as an output of the graph, as its first one comes from the input "
            f"{source}, got none; export the model so that it returns its states"
        )


def _depends_on(graph: onnx.GraphProto, name: str) -> set[str]:
    """Return the inputs of a graph, or initialisers, on whose numbers, and not only shapes, a value depends."""
    others = {node.op_type for node in graph.node} - {"Shape", "Size"}
    return ancestors(graph, name, others)[1]


def new_name(graph: onnx.GraphProto, name: str) -> str:
    """Return a name that no value of a graph has or begins with, made of `name`."""
    taken = names_in(graph)
    while any(other == name or other.startswith(f"{name}.") for other in taken):
        name += "_"
    return name


def add_state(graph: onnx.GraphProto, name: str, axes: list[int | str], dtype: Any) -> State:
    """Add a state to the inputs and outputs of a graph."""
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    graph.input.append(helper.make_tensor_value_info(name, kind, axes))
    graph.output.append(helper.make_tensor_value_info(name + NEXT, kind, axes))
    return State(name, name + NEXT, tuple(axes))
