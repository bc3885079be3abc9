# SPDX-License-Identifier: Apache-2.0
"""ONNX files whose recurrent layers can get the update rule delta: those of other tools, and those of edgernn."""

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from edgernn.cells import Cell
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.delta_graph import watching, with_delta
from edgernn.export.exported_layers import find_exported_layers, is_exported, with_delta_rule
from edgernn.export.linear_nodes import LinearNode, find_linear_nodes
from edgernn.export.recurrent_nodes import RecurrentNode, find_recurrent_nodes, reads_domain
from edgernn.export.streaming.open_states import find_layers, recurrent_in
from edgernn.export.streaming.stream_file import prepared
from edgernn.layer import RecurrentLayer
from edgernn.rules import Always
from edgernn.runtime.graph_queries import bodies_of
from edgernn.runtime.graph_states import State, inputs_of, pair_states
from edgernn.runtime.info import read_model
from edgernn.runtime.input_check import InputCheck, warn_of_rounding
from edgernn.runtime.weights import parse
from edgernn.tolerance import WHOLE_NUMBERS
from edgernn.training.calibration.threshold_search import mean_changes

Array = NDArray[Any]
# name of the labels in the npz file
LABELS = "y"
# largest error of the converted model with thresholds of 0, relative to the largest output of the file
_TOLERANCE = 1e-4


class CalibratedLayer(Protocol):
    """A recurrent layer of an ONNX graph.

    Attributes:
        name: Name of the layer. States that the rule adds are called NAME.STATE.
        index: Index of its node in the graph's list of nodes.
    """

    name: str
    index: int

    @property
    def cell(self) -> Cell:
        """Cell with the equations and sizes of the layer."""

    @property
    def macs(self) -> int:
        """Multiply-adds of one step with nothing skipped."""


class CalibratedGraph(abc.ABC):
    """ONNX file whose recurrent layers can get the update rule delta.

    Attributes:
        proto: The model, dense: all layers compute every product at every step.
        nodes: The recurrent layers, in the order of the graph.
        left: For each other recurrent operator, why it cannot get the rule.
        restarted: Names of the layers whose states of the rule start at 0 in each call, although their initial state
            depends on inputs of the graph.
        outputs: Names of the outputs that are compared with those of the dense model. The first one has the labels.
        states: States of the graph that the data leave out. They are zeros at first, and each call passes them on.
        fixed: Names of the inputs that became constants, as the condition of an If depends on them.
        is_stack: True if the layers are those of a stack. The mean changes of the first one are then the units of the
            thresholds of all of them. Otherwise, each layer has units of its own.
        tolerance: Largest error of the outputs with thresholds of 0, relative to the largest one.
    """

    proto: onnx.ModelProto
    nodes: Sequence[CalibratedLayer]
    left: Sequence[str] = ()
    restarted: Sequence[str] = ()
    outputs: list[str]
    states: Sequence[State] = ()
    fixed: Sequence[str] = ()
    is_stack: bool = False
    tolerance: float = _TOLERANCE

    def watching(self) -> tuple[onnx.ModelProto, list[tuple[str, str]]]:
        """Return the dense model with the values X and Y of each layer as outputs, and their names."""
        return watching(self.proto, self.nodes)

    @abc.abstractmethod
    def with_delta(self, thresholds: Sequence[tuple[float, float]], counts: bool) -> onnx.ModelProto:
        """Return the model with the rule delta.

        Args:
            thresholds: Θ_x and Θ_h of each layer.
            counts: Add an output NAME.macs (B,) for each layer: the multiply-adds that it executed.

        Returns:
            The new model.
        """

    @abc.abstractmethod
    def final(self, thresholds: Sequence[tuple[float, float]], result: dict[str, Any]) -> onnx.ModelProto:
        """Return the model to write; `result` describes the calibration: metric, dense, value and executed."""

    @abc.abstractmethod
    def read(self, arrays: dict[str, Array], data: Path) -> tuple[dict[str, Array], Array | None]:
        """Check the arrays of an npz file, and arrange them as the graph reads them.

        Args:
            arrays: The arrays.
            data: Path of the npz file, for error messages.

        Returns:
            The inputs of the graph by name, and the labels, or None without labels.

        Raises:
            EdgernnError: An array is missing or unknown, or has a wrong shape or value.
        """

    def arranged(self, y: Array) -> Array:
        """Return an output of the graph with the axes of the labels."""
        return y

    def steps(self, layer: CalibratedLayer, values: Array, calls: int) -> Array:
        """Return values of X or Y of a layer with the steps along the first axis and the sequences along the second.

        Args:
            layer: The layer.
            values: The values, those of several calls joined along the first axis.
            calls: Number of calls.

        Returns:
            The values (T, B, width), or for Y perhaps with an axis of directions.
        """
        return values

    def units(self, layer: CalibratedLayer, x: Array, y: Array) -> tuple[float, float]:
        """Return the units of a layer's thresholds: the mean changes of X and Y per step, both as `steps` returns."""
        return mean_changes(x, y)

    def layer_values(self) -> list[str]:
        """Return the names of the values of the graph that `wrong_layers` compares."""
        return []

    def wrong_layers(self, original: dict[str, Array], changed: dict[str, Array]) -> list[str]:
        """Compare layers with float64, each on its own inputs.

        Args:
            original: The `layer_values` of the dense model.
            changed: The same values of the model with the rule delta and thresholds of 0.

        Returns:
            Names of the layers whose values of one model alone differ from float64 by more than rounding.
        """
        return []


def open_graph(path: Path, read: Callable[[], Mapping[str, Array]] = dict, *, linear: bool = False) -> CalibratedGraph:
    """Open an ONNX file whose recurrent layers can get the rule delta.

    Args:
        path: The file.
        read: Function that returns the arrays of the npz file. They decide an If whose condition depends on their
            lengths, or on one that is a single number.
        linear: Give linear maps and 1×1 convolutions of a file of another tool the rule, too.

    Returns:
        Its graph and layers.

    Raises:
        UsageError: No layer can get the rule, or `linear` is True for a file that edgernn exported.
        EdgernnError: The file cannot be read.
    """
    content = read_model(path)
    proto = parse(content, path, external="read")
    if not proto.graph.node:
        raise EdgernnError(f"{path}: expected an ONNX file, got one without nodes; export the model again")
    if not is_exported(proto):
        return OperatorGraph(proto, path, read, linear=linear)
    if linear:
        raise UsageError(
            f"{path}: --linear: expected a file of another tool, got a model that edgernn exported, whose linear maps "
            "are a small part; leave it out"
        )
    return ExportedGraph(proto, len(content), path)


class OperatorGraph(CalibratedGraph):
    """ONNX file of another tool, with the operators GRU or LSTM.

    Args:
        proto: The model.
        path: Path of the file, for error messages.
        read: Function that returns the arrays of the npz file.
        linear: Give linear maps and 1×1 convolutions the rule, too.
    """

    def __init__(
        self, proto: onnx.ModelProto, path: Path, read: Callable[[], Mapping[str, Array]], *, linear: bool = False
    ) -> None:
        arrays: Mapping[str, Array] = {}
        # others are refused by find_recurrent_nodes
        if not reads_domain(proto):
            arrays = read()
            proto, self.fixed = _prepared(proto, path, arrays)
        self._operators = find_recurrent_nodes(proto, str(path))
        self.proto, self.left = self._operators.proto, self._operators.left
        self._maps, left = find_linear_nodes(self.proto, self._operators.times, path) if linear else ([], [])
        self.left = [*self.left, *left]
        self.nodes: list[RecurrentNode | LinearNode] = [*self._operators.nodes, *self._maps]
        self.restarted = self._operators.restarted
        self.outputs = [value.name for value in self.proto.graph.output]
        # states that the data leave out
        self.states = pair_states(self.proto.graph, frozenset(arrays))
        if self.states:
            nexts = {state.output for state in self.states}
            self.outputs = [name for name in self.outputs if name not in nexts]

    def with_delta(self, thresholds: Sequence[tuple[float, float]], counts: bool) -> onnx.ModelProto:
        return with_delta(self._operators, thresholds, counts, self._maps)

    def steps(self, layer: CalibratedLayer, values: Array, calls: int) -> Array:
        return layer.arranged(values, calls) if isinstance(layer, LinearNode) else values

    def units(self, layer: CalibratedLayer, x: Array, y: Array) -> tuple[float, float]:
        # no product of a linear map reads h
        return (mean_changes(x, y)[0], 0.0) if isinstance(layer, LinearNode) else mean_changes(x, y)

    def final(self, thresholds: Sequence[tuple[float, float]], result: dict[str, Any]) -> onnx.ModelProto:
        return self.with_delta(thresholds, False)

    def layer_values(self) -> list[str]:
        names = [name for layer in self._operators.nodes for name in (*_starts(layer), *layer.node.output)]
        return [name for name in (*names, *(layer.input("X") for layer in self._operators.nodes)) if name]

    def wrong_layers(self, original: dict[str, Array], changed: dict[str, Array]) -> list[str]:
        wrong = []
        for layer in self._operators.nodes:
            errors = [_error_in_float64(layer, values) for values in (original, changed)]
            # chaotic weights amplify both errors; wrong weights have only the first one, wrong kernels the second
            if not max(errors) <= max(self.tolerance, 8 * min(errors)):
                wrong.append(layer.name)
        return wrong

    def read(self, arrays: dict[str, Array], data: Path) -> tuple[dict[str, Array], Array | None]:
        graph = self.proto.graph
        labels = None if any(value.name == LABELS for value in graph.input) else arrays.pop(LABELS, None)
        constant = {tensor.name for tensor in graph.initializer}
        inputs = {value.name: value for value in graph.input if value.name not in constant}
        if len(inputs) == 1 and set(arrays) == {"x"}:
            arrays = {next(iter(inputs)): arrays["x"]}
        kept = {state.input for state in self.states}
        missing, further = inputs.keys() - arrays.keys() - kept, arrays.keys() - inputs.keys() - set(self.fixed)
        if missing or further:
            raise EdgernnError(
                f"{data}: expected the arrays {', '.join(inputs)}, which are the inputs of the graph, and perhaps "
                f"labels {LABELS}, got {', '.join(arrays) or 'none'}; store them with numpy.savez"
            )
        return {name: _converted(arrays[name], inputs[name], data) for name in inputs if name in arrays}, labels


def _prepared(proto: onnx.ModelProto, path: Path, arrays: Mapping[str, Array]) -> tuple[onnx.ModelProto, Sequence[str]]:
    """Return a copy of a model with its recurrent operators in the main graph, and the inputs fixed for it."""
    inputs = inputs_of(proto.graph)
    ranks = {name: len(value.type.tensor_type.shape.dim) for name, value in inputs.items()}
    data = {name: array for name, array in arrays.items() if name in inputs}
    values = {name: array for name, array in data.items() if array.size == 1 and ranks[name] < 2}
    shapes = {
        name: array.shape[array.ndim - ranks[name] :]
        for name, array in data.items()
        if name not in values and array.ndim >= ranks[name] > 0
    }
    tries: list[tuple[dict[str, Array], dict[str, Any]]] = [({}, {}), (values, {}), (values, shapes)]
    for constants, lengths in tries:
        result, _, _ = prepared(proto, path, constants, lengths)
        choices = [body for node in result.graph.node if node.op_type == "If" for body in bodies_of(node)]
        if not choices or (recurrent_in(result.graph) and not any(map(find_layers, choices))):
            break
    return result, list(constants)


def _starts(layer: RecurrentNode) -> list[str]:
    return [layer.input(f"initial_{state}") for state in layer.cell.states]


def _error_in_float64(layer: RecurrentNode, values: dict[str, Array]) -> float:
    """Return the largest error of a layer's outputs in `values`, relative to the largest output if that is above 1."""
    cell = copy.deepcopy(layer.cell)
    exact = RecurrentLayer(cell, Always(cell.input_size, cell.hidden_size)).double().eval()
    x = torch.from_numpy(values[layer.input("X")]).double()
    zero = torch.zeros(x.shape[1], cell.hidden_size, dtype=torch.float64)
    state = tuple(torch.from_numpy(values[name][0]).double() if name else zero for name in _starts(layer))
    with torch.no_grad():
        y, last, _ = exact(x, state)
    expected = [y.unsqueeze(1), *(value.unsqueeze(0) for value in last)]
    pairs = [(values[name], e.numpy()) for name, e in zip(layer.node.output, expected, strict=False) if name]
    return max(float(np.abs(got - e).max() / max(1.0, np.abs(e).max())) for got, e in pairs)


def _converted(array: Array, value: onnx.ValueInfoProto, data: Path) -> Array:
    """Return an array in the type of an input of a graph; raise EdgernnError if it is empty or a number changes."""
    if 0 in array.shape:
        raise EdgernnError(
            f"{data}: {value.name}: expected at least one step and one sequence, got shape {array.shape}; store more"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "O":
        return array.astype(dtype)
    # bfloat16 is no kind of NumPy's own
    is_float = dtype.kind in "fV"
    with np.errstate(all="ignore"):
        converted = array.astype(dtype) if array.dtype.kind in ("fiubV" if is_float else "iub") else None
    if converted is None or not (np.isfinite(converted) if is_float else converted == array).all():
        numbers = "finite numbers" if is_float else "whole numbers"
        raise EdgernnError(
            f"{data}: {value.name}: expected {numbers} of the type {dtype}, got {array.dtype} with values that it does "
            "not hold; correct the array"
        )
    if is_float and array.ndim:
        warn_of_rounding(f"{data}: {value.name}", array)
    return converted


class ExportedGraph(CalibratedGraph):
    """ONNX file that edgernn exported. Its npz file has x (N, T, I), as `edgernn run` reads it, and perhaps labels.

    Args:
        proto: The model.
        size: Size of the file in bytes.
        path: Path of the file, for error messages.
    """

    def __init__(self, proto: onnx.ModelProto, size: int, path: Path) -> None:
        self._exported = find_exported_layers(proto, size, path)
        self._check = InputCheck(self._exported.info, path)
        self.proto, self.nodes = self._exported.proto, self._exported.nodes
        # the next states are outputs, too
        self.outputs, self.is_stack = ["y"], True
        if self._exported.weights == "int8":
            self.tolerance = WHOLE_NUMBERS
        self._at_every_step = self._exported.info["model"]["head"]["output"] == "all"

    def with_delta(self, thresholds: Sequence[tuple[float, float]], counts: bool) -> onnx.ModelProto:
        return with_delta_rule(self._exported, thresholds, counts)

    def final(self, thresholds: Sequence[tuple[float, float]], result: dict[str, Any]) -> onnx.ModelProto:
        return with_delta_rule(self._exported, thresholds, False, result)

    def read(self, arrays: dict[str, Array], data: Path) -> tuple[dict[str, Array], Array | None]:
        labels = arrays.pop(LABELS, None)
        if set(arrays) != {"x"}:
            raise EdgernnError(
                f"{data}: expected the array x, and perhaps labels {LABELS}, got {', '.join(arrays) or 'none'}; store "
                "them with numpy.savez"
            )
        x, axes = arrays["x"], 2 + len(self._check.channels)
        if x.ndim != axes:
            raise EdgernnError(
                f"{data}: x: expected shape {self._check.shape('N', 'T')}, as `edgernn run` reads it, got {x.shape}; "
                "reshape x"
            )
        if self._check.channels:
            warn_of_rounding(f"{data}: x", x, self._exported.info.get("channels"))
        try:
            self._check.shaped(x, ("N", "T"))
            x = self._check.checked(x.swapaxes(0, 1), ("T", "N"))
        except UsageError as error:
            raise EdgernnError(f"{data}: {error}") from None
        if x.dtype.kind == "f":
            # a missing value, which a model with an imputer does not read
            x = np.nan_to_num(x, nan=0.0)
        batch = x.shape[1]
        starts = self._exported.starts.items()
        return {"x": x, **{name: np.tile(np.array(start, np.float32), (batch, 1)) for name, start in starts}}, labels

    def arranged(self, y: Array) -> Array:
        return y.swapaxes(0, 1) if self._at_every_step else y
