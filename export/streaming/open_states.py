# SPDX-License-Identifier: Apache-2.0
"""Makes the states of the recurrent operators of an ONNX graph its inputs and outputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from edgernn.errors import UsageError
from edgernn.export.delta_graph import remove_unused
from edgernn.export.graph_queries import FLOATS, MOVES, ancestors, bodies_of, comes_from_input, names_in
from edgernn.export.streaming.plain_layers import QUANTISED, RECURRENT
from edgernn.export.streaming.probe import Probe, axes_of, inputs_of, is_along

# ending of the output with the next value of a state
NEXT = ".next"


@dataclass(frozen=True)
class State:
    """A state of a graph: the caller passes the output of a call as the input of the next one, zeros at first.

    Attributes:
        input: Name of the input.
        output: Name of the output.
        axes: Length of each axis, or the name of a variable one.
    """

    input: str
    output: str
    axes: tuple[int | str, ...]


def pair_states(graph: onnx.GraphProto, data: frozenset[str] = frozenset()) -> list[State]:
    """Find the states that a graph has already, as inputs and outputs.

    An input is a state if there is an output of the same type and shape for it, one for each. The first input is never
    a state. An output NAME.next belongs to the input NAME; else the first and the last state of one operator belong
    together, then the names with the longest common beginning, and then the first ones in the order of the graph.

    Args:
        graph: The graph.
        data: Names of inputs that are no states.

    Returns:
        The states.
    """
    inputs = list(inputs_of(graph).values())[1:]
    pairs = [
        (value, output)
        for value in inputs
        for output in graph.output
        if value.name not in data and value.type.tensor_type.elem_type in FLOATS and _are_alike(value, output)
    ]
    # Python's sort keeps the order of equal ones
    pairs.sort(
        key=lambda p: (
            p[1].name != p[0].name + NEXT,
            not _are_of_one_layer(graph, p[0].name, p[1].name),
            -_shared(p[0].name, p[1].name),
        )
    )
    states: dict[str, State] = {}
    for value, output in pairs:
        if value.name not in states and output.name not in {state.output for state in states.values()}:
            states[value.name] = State(value.name, output.name, tuple(axes_of(value)))
    return [states[value.name] for value in inputs if value.name in states]


def _are_of_one_layer(graph: onnx.GraphProto, value: str, output: str) -> bool:
    """Return True if an input is the first state of a recurrent operator, and an output its last one."""
    return any(
        value in ancestors(graph, node.input[place], MOVES)[1] and _reaches(graph, output, node.output[1 + k])
        for node in recurrent_in(graph)
        for k, place in enumerate(RECURRENT.get(node.op_type, {}).values())
        if len(node.input) > place and len(node.output) > 1 + k and node.output[1 + k]
    )


def _shared(a: str, b: str) -> int:
    """Return the length of the common beginning of two names."""
    return next((i for i, (m, n) in enumerate(zip(a, b, strict=False)) if m != n), min(len(a), len(b)))


def _are_alike(value: onnx.ValueInfoProto, output: onnx.ValueInfoProto) -> bool:
    """Return True if an output may hold the next value of an input: same type, number of axes and known lengths."""
    a, b = value.type.tensor_type, output.type.tensor_type
    lengths = zip(axes_of(value), axes_of(output), strict=False)
    return (
        a.elem_type == b.elem_type
        and len(a.shape.dim) == len(b.shape.dim) > 1
        and all(isinstance(m, str) or isinstance(n, str) or m == n for m, n in lengths)
    )


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
    if not last or not any(_reaches(graph, value.name, last) for value in graph.output):
        raise UsageError(
            f"{where}: expected its last value as an output of the graph, as its first one comes from the input "
            f"{source}, got none; export the model so that it returns its states"
        )


def _reaches(graph: onnx.GraphProto, output: str, value: str) -> bool:
    """Return True if an output of a graph holds a value, moved or converted."""
    return output == value or any(
        value in node.input for node in ancestors(graph, output, MOVES)[0] if node.op_type in MOVES
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
