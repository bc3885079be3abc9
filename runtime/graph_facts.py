# SPDX-License-Identifier: Apache-2.0
"""Comparison of the metadata of an exported file with its graph: what stands in both must be the same.

ONNX Runtime computes with the graph, a packed model also with the metadata.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.log_mel import fft_size, smoothing
from edgernn.runtime.fourier import factors
from edgernn.runtime.frontend_constants import frontend_constants
from edgernn.runtime.info import block, frontend, is_network
from edgernn.runtime.library import DOMAIN

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]
# largest difference of a number from that of the metadata, as a share of the largest number of the array: libraries of
# mathematics differ in the last digit
_ROUNDING = 1e-5
# outputs of a graph that a packed model has, and names of the nodes that compute them
_RESULT = re.compile(r"y|.*\.next")
_NODE = re.compile(r"y|(input|embedding|frontend|head|reverse|layer\d+)(\..*)?")


def check_facts(model: "onnx.ModelProto", info: Mapping[str, Any], path: Path) -> None:
    """Compare the metadata of an exported file with the constants and layers of its graph.

    Args:
        model: The ONNX model.
        info: Its metadata, a dict from `read_info`.
        path: Path of the file, for error messages.

    Raises:
        EdgernnError: A fact differs. The message names it.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for fact, graph, metadata in _facts(model, tensors, info, path):
        if graph != metadata:
            raise _differs(path, fact, metadata, graph)
    # in the file of a network of one's own, torch folds these numbers into others
    for name, number in () if is_network(info) else (("mean", 0.0), ("std", 1.0)):
        expected = np.array(info["model"]["input"][name], np.float32)
        values = (
            _read(tensors[f"input.{name}"], path).ravel()
            if f"input.{name}" in tensors
            else np.array([number], np.float32)
        )
        # one number is that of all channels
        if (1 not in (len(values), len(expected)) and len(values) != len(expected)) or (values != expected).any():
            raise _differs(path, f"input.{name}", "the numbers of model.input", "others")
    if (settings := frontend(info)) is not None:
        _check_frontend(model, tensors, settings, path)


def check_nodes(model: "onnx.ModelProto", path: Path) -> None:
    """Check that the export of a SequenceModel wrote each node that its outputs depend on.

    A packed model is made of the weights and attributes of known nodes. It would leave out one that was added.

    Args:
        model: The ONNX model.
        path: Path of the file, for error messages.

    Raises:
        EdgernnError: A node has another name than the export gives it.
    """
    makers = {name: node for node in model.graph.node for name in node.output if name}
    pending, known = [value.name for value in model.graph.output if _RESULT.fullmatch(value.name)], set[str]()
    while pending:
        name = pending.pop()
        if name in known or name not in makers:
            continue
        known.add(name)
        node = makers[name]
        # a layer and a recursion over time have several outputs
        named = node.name if node.domain == DOMAIN or node.op_type == "Scan" else node.output[0]
        if node.name != named or not _NODE.fullmatch(node.name):
            raise EdgernnError(
                f"{path}: expected the nodes that edgernn writes, got {node.op_type:.50} for {name:.50}, which a "
                "packed model would leave out; export the model again, or run the file with the portable backend"
            )
        pending += node.input


def _facts(
    model: "onnx.ModelProto", tensors: Mapping[str, "onnx.TensorProto"], info: Mapping[str, Any], path: Path
) -> Iterator[tuple[str, Any, Any]]:
    """List facts that stand in the graph and in the metadata: (name, value in the graph, value in the metadata)."""
    kernels = {node.op_type: kernel_of(node, path) for node in model.graph.node if node.domain == DOMAIN}
    yield "kernels", list(kernels.values()), info["kernels"]
    if is_network(info):
        return
    embeddings = [tensor.dims[0] for name, tensor in tensors.items() if name.startswith("embedding.E") and tensor.dims]
    yield "vocabulary", embeddings[0] if embeddings else None, info["model"]["input"]["vocabulary"]
    gated, has_blocks = (any(part in name for name in tensors) for part in (".block.gate.", ".block."))
    yield "block", "gated" if gated else "linear" if has_blocks else None, block(info)


def kernel_of(node: "onnx.NodeProto", path: Path) -> str:
    """Return the name of a layer's kernel from the attributes of its node: its parts, joined by "+"."""
    attributes = {a.name: a for a in node.attribute}
    try:
        cell, rule, imputer, norm = (
            attributes[name].s.decode() if name in attributes else "" for name in ("cell", "rule", "imputer", "norm")
        )
    except UnicodeDecodeError:
        raise EdgernnError(f"{path}: node {node.name:.50}: expected names in UTF-8; export the model again") from None
    parts = [imputer, cell, "" if rule == "always" else rule, "low-rank" if "rank" in attributes else "", norm]
    return "+".join(filter(None, parts))


def _check_frontend(
    model: "onnx.ModelProto", tensors: Mapping[str, "onnx.TensorProto"], settings: Mapping[str, Any], path: Path
) -> None:
    """Compare the constants of a front end in the graph with those that its settings in the metadata define."""
    # settings of another size would ask for memory
    first, second = factors(fft_size(settings["window_size"]))
    rows = (first // 2 + 1) * second
    shapes = {"window": [settings["window_size"]], "filters": [rows, settings["bands"]]}
    for name, shape in shapes.items():
        got = list(tensors[f"frontend.{name}"].dims) if f"frontend.{name}" in tensors else None
        if got != shape:
            raise _differs(path, f"shape of frontend.{name}", tuple(shape), got and tuple(got))
    # a tensor may lack the numbers of its shape
    arrays = {name: _read(tensor, path) for name, tensor in tensors.items() if name.startswith("frontend.")}
    try:
        constants = frontend_constants(settings)
        fall, rise, silent = map(np.float32, smoothing(SimpleNamespace(**settings)))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise EdgernnError(
            f"{path}: model.frontend in its edgernn metadata cannot be read; export the model again"
        ) from None
    numbers = {"fall": fall, "rise": rise, "rate": rise, "silent": silent}
    stored = {name: arrays[f"frontend.{name}"] for name in constants if f"frontend.{name}" in arrays}
    # a recursion over time has its constants in the body of a Scan
    bodies = [a.g for node in model.graph.node if node.op_type == "Scan" for a in node.attribute if a.name == "body"]
    for node in (node for body in bodies for node in body.node if node.op_type == "Constant"):
        if node.output and node.output[0] in numbers:
            name = node.output[0]
            constants[name], stored[name] = np.array(numbers[name]), np.array(node.attribute[0].f, np.float32)
    for name, value in stored.items():
        expected = constants[name]
        within = _ROUNDING * np.abs(expected).max() if expected.dtype == np.float32 else 0
        if value.size != expected.size or not (np.abs(value.reshape(expected.shape) - expected) <= within).all():
            raise _differs(path, f"frontend.{name}", "the numbers that model.frontend defines", "others")


def _read(tensor: "onnx.TensorProto", path: Path) -> Array:
    from onnx import numpy_helper

    try:
        array: Array = numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises errors of many types for a damaged tensor
        raise EdgernnError(
            f"{path}: tensor {tensor.name:.50}: expected numbers, got a damaged one ({error}); export the model again"
        ) from None
    return array


def _differs(path: Path, fact: str, expected: Any, got: Any) -> EdgernnError:
    return EdgernnError(
        f"{path}: {fact} of its graph: expected {expected!s:.100} as in its edgernn metadata, got {got!s:.100}; export "
        "the model again"
    )
