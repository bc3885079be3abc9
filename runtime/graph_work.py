# SPDX-License-Identifier: Apache-2.0
"""Limits of the work that the graph of an ONNX file asks for, checked on the shapes of its values before any is done.

A file of a few hundred bytes can ask for any memory and any time: nodes that double a constant, a function that calls
another twice, or a loop of 2^62 turns. ONNX Runtime computes constants when it loads a file.
"""

import functools
import math
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgernn.errors import EdgernnError
from edgernn.runtime.graph_queries import STANDARD

if TYPE_CHECKING:
    import onnx

# values that are computed from constants, in bytes: this many times the file, and the second one
_TIMES, _FURTHER = 16, 1 << 26
# bytes of one value of a single step of one sequence
_MOST_BYTES = 1 << 32
# runs of nodes in loops, whatever their bodies compute as their end
_MOST_RUNS = 1 << 24
# number of turns of a loop without a limit, as large as ONNX's largest limit
_ENDLESS = (1 << 63) - 1
# largest version of operators that the onnx package can look up
_MOST_VERSION = (1 << 31) - 1
# depth of functions that call each other
_MOST_DEPTH = 50
# bytes of a constant whose value is followed, as it may be a shape
_SMALL_BYTES = 1 << 13
# operators on shapes, which take no longer than their inputs and outputs have numbers
_FOLLOWED = re.compile(
    r"Abs|Add|And|Cast|Ceil|Compress|Concat|ConstantOfShape|CumSum|Div|Equal|Expand|Flatten|"
    r"Floor|Gather|GatherElements|GatherND|Greater|GreaterOrEqual|Identity|Less|LessOrEqual|Max|"
    r"Min|Mod|Mul|Neg|NonZero|Not|Or|Pad|Pow|Range|ReduceMax|ReduceMin|ReduceProd|ReduceSum|"
    r"Reshape|Round|ScatterElements|ScatterND|Sign|Slice|Split|Sqrt|Squeeze|StringConcat|Sub|"
    r"Tile|Transpose|Unique|Unsqueeze|Where|Xor"
)


@dataclass(frozen=True)
class _Value:
    """A value of a graph.

    `type` is None if it is not known, and `tensor` has the numbers of a small constant, or of what the inputs' shapes
    determine. Variable axes have length 1.
    """

    type: "onnx.TypeProto | None" = None
    constant: bool = False
    tensor: "onnx.TensorProto | None" = None


Values = ChainMap[str, _Value]
Inputs = Mapping[str, _Value]


def check_work(model: "onnx.ModelProto", size: int, path: Path) -> None:
    """Refuse a model whose constants, values or loops ask for much more memory or time than its file has bytes.

    Args:
        model: The model.
        size: Size of the file in bytes.
        path: Path of the file, for error messages.

    Raises:
        EdgernnError: A limit is exceeded. The message names the node.
    """
    _Check(model, size, path).run_graph(model.graph, ChainMap(), 1, 0)


class _Check:
    def __init__(self, model: "onnx.ModelProto", size: int, path: Path) -> None:
        self._path, self._size = path, size
        self._bytes, self._nodes, self._runs = _TIMES * size + _FURTHER, 1 << 14, 0
        self._nodes += size
        self._opsets = list(model.opset_import)
        self._version = next((entry.version for entry in self._opsets if entry.domain in STANDARD), 1)
        self._functions = {(f.domain, f.name): f for f in model.functions}

    def run_graph(self, graph: "onnx.GraphProto", values: Values, turns: int, depth: int) -> Values:
        """Return the values of a graph; `values` are those that it can read besides its own."""
        known = {value.name: _Value(_shortest(value.type)) for value in graph.input}
        known |= {tensor.name: _stored(tensor) for tensor in graph.initializer}
        return self._run(graph.node, ChainMap(known, *values.maps), {}, turns, depth)

    def _run(
        self,
        nodes: "Iterable[onnx.NodeProto]",
        values: Values,
        attributes: "Mapping[str, onnx.AttributeProto]",
        turns: int,
        depth: int,
    ) -> Values:
        """Add the outputs of nodes to the values; `attributes` are those of the function that has the nodes."""
        for node in nodes:
            self._nodes -= 1
            self._count_runs(node, turns if turns > 1 else 0)
            if self._nodes < 0 or depth > _MOST_DEPTH:
                self._refuse(node, f"functions that have about as many nodes as its {self._size:,} bytes", "more")
            node = _bound(node, attributes)  # noqa: PLW2901
            if (function := self._functions.get((node.domain, node.op_type))) is not None:
                arguments = zip(function.input, (values.get(name, _Value()) for name in node.input), strict=False)
                settings = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
                inner = self._run(function.node, ChainMap(dict(arguments)), settings, turns, depth + 1)
                outputs = [inner.get(name, _Value()) for name in function.output]
            elif any(a.HasField("g") for a in node.attribute):
                outputs = self._run_bodies(node, values, turns, depth)
            else:
                outputs = self._infer(node, values)
            values.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
        return values

    def _run_bodies(self, node: "onnx.NodeProto", values: Values, turns: int, depth: int) -> list[_Value]:
        """Return the outputs of a node with graphs: of an If those of its first branch, and of a loop no types."""
        bodies, results = [a.g for a in node.attribute if a.HasField("g")], []
        for body in bodies:
            count = 1
            if node.op_type == "Loop":
                count = _most_turns(node, values)
            elif node.op_type == "Scan":
                count = max((n for name in node.input for n in _dims(values.get(name))[:1]), default=1)
            self._count_runs(node, turns * count if count > 1 else 0)
            inner = self.run_graph(body, values, max(turns * count, 1), depth + 1)
            results.append([inner.get(value.name, _Value()) for value in body.output])
        if node.op_type == "If":
            return [replace(value, constant=False, tensor=None) for value in results[0]]
        return [_Value()] * len(node.output)

    def _count_runs(self, node: "onnx.NodeProto", runs: int) -> None:
        self._runs += runs
        if self._runs > _MOST_RUNS:
            self._refuse(node, f"loops whose limits of turns allow {_MOST_RUNS:,} nodes in all", f"{self._runs:,}")

    def _infer(self, node: "onnx.NodeProto", values: Values) -> list[_Value]:
        """Return the outputs of a node of an operator, and count their bytes."""
        inputs = {name: values.get(name, _Value()) for name in node.input if name}
        constant = all(value.constant for value in inputs.values()) and bool(inputs or node.op_type == "Constant")
        if node.op_type == "Constant" and (value := next((a.t for a in node.attribute if a.name == "value"), None)):
            return [_stored(value)]
        types = self._types(node, inputs)
        outputs = [_Value(types.get(name), constant) for name in node.output]
        outputs = [replace(value, constant=constant) for value in _followed(node, inputs, outputs, self._version)]
        for output in outputs:
            needed = _bytes(output)
            if constant and needed is None and (output.type is None or output.type.HasField("tensor_type")):
                self._refuse(node, "constants of a size that is known before they are computed", "another")
            if needed is not None and needed > _MOST_BYTES:
                self._refuse(node, f"values of at most {_MOST_BYTES:,} bytes", f"one of {needed:,}")
            self._bytes -= (needed or 0) if constant else 0
            if self._bytes < 0:
                limit = f"{_TIMES} times the file's {self._size:,} bytes and {_FURTHER:,} bytes"
                self._refuse(node, f"values computed from constants that take at most {limit} in all", "more")
        return outputs

    def _types(self, node: "onnx.NodeProto", inputs: Inputs) -> "dict[str, onnx.TypeProto]":
        """Return the types of a node's outputs; without those that are not known."""
        from onnx.shape_inference import infer_node_outputs

        schema = _schema(node.op_type, self._version)
        if schema is None or any(value.type is None for value in inputs.values()):
            return {}
        types = {name: value.type for name, value in inputs.items()}
        data = {name: value.tensor for name, value in inputs.items() if value.tensor is not None}
        try:
            result: dict[str, onnx.TypeProto] = infer_node_outputs(
                schema, node, types, data, opset_imports=self._opsets
            )
        except Exception:  # the classes of onnx's errors have no common base; ONNX Runtime names the error
            if inputs and all(value.constant for value in inputs.values()):
                self._refuse(node, "constants whose types and shapes go together", "others")
            return {}
        return result

    def _refuse(self, node: "onnx.NodeProto", expected: str, got: str) -> None:
        name = f"node {node.name or ''.join(node.output[:1])!r:.50} ({node.op_type:.50})"
        raise EdgernnError(f"{self._path}: {name}: expected {expected}, got {got}; export the model again")


@functools.cache
def _schema(op_type: str, version: int) -> Any:
    """Return the schema of an operator; one of another domain has that of ONNX's own operator of this name."""
    from onnx import defs

    try:
        return defs.get_schema(op_type, min(max(version, 0), _MOST_VERSION), "")
    except defs.SchemaError:
        return None


def _bound(node: "onnx.NodeProto", attributes: "Mapping[str, onnx.AttributeProto]") -> "onnx.NodeProto":
    """Return a node with the attributes of its function in place of references to them."""
    from onnx import NodeProto

    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif a.ref_attr_name in attributes:
            copy.attribute.add().CopyFrom(attributes[a.ref_attr_name])
            copy.attribute[-1].name = a.name
    return copy


def _most_turns(node: "onnx.NodeProto", values: Values) -> int:
    """Return the largest number of turns of a Loop that its file sets, or 1 if it depends on the inputs' numbers."""
    if not node.input or not node.input[0]:
        return _ENDLESS
    most = values.get(node.input[0], _Value()).tensor
    return int(_numbers(most).reshape(-1)[0]) if most is not None and _count(most.dims) > 0 else 1


def _shortest(declared: "onnx.TypeProto") -> "onnx.TypeProto":
    """Return the type of an input with a length of 1 for each variable axis."""
    from onnx import TypeProto

    result = TypeProto()
    result.CopyFrom(declared)
    for dim in result.tensor_type.shape.dim if result.HasField("tensor_type") else ():
        if not dim.HasField("dim_value"):
            dim.dim_value = 1
    return result


def _stored(tensor: "onnx.TensorProto") -> _Value:
    from onnx import helper

    shape = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return _Value(shape, True, tensor if tensor.ByteSize() <= _SMALL_BYTES else None)


def _followed(node: "onnx.NodeProto", inputs: Inputs, outputs: list[_Value], version: int) -> list[_Value]:
    """Compute the outputs of a node on small known tensors, whose values may be shapes."""
    import numpy as np
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    if node.op_type in ("Shape", "Size") and inputs:
        (value,) = inputs.values()
        if _count(_dims(value)) >= 0 and value.type is not None and value.type.tensor_type.HasField("shape"):
            dims = np.array(_dims(value), np.int64)
            start, end = ({a.name: a.i for a in node.attribute}.get(name) for name in ("start", "end"))
            array = dims[start:end] if node.op_type == "Shape" else np.array(dims.prod())
            return [_stored(numpy_helper.from_array(array))]
    tensors = {name: value.tensor for name, value in inputs.items()}
    large = any((needed := _bytes(output)) is not None and needed > _SMALL_BYTES for output in outputs)
    if large or not _FOLLOWED.fullmatch(node.op_type) or not tensors or any(t is None for t in tensors.values()):
        return outputs
    try:
        feeds = {name: _numbers(tensor) for name, tensor in tensors.items()}
        arrays = ReferenceEvaluator(_alone(node, version)).run(None, feeds)
        return [_stored(numpy_helper.from_array(np.asarray(array))) for array in arrays]
    except Exception:  # of any kind; ONNX Runtime names the error
        return outputs


def _alone(node: "onnx.NodeProto", version: int) -> "onnx.ModelProto":
    from onnx import ValueInfoProto, helper

    inputs, outputs = ([ValueInfoProto(name=n) for n in dict.fromkeys(v) if n] for v in (node.input, node.output))
    graph = helper.make_graph([node], "constant", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def _numbers(tensor: "onnx.TensorProto | None") -> Any:
    from onnx import numpy_helper

    assert tensor is not None
    return numpy_helper.to_array(tensor)


def _dims(value: _Value | None) -> list[int]:
    """Return the lengths of a value's axes; -1 for one that is not known."""
    if value is None or value.type is None or not value.type.HasField("tensor_type"):
        return []
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]


def _count(dims: Iterable[int]) -> int:
    """Return the number of elements, or -1 if a length is not known."""
    lengths = list(dims)
    return -1 if any(n < 0 for n in lengths) else math.prod(lengths)


def _bytes(value: _Value) -> int | None:
    """Return the bytes of a value, or None if its size is not known."""
    from onnx import TensorProto, helper

    if value.type is None or not value.type.tensor_type.HasField("shape"):
        return None
    count, kind = _count(_dims(value)), value.type.tensor_type.elem_type
    if kind == TensorProto.STRING:
        return None if value.tensor is None else value.tensor.ByteSize()
    return None if count < 0 else count * (helper.tensor_dtype_to_np_dtype(kind).itemsize if kind else 8)
