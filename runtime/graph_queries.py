# SPDX-License-Identifier: Apache-2.0
"""Questions about the graph of any ONNX file: what a value depends on, which values are constant, which names exist."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]
# names of the domain of ONNX's own operators
STANDARD = ("", "ai.onnx")
# operators that move, mask or convert numbers; an initial state that comes from an input through these alone is carried
# from call to call
MOVES = {
    *(
        "Identity",
        "Slice",
        "Split",
        "Gather",
        "GatherElements",
        "GatherND",
        "Squeeze",
        "Unsqueeze",
        "Reshape",
        "Flatten",
    ),
    *("Transpose", "Concat", "Expand", "Tile", "Pad", "ScatterElements", "ScatterND", "If"),
    *("Mul", "Div", "Add", "Sub", "Sum", "Neg", "Where", "Clip", "Min", "Max", "Dropout", "Cast", "CastLike"),
}
# types of a carried state
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a node: graphs in its attributes, as those of If, Loop and Scan."""
    return [body for attribute in node.attribute for body in [attribute.g, *attribute.graphs] if body.node]


def values_read(node: onnx.NodeProto) -> set[str]:
    """Return the names of the values that a node reads, those in its bodies included."""
    inner = [{value.name for value in body.output}.union(*map(values_read, body.node)) for body in bodies_of(node)]
    return set(node.input).union(*inner)


def nodes_for(nodes: Sequence[onnx.NodeProto], names: Iterable[str], ends: Iterable[str] = ()) -> list[onnx.NodeProto]:
    """Return the nodes that compute values with these names, in their order; those of `ends` are taken as computed."""
    # an input or output that is left out has an empty name
    wanted, needed, known = {*names}, list[onnx.NodeProto](), {*ends, ""}
    for node in reversed(nodes):
        if not wanted.isdisjoint({*node.output} - known):
            needed.append(node)
            wanted |= values_read(node)
    return needed[::-1]


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return all names in a graph and in the bodies of its nodes: of values, initialisers and nodes."""
    listed = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for node in graph.node:
        listed |= {node.name, *node.input, *node.output}
        listed = listed.union(*map(names_in, bodies_of(node)))
    return listed - {""}


def _has_loop(node: onnx.NodeProto) -> bool:
    return node.op_type == "Loop" or any(_has_loop(inner) for body in bodies_of(node) for inner in body.node)


def constant_of(proto: onnx.ModelProto, name: str) -> Array | None:
    """Return the value `name` if it does not depend on the inputs of the graph, or else None.

    An initialiser that is also an input of the graph, as in old files, counts as a constant. torch.onnx leaves large
    weights as slices of other constants, which are computed here.
    """
    graph = proto.graph
    nodes, leaves = ancestors(graph, name)
    tensors = [tensor for tensor in graph.initializer if tensor.name in leaves]
    # onnx's evaluator makes no turn of a Loop without a condition
    if leaves - {tensor.name for tensor in tensors} or any(map(_has_loop, nodes)):
        return None
    if not nodes:
        value: Array = numpy_helper.to_array(tensors[0])
        return value
    part = helper.make_graph(nodes, "constant", [], [onnx.ValueInfoProto(name=name)], tensors)
    model = helper.make_model(part, opset_imports=proto.opset_import, functions=proto.functions)
    try:
        (computed,) = ReferenceEvaluator(model).run(None, {})
    except Exception:  # an operator of another domain; the classes of its errors have no common base
        return None
    return np.asarray(computed)


def ancestors(
    graph: onnx.GraphProto, name: str, through: Container[str] | None = None
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Find what a value of a graph depends on.

    Args:
        graph: The graph.
        name: Name of the value.
        through: Types of the operators whose inputs are followed. Default: all.

    Returns:
        The nodes that compute the value, in the order of the graph, and the names of the values that no node computes.
    """
    producers = {output: node for node in graph.node for output in node.output}
    # values of a body are not among these
    known = producers.keys() | {value.name for value in [*graph.input, *graph.initializer]}
    seen, waiting, leaves = set(), [name], set()
    while waiting:
        value = waiting.pop()
        if not value or value in seen:
            continue
        seen.add(value)
        node = producers.get(value)
        if node is None:
            leaves.add(value)
        elif through is None or node.op_type in through:
            waiting += values_read(node) & known
    return [node for node in graph.node if seen & set(node.output)], leaves


def comes_from_input(graph: onnx.GraphProto, name: str, through: Container[str]) -> bool:
    """Return True if a value is an input of floats of the graph, or computed from one by these operators alone."""
    inputs = {value.name for value in graph.input if value.type.tensor_type.elem_type in FLOATS}
    return bool(ancestors(graph, name, through)[1] & (inputs - {tensor.name for tensor in graph.initializer}))
