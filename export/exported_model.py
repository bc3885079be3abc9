# SPDX-License-Identifier: Apache-2.0
"""Reader of an exported file as a torch model, for an evaluation on the data of a task."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import onnx
import torch
from torch import Tensor

from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError
from edgernn.export.graph import layer_names
from edgernn.export.layer_functions import op_attributes
from edgernn.frontends import FrontendConfig
from edgernn.model import SequenceModel
from edgernn.names import check_built_in
from edgernn.runtime.graph_facts import check_facts, check_nodes
from edgernn.runtime.info import read_info, read_model
from edgernn.runtime.interface import declared_values, state_sizes
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.weights import Weights, parse
from edgernn.settings import load
from edgernn.weight_types import WEIGHTS, WeightType

# tensors of a model outside its layers and blocks, and their names in an exported file
_NAMES = {
    "input_mean": "input.mean",
    "input_std": "input.std",
    "embedding.weight": "embedding.E",
    "head.weight": "head.W.T",
    "head.bias": "head.b",
}
# the same for the tensors of a residual block
_BLOCK_NAMES = {"norm.weight": "norm.scale", "norm.bias": "norm.shift"}
# parameters of the normalisation pcen, whose logarithms the model learns
_PCEN = ("alpha", "delta", "r")


def read_exported(path: Path) -> tuple[SequenceModel, dict[str, Any]]:
    """Read an exported ONNX file as a torch model in evaluation mode, with its metadata as `read_info` returns it.

    The weights of a bfloat16 or int8 file are converted to float32, and forward passes do not round them again. The
    sizes in the metadata are compared with the tensors of the file before memory is allocated for them. No Python file
    that the metadata name is executed: UsageError is raised if the cell, the update rule or the imputer is
    user-defined. EdgernnError is raised for a file that edgernn did not export, that is damaged, or that has weights in
    another form than in training: those of norm=recurrent-batch, which an export merges into constants.
    """
    content = read_model(path)
    proto = parse(content, path)
    info = read_info({entry.key: entry.value for entry in proto.metadata_props}.get("edgernn"), path)
    state_sizes(info, declared_values(proto.graph.input), declared_values(proto.graph.output), len(content), path)
    check_facts(proto, info, path)
    check_nodes(proto, path)
    config, weights = model_config(info, path), Weights(proto, path)
    with torch.random.fork_rng(devices=[]):
        # the front end allocates memory on any device, but its sizes are compared with tensors of the file as well
        without_frontend = replace(config, frontend=FrontendConfig(), input=replace(config.input, size=config.features))
        with torch.device("meta"):
            shapes = build_model(without_frontend, path)
        state = _state(shapes, info, weights, path) | _frontend_state(config.frontend, weights, path)
        model = build_model(config, path)
    _check_layers(proto, model, path)
    if "input.mean" not in weights:
        # a file has neither mean nor standard deviation if they are 0 and 1
        model.input_mean.zero_()
        model.input_std.fill_(1)
    model.load_state_dict(model.state_dict() | state)
    # the residual blocks of the model share this object
    model.rounding.weights, model.rounding.applied = stored_type(proto.graph.node), True
    return model, info


def _check_layers(proto: onnx.ModelProto, model: SequenceModel, path: Path) -> None:
    """Compare the layers that the metadata describe with the attributes of the nodes in the graph."""
    nodes = [node for node in proto.graph.node if node.domain == DOMAIN]
    stored = [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes]
    described = [op_attributes(layer) for layer in model.recurrent_layers()]
    for name in ("cell", "rule", "imputer", "rank", "norm", "group_size"):
        got, expected = (
            [
                value.decode(errors="replace") if isinstance(value := layer.get(name), bytes) else value
                for layer in layers
            ]
            for layers in (stored, described)
        )
        if got != expected:
            raise EdgernnError(
                f"{path}: {name} of its layers: expected {expected} as in its edgernn metadata, got {got}; export the "
                "model again"
            )


def stored_type(nodes: Iterable[onnx.NodeProto]) -> WeightType:
    """Return the type in which an exported file stores matrices, from the nodes of its graph."""
    bits = {a.i for node in nodes if node.domain == DOMAIN for a in node.attribute if a.name == "weight_bits"}
    return next((name for name in get_args(WeightType) if WEIGHTS[name] in bits), "float32")


def model_config(info: dict[str, Any], path: Path) -> ModelConfig:
    """Return the configuration of the model in an exported file, from the file's metadata.

    Args:
        info: The metadata, as `read_info` returns it.
        path: Path of the file, for error messages.

    Returns:
        The configuration.

    Raises:
        UsageError: The cell, the update rule or the imputer is none of edgernn's.
        EdgernnError: The metadata have no configuration that this version reads.
    """
    layer = info["model"]["layer"]
    check_built_in(str(path), layer["cell"]["name"], layer["rule"]["name"], layer.get("imputer"))
    try:
        return load(ModelConfig, info["model"], str(path))
    except EdgernnError as error:
        raise _unreadable(path, error) from None


def build_model(config: ModelConfig, path: Path) -> SequenceModel:
    """Build the model of an exported file, with random weights, on torch's default device.

    Args:
        config: Result of `model_config`.
        path: Path of the file, for error messages.

    Returns:
        The model in evaluation mode.

    Raises:
        EdgernnError: The configuration is not that of a model.
    """
    try:
        return SequenceModel(config).eval()
    except Exception as error:  # constructors of cells raise errors of many types for wrong options
        raise _unreadable(path, error) from None


def check_shape(weights: Weights, name: str, tensor: Tensor, path: Path) -> None:
    """Compare the shape of a weight in an exported file with that of a model's tensor.

    Args:
        weights: Weights of the file.
        name: Name of the weight in the file.
        tensor: The tensor, on any device. An export stores a scalar as a vector of length 1.
        path: Path of the file, for error messages.

    Raises:
        EdgernnError: The weight is missing or has another shape.
    """
    expected, shape = tuple(tensor.shape) or (1,), weights[name].values.shape
    if shape != expected:
        raise EdgernnError(f"{path}: {name}: expected shape {expected}, got {shape}; export the model again")


def _unreadable(path: Path, error: Exception) -> EdgernnError:
    reason = " ".join(str(error).split())
    return EdgernnError(
        f"{path}: model in its edgernn metadata: expected the description of a model, got one with the error "
        f"'{reason:.200}'; export the model again"
    )


def _state(shapes: SequenceModel, info: dict[str, Any], weights: Weights, path: Path) -> dict[str, Tensor]:
    names, layers = layer_names(shapes), shapes.recurrent_layers()
    state = {}
    for key, tensor in shapes.state_dict().items():
        part, _, inner = key.partition(".")
        index, _, inner = inner.partition(".")
        if part == "layers" and inner.startswith("start."):
            # a file has initial states in its metadata, except those that are 0
            cell_state = layers[int(index)].cell.states[int(inner.removeprefix("start."))]
            start = info["initial_state"].get(f"{names[int(index)]}.{cell_state}", [0.0] * tensor.numel())
            state[key] = torch.tensor(start, dtype=torch.float32)
            continue
        if key in ("input_mean", "input_std") and "input.mean" not in weights:
            continue
        is_mask = part == "layers" and inner == "cell.kept"
        # pruned weights are zeros in the file
        name = _name(key.removesuffix("kept") + "R" if is_mask else key, names)
        if name not in weights:
            raise EdgernnError(
                f"{path}: expected the weight {name}, got none: the file is damaged, or an export merged the weight "
                "with others; evaluate the run directory, if you have it"
            )
        check_shape(weights, name, tensor, path)
        values = torch.from_numpy(weights[name].floats.copy()).reshape(tensor.shape)
        state[key] = values != 0 if is_mask else values
    return state


def _name(key: str, layers: list[str]) -> str:
    """Return the name in an exported file of the tensor with the name `key` in the state_dict of a model."""
    if key in _NAMES:
        return _NAMES[key]
    part, _, inner = key.partition(".")
    index, _, inner = inner.partition(".")
    if part == "layers":
        # cell.W and rule.rule_W are W and rule_W in the file
        return f"{layers[int(index)]}.{inner.partition('.')[2]}"
    if part == "blocks":
        linear = inner.replace(".weight", ".W.T").replace(".bias", ".b")
        return f"{layers[int(index)]}.block.{_BLOCK_NAMES.get(inner, linear)}"
    return key


def _frontend_state(config: FrontendConfig, weights: Weights, path: Path) -> dict[str, Tensor]:
    if config.name is None or config.normalise != "pcen":
        return {}
    bands, state = torch.empty(config.bands, device="meta"), {}
    for name in _PCEN:
        check_shape(weights, f"frontend.{name}", bands, path)
        values = torch.from_numpy(weights[f"frontend.{name}"].floats.copy())
        if not (values > 0).all():
            raise EdgernnError(
                f"{path}: frontend.{name}: expected numbers above 0, got {values.min().item():g}; export the model "
                "again"
            )
        state[f"frontend.log_{name}"] = values.log()
    return state
