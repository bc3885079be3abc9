# SPDX-License-Identifier: Apache-2.0
"""Audio front ends as nodes of an ONNX graph, with operators that every runtime has (DFT is not one of them).

An FFT of size N = N1 N2 is two matrix products. With the sample index n = N2 n1 + n2 and the frequency k = k1 + N1 k2,
the spectrum X of the samples s is

    X_k = Σ_n2 exp(-2πi n2 k2 / N2) · exp(-2πi n2 k1 / N) · Σ_n1 s_n exp(-2πi n1 k1 / N1)

The samples are real, so only frequencies k with k1 from 0 to N1/2 are computed. The mirror image N - k of every
other frequency k is among them.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgernn.frontends import LogMel
from edgernn.runtime.fourier import factors, frequency_order

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
        x: Name of the samples (T, B, hop) in the graph: `hop` samples per step.

    Returns:
        Name of the features (T, B, bands) in the graph. The next value of each state gets the name of the state and
        ".next", such as frontend.samples.next.
    """
    add = _Namespace(graph)
    energy = _energies(add, frontend, _frames(add, frontend, x))
    floor = add.weight("energy_floor", np.array(frontend.config.energy_floor))
    if frontend.config.normalise == "pcen":
        return _pcen(add, frontend, energy, floor)
    ratio = add.node("Div", [energy, floor], "ratio")
    features = add.node("Log", [add.node("Add", [ratio, add.weight("one", np.array(1.0))], "above_one")], "log")
    if frontend.memory is None:
        return features
    return add.node("Sub", [features, _followed(add, frontend, features)], "features")


class _Namespace:
    """Adds nodes and weights to an ONNX graph, with "frontend." before their names.

    Weights become float32, or int64 if they are integers.
    """

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph

    def weight(self, name: str, value: Array | list[int]) -> str:
        array = np.asarray(value)
        return self._graph.weight(f"frontend.{name}", array.astype(np.float32 if array.dtype.kind == "f" else np.int64))

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        return self._graph.node(op, inputs, f"frontend.{output}", **attributes)

    def scan(self, inputs: list[str], outputs: list[str], body: onnx.GraphProto) -> None:
        self._graph.nodes.append(helper.make_node("Scan", inputs, outputs, outputs[-1], num_scan_inputs=1, body=body))


def _frames(add: _Namespace, frontend: LogMel, x: str) -> str:
    """Add nodes that cut the samples x (T, B, hop) into one window per step; windows overlap if hop < window_size.

    The last samples, which the next window reads again, are kept as a state. Returns the name of the windows
    (B, T, window_size) in the graph.
    """
    size, hop = frontend.config.window_size, frontend.config.hop
    signal = add.node("Transpose", [x], "x.by_stream", perm=[1, 0, 2])
    signal = add.node("Reshape", [signal, add.weight("flat", [0, -1])], "new_samples")
    if overlap := frontend.widths.get("samples"):
        signal = add.node("Concat", ["frontend.samples", signal], "signal", axis=1)
        bounds = [add.weight(f"last.{name}", [end]) for name, end in (("from", -overlap), ("to", 2**31), ("axis", 1))]
        add.node("Slice", [signal, *bounds], "samples.next")
    steps = add.node("Shape", [x], "T", start=0, end=1)
    count = add.node("Squeeze", [steps], "T.number")
    step, zero = add.weight("step", np.array(1)), add.weight("zero", np.array(0))
    starts = add.node("Range", [zero, count, step], "steps")
    starts = add.node("Mul", [starts, add.weight("hop", np.array(hop))], "starts")
    starts = add.node("Unsqueeze", [starts, add.weight("last_axis", [-1])], "starts.column")
    index = add.node("Add", [starts, add.weight("offsets", np.arange(size))], "index")
    return add.node("Gather", [signal, index], "frames", axis=1)


def _energies(add: _Namespace, frontend: LogMel, frames: str) -> str:
    """Add nodes that compute mel energies (T, B, bands) from frames of samples (B, T, window_size).

    `frames` is the name of the frames in the graph. Returns the name of the energies.
    """
    size = frontend.size
    parts = fourier_parts(size, frontend.filters.detach().cpu().numpy())
    n1, n2 = parts.n1, parts.n2
    window = add.weight("window", frontend.window.detach().cpu().numpy())
    frames = add.node("Mul", [frames, window], "windowed")
    if pad := size - frontend.config.window_size:
        frames = add.node("Pad", [frames, add.weight("pad", [0, 0, 0, 0, 0, pad])], "padded")
    grid = add.node("Reshape", [frames, add.weight("grid", [0, 0, n1, n2])], "samples.grid")
    # the real parts of all k1 and then the imaginary ones, each times the twiddle factor
    products = []
    for name, matrix, factor in (
        ("cos", parts.first, parts.twiddle),
        ("sin", parts.first_turned, parts.twiddle_turned),
    ):
        product = add.node("MatMul", [add.weight(f"dft.{name}", matrix), grid], f"columns.{name}")
        products.append(add.node("Mul", [product, add.weight(f"twiddle.{name}", factor)], f"turned.{name}"))
    rows = add.node("Add", products, "columns")
    k1 = len(parts.first) // 2
    rows = add.node("Reshape", [rows, add.weight("complex", [0, 0, 2, k1, n2])], "columns.complex")
    rows = add.node("Transpose", [rows], "rows.complex", perm=[0, 1, 3, 2, 4])
    rows = add.node("Reshape", [rows, add.weight("rows.shape", [0, 0, k1, 2 * n2])], "rows")
    spectrum = add.node("MatMul", [rows, add.weight("dft.rows", parts.second)], "spectrum")
    squares = add.node("Mul", [spectrum, spectrum], "squares")
    squares = add.node("Reshape", [squares, add.weight("squares.shape", [0, 0, k1, 2, n2])], "squares.complex")
    power = add.node("ReduceSum", [squares, add.weight("squares.axis", [3])], "power", keepdims=0)
    power = add.node("Reshape", [power, add.weight("power.shape", [0, 0, k1 * n2])], "power.flat")
    energy = add.node("MatMul", [power, add.weight("filters", parts.filters)], "energy.by_stream")
    return add.node("Transpose", [energy], "energy", perm=[1, 0, 2])


@dataclass(frozen=True)
class FourierParts:
    """Matrices of an FFT that is computed as two matrix products, and mel filters in the order of its frequencies.

    Attributes:
        n1: N1, the first factor of the FFT's size N = N1 N2.
        n2: N2, the second factor.
        first: Matrix F (2 K1, N1) of the first product, K1 = N1/2 + 1: K1 rows of cosines, then K1 of negative sines.
        first_turned: Matrix G (2 K1, N1), the rows of F in another order: negative sines, then cosines.
        twiddle: Matrix P (2 K1, N2), the real parts (K1, N2) of the twiddle factors twice, one below the other.
        twiddle_turned: Matrix Q (2 K1, N2), the negated imaginary parts (K1, N2) of the twiddle factors, and below them
            the imaginary parts. For samples S (N1, N2) and the element-wise product ∘, F S ∘ P + G S ∘ Q is the
            first product times the twiddle factors: K1 rows of real parts, then K1 rows of imaginary parts.
        second: Matrix (2 N2, 2 N2) of the second product. The first result is rearranged to (K1, 2 N2) for it, with
            N2 real and then N2 imaginary parts in each row. The spectrum has the same layout.
        filters: Weights (K1 N2, bands) of the mel filters. Row k1 N2 + k2 has the weights of the frequency
            k = k1 + N1 k2, or of its mirror image N - k if that is smaller. If two rows belong to the same frequency,
            the second is zero, so that the frequency counts once.
    """

    n1: int
    n2: int
    first: Array
    first_turned: Array
    twiddle: Array
    twiddle_turned: Array
    second: Array
    filters: Array


def _wave(rows: Array, columns: Array, period: int) -> tuple[Array, Array]:
    """Return two matrices, the real and the imaginary parts of exp(-2πi r c / period).

    They have a row for each number r in `rows`, and a column for each number c in `columns`.
    """
    angles = 2 * np.pi * (np.outer(rows, columns) % period) / period
    return np.cos(angles), -np.sin(angles)


def fourier_parts(size: int, filters: Array) -> FourierParts:
    """Compute the matrices for an FFT as two matrix products, and mel filters that read its output.

    Args:
        size: N, the size of the FFT, a power of two.
        filters: Weights (bands, N/2 + 1) of the frequencies in each mel band, in ascending order of frequency.

    Returns:
        The matrices, and the filters with their weights in the order in which the FFT returns the frequencies.
    """
    n1, n2 = factors(size)
    k1, k2 = np.arange(n1 // 2 + 1), np.arange(n2)
    real, imaginary = _wave(k1, np.arange(n1), n1)
    turn_real, turn_imaginary = _wave(k1, k2, size)
    last_real, last_imaginary = _wave(k2, k2, n2)
    order = frequency_order(size)
    # a frequency that occurs twice counts once
    chosen = np.unique(order, return_index=True)[1]
    weights = np.zeros((len(order), len(filters)))
    weights[chosen] = filters.T[order[chosen]]
    return FourierParts(
        n1=n1,
        n2=n2,
        first=np.concatenate([real, imaginary]),
        first_turned=np.concatenate([imaginary, real]),
        twiddle=np.concatenate([turn_real, turn_real]),
        twiddle_turned=np.concatenate([-turn_imaginary, turn_imaginary]),
        second=np.block([[last_real, last_imaginary], [-last_imaginary, last_real]]),
        filters=weights,
    )


# names of the inputs and outputs of the body of the Scan
_SCANNED = ("last", "value", "next", "step")


def _followed(add: _Namespace, frontend: LogMel, values: str) -> str:
    """Add a Scan node that follows `values` (T, B, bands) over time, by the equations of `LogMel`.

    The last state is kept between calls as a state of the front end, which `LogMel.memory` names. Returns the name of
    the states (T, B, bands) of all steps.
    """
    memory, bands = frontend.memory, frontend.config.bands
    body = [
        *(_constant(n, v) for n, v in zip(("fall", "rise", "silent"), frontend.smoothing, strict=True)),
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
    values = [getattr(frontend, f"log_{name}").detach().exp().cpu().numpy() for name in names]
    alpha, delta, r = (add.weight(name, value) for name, value in zip(names, values, strict=True))
    gain = add.node("Pow", [add.node("Add", [smooth, floor], "smooth.positive"), alpha], "gain")
    shifted = add.node("Add", [add.node("Div", [energy, gain], "controlled"), delta], "shifted")
    rooted = add.node("Pow", [shifted, r], "rooted")
    return add.node("Sub", [rooted, add.node("Pow", [delta, r], "offset")], "features")
