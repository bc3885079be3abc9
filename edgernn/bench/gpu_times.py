# SPDX-License-Identifier: Apache-2.0
"""Time a model on a GPU, beside the GRU and LSTM of ONNX Runtime and torch (both use cuDNN), and beside the CPU.

Inputs and outputs stay in GPU memory. CUDA events time the calls if torch can use the GPU, else the processor's clock.
"""

import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from edgernn.bench.baseline import baseline, is_same, zero_states
from edgernn.bench.case import EDGERNN, Case, described
from edgernn.bench.measure import GRU, LSTM, verify
from edgernn.errors import EdgernnError
from edgernn.progress import Progress
from edgernn.runtime.device import Call, gpu_session, require_gpu, to_device
from edgernn.runtime.info import frontend, layer_sizes, read_model
from edgernn.runtime.library import cuda_library_path, library_missing, onnxruntime
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Clock, Rounds, interleaved
from edgernn.runtime.weights import Weight, parse, read_weights

COPIED, CPU = "edgernn, x and y copied", "edgernn on the CPU"
TORCH = {"gru": "torch.nn.GRU", "lstm": "torch.nn.LSTM"}
OPERATORS = {"gru": GRU, "lstm": LSTM}
MODULES: dict[str, type[nn.GRU | nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
# absolute error of cuDNN, whose products are tf32 by default
ROUNDED = 1e-2
# steps per call of the second verification
_CHUNK = 50


class Events:
    """Clock for `timing.interleaved`: CUDA events measure the seconds of work on the CUDA stream `stream`."""

    name = "CUDA events"

    def __init__(self) -> None:
        # torch has no annotations for both
        stream, event = cast(Any, torch.cuda.Stream), cast(Any, torch.cuda.Event)
        self.stream = stream()
        self._begin, self._end = (event(enable_timing=True) for _ in range(2))

    def __call__(self, call: Callable[[], Any], count: int) -> float:
        self._begin.record(self.stream)
        for _ in itertools.repeat(None, count):
            call()
        self._end.record(self.stream)
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def require() -> str:
    """Return the path of edgernn's CUDA library; EdgernnError if it, a GPU or ONNX Runtime's provider is missing."""
    require_gpu(onnxruntime(), None if library_missing("cuda") else cuda_library_path())
    return cuda_library_path()


def clock() -> Events | None:
    """Return a clock that uses CUDA events, or None if torch cannot use the GPU; calls are then timed synchronously."""
    return Events() if torch.cuda.is_available() else None


def measure_on_gpu(
    path: Path,
    case: Case,
    x: NDArray[Any],
    settings: Rounds,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check and time a benchmark case on a GPU.

    Args:
        path: The exported file of the case's model.
        case: The benchmark case.
        x: Inputs (T, B, I), or word indices (T, B).
        settings: Number of timing rounds, their length and warm-up.
        progress: Progress bar. Default: none.

    Returns:
        The case's entry in the report, with µs per step of each runtime; see `case.described`.

    Raises:
        EdgernnError: The outputs of edgernn are wrong, or the CUDA library, the GPU or ONNX Runtime's CUDA provider is
            missing.
    """
    require()
    with ExitStack() as stack:
        return _measure(path, case, x, settings, progress, stack)


def _measure(
    path: Path, case: Case, x: NDArray[Any], settings: Rounds, progress: Progress | None, stack: ExitStack
) -> dict[str, Any]:
    events = clock()
    ours = Session(path, backend="native", device="cuda", stream=_handle(events))
    reference = Session(path, backend="portable")
    errors: dict[str, float | None] = {}
    errors[EDGERNN] = max(verify(ours, reference, x), verify(ours, reference, x, _CHUNK))
    start = ours.initial_state(x.shape[1])
    inputs = {"x": to_device(x), **{name: to_device(value) for name, value in start.items()}}
    call = Call(ours.onnx, inputs, waits=events is None)
    stack.callback(call.close)
    calls: dict[str, Callable[[], Any]] = {EDGERNN: call}
    calls[COPIED] = lambda: ours.run_from(x, start)
    left_out = {}
    if reason := library_missing():
        left_out[CPU] = reason
    else:
        cpu = Session(path, backend="native", threads=case.threads)
        calls[CPU] = lambda: cpu.run_from(x, start)
    expected, _ = reference.run_from(x, start)
    weights = read_weights(path)
    source = None if frontend(ours.info) is None else parse(read_model(path), path).graph
    for kind, make in itertools.product(OPERATORS, (_operator, _torch)):
        name = (OPERATORS if make is _operator else TORCH)[kind]
        try:
            run, y = make(kind, ours.info, weights, source, x, inputs["x"], events, stack)
            run()
            errors[name] = _compared(y(), expected) if is_same(kind, ours.info) else None
        except Exception as error:  # a peer may raise any exception
            left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            continue
        calls[name] = run
    clocks: Mapping[str, Clock] = (
        {} if events is None else {name: events for name in calls if name not in (COPIED, CPU)}
    )
    seconds = interleaved(calls, settings, progress, clocks)
    times = {name: np.array([np.median(block) for block in blocks]) * 1e6 / len(x) for name, blocks in seconds.items()}
    facts = {
        "left_out": left_out,
        "clock": "the processor's clock, synchronous calls" if events is None else Events.name,
    }
    return described(case, times, errors) | facts | {"cpu_threads": case.threads, "macs": ours.info["macs"]}


def _handle(events: Events | None) -> int | None:
    return None if events is None else int(events.stream.cuda_stream)


def _compared(y: NDArray[Any] | None, expected: NDArray[Any]) -> float | None:
    """Return the largest absolute error of y, or None if there is no y to compare; raise EdgernnError if y is wrong."""
    if y is None:
        return None
    error = float(np.abs(y - expected).max())
    if not error <= ROUNDED:
        raise EdgernnError(
            f"not timed: y of this runtime differs from the y that standard ONNX operators compute: the largest error "
            f"is {error:.1e}, expected at most {ROUNDED:g}; report a bug"
        )
    return error


# a function to time, and a function that returns the last y of the first one, or None if y is not comparable
TimedCall = tuple[Callable[[], Any], Callable[[], NDArray[Any] | None]]


def _operator(
    kind: str,
    info: dict[str, Any],
    weights: Mapping[str, Weight],
    source: onnx.GraphProto | None,
    x: NDArray[Any],
    x_gpu: Any,
    events: Events | None,
    stack: ExitStack,
) -> TimedCall:
    """Return two functions: one runs ONNX Runtime's GRU or LSTM on the GPU, the other returns the y of the last run."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    content = baseline(kind, info, weights, source).SerializeToString()
    session = gpu_session(ort, content, options, stream=_handle(events), exact=False)
    states = zero_states(session, x.shape[1])
    inputs = {"x": x_gpu, **{name: to_device(value) for name, value in states.items()}}
    call = Call(session, inputs, waits=events is None)
    stack.callback(call.close)

    def y() -> NDArray[Any]:
        if events is not None:
            events.stream.synchronize()
        output: NDArray[Any] = call.outputs["y"].numpy()
        return output

    return call, y


def _torch(
    kind: str,
    info: dict[str, Any],
    weights: Mapping[str, Weight],
    source: onnx.GraphProto | None,
    x: NDArray[Any],
    x_gpu: Any,
    events: Events | None,
    stack: ExitStack,
) -> TimedCall:
    """Return two functions: one runs torch.nn's GRU or LSTM on the GPU, the other returns the y of the last run."""
    if source is not None:
        raise EdgernnError("torch's layers have no audio front end, so that they would do less work than the model")
    if events is None:
        raise EdgernnError("torch finds no GPU; install a torch with CUDA to time its layers")
    with torch.cuda.stream(events.stream):
        module = torch_layers(kind, info, weights).cuda()
        numbers = x if x.ndim == 3 else np.zeros((*x.shape, info["model"]["input"]["size"]), np.float32)
        tensor = torch.from_numpy(numbers).cuda()
    outputs: list[torch.Tensor] = []

    def call() -> None:
        with torch.inference_mode(), torch.cuda.stream(events.stream):
            outputs[:] = [module(tensor)[0]]

    def y() -> NDArray[Any] | None:
        events.stream.synchronize()
        # a head, scaling or a second direction makes it another function
        if info["model"]["bidirectional"] or any(not name.startswith("layer") for name in weights):
            return None
        return np.asarray((outputs[0][-1] if info["model"]["head"]["output"] == "last" else outputs[0]).cpu())

    return call, y


def torch_layers(kind: str, info: dict[str, Any], weights: Mapping[str, Weight]) -> nn.Module:
    """Build a torch.nn.GRU or LSTM with the sizes of an exported file.

    Args:
        kind: The layer, gru or lstm.
        info: Metadata of the exported file.
        weights: Weights of the file. They are used if the module computes the same function as the file's layers, else
            random weights.

    Returns:
        The module.

    Raises:
        EdgernnError: The layers differ in hidden size, which torch.nn.GRU and LSTM do not support.
    """
    sizes = layer_sizes(info)
    if len(set(sizes)) > 1:
        raise EdgernnError(
            f"not timed: torch.nn.GRU and LSTM need the same hidden size in all layers, got {sizes}; to time them, use "
            "a model with one hidden size"
        )
    module = MODULES[kind](
        info["model"]["input"]["size"], sizes[0], len(sizes), bidirectional=info["model"]["bidirectional"]
    ).eval()
    if is_same(kind, info):
        tensors: dict[str, torch.Tensor] = {}
        for layer, direction in itertools.product(range(len(sizes)), range(1 + info["model"]["bidirectional"])):
            name = f"layer{layer}{'.reverse' * direction}"
            W, R, b = (torch.tensor(weights[f"{name}.{part}"].floats) for part in "WRb")
            # the gru has a second bias of the candidate, inside the product with the reset gate
            rows = len(R)
            recurrent = torch.zeros(rows)
            recurrent[2 * rows - len(b) :] = b[rows:]
            parts = {"weight_ih": W, "weight_hh": R, "bias_ih": b[:rows], "bias_hh": recurrent}
            tensors |= {f"{name}_l{layer}{'_reverse' * direction}": value for name, value in parts.items()}
        module.load_state_dict(tensors)
    return module
