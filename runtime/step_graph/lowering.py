# SPDX-License-Identifier: Apache-2.0
"""Reads an ONNX graph that makes one step a call, and lists the steps over buffers that compute it."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.graph_queries import bodies_of, nodes_for, values_read
from edgernn.runtime.library import DOMAIN
from edgernn.runtime.step_graph import convolutions, recurrent
from edgernn.runtime.step_graph.builder import Builder, Tensor
from edgernn.runtime.step_graph.operators import OPERATORS, Node, boxes_of, joined, reshaped, sliced, whole
from edgernn.runtime.step_graph.steps import Operand, Step
from edgernn.runtime.step_graph.views import Kind, Pieces, Value, View, dense
from edgernn.runtime.weights import Weight, Weights

Array = NDArray[Any]
# box of a state with an order of its axes, slowest first
Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_OPERATORS = {
    **OPERATORS,
    **recurrent.OPERATORS,
    "Conv": convolutions.conv,
    "ConvTranspose": convolutions.conv_transpose,
    "DFT": convolutions.dft,
}
# operators whose result depends on the shapes of their inputs alone
_SHAPES = ("Shape", "Size")
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
# in older operator sets, operators of the same name compute something else
_OLDEST_OPSET = 7
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_TRUTHS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_REMEDY = "run the file in ONNX Runtime, or write the model without it"
# numbers that a folded constant, or a value, may have
MOST_NUMBERS = 1 << 24


@dataclass
class Lowered:
    """A graph as steps.

    Attributes:
        steps: The steps in their order.
        inputs: Name and shape of each input that is no state, in the order of a row of x.
        outputs: Name and shape of each output that is no state, in the order of a row of y.
        states: The values of the states.
        boxes: For each state of the file, the values that hold it, with their boxes.
    """

    steps: list[Step]
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    states: list[Value]
    boxes: dict[str, list[tuple[Box, Value]]] = field(default_factory=dict)


def lower(
    model: onnx.ModelProto,
    path: Path,
    states: Mapping[str, str],
    *,
    starts: Mapping[str, Array] | None = None,
    boxes: Mapping[str, Sequence[Box]] | None = None,
    most: int = MOST_NUMBERS,
    fixed: Collection[str] = (),
) -> Lowered:
    """List the steps of a graph.

    Args:
        model: The model. Variable axes have length 1.
        path: Path of its file, for error messages.
        states: For each input that is a state, the output with its next value.
        starts: Initial values of states, in their shape; zeros for others.
        boxes: How a state is divided into values, each with a first index, a size, and the order of its axes. Default:
            one value in the order of the axes.
        most: Numbers that a value may have.
        fixed: Inputs that the caller made constants; an error in a branch that they choose names them.

    Returns:
        The steps.

    Raises:
        UsageError: A node, an input or an output has no step. The message names it.
        EdgernnError: The graph is invalid.
    """
    try:
        # a constant may be infinite or NaN
        with np.errstate(all="ignore"):
            return _Lowering(model, path, states, most, fixed).run(starts or {}, boxes or {})
    except EdgernnError:
        raise
    except Exception as error:  # damaged files raise errors of any class
        raise EdgernnError(
            f"{path}: expected inputs, outputs and states whose shapes fit, got others ({error}); export the model "
            "again"
        ) from error


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of an input, with 1 for variable axes."""
    return tuple(max(int(dim.dim_value), 1) for dim in value.type.tensor_type.shape.dim)


class _Lowering:
    def __init__(
        self, model: onnx.ModelProto, path: Path, states: Mapping[str, str], most: int, fixed: Collection[str]
    ) -> None:
        self._model, self._path, self._next, self._limit, self._fixed = model, path, states, most, fixed
        self._builder = Builder()
        self._tensors: dict[str, Tensor | None] = {}
        # inputs of nodes that have still to read a value
        self._readers: Counter[Value] = Counter()
        self._uses: Counter[str] = Counter()
        self._initialisers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._weights = Weights(model, path)
        # names of integers that are inputs or that steps compute
        self._integers = {v.name for v in model.graph.input if v.type.tensor_type.elem_type in _INTEGERS}
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        # a damaged file may name none
        self._opset = opsets.get("", opsets.get("ai.onnx", _OLDEST_OPSET))
        if self._opset < _OLDEST_OPSET:
            raise UsageError(
                f"{path}: expected operator set {_OLDEST_OPSET} or newer, got {self._opset}; export the model again"
            )
        _check_names(model.graph, path)

    def run(self, starts: Mapping[str, Array], boxes: Mapping[str, Sequence[Box]]) -> Lowered:
        graph = self._model.graph
        result = Lowered(self._builder.steps, {}, {}, [])
        floats = [
            value.name
            for value in graph.output
            if value.name not in self._next.values() and value.type.tensor_type.elem_type == TensorProto.FLOAT
        ]
        nodes = nodes_for(graph.node, {*floats, *self._next.values()})
        self._uses.update([*floats, *self._next.values()])
        self._count(nodes)
        for value in graph.input:
            if value.name in self._initialisers:
                continue
            shape = shape_of(value)
            if math.prod(shape) > self._limit:
                raise EdgernnError(
                    f"{self._path}: input {value.name:.50}: expected at most {self._limit:,} numbers, in proportion to "
                    f"the file, got the shape {shape}; fix the shapes with --shape"
                )
            if value.type.tensor_type.elem_type != TensorProto.FLOAT:
                kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
                advice = f"make it a constant with --value {value.name}=NUMBER"
                if value.name in self._next:
                    advice = "keep the state in float32"
                raise UsageError(f"{self._path}: input {value.name}: expected float32, got {kind}; {advice}")
            if value.name in self._next:
                parts = self._state(value.name, shape, starts.get(value.name), boxes.get(value.name))
                result.boxes[value.name] = parts
                result.states += [part for _, part in parts]
                boxed = tuple((box[0], dense(part, box[1], box[2])) for box, part in parts)
                self._bind(value.name, Pieces(shape, boxed).simple())
            else:
                offset = sum(map(math.prod, result.inputs.values()))
                result.inputs[value.name] = shape
                self._bind(value.name, dense(Value(Kind.INPUT, math.prod(shape), offset=offset), shape))
        if not floats or not result.inputs:
            pairs = ", ".join(f"{name}={output}" for name, output in self._next.items())
            raise EdgernnError(
                f"{self._path}: expected an input and an output of float32 besides the states, got none"
                + (f" besides {pairs:.100}; name the states with --state, or" if pairs else ";")
                + " export the model with both"
            )
        for node in nodes:
            self._node(node)
        self._builder.node = "outputs"
        offset = 0
        for name in floats:
            tensor = self._read(name)
            shape = tuple(tensor.shape)
            result.outputs[name] = shape
            self._builder.store(tensor, dense(Value(Kind.OUTPUT, math.prod(shape), offset=offset), shape))
            offset += math.prod(shape)
        self._builder.node = "states"
        self._keep(result)
        return result

    def _count(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            self._uses.update(node.input)
            for body in bodies_of(node):
                self._count(body.node)
                self._uses.update(value.name for value in body.output)

    def _state(
        self, name: str, shape: tuple[int, ...], start: Array | None, boxes: Sequence[Box] | None
    ) -> list[tuple[Box, Value]]:
        whole = ((0,) * len(shape), shape, tuple(range(len(shape))))
        numbers = np.asarray(0.0 if start is None else start, np.float32)
        if not numbers.ndim:
            numbers = np.broadcast_to(numbers, shape)
        if numbers.size != math.prod(shape):
            raise UsageError(f"{self._path}: state {name}: expected {math.prod(shape)} numbers, got {numbers.size}")
        parts = []
        for box in boxes or [whole]:
            first, size, order = box
            part = numbers.reshape(shape)[tuple(slice(f, f + n) for f, n in zip(first, size, strict=True))]
            parts.append((box, Value(Kind.STATE, math.prod(size), part.transpose(order).ravel())))
        return parts

    def _bind(self, name: str, tensor: Tensor | None) -> None:
        if isinstance(tensor, View | Pieces) and (count := math.prod(tensor.shape)) > self._limit:
            raise EdgernnError(
                f"{self._path}: value {name:.50}: expected at most {self._limit:,} numbers, in proportion to the file, "
                f"got {count:,}; fix the shapes with --shape"
            )
        self._tensors[name] = tensor
        for value in _values(tensor):
            self._readers[value] += self._uses[name]

    def _read(self, name: str) -> Tensor:
        if name not in self._tensors and name in self._initialisers:
            self._bind(name, self._array(self._initialisers[name]))
        tensor = self._tensors.get(name)
        if tensor is None:
            raise EdgernnError(
                f"{self._path}: value {name:.50}: expected a node that computes it as a float, got none; leave the "
                "output out of the model, or export it again"
            )
        return tensor

    def _array(self, tensor: TensorProto) -> Array:
        try:
            array: Array = numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises errors of many types for a damaged tensor
            raise EdgernnError(
                f"{self._path}: tensor {tensor.name:.50}: expected numbers, got a damaged one ({error}); export the "
                "model again"
            ) from None
        return array

    def _node(self, proto: onnx.NodeProto) -> None:
        self._builder.node = f"{proto.op_type} {proto.name or next(iter(proto.output), '')}"
        title = f"{self._path}: {self._builder.node}"
        if proto.domain == DOMAIN:
            self._finish(proto, self._own(proto, title))
            return
        if proto.domain not in ("", "ai.onnx"):
            raise UsageError(f"{title}: expected an operator of ONNX, got one of {proto.domain}; {_REMEDY}")
        if proto.op_type == "If":
            self._branch(proto, title)
            return
        if proto.op_type == "Scan":
            self._scan(proto, title)
            return
        if proto.op_type in _SHAPES:
            tensor = self._read(proto.input[0])
            self._readers.subtract(_values(tensor))
            shape = np.array(tensor.shape, np.int64)
            first, last = (next((a.i for a in proto.attribute if a.name == n), None) for n in ("start", "end"))
            self._finish(proto, [shape[first:last] if proto.op_type == "Shape" else np.array(shape.prod())])
            return
        if proto.op_type in _RANDOM:
            raise UsageError(f"{title}: expected an operator without chance, got {proto.op_type}; {_REMEDY}")
        inputs = [self._read(name) if name else None for name in proto.input]
        # a body also reads values that are no inputs of its node
        if all(tensor is None or isinstance(tensor, np.ndarray) for tensor in inputs) and not (
            proto.op_type in recurrent.OPERATORS or bodies_of(proto)
        ):
            self._finish(proto, self._constant(proto, inputs, title))
            return
        if proto.op_type not in _OPERATORS:
            raise UsageError(f"{title}: expected an operator that a packed model has, got {proto.op_type}; {_REMEDY}")
        try:
            node = self._read_node(proto, inputs, title)
            result = _OPERATORS[proto.op_type](self._builder, node)
            results = result if isinstance(result, list) else [result]
            if node.is_integer:
                self._integers.update(proto.output)
                if proto.op_type in ("Pow", "ReduceMean"):
                    results = [self._builder.compute(whole(r), shape=tuple(r.shape))[0] for r in results]
        except EdgernnError:
            raise
        except Exception as error:  # damaged files raise errors of any class
            text = f"{type(error).__name__} {error}".strip()
            raise EdgernnError(
                f"{title}: expected inputs and attributes that fit, got others ({text}); export the model again"
            ) from error
        self._finish(proto, results)

    def _is_integer(self, proto: onnx.NodeProto, inputs: Sequence[Tensor | None]) -> bool:
        """Return True if a node gives integers, which steps compute as numbers without a fraction."""
        if proto.op_type == "Cast":
            target = next((a.i for a in proto.attribute if a.name == "to"), None)
            return target in _INTEGERS
        # an operator gives the type of its first input, but for the choice of a condition
        data = 1 if proto.op_type == "Where" else 0
        return proto.op_type not in _TRUTHS and self._has_integers(proto.input[data], inputs[data])

    def _has_integers(self, name: str, tensor: Tensor | None) -> bool:
        return name in self._integers or (isinstance(tensor, np.ndarray) and tensor.dtype.kind in "iu")

    def _read_node(self, proto: onnx.NodeProto, inputs: Sequence[Tensor | None], title: str) -> Node:
        """Return a node with its inputs, which count as read."""
        for tensor in inputs:
            self._readers.subtract(_values(tensor))
        alone = [all(not self._readers[value] for value in _values(tensor)) for tensor in inputs]
        return Node(proto, list(inputs), title, alone, self._opset, self._is_integer(proto, inputs))

    def _finish(self, proto: onnx.NodeProto, outputs: Sequence[Tensor | None]) -> None:
        for name, tensor in zip(proto.output, outputs, strict=False):
            if name:
                self._bind(name, tensor)

    def _constant(self, proto: onnx.NodeProto, inputs: Sequence[Any], title: str) -> list[Array]:
        """Compute a node whose inputs are constant."""
        names = [f"i{k}" if tensor is not None else "" for k, tensor in enumerate(inputs)]
        outputs = [f"o{k}" if name else "" for k, name in enumerate(proto.output)]
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        del node.input[:], node.output[:]
        node.input.extend(names)
        node.output.extend(outputs)
        arrays = {name: tensor for name, tensor in zip(names, inputs, strict=True) if name}
        declared = [onnx.ValueInfoProto(name=name) for name in arrays]
        results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
        graph = helper.make_graph([node], "constant", declared, results)
        try:
            if proto.op_type in ("ConstantOfShape", "Expand", "Tile"):
                count = arrays["i0"] if proto.op_type == "ConstantOfShape" else arrays["i1"]
                if math.prod(map(int, np.ravel(count))) > MOST_NUMBERS:
                    raise ValueError(f"a constant of more than {MOST_NUMBERS} numbers")
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
            computed = ReferenceEvaluator(model).run(None, arrays)
        except Exception as error:  # the classes of its errors have no common base
            text = str(error).partition("\n")[0]
            raise UsageError(
                f"{title}: expected constant inputs that fit, got an error: {text:.200}; {_REMEDY}"
            ) from None
        results = iter(computed)
        return [np.asarray(next(results)) if name else np.zeros(0) for name in outputs]

    def _branch(self, proto: onnx.NodeProto, title: str) -> None:
        """Add the nodes of the branch of If that its constant condition chooses, or of both in branches of the plan."""
        condition = self._read(proto.input[0])
        bodies = {a.name: a.g for a in proto.attribute}
        if not isinstance(condition, np.ndarray):
            self._choose(proto, condition, [bodies["then_branch"], bodies["else_branch"]], title)
            return
        body = bodies["then_branch" if condition.any() else "else_branch"]
        try:
            results = self._body(proto, body)
        except EdgernnError as error:
            comparison = self._comparison(proto.input[0])
            if comparison is None:
                raise
            reason = f"{comparison} is {str(bool(condition.any())).lower()}"
            raise type(error)(f"{error}; the model runs this node as {reason}: try another --value") from error
        for name, result in zip(proto.output, results, strict=True):
            self._bind(name, result)

    def _body(
        self,
        proto: onnx.NodeProto,
        body: onnx.GraphProto,
        inputs: Sequence[Tensor] = (),
        are_integers: Sequence[bool] = (),
    ) -> list[Tensor]:
        """Add the nodes of a body of a node, and return its outputs; the names of the body end with it."""
        tensors, integers = dict(self._tensors), set(self._integers)
        for value, part, is_integer in zip(body.input, inputs, are_integers, strict=True):
            self._bind(value.name, part)
            (self._integers.add if is_integer else self._integers.discard)(value.name)
        for tensor in body.initializer:
            self._bind(tensor.name, self._array(tensor))
        for node in body.node:
            self._node(node)
        results = [self._read(value.name) for value in body.output]
        for output, value, result in zip(proto.output, body.output, results, strict=True):
            if self._has_integers(value.name, result):
                integers.add(output)
        self._tensors, self._integers = tensors, integers
        return results

    def _choose(
        self, proto: onnx.NodeProto, condition: View | Pieces, bodies: Sequence[onnx.GraphProto], title: str
    ) -> None:
        """Add the nodes of both bodies of If, of which one runs in each step, and copy its outputs to one place."""
        if math.prod(condition.shape) != 1:
            raise UsageError(
                f"{title}: expected a condition of one number, got {condition.shape}; reduce it to one, "
                "such as by ReduceMax"
            )
        name, view = self._builder.node, self._builder.view(condition)
        place = Operand(view.value, view.offset, [])
        self._readers.subtract(_values(condition))
        targets: list[View] = []
        for body, wanted in zip(bodies, (True, False), strict=True):
            with self._builder.branch(place, wanted=wanted):
                results = self._body(proto, body)
                self._builder.node = name
                shapes = [tuple(result.shape) for result in results]
                if wanted:
                    targets = [self._builder.copy(result, range(len(result.shape))) for result in results]
                elif shapes != [target.shape for target in targets]:
                    raise UsageError(
                        f"{title}: expected branches of equal shapes, got {[t.shape for t in targets]} and {shapes}; "
                        "fix the inputs on which its condition depends, with --value NAME=NUMBER"
                    )
                else:
                    for result, target in zip(results, targets, strict=True):
                        self._builder.store(result, target)
        self._finish(proto, targets)

    def _comparison(self, name: str) -> str | None:
        node = next((node for node in self._model.graph.node if name in node.output), None)
        if node is None or not {*node.input} & {*self._fixed}:
            return None
        known = ((value, self._tensors.get(value)) for value in node.input)
        numbers = (
            f"{v:.50} = {t.item():g}"
            for v, t in known
            if isinstance(t, np.ndarray) and t.size == 1 and t.dtype.kind in "biuf"
        )
        return f"{node.op_type}({', '.join(numbers)})"

    def _scan(self, proto: onnx.NodeProto, title: str) -> None:
        """Add the nodes of the body of Scan, once for each element of the inputs that it goes over."""
        attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
        if any(np.any(value) for name, value in attributes.items() if name.startswith("scan_")):
            raise UsageError(f"{title}: expected Scan forwards along axis 0, got another one; {_REMEDY}")
        body, tensors = attributes["body"], [self._read(name) for name in proto.input]
        count = len(tensors) - attributes["num_scan_inputs"]
        states, sequences = tensors[:count], tensors[count:]
        turns = sequences[0].shape[0]
        # values from outside the body are read at each turn
        for name in set[str]().union(*map(values_read, body.node)) & {*self._tensors}:
            self._readers.update(dict.fromkeys(_values(self._tensors[name]), turns))
        are_integers = list(map(self._has_integers, proto.input, tensors))
        collected: list[list[Tensor]] = []
        for turn in range(turns):
            parts = [reshaped(self._builder, sliced(self._builder, x, 0, turn, 1), x.shape[1:]) for x in sequences]
            results = self._body(proto, body, [*states, *parts], are_integers)
            states = results[:count]
            collected.append(results[count:])
        outputs = [
            joined(self._builder, [reshaped(self._builder, part, [1, *part.shape]) for part in parts], 0)
            for parts in zip(*collected, strict=True)
        ]
        self._finish(proto, [*states, *outputs])

    def _own(self, proto: onnx.NodeProto, title: str) -> list[Tensor | None]:
        states = len(proto.output) - 3
        names = proto.input[1 : len(proto.input) - states]
        weights: list[Weight] = [self._weights[name] for name in names if name]
        inputs: list[Tensor | None] = [None] * len(proto.input)
        for k in (0, *range(len(proto.input) - states, len(proto.input))):
            inputs[k] = self._read(proto.input[k])
        node = self._read_node(proto, inputs, title)
        return recurrent.own_layer(self._builder, node, weights, self._path)

    def _keep(self, result: Lowered) -> None:
        """Copy the next value of each state to its place; values of states are read before any is written."""
        pairs = list[tuple[View, View]]()
        for name, output in self._next.items():
            tensor = self._read(output)
            for (first, size, order), value in result.boxes[name]:
                part: Tensor = tensor
                if tuple(tensor.shape) != self._shape(name):
                    raise UsageError(
                        f"{self._path}: state {name}: expected its next value {output} in the shape "
                        f"{self._shape(name)}, got {tuple(tensor.shape)}; name the right output with: edgernn stream "
                        "--state"
                    )
                for axis, (start, count) in enumerate(zip(first, size, strict=True)):
                    part = sliced(self._builder, part, axis, start, count)
                place = dense(value, size, order)
                for begin, view in boxes_of(self._builder, part).boxes:
                    target = place.box(begin, view.shape)
                    if view != target:
                        pairs.append((view, target))
        pairs = [(self._builder.copy(v) if v.value.kind == Kind.STATE else v, target) for v, target in pairs]
        for view, target in pairs:
            self._builder.store(view, target)

    def _shape(self, name: str) -> tuple[int, ...]:
        return next(shape_of(value) for value in self._model.graph.input if value.name == name)


def _check_names(graph: onnx.GraphProto, path: Path) -> None:
    """Raise EdgernnError if two values, or two outputs, of a graph have one name."""
    constants = {tensor.name for tensor in graph.initializer}
    values = [*constants, *(value.name for value in graph.input if value.name not in constants)]
    values += [name for node in graph.node for name in node.output if name]
    for kind, names in (("values", Counter(values)), ("outputs", Counter(value.name for value in graph.output))):
        name, count = next(iter(names.most_common(1)), ("", 0))
        if count > 1:
            raise EdgernnError(f"{path}: expected {kind} of different names, got {name:.50} twice; export it again")


def _values(tensor: Tensor | None) -> list[Value]:
    """Return the values in which a tensor lies."""
    if isinstance(tensor, View):
        return [tensor.value]
    return [view.value for _, view in tensor.boxes] if isinstance(tensor, Pieces) else []
