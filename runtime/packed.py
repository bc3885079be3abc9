# SPDX-License-Identifier: Apache-2.0
"""From an exported .onnx file to a packed model, which the library's plain C functions step without ONNX Runtime."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import write_bytes
from edgernn.runtime.info import read_info, read_model
from edgernn.runtime.library import DOMAIN, SCHEMA, library_path
from edgernn.runtime.stepper import memory

if TYPE_CHECKING:
    import onnx

# as runtime/csrc/packed.h has them
VERSION = 1
_MAGIC = b"EDGERNN\0"
_HEADER, _LAYER, _TENSOR = struct.Struct("<8sIIQIIIIIII12x"), struct.Struct("<64s"), struct.Struct("<IIIIQQ")
_STANDARDISES, _HAS_HEAD = 1, 2
_PART = 64


@dataclass(frozen=True)
class _Tensor:
    """Numbers as the file of a packed model keeps them; int8 with the scales of its rows."""

    values: NDArray[Any]
    scales: NDArray[np.float32] | None = None
    bfloat16: bool = False

    @property
    def type(self) -> int:
        return 2 if self.scales is not None else int(self.bfloat16)

    @property
    def floats(self) -> NDArray[np.float32]:
        """The numbers of one that has no scales."""
        return (self.values.astype("<u4") << 16).view(np.float32) if self.bfloat16 else self.values

    @property
    def content(self) -> bytes:
        return np.ascontiguousarray(self.values, ("<f4", "<u2", "i1")[self.type]).tobytes()


def pack_file(model: Path, out: Path) -> dict[str, Any]:
    """Write the packed model of an exported file; returns where it and the library are, and the bytes of it and of the
    memory that a stream needs.

    Raises EdgernnError for a file that cannot be read, and UsageError for a model that needs whole sequences.
    """
    content = pack(read_model(model), model)
    # says whether the library reads it, too
    need, library = memory(content), library_path()
    write_bytes(out, content)
    return {"model": str(model), "packed": str(out), "bytes": len(content), "memory": need, "library": library}


def pack(content: bytes, path: Path) -> bytes:
    """The packed model of what an exported file, at `path`, contains; raises as `pack_file`."""
    import onnx

    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # protobuf raises classes of its own
        raise EdgernnError(f"{path}: no ONNX file: {error}") from None
    info = read_info({p.key: p.value for p in model.metadata_props}.get("edgernn"), path)
    if not info["streaming"]:
        raise UsageError(f"{path}: it needs whole sequences, and a packed model is stepped")
    return _Packer(model.graph, info).content()


class _Packer:
    """The parts of a packed model while they are put together."""

    def __init__(self, graph: "onnx.GraphProto", info: dict[str, Any]) -> None:
        from onnx import numpy_helper

        self._weights = {w.name: _Tensor(*_read(w, numpy_helper)) for w in graph.initializer}
        self._info = info
        self._tensors: list[_Tensor] = []
        flags = 0
        if info.get("vocabulary") is not None:
            self._take("embedding.E")
        if "input.mean" in self._weights:
            flags |= _STANDARDISES
            for name in ("input.mean", "input.std"):
                self._tensors.append(_Tensor(np.broadcast_to(self._weights[name].values, info["input_size"])))
        nodes = [node for node in graph.node if node.domain == DOMAIN]
        states = {i.name: i.type.tensor_type.shape.dim[1].dim_value for i in graph.input if i.name != "x"}
        for node in nodes:
            for name in node.input[1:]:
                if name in states:
                    start = np.zeros(states[name], np.float32)
                    start[:] = info["initial_state"].get(name, 0)
                    self._tensors.append(_Tensor(start))
                else:
                    self._take(name)
        if "head.b" in self._weights:
            flags |= _HAS_HEAD
            if "head.W" in self._weights:
                self._tensors.append(_Tensor(self._weights["head.W"].values.T))
            else:
                # a tied head shares the embedding's matrix
                tied = not any(name.startswith("head.W.T.") for name in self._weights)
                self._take("embedding.E" if tied else "head.W.T")
            self._take("head.b")
        self._flags, self._ops = flags, [node.op_type for node in nodes]

    def _take(self, name: str) -> None:
        """The weight of this name, or what export/graph.py keeps in its place."""
        whole, scales = self._weights.get(f"{name}.q"), self._weights.get(f"{name}.s")
        if whole is not None and scales is not None:
            self._tensors.append(_Tensor(whole.values, scales.floats))
        else:
            self._tensors.append(self._weights.get(f"{name}.b") or self._weights[name])

    def content(self) -> bytes:
        info = self._info
        records, data = [], bytearray()
        first = _HEADER.size + len(self._ops) * _LAYER.size + len(self._tensors) * _TENSOR.size
        gap = -first % _PART
        for tensor in self._tensors:
            values = tensor.values
            rows, columns = values.shape if values.ndim == 2 else (len(values), 1)
            place, scales = first + gap + len(data), 0
            data += tensor.content
            data += bytes(-len(data) % _PART)
            if tensor.scales is not None:
                scales = first + gap + len(data)
                data += np.ascontiguousarray(tensor.scales, "<f4").tobytes()
                data += bytes(-len(data) % _PART)
            records.append(_TENSOR.pack(tensor.type, values.ndim, rows, columns, place, scales))
        body = b"".join([*(_LAYER.pack(op.encode()) for op in self._ops), *records, bytes(gap), bytes(data)])
        output = info["output_size"] or info.get("last_size", info["hidden_size"])
        header = _HEADER.pack(
            _MAGIC,
            VERSION,
            SCHEMA,
            _HEADER.size + len(body),
            zlib.crc32(body),
            self._flags,
            info["input_size"],
            info.get("vocabulary") or 0,
            output,
            len(self._ops),
            len(self._tensors),
        )
        return header + body


def _read(weight: "onnx.TensorProto", helper: Any) -> tuple[NDArray[Any], None, bool]:
    """The numbers of an initializer; bfloat16 as the 16 bits that they are."""
    from onnx import TensorProto

    if weight.data_type != TensorProto.BFLOAT16:
        return helper.to_array(weight), None, False
    return np.frombuffer(weight.raw_data, "<u2").reshape(tuple(weight.dims)), None, True
