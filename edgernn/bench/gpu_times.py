# SPDX-License-Identifier: Apache-2.0
"""A model on a GPU beside cuDNN, through ONNX Runtime and through torch, and beside our own kernel on the CPU.

What they read and write lies on the device; a clock of the device times them where torch can use the GPU.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgernn.bench.baseline import baseline, is_same
from edgernn.bench.case import EDGERNN, Case, described
from edgernn.bench.measure import GRU, LSTM, verify
from edgernn.bench.peers.pytorch import MODULES
from edgernn.errors import EdgernnError
from edgernn.progress import Progress
from edgernn.runtime.device import Call, gpu_session, require_gpu, to_device
from edgernn.runtime.info import layer_sizes
from edgernn.runtime.library import cuda_library_path, library_missing, onnxruntime
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Clock, Rounds, interleaved
from edgernn.runtime.weights import Weight, read_weights

COPIED, CPU = "edgernn, x and y copied", "edgernn on the CPU"
TORCH = {"gru": "torch.nn.GRU", "lstm": "torch.nn.LSTM"}
OPERATORS = {"gru": GRU, "lstm": LSTM}
# cuDNN multiplies in tf32 unless it is told not to; ours are float32
ROUNDED = 1e-2
# steps at once, when ours is verified a second time
_CHUNK = 50


class Events:
    """Times calls that put work on `stream`, by that stream."""

    name = "CUDA events"

    def __init__(self) -> None:
        # torch leaves their types open
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
    """The CUDA library, where it and all else is there that a session on a GPU needs; raises EdgernnError where not."""
    require_gpu(onnxruntime(), None if library_missing("cuda") else cuda_library_path())
    return cuda_library_path()


def clock() -> Events | None:
    """None where torch sees no GPU: then every call is waited for."""
    return Events() if torch.cuda.is_available() else None


def measure_on_gpu(
    path: Path,
    case: Case,
    x: NDArray[Any],
    settings: Rounds,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The case with µs a step of all contenders on its model, at `path`, and x (T, B, I); see `case.described`.

    Raises EdgernnError where ours is wrong, and where something is missing.
    """
    require()
    events = clock()
    ours = Session(path, backend="native", device="cuda", stream=_handle(events))
    reference = Session(path, backend="portable")
    errors: dict[str, float | None] = {}
    errors[EDGERNN] = max(verify(ours, reference, x), verify(ours, reference, x, _CHUNK))
    start = ours.initial_state(x.shape[1])
    there = {"x": to_device(x), **{name: to_device(value) for name, value in start.items()}}
    calls: dict[str, Callable[[], Any]] = {EDGERNN: Call(ours.onnx, there, waits=events is None)}
    calls[COPIED] = lambda: ours.run_from(x, start)
    left_out = {}
    if reason := library_missing():
        left_out[CPU] = reason
    else:
        cpu = Session(path, backend="native", threads=case.threads)
        calls[CPU] = lambda: cpu.run_from(x, start)
    expected, _ = reference.run_from(x, start)
    weights = read_weights(path)
    for kind, make in itertools.product(OPERATORS, (_operator, _torch)):
        name = (OPERATORS if make is _operator else TORCH)[kind]
        try:
            call, y = make(kind, ours.info, weights, x, there["x"], events)
            call()
            errors[name] = _compared(y(), expected) if is_same(kind, ours.info) else None
        except Exception as error:  # a peer may fail in any way of its own
            left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            continue
        calls[name] = call
    clocks: Mapping[str, Clock] = (
        {} if events is None else {name: events for name in calls if name not in (COPIED, CPU)}
    )
    seconds = interleaved(calls, settings, progress, clocks)
    times = {name: np.array([np.median(block) for block in blocks]) * 1e6 / len(x) for name, blocks in seconds.items()}
    facts = {
        "left_out": left_out,
        "clock": "the processor's clock, every call waited for" if events is None else Events.name,
    }
    return described(case, times, errors) | facts | {"cpu_threads": case.threads, "macs": ours.info["macs"]}


def _handle(events: Events | None) -> int | None:
    return None if events is None else int(events.stream.cuda_stream)


def _compared(y: NDArray[Any] | None, expected: NDArray[Any]) -> float | None:
    """Raises EdgernnError where y, if it is the same function's, is wrong."""
    if y is None:
        return None
    error = float(np.abs(y - expected).max())
    if not error <= ROUNDED:
        raise EdgernnError(f"wrong by {error:.1e} (allowed {ROUNDED:g}), not timed")
    return error


# a call, and what the last one gave where that is to be compared
Made = tuple[Callable[[], Any], Callable[[], NDArray[Any] | None]]


def _operator(
    kind: str, info: dict[str, Any], weights: Mapping[str, Weight], x: NDArray[Any], there: Any, events: Events | None
) -> Made:
    """ONNX Runtime's operator on its CUDA provider, the whole network of it."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    content = baseline(kind, info, weights).SerializeToString()
    session = gpu_session(ort, content, options, stream=_handle(events), exact=False)
    states = {i.name: np.zeros((i.shape[0], x.shape[1], i.shape[2]), np.float32) for i in session.get_inputs()[1:]}
    inputs = {"x": there, **{name: to_device(value) for name, value in states.items()}}
    call = Call(session, inputs, waits=events is None)

    def y() -> NDArray[Any]:
        if events is not None:
            events.stream.synchronize()
        found: NDArray[Any] = call.outputs["y"].numpy()
        return found

    return call, y


def _torch(
    kind: str, info: dict[str, Any], weights: Mapping[str, Weight], x: NDArray[Any], there: Any, events: Events | None
) -> Made:
    """Torch's layers alone, without what the model has before and behind them."""
    if events is None:
        raise EdgernnError("torch sees no GPU")
    with torch.cuda.stream(events.stream):
        module = torch_layers(kind, info, weights).cuda()
        numbers = x if x.ndim == 3 else np.zeros((*x.shape, info["model"]["input"]["size"]), np.float32)
        given = torch.from_numpy(numbers).cuda()
    made: list[torch.Tensor] = []

    def call() -> None:
        with torch.inference_mode(), torch.cuda.stream(events.stream):
            made[:] = [module(given)[0]]

    def y() -> NDArray[Any] | None:
        events.stream.synchronize()
        # with a head or several directions it is another function
        if info["model"]["bidirectional"] or any(not name.startswith("layer") for name in weights):
            return None
        return np.asarray((made[0][-1] if info["model"]["head"]["output"] == "last" else made[0]).cpu())

    return call, y


def torch_layers(kind: str, info: dict[str, Any], weights: Mapping[str, Weight]) -> nn.Module:
    """torch.nn.GRU or LSTM of the sizes in `info`; with our weights where its layers are plain ones of `kind`.

    weights: The file's. Raises EdgernnError where torch has no such layers.
    """
    sizes = layer_sizes(info)
    if len(set(sizes)) > 1:
        raise EdgernnError("torch's layers are all of one size")
    module = MODULES[kind](
        info["model"]["input"]["size"], sizes[0], len(sizes), bidirectional=info["model"]["bidirectional"]
    ).eval()
    if is_same(kind, info):
        given: dict[str, torch.Tensor] = {}
        for layer, direction in itertools.product(range(len(sizes)), range(1 + info["model"]["bidirectional"])):
            name = f"layer{layer}{'.reverse' * direction}"
            W, R, b = (torch.tensor(weights[f"{name}.{part}"].floats) for part in "WRb")
            # the gru has one bias more, that of the product with h which its reset gate multiplies
            rows = len(R)
            inside = torch.zeros(rows)
            inside[2 * rows - len(b) :] = b[rows:]
            parts = {"weight_ih": W, "weight_hh": R, "bias_ih": b[:rows], "bias_hh": inside}
            given |= {f"{name}_l{layer}{'_reverse' * direction}": value for name, value in parts.items()}
        module.load_state_dict(given)
    return module
