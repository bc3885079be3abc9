# SPDX-License-Identifier: Apache-2.0
"""A SequenceModel as one ONNX model: a custom-domain node a layer and direction, their function, and the head."""

import copy
import json
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from edgernn import __version__
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.export.rounding import WEIGHTS, whole
from edgernn.export.trace import OPSET, layer_function, layer_weights, op_inputs, op_outputs
from edgernn.layer import RecurrentLayer
from edgernn.model import SequenceModel, TiedHead
from edgernn.runtime.library import DOMAIN, SCHEMA

# what ONNX Runtime 1.17 and all later ones read
IR_VERSION = 9


class _Graph:
    """Nodes and weights while they are put together. type: what matrices are kept as, by its name in WEIGHTS."""

    def __init__(self, type: str = "float32") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.type = type

    def weight(self, name: str, value: Any) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def matrix(self, name: str, value: Tensor) -> str:
        """A weight, of the graph's type where it is a matrix: then nodes that ONNX Runtime folds make floats of it."""
        if self.type == "float32" or value.ndim != 2:
            return self.weight(name, value)
        return self.floats(name, self.kept(name, value))

    def kept(self, name: str, value: Tensor) -> tuple[str, str | None]:
        """Add a matrix of the graph's type; returns its `kept_names`."""
        names = self.kept_names(name)
        if names[1] is None:
            self._bfloat16(names[0], value)
        else:
            q, scale = whole(value)
            self.weight(names[0], q)
            self._bfloat16(names[1], scale)
        return names

    def _bfloat16(self, name: str, value: Tensor) -> None:
        raw = value.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        self.weights.append(helper.make_tensor(name, TensorProto.BFLOAT16, tuple(value.shape), raw, raw=True))

    def kept_names(self, name: str) -> tuple[str, str | None]:
        """Of a matrix and, of whole numbers, of its scales (rows, 1); runtime/packed.py reads them."""
        return (f"{name}.b", None) if self.type == "bfloat16" else (f"{name}.q", f"{name}.s")

    def floats(self, name: str, kept: tuple[str, str | None]) -> str:
        """The floats of what `kept` names, or of rows of it."""
        value, scale = kept
        if scale is None:
            return self._cast(value, name)
        return self.node("Mul", [self._cast(value, f"{name}.q32"), self._cast(scale, f"{name}.s32")], name)

    def _cast(self, value: str, output: str) -> str:
        return self.node("Cast", [value], output, to=TensorProto.FLOAT)

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def reversed(self, value: str, output: str) -> str:
        """The value with its first axis, time, turned round."""
        ends = (("last", [-1]), ("first", [-(2**31)]), ("time", [0]), ("back", [-1]))
        known = {w.name for w in self.weights}
        for name, number in ends:
            if f"reverse.{name}" not in known:
                self.weight(f"reverse.{name}", np.array(number, np.int64))
        return self.node("Slice", [value, *(f"reverse.{name}" for name, _ in ends)], output)


def build(model: SequenceModel, extra: dict[str, Any] | None = None, weights: str = "float32") -> onnx.ModelProto:
    """The model as a ModelProto; `extra` is added to its metadata (task, metric, …).

    weights: what matrices are kept as; those of the model are rounded so already.
    """
    metadata = _metadata(model) | {"weights": weights} | (extra or {})
    model = _folded(model)
    graph = _Graph(weights)
    x = "x"
    if model.embedding is not None:
        x = _embedded(graph, model.embedding.weight, x)
    if model.standardises:
        mean, std = graph.weight("input.mean", model.input_mean), graph.weight("input.std", model.input_std)
        x = graph.node("Div", [graph.node("Sub", [x, mean], "input.centred"), std], "input.standardised")
    counters: dict[str, list[str]] = {"updates": [], "macs": []}
    tops: list[str] = []
    layers = model.recurrent_layers()
    for i in range(0, len(layers), model.directions):
        is_top = i + model.directions == len(layers)
        outputs, tops = [], []
        for direction in range(model.directions):
            name = f"layer{i // model.directions}{'.reverse' * direction}"
            needs_y = not is_top or model.output == "all"
            y, last = _layer(graph, layers[i + direction], name, x, needs_y, bool(direction), counters)
            outputs.append(y)
            tops.append(last)
        if outputs[0]:
            x = outputs[0] if len(outputs) == 1 else graph.node("Concat", outputs, f"layer{i}.outputs", axis=-1)
    if model.output == "last":
        x = tops[0] if len(tops) == 1 else graph.node("Concat", tops, "tops", axis=-1)
    _head(graph, model, x)
    for name, values in counters.items():
        if values:
            _sum(graph, values, name)
    result = helper.make_model(
        helper.make_graph(graph.nodes, "edgernn", *_interface(model), initializer=graph.weights),
        functions=[layer_function(layer, several) for layer, several in _one_of_each_op(layers)],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        ir_version=IR_VERSION,
        producer_name="edgernn",
        producer_version=__version__,
    )
    helper.set_model_props(result, {"edgernn": json.dumps(metadata)})
    onnx.checker.check_model(result, full_check=True)
    return result


def _embedded(graph: _Graph, rows: Tensor, x: str) -> str:
    """The rows that x names; of rows of fewer bytes only those become floats."""
    if graph.type == "float32":
        return graph.node("Gather", [graph.weight("embedding.E", rows), x], "embedding.rows")
    value, scale = graph.kept("embedding.E", rows)
    found = graph.node("Gather", [value, x], "embedding.rows.kept")
    scales = None if scale is None else graph.node("Gather", [scale, x], "embedding.rows.s")
    return graph.floats("embedding.rows", (found, scales))


def _folded(model: SequenceModel) -> SequenceModel:
    """The model with the statistics of its normalisations made constants, and the weights that it drops made zeros."""
    cells = [layer.cell for layer in model.recurrent_layers()]
    if not any(cell.counts_steps or cell.density is not None for cell in cells):
        return model
    model = copy.deepcopy(model)
    with torch.no_grad():
        for cell in (layer.cell for layer in model.recurrent_layers()):
            for name, norm in cell.norms.items():
                if isinstance(norm, RecurrentBatchNorm):
                    cell.norms[name] = norm.folded()
            if cell.density is not None:
                cell.R.mul_(cell.kept)
                cell.density = None
                del cell.kept
    return model


def _one_of_each_op(layers: list[RecurrentLayer]) -> list[tuple[RecurrentLayer, bool]]:
    """A layer for each op, and whether there are others of another H.

    It is one whose input and hidden size differ if there is one, so that the tracer's sizes are told apart.
    """
    chosen: dict[str, RecurrentLayer] = {}
    sizes: dict[str, set[int]] = {}
    for layer in layers:
        sizes.setdefault(layer.op, set()).add(layer.cell.hidden_size)
        if layer.op not in chosen or layer.cell.input_size != layer.cell.hidden_size:
            chosen[layer.op] = layer
    return [(layer, len(sizes[op]) > 1) for op, layer in chosen.items()]


def _layer(
    graph: _Graph,
    layer: RecurrentLayer,
    name: str,
    x: str,
    needs_y: bool,
    backwards: bool,
    counters: dict[str, list[str]],
) -> tuple[str, str]:
    """One node; returns the names of its output sequence ("" where not needed) and of its last output."""
    if backwards:
        x = graph.reversed(x, f"{name}.x")
    parameters = layer_weights(layer)
    states = layer.states
    inputs = []
    for key in op_inputs(layer):
        if key == "X":
            inputs.append(x)
        else:
            inputs.append(f"{name}.{key}" if key in states else graph.matrix(f"{name}.{key}", parameters[key]))
    outputs = []
    for key in op_outputs(layer):
        if key == "Y":
            outputs.append(f"{name}.Y" if needs_y else "")
        elif key in counters:
            outputs.append(f"{name}.{key}")
        else:
            outputs.append(f"{name}.{key.removesuffix('_next')}.next")
    bits = {} if graph.type == "float32" else {"weight_bits": WEIGHTS[graph.type]}
    node = helper.make_node(layer.op, inputs, outputs, name, domain=DOMAIN, schema=SCHEMA, macs=layer.macs(), **bits)
    graph.nodes.append(node)
    if layer.rule.can_skip:
        updates = f"{name}.updates"
        counters["updates"].append(graph.reversed(updates, f"{updates}.in_time") if backwards else updates)
        counters["macs"].append(f"{name}.macs")
    y = outputs[0]
    if y and backwards:
        y = graph.reversed(y, f"{name}.Y.in_time")
    return y, outputs[1]


def _head(graph: _Graph, model: SequenceModel, x: str) -> None:
    if model.head is None:
        graph.node("Identity", [x], "y")
        return
    tied = isinstance(model.head, TiedHead)
    if graph.type != "float32":
        # a tied head reads what the embedding keeps
        kept = graph.kept_names("embedding.E") if tied else graph.kept("head.W.T", model.head.weight)
        weight = graph.node("Transpose", [graph.floats("head.W.T", kept)], "head.W", perm=[1, 0])
    elif tied:
        weight = graph.node("Transpose", ["embedding.E"], "embedding.E.T", perm=[1, 0])
    else:
        weight = graph.weight("head.W", model.head.weight.T)
    bias = graph.weight("head.b", model.head.bias)
    graph.node("Add", [graph.node("MatMul", [x, weight], "head.product"), bias], "y")


def _sum(graph: _Graph, values: list[str], output: str) -> None:
    total = values[0]
    for i, value in enumerate(values[1:], 1):
        total = graph.node("Add", [total, value], f"{output}.{i}")
    graph.node("Identity", [total], output)


def _interface(model: SequenceModel) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs."""
    width = model.output_size or model.width

    def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    if model.vocabulary is None:
        inputs = [floats("x", "T", "B", model.input_size)]
    else:
        inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ("T", "B"))]
    outputs = [floats("y", "B", width) if model.output == "last" else floats("y", "T", "B", width)]
    for name, start in _initial_state(model).items():
        inputs.append(floats(name, "B", len(start)))
        outputs.append(floats(f"{name}.next", "B", len(start)))
    if model.rule_type.can_skip:
        outputs.append(helper.make_tensor_value_info("updates", TensorProto.INT64, ("T", "B")))
        outputs.append(helper.make_tensor_value_info("macs", TensorProto.INT64, ("B",)))
    return inputs, outputs


def _initial_state(model: SequenceModel) -> dict[str, list[float]]:
    """The state that a sequence starts from, by name, for one sequence."""
    with torch.no_grad():
        state = model.initial_state(1, model.input_mean)
    return {name: value[0].tolist() for name, value in zip(model.state_names, state, strict=True)}


def _metadata(model: SequenceModel) -> dict[str, Any]:
    from edgernn.costs import model_cost

    cost, idle = model_cost(model), model_cost(model, 0.0)
    around = sum(p.numel() for part in (model.embedding, model.head) if part is not None for p in part.parameters())
    return {
        "version": __version__,
        "schema": SCHEMA,
        "ops": sorted({layer.op for layer in model.recurrent_layers()}),
        "cell": model.cell_type.name,
        "rule": model.rule_type.name,
        "imputer": None if model.imputer_type is None else model.imputer_type.name,
        "input_size": model.input_size,
        "hidden_size": model.hidden_size,
        "last_size": model.last_size or model.hidden_size,
        "vocabulary": model.vocabulary,
        "output_size": model.output_size,
        "layers": len(model.layers) // model.directions,
        "bidirectional": model.bidirectional,
        "output": model.output,
        "initial_state": {n: s for n, s in _initial_state(model).items() if any(s)},
        "streaming": model.streaming,
        "input_mean": model.input_mean.tolist(),
        "input_std": model.input_std.tolist(),
        "parameters": cost.parameters,
        "macs": cost.macs,
        # of a step of the recurrent layers with every neuron updated, and flops_paper with none
        "cost": {
            "parameters": cost.parameters - around,
            "macs_executed": cost.macs_executed,
            "flops_paper": cost.flops_paper,
            "flops_paper_idle": idle.flops_paper,
        },
    }
