# SPDX-License-Identifier: Apache-2.0
"""Search of thresholds of the update rule delta for the recurrent layers of an ONNX file."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.export.delta_graph import with_outputs
from edgernn.export.streaming.chunks import zero_states
from edgernn.files import default_output, output_file, write_bytes
from edgernn.locks import hold_file
from edgernn.npz import read_npz
from edgernn.progress import Progress, Silent
from edgernn.runtime.interface import next_values
from edgernn.runtime.library import library_path, run_interruptibly
from edgernn.runtime.open_model import first_line, open_session
from edgernn.training.calibration.audio_frames import Frames, read_frames
from edgernn.training.calibration.calibrated_graph import LABELS, Array, CalibratedGraph, open_graph
from edgernn.training.calibration.threshold_search import (
    ROUNDING,
    MeasuredPoint,
    Scales,
    described,
    scaled,
    search_thresholds,
    warn_of_fine_loss,
)

# mean squared error of float labels, as a share of their mean square, below which they are the outputs themselves
_EQUAL = 1e-8
# allowed error of the outputs with thresholds of 0, in terms of the difference between the kernels and the functions
_ROUNDING = 8
_CHANGE, _ACCURACY, _ERROR = "relative change of the outputs", "accuracy", "mse"


def calibrate_file(
    path: Path,
    data: Path,
    out: Path | None = None,
    *,
    loss: float = 0.5,
    linear: bool = False,
    frames: Frames | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Give the recurrent layers of an ONNX file the update rule delta, under which they skip work.

    Such a layer reads a value of x or h anew only if it moved by more than a threshold. The pair of thresholds, for x
    and h, skips as much work as `loss` allows. The layers are those of a file that edgernn exported, with the rule
    always or delta, or else the operators GRU and LSTM. All else in the graph stays. If the states of
    the layers are inputs and outputs of the graph, so that a caller can run it step by step, the states of the rule
    become further inputs and outputs.

    Args:
        path: The ONNX file: an export of edgernn, or a file such as the result of torch.onnx.export.
        data: npz file. For a file that edgernn exported: x (N, T, I), or word indices (N, T). For another file: an
            array for each input of the graph, by name; if the graph has one input, the array may be called x. Inputs
            that are states may be left out: they are zeros at first. If an array has one axis more than its input, the
            first one counts calls, each of which gets the states of the call before: so a file that takes one step a
            call reads a sequence. The outputs of the calls are joined along their first axis. With an
            array y of labels, the metric of the first output is measured: the accuracy for integers, and the mean
            squared error for floats. The predicted class is the argmax along the last axis. Labels that equal the
            outputs, as in the example.npz that an export writes, are ignored.
        out: The ONNX file to write. Default: NAME-delta.onnx beside the file.
        loss: Largest allowed loss: percentage points of the accuracy, percent of the mean squared error, or without
            labels the relative change of the outputs RMS(y' - y) / RMS(y) in percent.
        linear: Also give linear maps and 1×1 convolutions of a file of another tool the rule, with a threshold for x.
        frames: How the first input reads audio, if `data` is a folder of wav files; see `read_frames`.
        progress: Progress bar. Default: none.

    Returns:
        JSON-compatible dict: "model" (the file written), "bytes" (its size), "metric" (its name), "dense" (the metric
        of the dense model), "curve" (all thresholds that were tried and gave a finite metric, each a dict of
        `MeasuredPoint`), "chosen" (the dict of the thresholds in the new file), "layers" (name, cell, sizes and
        thresholds of each layer), "left" (the reasons why other GRU and LSTM operators were not replaced), "states"
        (names of added inputs of the graph), "fixed" (names of inputs that became constants), and "restarted" (names of
        layers whose states of the rule start at 0 in each call, although their initial state depends on inputs of the
        graph).

    Raises:
        UsageError: The file has no layer that can get the rule, `loss` is not above 0, or another process is writing
            `out`.
        EdgernnError: A file cannot be read, the data do not fit the graph, or even the smallest thresholds lose more
            than `loss`.
    """
    progress = progress or Silent()
    out = out or default_output(path.parent / f"{path.stem}-delta.onnx")
    output_file(out, path, data)
    # a file that cannot be calibrated is refused before the data are read
    read = functools.cache(functools.partial(_read, path, data, frames))
    graph = open_graph(path, lambda: read()[0], linear=linear)
    file = _File(path, data, graph, *read())
    metric, dense = file.metric, file.score(file.expected)
    if metric == _ACCURACY:
        warn_of_fine_loss(loss, file.labels)
    limit = dense + loss / 100 * {_ACCURACY: -1.0, _CHANGE: 1.0, _ERROR: abs(dense)}[metric]
    with hold_file(out):
        file.check()
        file.check_axes()
        try:
            best, curve = search_thresholds(
                file.measure,
                len(file.units),
                lambda v: v >= limit - ROUNDING if metric == _ACCURACY else v <= limit,
                loss,
                dense,
                progress,
                [i for i, (_, unit_h) in enumerate(file.units) if not unit_h],
            )
        finally:
            progress.close()
        chosen = scaled(best.scales, file.units)
        figures = {"metric": metric, "dense": dense, "value": best.value, "executed": best.executed}
        result = graph.final(chosen, figures)
        file.check_final(result, best, abs(limit - dense))
        content = result.SerializeToString()
        write_bytes(out, content)
    known = {value.name for value in graph.proto.graph.input}
    return {
        "model": str(out),
        "bytes": len(content),
        "metric": metric,
        "dense": dense,
        "curve": [dataclasses.asdict(point) for point in curve],
        "chosen": dataclasses.asdict(best),
        "layers": [described(node.name, node.cell, pair) for node, pair in zip(graph.nodes, chosen, strict=True)],
        "left": list(graph.left),
        "fixed": list(graph.fixed),
        "states": [value.name for value in result.graph.input if value.name not in known],
        "restarted": list(graph.restarted),
    }


def _read(path: Path, data: Path, frames: Frames | None) -> tuple[dict[str, Array], frozenset[int]]:
    if frames is not None:
        return read_frames(path, data, frames)
    if data.is_dir():
        raise UsageError(
            f"data: expected an npz file, got a folder, {data}; for wav files, add --frames RATE,LENGTH,HOP, which "
            "says how the first input reads them"
        )
    return read_npz(data), frozenset()


class _File:
    """An ONNX file with recurrent layers, and what it computes from the data.

    Args:
        path: The file.
        data: The npz file.
        graph: The graph of the file.
        arrays: The arrays of the data.
        starts: Calls before which the states are zeros again.

    Attributes:
        expected: Outputs of the dense model, with the axes in the same order as those of the labels.
        metric: Name of the metric.
        score: Function that computes the metric from outputs.
        labels: Number of the labels, 0 without.
        units: Units of the thresholds of x and h of each layer.
    """

    expected: list[Array]
    metric: str
    score: Callable[[list[Array]], float]
    labels: int
    units: list[tuple[float, float]]

    def __init__(
        self, path: Path, data: Path, graph: CalibratedGraph, arrays: dict[str, Array], starts: frozenset[int]
    ) -> None:
        self._path, self._data, self._graph, self._library = path, data, graph, library_path()
        self._starts = starts
        self._feeds, labels = graph.read(arrays, data)
        self._count = self._count_calls()
        first = {name: array[0] if name in self._by_call else array for name, array in self._feeds.items()}
        self._feeds |= zero_states(graph.proto, graph.states, first)
        watched, names = graph.watching()
        # calls are joined along the first axis
        inputs = {n: np.concatenate(array) if n in self._by_call else array for n, array in self._feeds.items()}
        values = inputs | self._run(watched, self._library, self._feeds)
        # numbers are compared, and labels with the first output, of any type
        self._names = [name for name in graph.outputs if name == graph.outputs[0] or _is_float(values[name])]
        self.expected = [graph.arranged(values[name]) for name in self._names]
        self.metric, self.score = _metric(self.expected, labels, data)
        self.labels = 0 if labels is None else labels.size
        x_and_y = [
            [graph.steps(node, values[name], self._count) for name in pair]
            for node, pair in zip(graph.nodes, names, strict=True)
        ]
        if all(len(x) < 2 for x, _ in x_and_y):
            raise EdgernnError(
                f"{data}: expected sequences of at least 2 steps, got 1; export the model with a variable number of "
                "steps, and store longer sequences"
            )
        self.units = [
            graph.units(node, x, y)
            for node, (x, y) in zip(graph.nodes, x_and_y[:1] * len(names) if graph.is_stack else x_and_y, strict=True)
        ]
        steps = [x.shape[0] * x.shape[1] for x, _ in x_and_y]
        # multiply-adds of all layers together
        self._macs = sum(node.macs * count for node, count in zip(graph.nodes, steps, strict=True))
        self._batches = {node.name: x.shape[1] for node, (x, _) in zip(graph.nodes, x_and_y, strict=True)}

    def _count_calls(self) -> int:
        """Find the arrays with an axis of calls, and return its length, or 1."""
        ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in self._graph.proto.graph.input}
        self._by_call = {name for name, array in self._feeds.items() if ranks[name] and array.ndim == ranks[name] + 1}
        counts = {name: len(self._feeds[name]) for name in sorted(self._by_call)}
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{count} in {name}" for name, count in counts.items())
            raise EdgernnError(
                f"{self._data}: expected the same number of calls in each array, got {text}; correct them"
            )
        return next(iter(counts.values()), 1)

    def measure(self, scales: Scales) -> tuple[float, float]:
        """Return the share of the multiply-adds that is executed, and the metric, for thresholds `scales` · `units`."""
        outputs, macs = self._outputs(scaled(scales, self.units), self._library)
        return macs / self._macs, self.score(outputs)

    def check(self) -> None:
        """Raise EdgernnError if the new layers, with thresholds of 0, differ from the layers that they replace.

        A difference is accepted if it is a few times that between the kernels and the portable functions of the new
        layers, which round otherwise. A file with large recurrent weights, or with operators that scale its outputs
        up, amplifies rounding.
        """
        zero = [(0.0, 0.0)] * len(self.units)
        outputs, _ = self._outputs(zero, self._library)
        portable: list[Array] = []
        for i, (name, y, expected) in enumerate(zip(self._names, outputs, self.expected, strict=True)):
            if not _is_float(expected):
                continue
            error, limit = _largest_difference(y, expected), self._graph.tolerance
            limit = max(limit, 4 * float(np.finfo(expected.dtype).eps))
            limit *= float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
            if error <= limit:
                continue
            portable = portable or self._outputs(zero, None)[0]
            limit = max(limit, _ROUNDING * _largest_difference(y, portable[i]))
            # not >, so that NaN is an error
            if not error <= limit:
                raise EdgernnError(
                    f"{self._path}: output {name}: expected a difference of at most {limit:.3g} between the original "
                    f"file and the new layers with thresholds of 0, got {error:.3g}; nothing was written; "
                    f"{self._reason()}"
                )

    def _reason(self) -> str:
        """Say whether a new layer with thresholds of 0 differs from float64, or else the file amplifies rounding."""
        if self._by_call:
            return "its operators amplify rounding too much; use data or weights of smaller values"
        names = self._graph.layer_values()
        changed = self._graph.with_delta([(0.0, 0.0)] * len(self.units), True)
        original, new = (
            feeds | self._run(with_outputs(proto, names), self._library, feeds)
            for proto, feeds in ((p, self._feeds | self._zeros(p)) for p in (self._graph.proto, changed))
        )
        if wrong := self._graph.wrong_layers(original, new):
            return f"the new layers {', '.join(wrong)} are wrong in comparison with float64; report a bug"
        return "its operators amplify rounding too much; use data or weights of smaller values"

    def check_axes(self) -> None:
        """Warn if the file declares an axis of its inputs as variable, but computes one length of it alone.

        The original file is run on inputs that have twice the length, or half of it. Axes of the same length in the
        data are changed together, as they may be one.
        """
        lengths = {self._feeds[value.name].shape[axis] for value, axis in self._variable_axes() if not self._by_call}
        for length in sorted(lengths):
            tries = [2 * length, length // 2][: 1 + (length > 1)]
            problems = [self._run_resized(length, new) for new in tries]
            if all(problems):
                warnings.warn(
                    f"{self._path}: declares the axis of length {length} as variable, but {problems[-1]}. It is right "
                    "for this length alone, and so is the new file; export it so that it keeps the axis, as with "
                    "torch.onnx.export(..., dynamo=False, dynamic_axes=...)",
                    EdgernnWarning,
                    stacklevel=3,
                )

    def _variable_axes(self) -> list[tuple[onnx.ValueInfoProto, int]]:
        values = [value for value in self._graph.proto.graph.input if value.name in self._feeds]
        return [
            (value, axis)
            for value in values
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if not dim.HasField("dim_value")
        ]

    def _run_resized(self, length: int, new: int) -> str | None:
        """Run the original file with variable axes of length `new`; return what is wrong with its outputs, or None."""
        feeds, names = dict(self._feeds), {}
        for value, axis in self._variable_axes():
            array, name = feeds[value.name], value.type.tensor_type.shape.dim[axis].dim_param
            if array.shape[axis] == length:
                feeds[value.name] = array = array.take(np.arange(new) % length, axis)
            names[name] = array.shape[axis]
        names.pop("", None)
        try:
            outputs = self._run(self._graph.proto, self._library, feeds)
        except EdgernnError:
            return f"ONNX Runtime fails with {new}"
        for value in self._graph.proto.graph.output:
            shape, dims = outputs[value.name].shape, value.type.tensor_type.shape.dim
            expected = [
                dim.dim_value if dim.HasField("dim_value") else names.get(dim.dim_param, n)
                for dim, n in zip(dims, shape, strict=False)
            ]
            if dims and list(shape) != expected:
                return f"with {new} its output {value.name} has the shape {shape}, expected {tuple(expected)}"
        return None

    def check_final(self, proto: onnx.ModelProto, best: MeasuredPoint, allowed: float) -> None:
        """Raise EdgernnError if the metric of the final file differs between runs with and without the native library.

        A small difference is accepted: the portable functions have other rounding errors, so a few comparisons of
        changes with thresholds may have another result.

        Args:
            proto: The final file.
            best: The measured point with its thresholds, which has the metric with the native library.
            allowed: The allowed loss, in the unit of the metric.
        """
        values = self._run(proto, None, self._feeds | self._zeros(proto))
        value = self.score([self._graph.arranged(values[name]) for name in self._names])
        # not >, so that NaN is an error
        if not abs(value - best.value) <= allowed + 0.1 * abs(best.value):
            raise EdgernnError(
                f"{self._path}: expected the same {self.metric} with and without the native library, got "
                f"{best.value:.5g} and {value:.5g}, so nothing was written: rounding flips decisions of the rule; "
                "use more data, or another --loss"
            )

    def _outputs(self, thresholds: list[tuple[float, float]], library: str | None) -> tuple[list[Array], int]:
        """Return the outputs with these thresholds, and the multiply-adds executed by delta layers."""
        candidate = self._graph.with_delta(thresholds, True)
        feeds = self._feeds | self._zeros(candidate)
        values = self._run(candidate, library, feeds)
        macs = sum(int(values[f"{node.name}.macs"].sum()) for node in self._graph.nodes)
        return [self._graph.arranged(values[name]) for name in self._names], macs

    def _zeros(self, proto: onnx.ModelProto) -> dict[str, Array]:
        """Return zeros for the inputs that `with_delta` added: states of the rule (B, width)."""
        states = {}
        for value in proto.graph.input:
            name, _, _ = value.name.rpartition(".")
            if name in self._batches and value.name not in self._feeds:
                width = value.type.tensor_type.shape.dim[1].dim_value
                states[value.name] = np.zeros((self._batches[name], width), np.float32)
        return states

    def _run(self, proto: onnx.ModelProto, library: str | None, feeds: dict[str, Array]) -> dict[str, Array]:
        """Run a model in ONNX Runtime, with the native library or without; return its outputs by name."""
        session = open_session(self._path, proto, library, 1)
        names = [value.name for value in session.get_outputs()]
        following = {state.input: state.output for state in self._graph.states}
        following |= next_values(feeds.keys() - self._by_call, names)
        first = {name: feeds[name] for name in following}
        feeds, results = dict(feeds), list[dict[str, Array]]()
        try:
            for call in range(self._count):
                if call in self._starts:
                    feeds |= first
                arrays = {name: array[call] if name in self._by_call else array for name, array in feeds.items()}
                results.append(run_interruptibly(session, names, arrays))
                feeds |= {name: results[-1][output] for name, output in following.items()}
            if not self._by_call:
                return results[0]
            return {name: np.concatenate([np.atleast_1d(result[name]) for result in results]) for name in names}
        except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
            raise EdgernnError(
                f"{self._data}: {self._path} does not run with these arrays: {first_line(error)}; correct their shapes"
            ) from None


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _differences(y: Array, expected: Array) -> Array:
    """Return y - expected in float64, and 0 where both are the same infinity, or both NaN."""
    with np.errstate(invalid="ignore"):
        difference = y.astype(np.float64) - expected
    return np.where((y == expected) | (np.isnan(y) & np.isnan(expected)), 0.0, difference)


def _largest_difference(y: Array, expected: Array) -> float:
    return float(np.abs(_differences(y, expected)).max(initial=0))


def _change(expected: list[Array], data: Path) -> Callable[[list[Array]], float]:
    """Return a function that computes the relative change RMS(y' - y) / RMS(y) of float outputs y'."""
    floats = [i for i, y in enumerate(expected) if _is_float(y)]
    if not floats:
        raise EdgernnError(
            f"{data}: expected labels in an array {LABELS}, got none; add it, as the model has integer outputs only"
        )
    sizes = {i: np.square(expected[i][np.isfinite(expected[i])].astype(np.float64)).sum() for i in floats}

    def change(outputs: list[Array]) -> float:
        errors = {i: np.square(_differences(outputs[i], expected[i])).sum() for i in floats}
        # not max(), which may drop NaN
        return float(np.max([np.sqrt(errors[i] / max(sizes[i], 1e-24)) for i in floats]))

    return change


def _metric(expected: list[Array], labels: Array | None, data: Path) -> tuple[str, Callable[[list[Array]], float]]:
    """Choose the metric: accuracy or mean squared error with labels, else the relative change of the outputs."""
    if labels is None:
        return _CHANGE, _change(expected, data)
    y, kind = expected[0], labels.dtype.kind
    if kind not in "iuf" or not isinstance(y, np.ndarray) or not np.isfinite(labels).all():
        raise EdgernnError(
            f"{data}: {LABELS}: expected integers, or floats without NaN and infinity, got an array of type "
            f"{labels.dtype}; correct its type, or replace NaN and infinity"
        )
    is_class, classes = kind in "iu", y.shape[:-1] if _is_float(y) else y.shape
    if labels.shape != (classes if is_class else y.shape):
        raise EdgernnError(
            f"{data}: {LABELS}: expected integer classes of shape {classes} or float targets of shape {y.shape} for "
            f"the first output, got {labels.dtype} of shape {labels.shape}; correct them"
        )
    if not is_class:

        def error(outputs: list[Array]) -> float:
            return float(np.square(outputs[0].astype(np.float64) - labels).mean())

        if error(expected) <= _EQUAL * float(np.square(labels.astype(np.float64)).mean()):
            return _CHANGE, _change(expected, data)
        return _ERROR, error
    if not _is_float(y):
        return _ACCURACY, lambda outputs: float((outputs[0] == labels).mean())
    if y.shape[-1] < 2:
        raise EdgernnError(
            f"{data}: {LABELS}: expected float targets, as the model's output is one number, got integers; store them "
            "as floats"
        )
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= y.shape[-1]:
        raise EdgernnError(
            f"{data}: {LABELS}: expected classes from 0 to {y.shape[-1] - 1}, one for each score of the output, got "
            f"{labels.min(initial=0)} to {labels.max(initial=0)}; correct the labels"
        )
    return _ACCURACY, lambda outputs: float((outputs[0].argmax(-1) == labels).mean())
