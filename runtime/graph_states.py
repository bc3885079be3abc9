# SPDX-License-Identifier: Apache-2.0
"""The interface of an ONNX file of any tool: its inputs, which of them are states, and inputs with fixed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgernn.errors import UsageError, nearest
from edgernn.runtime.graph_queries import FLOATS, MOVES, ancestors
from edgernn.runtime.interface import NEXT

Array = NDArray[Any]
# operators that keep a state, with their states; the numbers are those of the inputs of the states
RECURRENT = {"GRU": {"h": 5}, "RNN": {"h": 5}, "LSTM": {"h": 5, "c": 6}}


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

    An input is a state if there is an output of the same type and shape for it, one for each. An output NAME.next
    belongs to the input NAME. Of the others, the first input and those with fewer than two axes are no states; the
    first and the last state of one operator belong together, then the names with the longest common beginning, and then
    the first ones in the order of the graph.

    Args:
        graph: The graph.
        data: Names of inputs that are no states.

    Returns:
        The states.
    """
    inputs = list(inputs_of(graph).values())
    pairs = [
        (value, output)
        for value in inputs
        for output in graph.output
        if value.name not in data and value.type.tensor_type.elem_type in FLOATS and _are_alike(value, output)
        if output.name == value.name + NEXT or (value is not inputs[0] and len(axes_of(value)) > 1)
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


def named_states(graph: onnx.GraphProto, pairs: Mapping[str, str], path: Path) -> list[State]:
    """Return the states that the user named.

    Args:
        graph: The graph.
        pairs: For each input that is a state, the output with its next value.
        path: Path of the file, for error messages.

    Returns:
        The states.

    Raises:
        UsageError: The graph has no such input or output.
    """
    inputs, outputs = inputs_of(graph), {value.name for value in graph.output}
    for name, output in pairs.items():
        if name not in inputs or output not in outputs:
            raise UsageError(f"{path}: state {name}={output}: expected an input and an output of the graph; correct it")
    return [State(name, output, tuple(axes_of(inputs[name]))) for name, output in pairs.items()]


def _are_of_one_layer(graph: onnx.GraphProto, value: str, output: str) -> bool:
    """Return True if an input is the first state of a recurrent operator, and an output its last one."""
    return any(
        value in ancestors(graph, node.input[place], MOVES)[1] and reaches(graph, output, node.output[1 + k])
        for node in graph.node
        for k, place in enumerate(RECURRENT.get(node.op_type, {}).values())
        if len(node.input) > place and len(node.output) > 1 + k and node.output[1 + k]
    )


def _shared(a: str, b: str) -> int:
    return next((i for i, (m, n) in enumerate(zip(a, b, strict=False)) if m != n), min(len(a), len(b)))


def _are_alike(value: onnx.ValueInfoProto, output: onnx.ValueInfoProto) -> bool:
    """Return True if an output may hold the next value of an input: same type, number of axes and known lengths."""
    a, b = value.type.tensor_type, output.type.tensor_type
    lengths = zip(axes_of(value), axes_of(output), strict=False)
    return (
        a.elem_type == b.elem_type
        and len(a.shape.dim) == len(b.shape.dim)
        and all(isinstance(m, str) or isinstance(n, str) or m == n for m, n in lengths)
    )


def reaches(graph: onnx.GraphProto, output: str, value: str) -> bool:
    """Return True if an output of a graph holds a value, moved or converted."""
    return output == value or any(
        value in node.input for node in ancestors(graph, output, MOVES)[0] if node.op_type in MOVES
    )


def inputs_of(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the inputs of a graph by name, without those that are initialisers as well."""
    constant = {tensor.name for tensor in graph.initializer}
    return {value.name: value for value in graph.input if value.name not in constant}


def axes_of(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return for each axis of an input its length, or its name if it is variable; one without a name gets one."""
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    ]


def fix_inputs(
    proto: onnx.ModelProto, values: Mapping[str, Array], shapes: Mapping[str, Sequence[int | str]], path: Path
) -> None:
    """Replace inputs of a graph by constants, and declare the shapes of others.

    Args:
        proto: The model, changed in place.
        values: Values of the inputs that become constants.
        shapes: Shapes of inputs. A number is a fixed length, a name a variable one.
        path: Path of the file, for error messages.

    Raises:
        UsageError: The graph has no such input, its type does not hold the value, or a shape has another number of
            axes.
    """
    graph = proto.graph
    inputs = {value.name: value for value in graph.input}
    for name in [*values, *shapes]:
        if name not in inputs:
            raise nearest("input", name, inputs)
    for name, array in values.items():
        dtype = helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
        declared = inputs[name].type.tensor_type.shape.dim
        value = array.reshape((1,) * len(declared)) if array.ndim == 0 else array
        with np.errstate(invalid="ignore"):
            constant = value.astype(dtype)
        if dtype.kind in "iub" and (constant != value).any():
            raise UsageError(f"{path}: input {name}: expected a number of the type {dtype}, got {array}; correct it")
        graph.input.remove(inputs[name])
        graph.initializer.append(numpy_helper.from_array(constant, name))
    for name, shape in shapes.items():
        tensor = inputs[name].type.tensor_type
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
            raise UsageError(
                f"{path}: input {name}: expected a shape of {len(tensor.shape.dim)} axes, got {len(shape)}; give a "
                "length or a name for each axis"
            )
        inputs[name].CopyFrom(helper.make_tensor_value_info(name, tensor.elem_type, list(shape)))
    if shapes:
        # the shapes of other values may no longer hold
        del graph.value_info[:]
        for value in graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
