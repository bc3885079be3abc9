# SPDX-License-Identifier: Apache-2.0
"""Audio front ends as nodes of an ONNX graph, with operators that every runtime has (DFT is not one of them)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgernn.frontends import LogMel
from edgernn.log_mel import smoothing
from edgernn.runtime.frontend_constants import frontend_constants

Array = NDArray[Any]


class GraphBuilder(Protocol):
    """Type of an ONNX graph under construction, to which nodes and initialisers are added."""

    nodes: list[onnx.NodeProto]

    def weight(self, name: str, value: Any) -> str: ...

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str: ...


def add_frontend(graph: GraphBuilder, frontend: LogMel, x: str) -> str:
    """Add the nodes of an audio front end to an ONNX graph.

    Args:
        graph: The graph.
        frontend: The front end.
        x: Name of the samples (T, B, stack * hop) in the graph.

    Returns:
        Name of the features (T, B, stack * bands) in the graph. The next value of each state gets the name of the state
        and ".next", such as frontend.samples.next.
    """
    add = _Namespace(graph, frontend_constants(asdict(frontend.config)))
    features = _features(add, frontend, x)
    if frontend.config.stack == 1:
        return features
    # the frames of a step are neighbours only if the streams come first
    frames = add.node("Transpose", [features], "features.by_stream", perm=[1, 0, 2])
    stacked = add.node("Reshape", [frames, add.constant("stacked")], "stacked.by_stream")
    return add.node("Transpose", [stacked], "stacked.features", perm=[1, 0, 2])


class _Namespace:
    """Adds nodes, weights and constants to an ONNX graph, with "frontend." before their names."""

    def __init__(self, graph: GraphBuilder, constants: Mapping[str, Array]) -> None:
        self._graph, self._constants = graph, constants

    def weight(self, name: str, value: Array) -> str:
        return self._graph.weight(f"frontend.{name}", value)

    def constant(self, name: str) -> str:
        return self.weight(name, self._constants[name])

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        return self._graph.node(op, inputs, f"frontend.{output}", **attributes)

    def scan(self, inputs: list[str], outputs: list[str], body: onnx.GraphProto) -> None:
        self._graph.nodes.append(helper.make_node("Scan", inputs, outputs, outputs[-1], num_scan_inputs=1, body=body))


def _features(add: _Namespace, frontend: LogMel, x: str) -> str:
    """Add nodes that compute one frame of features for each hop, and return their name: (T * stack, B, bands)."""
    energy = _energies(add, frontend, _frames(add, frontend, x))
    floor = add.constant("energy_floor")
    if frontend.config.normalise == "pcen":
        return _pcen(add, frontend, energy, floor)
    ratio = add.node("Div", [energy, floor], "ratio")
    features = add.node("Log", [add.node("Add", [ratio, add.constant("one")], "above_one")], "log")
    if frontend.memory is None:
        return features
    return add.node("Sub", [features, _followed(add, frontend, features)], "features")


def _frames(add: _Namespace, frontend: LogMel, x: str) -> str:
    """Add nodes that cut the samples x (T, B, stack * hop) into windows, which overlap if hop < window_size.

    The last samples, which the next window reads again, are kept as a state. Returns the name of the windows
    (B, T * stack, window_size) in the graph.
    """
    signal = add.node("Transpose", [x], "x.by_stream", perm=[1, 0, 2])
    signal = add.node("Reshape", [signal, add.constant("flat")], "new_samples")
    if "samples" in frontend.widths:
        signal = add.node("Concat", ["frontend.samples", signal], "signal", axis=1)
        bounds = [add.constant(f"last.{name}") for name in ("from", "to", "axis")]
        add.node("Slice", [signal, *bounds], "samples.next")
    steps = add.node("Shape", [x], "T", start=0, end=1)
    count = add.node("Squeeze", [steps], "T.number")
    if frontend.config.stack > 1:
        count = add.node("Mul", [count, add.constant("stack")], "frames.number")
    step, zero = add.constant("step"), add.constant("zero")
    starts = add.node("Range", [zero, count, step], "steps")
    starts = add.node("Mul", [starts, add.constant("hop")], "starts")
    starts = add.node("Unsqueeze", [starts, add.constant("last_axis")], "starts.column")
    index = add.node("Add", [starts, add.constant("offsets")], "index")
    return add.node("Gather", [signal, index], "frames", axis=1)


def _energies(add: _Namespace, frontend: LogMel, frames: str) -> str:
    """Add nodes that compute mel energies (T, B, bands) from frames of samples (B, T, window_size)."""
    frames = add.node("Mul", [frames, add.constant("window")], "windowed")
    if frontend.size > frontend.config.window_size:
        frames = add.node("Pad", [frames, add.constant("pad")], "padded")
    grid = add.node("Reshape", [frames, add.constant("grid")], "samples.grid")
    # the real parts of all k1 and then the imaginary ones, each times the twiddle factor
    products = []
    for name in ("cos", "sin"):
        product = add.node("MatMul", [add.constant(f"dft.{name}"), grid], f"columns.{name}")
        products.append(add.node("Mul", [product, add.constant(f"twiddle.{name}")], f"turned.{name}"))
    rows = add.node("Add", products, "columns")
    rows = add.node("Reshape", [rows, add.constant("complex")], "columns.complex")
    rows = add.node("Transpose", [rows], "rows.complex", perm=[0, 1, 3, 2, 4])
    rows = add.node("Reshape", [rows, add.constant("rows.shape")], "rows")
    spectrum = add.node("MatMul", [rows, add.constant("dft.rows")], "spectrum")
    squares = add.node("Mul", [spectrum, spectrum], "squares")
    squares = add.node("Reshape", [squares, add.constant("squares.shape")], "squares.complex")
    power = add.node("ReduceSum", [squares, add.constant("squares.axis")], "power", keepdims=0)
    power = add.node("Reshape", [power, add.constant("power.shape")], "power.flat")
    energy = add.node("MatMul", [power, add.constant("filters")], "energy.by_stream")
    return add.node("Transpose", [energy], "energy", perm=[1, 0, 2])


# names of the inputs and outputs of the body of the Scan
_SCANNED = ("last", "value", "next", "step")


def _followed(add: _Namespace, frontend: LogMel, values: str) -> str:
    """Add a Scan node that follows `values` (T, B, bands) over time, by the equations of `LogMel`."""
    memory, bands = frontend.memory, frontend.config.bands
    body = [
        *(_constant(n, v) for n, v in zip(("fall", "rise", "silent"), smoothing(frontend.config), strict=True)),
        _constant("one", 1.0),
        helper.make_node("Min", ["last", "silent"], ["quiet"]),
        helper.make_node("Div", ["quiet", "silent"], ["progress"]),
        helper.make_node("Mul", ["progress", "progress"], ["progress.squared"]),
        helper.make_node("Sub", ["one", "progress.squared"], ["start"]),
        helper.make_node("Less", ["value", "last"], ["falls"]),
        helper.make_node("Where", ["falls", "fall", "rise"], ["usual"]),
        helper.make_node("Max", ["start", "usual"], ["rate"]),
        helper.make_node("Sub", ["value", "last"], ["distance"]),
        helper.make_node("Mul", ["rate", "distance"], ["change"]),
        helper.make_node("Add", ["last", "change"], ["moved"]),
        helper.make_node("Max", ["quiet", "moved"], ["next"]),
        helper.make_node("Identity", ["next"], ["step"]),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (None, bands)) for name in _SCANNED]
    graph = helper.make_graph(body, "follow", infos[:2], infos[2:])
    state = f"frontend.{memory}"
    add.scan([state, values], [f"{state}.next", f"{state}.steps"], graph)
    return f"{state}.steps"


def _constant(name: str, value: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_float=value)


def _pcen(add: _Namespace, frontend: LogMel, energy: str, floor: str) -> str:
    """Add nodes of per-channel energy normalisation (PCEN): (E / (S + ε)^α + δ)^r - δ^r.

    E are the mel energies, and S is E smoothed over time. α, δ and r (bands,) are parameters of the front end. `energy`
    and `floor` are the names of E (T, B, bands) and ε in the graph. Returns the name of the features (T, B, bands).
    """
    smooth = _followed(add, frontend, energy)
    names = ("alpha", "delta", "r")
    values = [getattr(frontend, f"log_{name}").detach().exp().float().cpu().numpy() for name in names]
    alpha, delta, r = (add.weight(name, value) for name, value in zip(names, values, strict=True))
    gain = add.node("Pow", [add.node("Add", [smooth, floor], "smooth.positive"), alpha], "gain")
    shifted = add.node("Add", [add.node("Div", [energy, gain], "controlled"), delta], "shifted")
    rooted = add.node("Pow", [shifted, r], "rooted")
    return add.node("Sub", [rooted, add.node("Pow", [delta, r], "offset")], "features")
