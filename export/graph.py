# SPDX-License-Identifier: Apache-2.0
"""Conversion of a SequenceModel to an ONNX model: one custom node per layer and direction, and the head."""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from edgernn import __version__
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.cells.recurrent import DENSE
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.export.frontend import add_frontend
from edgernn.export.layer_functions import OPSET, layer_function, layer_weights, op_attributes, op_inputs, op_outputs
from edgernn.export.linear_maps import BlockNodes, add_embedding, add_head
from edgernn.export.model_graph import ModelGraph
from edgernn.export.native_kernels import Kernel, find_kernel
from edgernn.layer import RecurrentLayer
from edgernn.model import SequenceModel
from edgernn.program import ProgramError
from edgernn.runtime.library import DOMAIN, MOST_OPS, OP, PORTABLE, SCHEMA, op_names
from edgernn.settings import record
from edgernn.weight_types import WEIGHTS

# IR version that ONNX Runtime reads since 1.17
IR_VERSION = 9


def build(
    model: SequenceModel, extra: dict[str, Any] | None = None, weights: str = "float32", portable: bool = True
) -> onnx.ModelProto:
    """Convert a model to an ONNX ModelProto: one node per layer and direction, and the functions that nodes call.

    Args:
        model: The model, whose matrices are already rounded to the type `weights`.
        extra: Dict of values to add to the metadata, such as task and metric.
        weights: Type of stored matrices: "float32", "bfloat16" or "int8".
        portable: Include the layers as functions of standard ONNX operators, for ONNX Runtime without the native
            library. Tracing them takes seconds, and a packed model for C programs does not need them.

    Returns:
        The ONNX model.
    """
    folded = _folded(model)
    layers = folded.recurrent_layers()
    functions = layer_functions(layers)
    metadata = _metadata(model, functions) | {"weights": weights} | (extra or {})
    model = folded
    graph = ModelGraph(weights)
    x = "x"
    if model.embedding is not None:
        x = add_embedding(graph, model.embedding.weight, x)
    if model.frontend is not None:
        x = add_frontend(graph, model.frontend, x)
    if model.standardises:
        mean, std = graph.weight("input.mean", model.input_mean), graph.weight("input.std", model.input_std)
        x = graph.node("Div", [graph.node("Sub", [x, mean], "input.centred"), std], "input.standardised")
    counters: dict[str, list[str]] = {"updates": [], "macs": []}
    blocks, names = model.residual_blocks(), layer_names(model)
    for i in range(0, len(layers), model.directions):
        # the model's output at the last step only is that of the last layer
        last = model.output == "last" and i + model.directions == len(layers)
        block = BlockNodes(graph, blocks[i], f"layer{i}") if blocks else None
        x = x if block is None else block.enter(x)
        outputs = []
        for direction in range(model.directions):
            name, layer, function = names[i + direction], layers[i + direction], functions[i + direction]
            y, top = add_layer(graph, layer, function, name, x, not last, bool(direction), counters)
            outputs.append(top if last else y)
        x = outputs[0] if len(outputs) == 1 else graph.node("Concat", outputs, f"layer{i}.outputs", axis=-1)
        x = x if block is None else block.leave(x, last)
    add_head(graph, model, x)
    for name, values in counters.items():
        if values:
            add_sum(graph, values, name)
    result = helper.make_model(
        helper.make_graph(graph.nodes, "edgernn", *_interface(model), initializer=graph.weights),
        functions=define_functions(dict.fromkeys(functions)) if portable else [],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        ir_version=IR_VERSION,
        producer_name="edgernn",
        producer_version=__version__,
    )
    helper.set_model_props(result, {"edgernn": json.dumps(metadata, separators=(",", ":"))})
    onnx.checker.check_model(result, full_check=True)
    return result


def layer_names(model: SequenceModel) -> list[str]:
    """Return the names of the nodes of a model's recurrent layers, such as layer0, and layer0.reverse if it has two."""
    return [f"layer{i // model.directions}{'.reverse' * (i % model.directions)}" for i in range(len(model.layers))]


def _folded(model: SequenceModel) -> SequenceModel:
    """Return the model with dense weights instead of block-sparse ones, and batch normalisation as constant maps."""
    cells = [layer.cell for layer in model.recurrent_layers()]
    if not any(cell.counts_steps or cell.is_sparse for cell in cells):
        return model
    model = copy.deepcopy(model)
    fold(model.recurrent_layers())
    return model


@torch.no_grad()
def fold(layers: Iterable[RecurrentLayer]) -> None:
    """Replace block-sparse weights by dense ones, and batch normalisation by constant maps, in place."""
    for cell in (layer.cell for layer in layers):
        for name, norm in cell.norms.items():
            if isinstance(norm, RecurrentBatchNorm):
                cell.norms[name] = norm.folded()
        if cell.is_sparse:
            cell.R.mul_(cell.kept)
            cell.recurrent = DENSE
            del cell.kept


@dataclass(eq=False)
class LayerFunction:
    """A function in the ONNX file that computes one layer; layers with the same equations share it.

    Attributes:
        name: Name of the function.
        layer: The layer that is traced to create the function. Among the layers that share the function, one with
            I != H is preferred, because a trace with I = H cannot tell the two sizes apart.
        sizes: Values of H of all layers that share the function.
        kernel: Kernel of the native library that replaces the function, or None if there is none.
    """

    name: str
    layer: RecurrentLayer
    sizes: set[int]
    kernel: Kernel | None

    @property
    def attributes(self) -> dict[str, Any]:
        """Equations of a user-defined cell with a kernel, as attributes of the layers' nodes; for other cells, {}."""
        program = None if self.kernel is None else self.kernel.program
        return {} if program is None else program.attributes()


def layer_functions(layers: list[RecurrentLayer]) -> list[LayerFunction]:
    """Return the ONNX function of each layer; raise UsageError if more than `MOST_OPS` different ones are needed."""
    functions: dict[Any, LayerFunction] = {}
    assigned = []
    for layer in layers:
        cell, kernel = layer.cell, _kernel(layer)
        group_size = layer.rule.group_size
        # a function with groups of neurons contains the sizes of one layer as constants
        sizes = (group_size, cell.hidden_size) if group_size > 1 else ()
        # sizes of 1 are constants of a function, too
        ones = cell.input_size == 1, cell.hidden_size == 1
        key = layer.kernel_name, cell.recurrent.rank, kernel, sizes, ones, *op_inputs(layer)
        if key not in functions:
            if len(functions) == MOST_OPS:
                raise UsageError(
                    f"layers: expected at most {MOST_OPS} different combinations of cell, rule and options, got more; "
                    "use the same combination in more layers"
                )
            name = op_names(len(functions) + 1)[-1]
            name = name.replace(OP, PORTABLE) if kernel is None else name
            functions[key] = LayerFunction(name, layer, set(), kernel)
        elif cell.input_size != cell.hidden_size:
            functions[key].layer = layer
        functions[key].sizes.add(cell.hidden_size)
        assigned.append(functions[key])
    return assigned


def _kernel(layer: RecurrentLayer) -> Kernel | None:
    """Return the kernel of the native library for a layer, or None if there is none."""
    # a layer without a kernel gets another function name, as a registered op takes precedence over a function
    try:
        return find_kernel(layer)
    except ProgramError:
        return None


def define_functions(functions: Iterable[LayerFunction]) -> list[onnx.FunctionProto]:
    """Return the definitions of functions in an ONNX file, which are traced from their layers."""
    return [layer_function(f.layer, f.name, f.attributes, len(f.sizes) > 1) for f in functions]


def add_layer(
    graph: ModelGraph,
    layer: RecurrentLayer,
    function: LayerFunction,
    name: str,
    x: str,
    needs_y: bool,
    backwards: bool,
    counters: dict[str, list[str]],
) -> tuple[str, str]:
    """Add the node `name` of a layer with input `x`; return the names of its outputs at all steps and of its last one.

    Without `needs_y`, the outputs at all steps are not computed, and their name is "". `backwards`: the layer reads the
    steps from last to first. If the layer can skip neurons, the names of two outputs are appended to the lists in
    `counters`: the number of updated neurons to "updates", the number of multiply-adds to "macs".
    """
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
            outputs.append(f"{name}.{key}" if layer.rule.can_skip else "")
        else:
            outputs.append(f"{name}.{key.removesuffix('_next')}.next")
    bits = {} if graph.type == "float32" else {"weight_bits": WEIGHTS[graph.type]}
    attributes = op_attributes(layer) | function.attributes | bits
    node = helper.make_node(function.name, inputs, outputs, name, domain=DOMAIN, **attributes)
    graph.nodes.append(node)
    if layer.rule.can_skip:
        updates = f"{name}.updates"
        counters["updates"].append(graph.reversed(updates, f"{updates}.in_time") if backwards else updates)
        counters["macs"].append(f"{name}.macs")
    y = graph.reversed(outputs[0], f"{name}.Y.in_time") if outputs[0] and backwards else outputs[0]
    return y, outputs[op_outputs(layer).index(f"{layer.states[0]}_next")]


def add_sum(graph: ModelGraph, values: list[str], output: str) -> None:
    """Add the nodes that compute the sum of `values`, under the name `output`."""
    total = values[0]
    for i, value in enumerate(values[1:], 1):
        total = graph.node("Add", [total, value], f"{output}.{i}")
    graph.node("Identity", [total], output)


def _interface(model: SequenceModel) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Return the declarations (name, type, shape) of the ONNX graph's inputs and of its outputs."""
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
    """Return a dict from the name of each state to its initial values for one sequence."""
    with torch.no_grad():
        state = model.initial_state(1, model.input_mean)
    return {name: value[0].tolist() for name, value in zip(model.state_names, state, strict=True)}


def _config(model: SequenceModel) -> ModelConfig:
    """Return the model's configuration, with the mean and std of the inputs taken from the model's buffers."""
    mean, std = (_collapsed(numbers) for numbers in (model.input_mean, model.input_std))
    return replace(model.config, input=replace(model.config.input, mean=mean, std=std))


def _metadata(model: SequenceModel, functions: list[LayerFunction]) -> dict[str, Any]:
    from edgernn.costs import model_cost

    cost, idle = model_cost(model), model_cost(model, 0.0)
    non_recurrent = sum(
        p.numel()
        for part in (model.embedding, model.frontend, model.blocks, model.head)
        if part is not None
        for p in part.parameters()
    )
    return {
        "version": __version__,
        "schema": SCHEMA,
        **describe_functions(functions),
        "model": record(_config(model)),
        "initial_state": {n: s for n, s in _initial_state(model).items() if any(s)},
        "streaming": model.streaming,
        "parameters": cost.parameters,
        "macs": cost.macs,
        # cost of a step of the recurrent layers if every neuron is updated; flops_paper_idle: if none is
        "cost": {
            "parameters": cost.parameters - non_recurrent,
            "macs_executed": cost.macs_executed,
            "flops_paper": cost.flops_paper,
            "flops_paper_idle": idle.flops_paper,
            "frontend_macs": cost.frontend_macs,
            "block_macs": cost.block_macs,
        },
    }


def describe_functions(functions: list[LayerFunction]) -> dict[str, Any]:
    """Return the entries of a file's metadata about the functions of its layers."""
    return {
        # kernel of each function, in their order
        "kernels": [f.layer.kernel_name for f in dict.fromkeys(functions)],
        # kernels that interpret the program of a user-defined cell
        "programs": {
            f.layer.kernel_name: f.kernel.name for f in functions if f.kernel is not None and f.kernel.program
        },
    }


def _collapsed(numbers: Tensor) -> tuple[float, ...]:
    """Convert a vector (I,) to a tuple of its numbers; if all are equal, the tuple has a single element."""
    values = tuple(numbers.tolist())
    return values[:1] if len(set(values)) == 1 else values
