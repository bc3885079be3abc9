# SPDX-License-Identifier: Apache-2.0
"""Export of a trained network of one's own, to a file with the interface of a SequenceModel's: x, y and the states."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edgernn import __version__
from edgernn.cell_files import described
from edgernn.conditional import conditionals
from edgernn.costs import model_cost
from edgernn.errors import UsageError
from edgernn.export.axes import axes_of
from edgernn.export.check import Check, check_numbers
from edgernn.export.conditional import nodes_within
from edgernn.export.frontend import add_frontend
from edgernn.export.graph import add_sum, describe_functions, fold, layer_functions
from edgernn.export.model_graph import ModelGraph
from edgernn.export.network import model_of, repeated, write_checked
from edgernn.export.rounding import check_goes_with, rounded
from edgernn.layer import RecurrentLayer
from edgernn.nn import Recurrent
from edgernn.own_network import OwnNetwork
from edgernn.rounded_weights import rounded_matrix
from edgernn.runtime.graph_queries import bodies_of
from edgernn.runtime.library import DOMAIN, SCHEMA
from edgernn.settings import record

# numbers of sequences and steps of the example on which a file is compared with torch
_SEQUENCES, _STEPS = 4, 200
_REMEDY = "compute with x.shape in place of numbers, and pool over the steps in place of a linear map of them"


class _Whole(nn.Module):
    """A network with its states as arguments: x and a tuple of states give y and the next states."""

    def __init__(self, model: OwnNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y, last = self.model(x, states or None)
        return y, *last


def export_own_network(
    model: OwnNetwork, path: Path, example: Tensor, metadata: dict[str, Any] | None = None, weights: str = "float32"
) -> list[Check]:
    """Write a network of one's own as an ONNX file, and check it against torch.

    Args:
        model: The network.
        path: The file.
        example: Sequences (T, B, I), or words (T, B), for the trace and the check.
        metadata: JSON-compatible dict of values to add to the file's metadata.
        weights: Type of stored matrices, to which they are rounded. They are computed with as float32.

    Returns:
        Results of the check, one per backend.

    Raises:
        UsageError: The network cannot be exported.
        EdgernnError: The outputs differ from those of torch. No file is written.
    """
    check_goes_with(model.recurrent_layers(), weights)
    network = copy.deepcopy(rounded(model, weights)).cpu().eval()
    fold(network.recurrent_layers())
    check_numbers(network)
    x = _variable(example)
    # compared on sequences of another length and number than those of the trace
    other = torch.cat([x, x[:1]])[:, 1:]
    heard = [name for name in network.state_names if name.startswith("frontend.")]
    with torch.no_grad():
        states, others = (network.initial_state(part.shape[1], network.input_mean) for part in (x, other))
    _check_sizes(network, other, len(x))
    inner = copy.copy(network)
    # a copy of the dict of modules, as the whole network keeps its front end
    inner._modules = {**network._modules, "frontend": None}
    with torch.no_grad():
        features = x if network.frontend is None else network.frontend(x)[0]
    names = ["x", *network.state_names[len(heard) :]]
    outputs = ["y", *(f"{name}.next" for name in names[1:])]
    arguments = (features, states[len(heard) :])
    repeated(_Whole(inner), arguments, network.config.title)
    auto = torch.export.Dim.AUTO
    axes = ({0: auto, 1: auto}, tuple({0: auto} for _ in arguments[1]))
    proto, layers, limits = model_of(_Whole(inner), arguments, names, outputs, axes)
    _check_axes(axes_of(proto.graph.input[0]), limits, inner, features)
    if _counts_steps(network, len(other)):
        _add_counts(proto, layers)
    if network.frontend is not None:
        _prepend_frontend(proto, network)
    _declare(proto, network, x, states)
    if weights != "float32":
        _store(proto, weights)
    cost, idle = model_cost(network), model_cost(network, 0.0)
    info = {
        "version": __version__,
        "schema": SCHEMA,
        "network": network.config.title,
        **describe_functions(layer_functions(layers)),
        "model": record(network.config),
        "neurons": [layer.cell.hidden_size for layer in network.recurrent_layers()],
        "initial_state": {
            name: state[0].tolist() for name, state in zip(network.state_names, states, strict=True) if state.any()
        },
        "streaming": network.streaming,
        "parameters": cost.parameters,
        "macs": cost.macs,
        "cost": {
            "parameters": sum(p.numel() for layer in network.recurrent_layers() for p in layer.parameters()),
            "macs_executed": cost.macs_executed,
            "flops_paper": cost.flops_paper,
            "flops_paper_idle": idle.flops_paper,
            "frontend_macs": 0 if network.frontend is None else network.frontend.macs(),
            "block_macs": 0,
        },
        "weights": weights,
        **(metadata or {}),
    }
    inputs = ["x", *network.state_names]
    results = ["y", *(f"{name}.next" for name in network.state_names)]
    checks = write_checked(proto, info, path, _Whole(network), (other, others), inputs, results)
    return [replace(check, sequences=other.shape[1]) for check in checks]


def _variable(example: Tensor) -> Tensor:
    """Return some sequences of an example, of at least two steps, as torch fixes sizes of 1."""
    x = example[:_STEPS, :_SEQUENCES]
    for axis in (0, 1):
        if x.shape[axis] == 1:
            x = torch.cat([x, x], axis)
    return x


def _check_sizes(network: OwnNetwork, x: Tensor, steps: int) -> None:
    """Raise UsageError if a network takes sequences of `steps` alone, and not x of another length."""
    try:
        with torch.no_grad():
            network(x)
    except Exception as error:
        raise UsageError(
            f"{network.config.title}: expected any number of steps, but forward() takes {steps} and fails with "
            f"{len(x)}: {described(error)}; {_REMEDY}"
        ) from error


def _check_axes(axes: Any, limits: dict[str, list[int | None]], network: OwnNetwork, x: Tensor) -> None:
    """Raise UsageError if the trace does not hold for all numbers of steps and sequences that the network takes."""
    for i, what in enumerate(("steps", "sequences")):
        axis = axes[i]
        least, most = limits.get(axis.dim_param, (0, None)) if axis.dim_param else (axis.dim_value, axis.dim_value)
        fewer = x.narrow(i, 0, min((least or 1) - 1, x.shape[i]))
        if most is not None or ((least or 0) > 1 and _takes(network, fewer)):
            kept = f"{least} or more" if most is None else f"{most}" if least == most else f"{most} or fewer"
            raise UsageError(
                f"{network.config.title}: expected any number of {what}, but forward() branches on it or fixes it, and "
                f"the file would be right for {kept} alone; {_REMEDY}"
            )


def _takes(network: OwnNetwork, x: Tensor) -> bool:
    try:
        with torch.no_grad():
            network(x)
    except Exception:  # whatever a module raises for sizes that it cannot have
        return False
    return True


def _counts_steps(network: OwnNetwork, steps: int) -> bool:
    """True if a layer can skip, and each that can decided at each of the `steps` of x in the last forward pass."""
    if any(isinstance(part, Recurrent) and part.bidirectional for part in network.modules()):
        return False
    parts = conditionals(network)
    held = {layer for part in parts for layer in part.modules() if isinstance(layer, RecurrentLayer)}
    if any(layer.rule.can_skip for layer in held) or any(len(conditionals(part)) > 1 for part in parts):
        return False
    pairs = zip(network.recurrent_layers(), network.traces, strict=True)
    traces = [trace for layer, trace in pairs if layer.rule.can_skip or layer in held]
    return {0 if trace.decisions is None else len(trace.decisions) for trace in traces} == {steps}


def _add_counts(proto: onnx.ModelProto, layers: list[RecurrentLayer]) -> None:
    """Add the outputs `updates` (T, B) and `macs` (B,), sums over the layers in the order of their nodes."""
    graph = ModelGraph()
    nodes = [node for node in nodes_within(proto.graph) if node.domain == DOMAIN]
    known = dict(zip((node.name for node in nodes), layers, strict=True))
    # layers of parts that run at some steps, by the Scan of each
    scans = [node for node in proto.graph.node if node.op_type == "Scan"]
    held = {
        scan.output[-1]: [known.pop(n.name) for body in bodies_of(scan) for n in nodes_within(body) if n.name in known]
        for scan in scans
    }
    dense = [layer for layer in known.values() if not layer.rule.can_skip]
    sizes = {"updates": sum(layer.cell.hidden_size for layer in dense), "macs": sum(layer.macs() for layer in dense)}
    for i, (output, size) in enumerate(sizes.items(), 1):
        names = []
        for node in nodes:
            if node.name in known and known[node.name].rule.can_skip:
                node.output[i] = f"{node.name}.{output}"
                names.append(node.output[i])
        names += [_held_work(graph, ran, parts, output) for ran, parts in held.items() if parts]
        if dense:
            # a layer that cannot skip does all its work at each step
            names.append(graph.weight(f"dense.{output}", np.array([size])))
        if dense and output == "macs":
            graph.node("Shape", ["x"], "dense.steps", start=0, end=1)
            names.append(graph.node("Mul", [names.pop(), "dense.steps"], "dense.work"))
        add_sum(graph, names, output)
    proto.graph.node.extend(graph.nodes)
    proto.graph.initializer.extend(graph.weights)
    for name, shape in (("updates", ("T", "B")), ("macs", ("B",))):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))


def _held_work(graph: ModelGraph, ran: str, layers: list[RecurrentLayer], output: str) -> str:
    """Add the work of a part's layers, whose decisions are `ran` (T, B, 1); return its name."""
    sizes = [layer.cell.hidden_size if output == "updates" else layer.macs() for layer in layers]
    name, axes = f"{ran}.{output}", [2]
    if output == "macs":
        # a step runs the part for all sequences if one needs it
        any_sequence = graph.node("ReduceMax", [ran, graph.weight(f"{name}.batch", np.array([1]))], f"{name}.any")
        ran, axes = graph.node("Max", [ran, any_sequence], f"{name}.steps"), [0, 2]
    total = graph.node("ReduceSum", [ran, graph.weight(f"{name}.axes", np.array(axes))], f"{name}.sum", keepdims=0)
    count = graph.node("Cast", [total], f"{name}.count", to=TensorProto.INT64)
    return graph.node("Mul", [count, graph.weight(f"{name}.size", np.array([sum(sizes)]))], name)


def _store(proto: onnx.ModelProto, weights: str) -> None:
    """Store the matrices that are rounded to the type `weights` in it; nodes convert them to float32."""
    rows = {name: axis for node in nodes_within(proto.graph) for name, axis in _rows(node)}
    graph, kept = ModelGraph(weights), []
    for tensor in proto.graph.initializer:
        if tensor.name not in rows or len(tensor.dims) < 2 or tensor.data_type != TensorProto.FLOAT:
            kept.append(tensor)
            continue
        value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        matrix = value.T if rows[tensor.name] else value.flatten(1)
        if not torch.equal(rounded_matrix(matrix, weights), matrix):
            kept.append(tensor)
            continue
        name = tensor.name
        stored = graph.kept(name, matrix)
        if rows[name]:
            graph.node("Transpose", [graph.floats(f"{name}.T", stored)], name, perm=[1, 0])
        elif value.ndim > 2:
            shape = graph.weight(f"{name}.shape", np.array(value.shape))
            graph.node("Reshape", [graph.floats(f"{name}.rows", stored), shape], name)
        else:
            graph.floats(name, stored)
    nodes = list(proto.graph.node)
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend([*kept, *graph.weights])
    proto.graph.node.extend([*graph.nodes, *nodes])


def _rows(node: onnx.NodeProto) -> list[tuple[str, int]]:
    """Return the names of a node's matrices, each with the axis of its rows."""
    if node.domain == DOMAIN:
        return [(name, 0) for name in node.input]
    if node.op_type in ("Conv", "Gather"):
        return [(node.input[node.op_type == "Conv"], 0)]
    if node.op_type in ("MatMul", "Gemm"):
        is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return [(node.input[1], 0 if is_transposed else 1)]
    return []


def _prepend_frontend(proto: onnx.ModelProto, network: OwnNetwork) -> None:
    """Put the front end before the network: x are samples, and the network reads the features."""
    assert network.frontend is not None
    graph = ModelGraph()
    if not network.streaming:
        # no inputs hold the states of the front end, which start at 0
        batch = graph.node("Shape", ["x"], "frontend.batch", start=1, end=2)
        for name, width in network.frontend.widths.items():
            sizes = [batch, graph.weight(f"frontend.{name}.width", np.array([width]))]
            graph.node(
                "ConstantOfShape", [graph.node("Concat", sizes, f"frontend.{name}.shape", axis=0)], f"frontend.{name}"
            )
    features = add_frontend(graph, network.frontend, "x")
    for node in proto.graph.node:
        node.input[:] = [features if name == "x" else name for name in node.input]
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*graph.nodes, *nodes])
    proto.graph.initializer.extend(graph.weights)


def _declare(proto: onnx.ModelProto, network: OwnNetwork, x: Tensor, states: tuple[Tensor, ...]) -> None:
    """Declare inputs and outputs as those of a SequenceModel's file: x (T, B, I), y, and each state (B, n)."""
    counts = [value for value in proto.graph.output if value.name in ("updates", "macs")]

    def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    if network.vocabulary is None:
        inputs = [floats("x", "T", "B", x.shape[2])]
    else:
        inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ("T", "B"))]
    size = network.output_size or 0
    results = [floats("y", "B", size) if network.output == "last" else floats("y", "T", "B", size)]
    for name, state in zip(network.state_names, states, strict=True):
        inputs.append(floats(name, "B", state.shape[1]))
        results.append(floats(f"{name}.next", "B", state.shape[1]))
    del proto.graph.input[:], proto.graph.output[:]
    proto.graph.input.extend(inputs)
    proto.graph.output.extend([*results, *counts])
