# SPDX-License-Identifier: Apache-2.0
"""Reader of the weights of an exported file, in their storage types: float32, bfloat16 or int8."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.info import not_utf8, read_model

if TYPE_CHECKING:
    import onnx


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


def parse(content: bytes, path: Path) -> "onnx.ModelProto":
    """Parse an ONNX file.

    Args:
        content: The file's content.
        path: Path of the file, for error messages.

    Returns:
        The model.

    Raises:
        EdgernnError: The content is not an ONNX file.
    """
    import onnx

    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # the classes of protobuf's exceptions have no common base
        raise EdgernnError(
            f"{path}: expected an ONNX file, got another or a damaged one ({error}); export the model again"
        ) from None
    graph = model.graph
    names = [value.name for values in (graph.initializer, graph.input, graph.output) for value in values]
    names += [name for node in graph.node for name in (node.op_type, node.domain, *node.input)]
    # protobuf returns invalid UTF-8 as bytes
    if not all(isinstance(name, str) for name in names):
        raise not_utf8(path)
    return model


def read_weights(path: Path) -> Weights:
    """Read the weights of an exported file, or raise EdgernnError if it is not an ONNX file."""
    return Weights(parse(read_model(path), path), path)
