# SPDX-License-Identifier: Apache-2.0
"""Times a packed step graph beside ONNX Runtime from C: loops of step_loop.c around the C functions of both."""

import ctypes
import itertools
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.library import onnxruntime
from edgernn.runtime.step_graph.lowering import shape_of
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import Rounds, interleaved

Array = NDArray[Any]
PACKED, ONNX_RUNTIME = "edgernn packed", "ONNX Runtime"
# name in reports of the steps of many streams
STREAMS = "streams"
# places of functions in OrtApi, which stay from version to version
_MESSAGE, _ENV, _SESSION, _RUN, _OPTIONS, _THREADS, _TENSOR, _MEMORY = 2, 3, 8, 9, 10, 24, 49, 69
_API_VERSION, _WARNING, _ARENA, _DEFAULT, _FLOAT = 17, 2, 1, 0, 1
# most steps of a timed call, and about its longest time, which is short so that few calls are interrupted
_MOST_STEPS, _CALL_SECONDS = 10, 1e-3


class _Calls(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("run", "session", "input_names", "output_names")),
        ("inputs", ctypes.c_void_p * 2),
        ("outputs", ctypes.c_void_p * 2),
        *((name, ctypes.c_size_t) for name in ("input_count", "output_count")),
        ("x", ctypes.c_void_p),
    ]


class _OnnxRuntime:
    """The C functions of ONNX Runtime, from the library in its Python package."""

    def __init__(self) -> None:
        folder = Path(onnxruntime().__file__).parent / "capi"
        files = sorted(folder.glob("libonnxruntime.so.*"))
        if not files:
            raise EdgernnError(f"{folder}: expected libonnxruntime.so, got none; leave out --from-c")
        get = ctypes.CDLL(str(files[0])).OrtGetApiBase
        get.restype = ctypes.POINTER(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32))
        api = get()[0](_API_VERSION)
        self.functions = (ctypes.c_void_p * (_MEMORY + 1)).from_address(api)

    def call(self, place: int, *arguments: Any) -> None:
        """Call a function, which returns a status; raise EdgernnError with its message."""
        self.check(ctypes.CFUNCTYPE(ctypes.c_void_p)(self.functions[place] or 0)(*arguments))

    def make(self, place: int, *arguments: Any) -> ctypes.c_void_p:
        """Return what a function makes, whose address is its last argument."""
        result = ctypes.c_void_p()
        self.call(place, *arguments, ctypes.byref(result))
        return result

    def check(self, status: int | None) -> None:
        if status is not None:
            message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(self.functions[_MESSAGE] or 0)(status)
            raise EdgernnError(f"ONNX Runtime: {(message or b'').decode()}")

    def tensor(self, array: Array) -> ctypes.c_void_p:
        memory = self.make(_MEMORY, ctypes.c_int(_ARENA), ctypes.c_int(_DEFAULT))
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        data, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        return self.make(_TENSOR, memory, data, size, shape, ctypes.c_size_t(array.ndim), ctypes.c_int(_FLOAT))


class _OnnxCalls:
    """An ONNX file in a session of one thread, its inputs and outputs in memory that stays."""

    def __init__(self, loop: ctypes.CDLL, model: onnx.ModelProto, states: Mapping[str, str]) -> None:
        runtime = self._runtime = _OnnxRuntime()
        self._run = loop.run_onnx
        self._run.restype = ctypes.c_void_p
        options = runtime.make(_OPTIONS)
        runtime.call(_THREADS, options, ctypes.c_int(1))
        environment = runtime.make(_ENV, ctypes.c_int(_WARNING), ctypes.c_char_p(b"steps"))
        content = model.SerializeToString()
        session = runtime.make(_SESSION, environment, content, ctypes.c_size_t(len(content)), options)
        inputs = {value.name: shape_of(value) for value in model.graph.input}
        # the inputs that are no states, one after the other
        self._x = np.zeros(sum(math.prod(shape) for name, shape in inputs.items() if name not in states), np.float32)
        arrays, start = dict[str, Array](), 0
        for name, shape in inputs.items():
            if name not in states:
                arrays[name] = self._x[start : start + math.prod(shape)].reshape(shape)
                start += math.prod(shape)
        copies = [{name: np.zeros(inputs[name], np.float32) for name in states} for _ in range(2)]
        results = {
            name: np.zeros(shape, np.float32)
            for name, shape in _output_shapes(model).items()
            if name not in states.values()
        }
        self._kept: list[Any] = [arrays, copies, results]
        wrap = runtime.tensor
        shared = {name: wrap(array) for name, array in (*arrays.items(), *results.items())}
        wrapped = [{name: wrap(array) for name, array in copy.items()} for copy in copies]
        turns = list(zip(wrapped, wrapped[::-1], strict=True))
        names = [*arrays, *states], [*results, *states.values()]
        reads = [_pointers([*(shared[n] for n in arrays), *before.values()]) for before, _ in turns]
        writes = [_pointers([*(shared[n] for n in results), *after.values()]) for _, after in turns]
        texts = [(ctypes.c_char_p * len(group))(*(name.encode() for name in group)) for group in names]
        self._kept += [reads, writes, texts]
        self._calls = _Calls(
            runtime.functions[_RUN],
            session,
            *(ctypes.cast(text, ctypes.c_void_p) for text in texts),
            (ctypes.c_void_p * 2)(*(ctypes.addressof(group) for group in reads)),
            (ctypes.c_void_p * 2)(*(ctypes.addressof(group) for group in writes)),
            *map(len, names),
            self._x.ctypes.data,
        )

    def run(self, x: Array, steps: int) -> None:
        sizes = (ctypes.c_int64(size) for size in (*x.shape, steps))
        self._runtime.check(self._run(ctypes.byref(self._calls), ctypes.c_void_p(x.ctypes.data), *sizes))


def _pointers(values: Sequence[ctypes.c_void_p]) -> Any:
    return (ctypes.c_void_p * len(values))(*values)


def _output_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    session = onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {value.name: np.zeros(shape_of(value), np.float32) for value in model.graph.input}
    names = [value.name for value in session.get_outputs()]
    results = session.run(names, feeds)
    return {name: np.shape(value) for name, value in zip(names, results, strict=True)}


def _compiled() -> ctypes.CDLL:
    if shutil.which("cc") is None:
        raise EdgernnError("--from-c: expected the C compiler cc, got none; install one, or leave out --from-c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "step_loop.so"
        source = Path(__file__).with_suffix(".c")
        words = ["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(library)]
        process = subprocess.run(words, capture_output=True, text=True)
        if process.returncode != 0:
            raise EdgernnError(
                f"--from-c: cc failed with status {process.returncode}; correct the error that it reports, or leave "
                f"out --from-c: {process.stderr[-2000:]}"
            )
        return ctypes.CDLL(str(library))


def times_from_c(
    model: onnx.ModelProto, stepper: Stepper, many: Stepper, states: Mapping[str, str], x: Array, rounds: Rounds
) -> dict[str, Any]:
    """Time the steps of both runtimes in loops in C.

    Args:
        model: The file, whose inputs have fixed shapes.
        stepper: The packed model of one stream.
        many: The same of many streams.
        states: For each input that is a state, the output with its next value.
        x: Inputs of each step (T, I).
        rounds: Settings of the timing.

    Returns:
        "step", the median microseconds of a step by runtime, and "ratio", the median over rounds of ONNX Runtime's time
        divided by ours; "streams", the median microseconds of a stream's step of `many`.

    Raises:
        EdgernnError: A step failed, ONNX Runtime's package has no C library, or there is no compiler.
    """
    loop = _compiled()
    other = _OnnxCalls(loop, model, states)
    x = np.ascontiguousarray(x, np.float32)
    other.run(x, 1)
    start = time.perf_counter()
    other.run(x, 1)
    steps = min(_MOST_STEPS, max(1, round(_CALL_SECONDS / (time.perf_counter() - start))))
    parts = np.array_split(x, max(len(x) // steps, 1))

    def run_packed(stepper: Stepper, part: Array, steps: int) -> None:
        step, handle, _, y = stepper.native
        sizes = (ctypes.c_int64(size) for size in part.shape)
        data = ctypes.c_void_p(part.ctypes.data)
        if loop.run_packed(step, handle, data, *sizes, y, ctypes.c_int64(steps)) != 0:
            raise EdgernnError(f"the step failed: {stepper.refusal()}")

    turns = itertools.cycle(parts), itertools.cycle(parts)
    count = len(many.x)
    # each stream begins at another row of x
    starts = np.arange(count) * len(x) // count
    rows = x[(np.arange(_MOST_STEPS)[:, None] + starts) % len(x)].reshape(_MOST_STEPS, -1)
    calls = {
        PACKED: lambda: run_packed(stepper, next(turns[0]), steps),
        ONNX_RUNTIME: lambda: other.run(next(turns[1]), steps),
        STREAMS: lambda: run_packed(many, rows, steps),
    }
    seconds = interleaved(calls, rounds)
    medians = {name: np.array([np.median(block) for block in blocks]) / steps for name, blocks in seconds.items()}
    times = {name: 1e6 * float(np.median(blocks)) for name, blocks in medians.items()}
    return {
        STREAMS: times.pop(STREAMS) / count,
        "step": times,
        "ratio": float(np.median(medians[ONNX_RUNTIME] / medians[PACKED])),
    }
