# SPDX-License-Identifier: Apache-2.0
"""Finds the layers of a file that edgernn exported, and gives them the update rule delta; all else in it stays."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from edgernn import __version__
from edgernn.cells import Cell
from edgernn.config import InputConfig, ModelConfig, RuleConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.delta_graph import delta_config, remove_unused
from edgernn.export.exported_model import build_model, check_shape, model_config, stored_type
from edgernn.export.graph import (
    add_layer,
    add_sum,
    define_functions,
    describe_functions,
    layer_functions,
    layer_names,
)
from edgernn.export.layer_functions import layer_weights, op_attributes
from edgernn.export.model_graph import ModelGraph
from edgernn.export.native_kernels import without_kernel
from edgernn.layer import RecurrentLayer
from edgernn.rules import Always, Delta
from edgernn.runtime.info import read_info
from edgernn.runtime.interface import declared_values, state_sizes
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.weights import Weights
from edgernn.settings import record

# metadata about the quality and the work of the model before it got new thresholds
_OUTDATED = ("metric", "metric_value", "metric_float32", "metric_bfloat16", "skip_percent", "macs_executed")
# outputs of the graph that count work
_COUNTERS = ("updates", "macs")


@dataclass
class ExportedLayer:
    """A layer of a file that edgernn exported: one node of the graph.

    Attributes:
        name: Name of the node, such as layer0 or layer0.reverse.
        index: Index of the node in the graph's list of nodes.
        node: The node.
        layer: A layer with the equations and sizes of the node, and random weights in place of the file's.
    """

    name: str
    index: int
    node: onnx.NodeProto
    layer: RecurrentLayer

    @property
    def cell(self) -> Cell:
        return self.layer.cell

    @property
    def macs(self) -> int:
        """Multiply-adds of one step with nothing skipped."""
        return self.layer.macs()


@dataclass
class ExportedLayers:
    """The layers of a file that edgernn exported.

    Attributes:
        proto: The model without outputs that count work. If it has the rule delta, its thresholds are 0.
        info: The file's metadata, as `read_info` returns it.
        nodes: The layers, in the order of the graph.
        starts: Dict from the name of each state of `proto` to its initial values for one sequence.
    """

    proto: onnx.ModelProto
    info: dict[str, Any]
    nodes: list[ExportedLayer]
    starts: dict[str, Any]

    @property
    def weights(self) -> str:
        """Type in which the file stores matrices: float32, bfloat16 or int8."""
        return stored_type(layer.node for layer in self.nodes)


def is_exported(proto: onnx.ModelProto) -> bool:
    """Return True if a model has the metadata that an export of edgernn writes."""
    return any(entry.key == "edgernn" for entry in proto.metadata_props)


def find_exported_layers(proto: onnx.ModelProto, size: int, path: Path) -> ExportedLayers:
    """Find the layers of a file that edgernn exported, and check that they can get the rule delta.

    Args:
        proto: The model of the file. It is not changed.
        size: Size of the file in bytes.
        path: Path of the file, for error messages.

    Returns:
        The layers.

    Raises:
        UsageError: The file has another rule than always or delta, a user-defined cell, or a layer for which the native
            library has no kernel with the rule delta.
        EdgernnError: The file is not what an export writes.
    """
    info = read_info({entry.key: entry.value for entry in proto.metadata_props}.get("edgernn"), path)
    graph = proto.graph
    states = state_sizes(info, declared_values(graph.input), declared_values(graph.output), size, path)
    config = _config(info, path)
    weights = Weights(proto, path)
    # the sizes of the metadata are compared with the weights in the file before memory is allocated for them
    with torch.device("meta"):
        shapes = _layers(config, path)
    nodes = [(index, node) for index, node in enumerate(graph.node) if node.domain == DOMAIN]
    if len(nodes) != len(shapes):
        raise EdgernnError(
            f"{path}: expected {len(shapes)} nodes of edgernn's layers in its graph, got {len(nodes)}; export the "
            "model again"
        )
    for name, layer in shapes.items():
        _check_weights(name, layer, weights, path)
    with torch.random.fork_rng(devices=[]):
        layers = _layers(config, path)
    functions = layer_functions(list(layers.values()))
    known = {tensor.name for tensor in graph.initializer}.union(*(node.output for node in graph.node))
    members = []
    for (index, node), (name, layer), function in zip(nodes, layers.items(), functions, strict=True):
        builder = _KeptWeights(known)
        source, needs_y = next(iter(node.input), ""), any(node.output[:1])
        add_layer(builder, layer, function, name, source, needs_y, False, {key: [] for key in _COUNTERS})
        _check_node(node, builder.nodes[-1], layer, path)
        members.append(ExportedLayer(name, index, node, layer))
    exported = ExportedLayers(_without_rule(proto, members), info, members, {})
    starts = info["initial_state"]
    exported.starts = {name: starts.get(name, [0.0] * width) for name, width in states.items()}
    reason = without_kernel(_with_rule(layer.layer, 0.0, 0.0) for layer in members)
    if reason is not None:
        raise UsageError(
            f"{path}: expected layers for which the native library has a kernel with the rule delta, got one without a "
            f"kernel: {reason}"
        )
    return exported


def _config(info: dict[str, Any], path: Path) -> ModelConfig:
    rule = info["model"]["layer"]["rule"]["name"]
    if rule not in (Always.name, Delta.name):
        raise UsageError(
            f"{path}: expected a model with the rule always or delta, got the rule {rule!r:.50}, under which it was "
            "trained to skip updates; use it as it is, or export a model with the rule always"
        )
    config = model_config(info, path)
    parts = replace(config.layer, recurrent=replace(config.layer.recurrent, density=None))
    if rule == Delta.name:
        parts = replace(parts, rule=RuleConfig(Delta.name))
    return ModelConfig(
        parts,
        config.hidden_size,
        config.layers,
        config.last_size,
        config.bidirectional,
        config.block,
        input=InputConfig(config.features),
    )


def _layers(config: ModelConfig, path: Path) -> dict[str, RecurrentLayer]:
    """Return the layers of a configuration in evaluation mode, as a dict by the name of their node."""
    model = build_model(config, path)
    return dict(zip(layer_names(model), model.recurrent_layers(), strict=True))


def _check_weights(name: str, layer: RecurrentLayer, weights: Weights, path: Path) -> None:
    """Raise EdgernnError unless the file has each weight of a layer in the layer's shape."""
    for key, weight in layer_weights(layer).items():
        check_shape(weights, f"{name}.{key}", weight, path)


def _check_node(node: onnx.NodeProto, expected: onnx.NodeProto, layer: RecurrentLayer, path: Path) -> None:
    """Raise EdgernnError unless a node has the name, inputs, outputs and attributes that an export gives it."""
    attributes = [
        {a.name: helper.get_attribute_value(a) for a in one.attribute if a.name in op_attributes(layer)}
        for one in (node, expected)
    ]
    for part, got, wanted in (
        ("name", [node.name], [expected.name]),
        ("inputs", list(node.input), list(expected.input)),
        ("outputs", list(node.output), list(expected.output)),
        ("attributes", *attributes),
    ):
        if got != wanted:
            raise EdgernnError(
                f"{path}: {part} of the node {expected.name}: expected {wanted}, got {got!s:.200}; export the model "
                "again"
            )


def _with_rule(layer: RecurrentLayer, theta_x: float, theta_h: float) -> RecurrentLayer:
    cell = layer.cell
    rule = Delta(layer.rule.input_size, cell.hidden_size, theta_x, theta_h)
    return RecurrentLayer(cell, rule, layer.imputer).eval()


def _without_rule(proto: onnx.ModelProto, nodes: Sequence[ExportedLayer]) -> onnx.ModelProto:
    """Return a copy of a model without outputs that count work, and with thresholds of 0 if it has the rule delta."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    thresholds = {name for layer in nodes for name in _thresholds(layer.name)}
    for tensor in graph.initializer:
        if tensor.name in thresholds:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(1, np.float32), tensor.name))
    outputs = [value for value in graph.output if value.name not in _COUNTERS]
    del graph.output[:]
    graph.output.extend(outputs)
    return result


def _thresholds(name: str) -> list[str]:
    return [f"{name}.{key}" for key in ("rule_theta_x", "rule_theta_h")]


class _KeptWeights(ModelGraph):
    """Builder of a graph that keeps its weights in their storage types, and adds those that are not `known`."""

    def __init__(self, known: set[str], type: str = "float32") -> None:
        super().__init__(type)
        self._known = known

    def weight(self, name: str, value: Any) -> str:
        return name if name in self._known else super().weight(name, value)

    def matrix(self, name: str, value: Tensor) -> str:
        return self.weight(name, value)


def with_delta_rule(
    exported: ExportedLayers,
    thresholds: Sequence[tuple[float, float]],
    counts: bool,
    calibration: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    """Give the layers of an exported file the rule delta: nodes, portable functions, states, counters and metadata.

    Args:
        exported: The layers.
        thresholds: Θ_x and Θ_h of each of `ExportedLayers.nodes` (see `Delta`).
        counts: Add an output NAME.macs (B,) for each layer: the number of multiply-adds that it executed.
        calibration: Dict to add to the metadata under the key "calibration". Default: none.

    Returns:
        The new model. It has the outputs `updates` and `macs`, as an export of a model with the rule delta.
    """
    pairs = dict(zip((layer.name for layer in exported.nodes), thresholds, strict=True))
    layers = [_with_rule(layer.layer, *pairs[layer.name]) for layer in exported.nodes]
    functions = layer_functions(layers)
    result = onnx.ModelProto()
    result.CopyFrom(exported.proto)
    graph = result.graph
    new = {name for layer in exported.nodes for name in _thresholds(layer.name)}
    tensors = [tensor for tensor in graph.initializer if tensor.name not in new]
    known = {tensor.name for tensor in tensors}.union(*(node.output for node in graph.node)) - new
    builder = _KeptWeights(known, exported.weights)
    counters: dict[str, list[str]] = {key: [] for key in _COUNTERS}
    indices = {layer.index: i for i, layer in enumerate(exported.nodes)}
    for index, node in enumerate(exported.proto.graph.node):
        if index not in indices:
            # the counters of a file that has the rule delta already are added anew
            if not any(
                name.partition(".")[0] in _COUNTERS or name.endswith(".updates.in_time") for name in node.output
            ):
                builder.nodes.append(node)
            continue
        i = indices[index]
        name = exported.nodes[i].name
        add_layer(builder, layers[i], functions[i], name, node.input[0], any(node.output[:1]), False, counters)
        if name.endswith(".reverse"):
            # all layers count the updates of the same step
            counters["updates"][-1] = builder.reversed(counters["updates"][-1], f"{name}.updates.in_time")
    for name, values in counters.items():
        add_sum(builder, values, name)
    del graph.node[:], graph.initializer[:], result.functions[:]
    graph.node.extend(builder.nodes)
    graph.initializer.extend([*tensors, *builder.weights])
    result.functions.extend(define_functions(dict.fromkeys(functions)))
    _declare(graph, exported, layers, counts)
    remove_unused(graph, ())
    result.producer_version = __version__
    info = {name: value for name, value in exported.info.items() if name not in _OUTDATED}
    info |= {"version": __version__, **describe_functions(functions)}
    info["model"] = info["model"] | {"layer": info["model"]["layer"] | {"rule": record(delta_config(thresholds))}}
    if calibration is not None:
        info["calibration"] = calibration
    helper.set_model_props(result, {"edgernn": json.dumps(info, separators=(",", ":"))})
    return result


def _declare(graph: onnx.GraphProto, exported: ExportedLayers, layers: Sequence[RecurrentLayer], counts: bool) -> None:
    """Declare the inputs and outputs of a graph whose layers have the rule delta, in the order of an export."""
    names = [layer.name for layer in exported.nodes]

    def is_other(value: onnx.ValueInfoProto) -> bool:
        name = value.name.removesuffix(".next")
        return name.rpartition(".")[0] not in names

    inputs = [value for value in graph.input if is_other(value)]
    outputs = [value for value in graph.output if is_other(value)]
    for name, layer in zip(names, layers, strict=True):
        for state, width in layer.widths.items():
            for values, end in ((inputs, ""), (outputs, ".next")):
                value = f"{name}.{state}{end}"
                values.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, ["B", width]))
    outputs.append(helper.make_tensor_value_info("updates", TensorProto.INT64, ["T", "B"]))
    outputs.append(helper.make_tensor_value_info("macs", TensorProto.INT64, ["B"]))
    if counts:
        outputs += [helper.make_tensor_value_info(f"{name}.macs", TensorProto.INT64, ["B"]) for name in names]
    del graph.input[:], graph.output[:]
    graph.input.extend(inputs)
    graph.output.extend(outputs)
