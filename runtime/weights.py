# SPDX-License-Identifier: Apache-2.0
"""Reader of the weights of an exported file, in their storage types: float32, bfloat16 or int8."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.external_data import read_external
from edgernn.runtime.graph_work import check_work
from edgernn.runtime.info import not_utf8, read_model
from edgernn.runtime.library import DOMAIN

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

# first bytes of a packed model
PACKED_MAGIC = b"EDGERNN\0"
# largest memory for a file's weights: this many times the file, and the bytes below
_TIMES, _FURTHER = 16, 1 << 20


@dataclass(frozen=True)
class Weight:
    """A matrix or vector of weights in an exported file, in its storage type.

    `values` are float32, uint16 with the bits of bfloat16, or int8. `scales` (rows, 1) of int8 multiply the rows; they
    are None for the other types.
    """

    values: NDArray[Any]
    scales: NDArray[np.float32] | None = None

    @property
    def floats(self) -> NDArray[np.float32]:
        if self.scales is not None:
            return self.values * self.scales
        return _floats(self.values) if self.values.dtype == np.uint16 else self.values


class Weights(Mapping[str, Weight]):
    """Mapping from the names of an exported file's weights to `Weight` objects.

    The names are the same for all storage types: they lack the ending that marks the type in the file, such as .q of an
    int8 matrix. The matrix (O, I) of a linear map, such as the head, always has the name NAME.W.T here; a float32 file
    stores its transpose as NAME.W. Lookup raises EdgernnError for a weight that is missing or cannot be read.
    """

    def __init__(self, model: "onnx.ModelProto", path: Path) -> None:
        from onnx import TensorProto

        # export/model_graph.py stores a bfloat16 matrix as NAME.b, and an int8 matrix as NAME.q with the scales NAME.s
        suffixes = {TensorProto.FLOAT: "", TensorProto.BFLOAT16: ".b", TensorProto.INT8: ".q"}
        self._path, self._tensors = path, {tensor.name: tensor for tensor in model.graph.initializer}
        # from the name of each weight to that of its initializer
        self._names = {}
        for name, tensor in self._tensors.items():
            suffix = suffixes.get(tensor.data_type)
            if suffix is not None and name.endswith(suffix):
                self._names[f"{name}.T" if _is_transposed(name) else name.removesuffix(suffix)] = name

    def __getitem__(self, name: str) -> Weight:
        if name not in self._names:
            raise EdgernnError(f"{self._path}: expected the weight {name:.50}, got none; export the model again")
        initializer = self._names[name]
        if _is_transposed(initializer):
            return Weight(self._read(initializer).T)
        values = self._read(initializer)
        if values.dtype != np.int8:
            return Weight(values)
        scales = self._read(f"{name}.s")
        if scales.dtype != np.uint16 or scales.shape != (len(values), 1):
            raise EdgernnError(
                f"{self._path}: expected one scale for each row of the int8 weight {name:.50}; export the model again"
            )
        return Weight(values, _floats(scales))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str) -> NDArray[Any]:
        """Return the numbers of an ONNX initialiser as an array; the bits of bfloat16 are returned as uint16."""
        from onnx import TensorProto

        types = {TensorProto.FLOAT: "<f4", TensorProto.BFLOAT16: "<u2", TensorProto.INT8: "i1"}
        tensor = self._tensors.get(name)
        if tensor is not None and tensor.data_type in types and len(tensor.dims) in (1, 2):
            dtype, shape = np.dtype(types[tensor.data_type]), tuple(tensor.dims)
            # edgernn exports tensors as raw_data only
            if min(shape) > 0 and math.prod(shape) * dtype.itemsize == len(tensor.raw_data):
                return np.frombuffer(tensor.raw_data, dtype).reshape(shape)
        raise EdgernnError(
            f"{self._path}: the weight {name:.50}: expected raw float32, bfloat16 or int8 data, one number for each "
            "element of its shape; export the model again"
        )


def _is_transposed(name: str) -> bool:
    """Return True for a matrix of the head or of a block: a file with float32 weights stores its transpose."""
    return name == "head.W" or (".block." in name and name.endswith(".W"))


def _floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def parse(content: bytes, path: Path, *, external: Literal["refuse", "check", "read"] = "refuse") -> "onnx.ModelProto":
    """Parse an ONNX file, and refuse one that reads other files or needs much more memory than it has bytes.

    Args:
        content: The file's content.
        path: Path of the file, for error messages, and to find external data.
        external: What to do with external data in files beside a file of another tool, see `external_data`. "read" puts
            them into the model, "check" leaves them there. An exported file of edgernn never has external data.

    Returns:
        The model.

    Raises:
        EdgernnError: The content is not an ONNX file, a tensor is in another file that is not read, or many layers
            share their weights.
    """
    import onnx

    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # the classes of protobuf's exceptions have no common base
        if content.startswith(PACKED_MAGIC):
            raise EdgernnError(
                f"{path}: expected an ONNX file, got a packed model, which Session, C programs and browsers run; "
                "pass the .onnx file that it was packed from"
            ) from None
        raise EdgernnError(
            f"{path}: expected an ONNX file, got another or a damaged one ({error}); export the model again"
        ) from None
    graph = model.graph
    messages = list(_messages(model))
    nodes = [message for message in messages if isinstance(message, onnx.NodeProto)]
    names = [value.name for values in (graph.initializer, graph.input, graph.output) for value in values]
    names += [name for node in nodes for name in (node.op_type, node.domain, *node.input, *node.output)]
    # protobuf returns invalid UTF-8 as bytes
    if not all(isinstance(name, str) for name in names):
        raise not_utf8(path)
    referring = [
        message
        for message in messages
        if isinstance(message, onnx.TensorProto) and (message.external_data or message.data_location)
    ]
    size = len(content)
    if referring:
        reason = "which edgernn does not read"
        if external != "refuse" and all(node.domain != DOMAIN for node in graph.node):
            try:
                size += read_external(referring, path, copy=external == "read")
                referring = []
            except (OSError, ValueError) as error:
                reason = f"which is not read: {error}"
        if referring:
            name = next(tensor.name for tensor in referring if tensor.external_data or tensor.data_location)
            raise EdgernnError(
                f"{path}: tensor {name!r:.50}: expected its numbers in this file, got a reference to another file, "
                f"{reason}; store one file, with torch.onnx.export(..., external_data=False) or "
                "onnx.save(onnx.load(PATH), NEW_PATH)"
            )
    sizes = {tensor.name: tensor.ByteSize() for tensor in graph.initializer}
    # kernels and packed models have a copy of the weights for each layer
    layers = (node for node in graph.node if node.domain == DOMAIN)
    check_memory(sum(sizes.get(name, 0) for node in layers for name in node.input), size, path)
    check_work(model, size, path)
    return model


def _messages(message: "Message") -> "Iterator[Message]":
    """List a protobuf message and all messages in it, such as the tensors of a graph in an attribute."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(inner)


def most_numbers(size: int) -> int:
    """Return how many floats a value of the model in a file of this size in bytes may have."""
    return (_TIMES * size + _FURTHER) // 4


def check_memory(needed: int, size: int, path: Path) -> None:
    """Refuse a file whose weights need more memory than 16 times its size and 1 MiB.

    Args:
        needed: The memory in bytes.
        size: Size of the file in bytes.
        path: Path of the file, for error messages.

    Raises:
        EdgernnError: The memory is larger.
    """
    if needed > _TIMES * size + _FURTHER:
        raise EdgernnError(
            f"{path}: expected weights that take at most {_TIMES} times the file's {size:,} bytes in memory, got "
            f"{needed:,} bytes, as many layers share them; export the model again"
        )


def read_weights(path: Path) -> Weights:
    """Read the weights of an exported file, or raise EdgernnError if it is not an ONNX file."""
    return Weights(parse(read_model(path), path), path)
