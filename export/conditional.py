# SPDX-License-Identifier: Apache-2.0
"""Nodes of parts of a network that run at some steps only: a Scan over the steps, with an If for the part."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from edgernn.conditional import NODE_PART, Conditional, conditional_of
from edgernn.export.layer_functions import call_exporter
from edgernn.runtime.graph_queries import bodies_of, nodes_for, values_read


class _Step(nn.Module):
    """One step of a part: x (B, I) and the states give whether any and which sequences run it, and the next states."""

    def __init__(self, conditional: Conditional) -> None:
        super().__init__()
        self.conditional = conditional

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        decision, after = self.conditional.step(x, self.conditional.rule.project(x[None])[0], states)
        assert decision.u is not None
        return decision.u.any(), decision.u.to(x.dtype), *after


def nodes_within(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Iterate over the nodes of a graph, and after each those of its bodies."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from nodes_within(body)


def place_parts(graph: onnx.GraphProto) -> bool:
    """Put a Scan in place of each node that stands for a part of a network; its last output has the decisions.

    Args:
        graph: A graph from torch.onnx.export, which is changed.

    Returns:
        True if there is such a node.
    """
    nodes, has_parts = list(graph.node), False
    del graph.node[:]
    for i, node in enumerate(nodes):
        key = next((entry.value for entry in node.metadata_props if entry.key == NODE_PART), None)
        if key is None:
            graph.node.append(node)
            continue
        node.name = f"part{i}"
        body, tensors = _body(conditional_of(key), f"{node.name}.")
        x, *states = node.input
        y, *after = node.output
        outputs = [*after, y, f"{node.name}.ran"]
        scan = helper.make_node("Scan", [*states, x], outputs, node.name, body=body, num_scan_inputs=1)
        graph.node.append(scan)
        graph.initializer.extend(tensors)
        has_parts = True
    return has_parts


def _body(part: Conditional, prefix: str) -> tuple[onnx.GraphProto, list[TensorProto]]:
    """Return the body of the Scan for a part, and the weights that it reads from outside; names get the prefix."""
    start = part.initial_state(2, next(part.parameters(), torch.zeros(())))
    names = [f"state{i}" for i in range(len(start))]
    auto = torch.export.Dim.AUTO
    x = torch.zeros(2, part.input_size)
    program = call_exporter(
        _Step(part).eval(),
        (x, *start),
        input_names=["x", *names],
        output_names=["runs", "u", *(f"{name}.next" for name in names)],
        dynamic_shapes=({0: auto}, tuple({0: auto} for _ in names)),
    )
    graph = onnx.GraphProto()
    graph.CopyFrom(program.model_proto.graph)
    place_parts(graph)
    _rename(graph, prefix)
    runs, u, *after = (value.name for value in graph.output)
    x_name, *before = (value.name for value in graph.input)
    count = len(part.rule.memory)
    nodes = _chosen(graph.node, runs, [u, *after[:count]], dict(zip(after[count:], before[count:], strict=True)))
    # an output of a body must be its own, and a value is one output alone
    y, ran, results = f"{prefix}y", f"{prefix}ran", [f"{name}.kept" for name in after]
    for name, result in zip([after[count], u, *after], [y, ran, *results], strict=True):
        nodes.append(helper.make_node("Identity", [name], [result]))
    sizes = [tensor.shape[1] for tensor in start]
    inputs = [_floats(name, size) for name, size in zip(before, sizes, strict=True)]
    outputs = [_floats(name, size) for name, size in zip(results, sizes, strict=True)]
    inputs.append(_floats(x_name, part.input_size))
    outputs += [_floats(y, part.output_size), _floats(ran, 1)]
    return helper.make_graph(nodes, f"{prefix}step", inputs, outputs), list(graph.initializer)


def _chosen(
    nodes: Iterable[onnx.NodeProto], runs: str, memory: Collection[str], held: Mapping[str, str]
) -> list[onnx.NodeProto]:
    """Move what the part alone needs into the branch of an If.

    Args:
        nodes: The nodes of a step, in their order.
        runs: Name of the condition.
        memory: Names of the decision and of the rule's next states, which every step computes.
        held: For each value that the part computes, its name before the step.

    Returns:
        The nodes of a step.
    """
    nodes = list(nodes)
    always = nodes_for(nodes, [runs, *memory], held)
    outside = {id(node) for node in always}
    inside = [node for node in nodes_for(nodes, held) if id(node) not in outside]
    late, first, last = {*held}, list[onnx.NodeProto](), list[onnx.NodeProto]()
    for node in always:
        follows = not late.isdisjoint(values_read(node))
        late.update(node.output if follows else ())
        (last if follows else first).append(node)
    computed = {name for node in inside for name in node.output}
    bodies = []
    for branch, sources in (("then", held), ("else", held.values())):
        results = [helper.make_tensor_value_info(f"{name}.{branch}", TensorProto.FLOAT, None) for name in held]
        copies = [
            helper.make_node("Identity", [source], [result.name])
            for source, result in zip(sources, results, strict=True)
        ]
        work = inside if branch == "then" else []
        bodies.append(helper.make_graph([*work, *copies], f"{runs}.{branch}", [], results))
    # values of a branch have other names than those outside
    clashes = {name: f"{name}.computed" for name in held if name in computed}
    _rename_values(bodies[0], clashes)
    chosen = helper.make_node(
        "If", [runs], list(held), runs.removesuffix("runs") + "if", then_branch=bodies[0], else_branch=bodies[1]
    )
    return [*first, chosen, *last]


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    """Put a prefix before the names of all values of a graph and of its bodies."""
    values = {name for node in nodes_within(graph) for name in (*node.input, *node.output)}
    values.update(value.name for part in _graphs(graph) for value in (*part.input, *part.output))
    _rename_values(graph, {name: prefix + name for name in values if name})
    for tensor in graph.initializer:
        tensor.name = prefix + tensor.name
    for node in nodes_within(graph):
        node.name = prefix + node.name if node.name else ""


def _rename_values(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for part in _graphs(graph):
        for value in (*part.input, *part.output):
            value.name = names.get(value.name, value.name)
        for node in part.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from _graphs(body)


def _floats(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, (None, size))
