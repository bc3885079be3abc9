# SPDX-License-Identifier: Apache-2.0
"""The format of packed models, that of runtime/csrc/packed/file.h: records, and the file made of them."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.runtime.library import SCHEMA
from edgernn.runtime.weights import PACKED_MAGIC, Weight

if TYPE_CHECKING:
    import onnx

HEADER, LAYER, TENSOR = struct.Struct("<8sIIQIIIIIIIIII"), struct.Struct("<60sIQQ16x"), struct.Struct("<IIIIQQ")
# settings of word detection (`PostProcessing`) behind the names of classes
DETECTION = struct.Struct("<3d")
CELL = struct.Struct("<60s9I")
# version of files with a step graph, and the record of one
GRAPH_VERSION, GRAPH = 6, struct.Struct("<8I")
# bytes of a name in the file
MOST_NAME = 60
# attributes of a node that hold the program of a user-defined cell
INTS = ("gates", "vectors", "layout", "update", "mid", "map")
NUMBERS = ("update_numbers", "mid_numbers", "map_numbers")
# alignment of arrays in the file
_ALIGNMENT = 64
# number types in the file, float32, bfloat16 and int8: code by NumPy's dtype kind, and dtype by code
_TYPES, DTYPES = {"f": 0, "u": 1, "i": 2}, ("<f4", "<u2", "i1")


@dataclass(frozen=True)
class LayerRecord:
    """A recurrent layer in the file.

    Attributes:
        name: Cell and rule, such as gru+selective.
        tensors: Number of its tensors.
        cell: Attributes of a user-defined cell and its name, "cell"; empty for a built-in one.
        group_size: Number of adjacent neurons that the update rule updates or skips together.
    """

    name: str
    tensors: int
    cell: Mapping[str, Any] = field(default_factory=dict)
    group_size: int = 1


def identity_of(packed: bytes) -> tuple[int, int]:
    """Return the size and CRC-32 checksum of a packed model without the names at its end, as saved states have them."""
    *_, names = header = HEADER.unpack_from(packed)
    return (names, zlib.crc32(packed[HEADER.size : names])) if names else (header[3], header[4])


def file_content(
    version: int,
    flags: int,
    sizes: Sequence[int],
    layers: Sequence[LayerRecord],
    tensors: Sequence[Weight],
    *,
    hop: tuple[int, int] = (0, 0),
    graph: bytes = b"",
    steps: bytes = b"",
) -> bytes:
    """Return the content of a packed model.

    Args:
        version: Version of the format.
        flags: Flags of the header.
        sizes: Input size, vocabulary and output size.
        layers: Recurrent layers.
        tensors: All tensors.
        hop: Samples of a step and sample rate of a front end.
        graph: Record of a step graph, between the header and the layers.
        steps: Values and steps of a step graph, between the records of the tensors and their data.

    Returns:
        The content.
    """
    records, data = [], bytearray()
    first = HEADER.size + len(graph) + len(layers) * LAYER.size + len(tensors) * TENSOR.size + len(steps)
    gap = -first % _ALIGNMENT
    layer_records = []
    for layer in layers:
        offset = first + gap + len(data) if layer.cell else 0
        layer_records.append(LAYER.pack(layer.name.encode(), layer.tensors, offset, layer.group_size))
        data += _cell_record(layer.cell) if layer.cell else b""
        data += bytes(-len(data) % _ALIGNMENT)
    for tensor in tensors:
        values = tensor.values
        rows, columns = values.shape if values.ndim == 2 else (len(values), 1)
        offset, scales = first + gap + len(data), 0
        type = _TYPES[values.dtype.kind]
        data += np.ascontiguousarray(values, DTYPES[type]).tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
        if tensor.scales is not None:
            scales = first + gap + len(data)
            data += np.ascontiguousarray(tensor.scales, "<f4").tobytes()
            data += bytes(-len(data) % _ALIGNMENT)
        records.append(TENSOR.pack(type, values.ndim, rows, columns, offset, scales))
    body = b"".join([graph, *layer_records, *records, steps, bytes(gap), bytes(data)])
    size, words, output = sizes
    counts = len(layers), len(tensors)
    checksum = zlib.crc32(body)
    header = HEADER.pack(
        PACKED_MAGIC, version, SCHEMA, HEADER.size + len(body), checksum, flags, size, words, output, *counts, *hop, 0
    )
    return header + body


def group_size(node: "onnx.NodeProto", path: Path) -> int:
    """Return how many neurons of a layer share one update decision: the attribute group_size of its ONNX node, or 1."""
    size = next((a.i for a in node.attribute if a.name == "group_size"), 1)
    if size < 1:
        raise EdgernnError(
            f"{path}: node {node.name:.50}: group_size: expected a whole number of at least 1, got {size}; export the "
            "model again"
        )
    return size


def custom_cell(node: "onnx.NodeProto", path: Path) -> dict[str, Any]:
    """Return the attributes of a user-defined cell in a layer's ONNX node, empty for a built-in cell."""
    attributes = {a.name: a for a in node.attribute}
    if "gates" not in attributes:
        return {}
    cell: dict[str, Any] = {name: list(attributes[name].ints) if name in attributes else [] for name in INTS}
    if any(not -(2**31) <= number < 2**31 for numbers in cell.values() for number in numbers):
        raise EdgernnError(
            f"{path}: node {node.op_type}: expected 32-bit integers in the encoded equations of its cell, got larger "
            "ones; export the model again"
        )
    cell |= {name: list(attributes[name].floats) if name in attributes else [] for name in NUMBERS}
    return cell | {"cell": attributes["cell"].s if "cell" in attributes else b""}


def _cell_record(cell: Mapping[str, Any]) -> bytes:
    lists = [np.array(cell[name], "<i4") for name in INTS] + [np.array(cell[name], "<f4") for name in NUMBERS]
    return CELL.pack(cell["cell"], *map(len, lists)) + b"".join(values.tobytes() for values in lists)
