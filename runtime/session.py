# SPDX-License-Identifier: Apache-2.0
"""A model file, ready to run: whole sequences, or one step at a time with the state kept."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.runtime.device import DEVICE, RECORD, Call, gpu_session, ops_elsewhere, require_gpu, to_device
from edgernn.runtime.info import kernels, layer_sizes, not_utf8, read_info, read_model
from edgernn.runtime.interface import Value, state_sizes
from edgernn.runtime.library import (
    cuda_library_path,
    library_missing,
    library_path,
    no_native,
    onnxruntime,
    op_names,
    register,
)
from edgernn.runtime.packed import pack
from edgernn.runtime.stream import NativeStream, OnnxStream, Stream

_T = TypeVar("_T")
Array = NDArray[np.float32]


class Session:
    """An exported model in ONNX Runtime; its steps, where the native library runs it, go past that.

    s = Session("model.onnx")
    y = s.run(x)          # a whole sequence x (T, B, I), or (T, I) for one; starts from the initial state
    y_t = s.step(x_t)     # one step x_t (B, I) or (I,), the state is kept; s.reset() forgets it

    A model of words has no axis I: x is whole numbers, (T, B) or (T,), and x_t (B,) or a single one, all below
    `s.vocabulary`, which is None for other models.
    backend: "auto" takes the native library where it is installed and warns where it is not; "native" insists on it;
    "portable" runs the standard operators that the file also carries. `s.backend` says which one runs, `s.onnx` is the
    onnxruntime.InferenceSession underneath.
    threads: of ONNX Runtime within an operator. device: "cpu", or "cuda", the first GPU, with the CUDA library for the
    native one; the state of `step` is kept there, and what is copied is x in and y out. stream: of CUDA, for all of a
    session's work there; ONNX Runtime's own unless given.
    After a run or step, `s.updates` (T, B) is the number of neurons updated and `s.macs` (B,) the multiply-adds
    executed; both are None for a model that always updates everything.

    Raises EdgernnError for a file that is missing, corrupt, not exported by edgernn or newer than this version, and
    where the device cannot be used, with what to do about it; UsageError for a wrong shape, dtype or value of x, naming
    what was expected.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        backend: Literal["auto", "native", "portable"] = "auto",
        threads: int = 1,
        device: str = "cpu",
        stream: int | None = None,
    ) -> None:
        if backend not in ("auto", "native", "portable"):
            raise UsageError(f"backend: expected auto, native or portable, got {backend!r}")
        if device not in ("cpu", DEVICE):
            raise UsageError(f"device: expected cpu or {DEVICE}, got {device!r}")
        if threads < 1:
            raise UsageError(f"threads: expected at least 1, got {threads}")
        self.path, self.device = Path(path), device
        library = None
        if backend != "portable" and library_missing(device) is None:
            library = cuda_library_path() if device == DEVICE else library_path()
        content = read_model(self.path)
        self.onnx, self.info, self._state_sizes = _open(self.path, content, library, threads, device, stream)
        self.backend = _backend(backend, self.onnx, kernels(self.info), device)
        self.state_names = list(self._state_sizes)
        self._outputs = [o.name for o in self.onnx.get_outputs()]
        self._stream: Stream | None = None
        # of the file as it was, to be packed for the first step
        self._content: bytes | None = content if self.backend == "native" and device == "cpu" else None
        self._packed = b""
        # on a GPU, what the last run started from, of its batch
        self._start: tuple[int, dict[str, Any]] = (0, {})
        # of the last run, there if it was there, or the stream that made the last step
        self._work: Stream | tuple[Any, Any] = (None, None)

    @property
    def updates(self) -> NDArray[np.int64] | None:
        """How many neurons the last run or step updated, (T, B)."""
        return _host(self._work[0]) if isinstance(self._work, tuple) else self._work.work[0]

    @property
    def macs(self) -> NDArray[np.int64] | None:
        """The multiply-adds that the last run or step executed, (B,)."""
        return _host(self._work[1]) if isinstance(self._work, tuple) else self._work.work[1]

    @property
    def input_size(self) -> int:
        return int(self.info["model"]["input"]["size"])

    @property
    def vocabulary(self) -> int | None:
        """How many words there are, where x is words."""
        size = self.info["model"]["input"]["vocabulary"]
        return None if size is None else int(size)

    @property
    def neurons(self) -> int:
        """Of all layers and directions."""
        return sum(layer_sizes(self.info)) * (2 if self.info["model"]["bidirectional"] else 1)

    def shape(self, *leading: str) -> str:
        """What x is like with these axes before the one of its channels, if it has that, in words."""
        return f"({', '.join([*leading, *map(str, self.channels)])}{',' * (len(leading) + len(self.channels) == 1)})"

    @property
    def channels(self) -> tuple[int, ...]:
        """The last axis of x, if it has one for channels: (I,), or () for words."""
        return (self.input_size,) if self.vocabulary is None else ()

    def run(self, x: ArrayLike) -> Array:
        """Y of a whole sequence from the initial state; the state that `step` keeps is not touched.

        x (T, B, I) gives y (B, O) or (T, B, O); x (T, I) gives y (O,) or (T, O).
        """
        sequence = self.checked(x)
        y: Array = _host(self._call(sequence, self._starts(sequence.shape[1]))["y"])
        return y if np.ndim(x) == sequence.ndim else y[..., 0, :]

    def step(self, x_t: ArrayLike) -> Array:
        """Y after one more step x_t (B, I) or (I,), from the state that the last step left.

        Fastest for a float32 array; nothing but y is allocated then.
        """
        stream = self._stream
        if stream is None or not stream.take(x_t):
            stream = self._begin(x_t)
        self._work = stream
        refusal = stream.step()
        if refusal is not None:
            # says it in the words of all other input
            self._checked(x_t, ("B",))
            raise EdgernnError(f"{self.path}: {refusal}")
        return stream.result()

    def _begin(self, x_t: ArrayLike) -> Stream:
        """The stream that makes the next step from x_t, which is anything but what the last one read: checked."""
        if not self.info["streaming"]:
            raise UsageError("step: this model needs the whole sequence; use run")
        frame = self._checked(x_t, ("B",))[0]
        batch, batched = len(frame), np.ndim(x_t) == frame.ndim
        stream = self._stream
        if stream is not None and stream.batch != batch:
            if stream.started:
                kept = stream.batch
                raise UsageError(f"x_t: expected the batch of the kept state, {kept}, got {batch}; call reset() first")
            stream = None
        if stream is None:
            stream = self._stream = self._make_stream(frame)
        stream.put(frame, batched)
        return stream

    def _make_stream(self, frame: NDArray[Any]) -> Stream:
        if self.device == DEVICE or self.backend == "portable":
            start = self.initial_state(len(frame))
            return self._guarded(OnnxStream, self.onnx, frame, start, self.device, self.vocabulary)
        if self._content is not None:
            self._packed, self._content = pack(self._content, self.path), None
        return NativeStream(self._packed, len(frame))

    def reset(self) -> None:
        """Forget the state: the next step starts a new sequence."""
        if self._stream is not None:
            self._stream.restart()

    def checked(self, x: ArrayLike) -> NDArray[Any]:
        """X as the model takes it: float32 (T, B, I) or int64 (T, B), B = 1 where it is left out."""
        return self._checked(x, ("T", "B"))

    def initial_state(self, batch: int) -> dict[str, Array]:
        """What a sequence starts from: zeros but for what the file says."""
        starts = self.info["initial_state"]
        return {n: np.full((batch, size), starts.get(n, 0), np.float32) for n, size in self._state_sizes.items()}

    def run_from(self, x: NDArray[Any], state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Y (with its batch axis) and the last state of x (T, B, I) or (T, B) from a state, by name (B, H) each."""
        sequence = self.checked(x)
        expected = {name: zero.shape for name, zero in self.initial_state(sequence.shape[1]).items()}
        given = {name: np.asarray(value, np.float32) for name, value in state.items()}
        got = {name: value.shape for name, value in given.items()}
        if got != expected:
            raise UsageError(f"state: expected {expected}, got {got}")
        found = self._call(sequence, given)
        return _host(found["y"]), {name: _host(found[f"{name}.next"]) for name in self.state_names}

    def _starts(self, batch: int) -> Mapping[str, Any]:
        """The initial state where a run reads it."""
        if self.device != DEVICE:
            return self.initial_state(batch)
        kept, start = self._start
        if kept != batch:
            start = {name: to_device(value) for name, value in self.initial_state(batch).items()}
            self._start = batch, start
        return start

    def _call(self, x: NDArray[Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name, on the device."""
        inputs = {"x": x, **state}
        if self.device == DEVICE:
            call = self._guarded(Call, self.onnx, inputs)
            self._guarded(call)
            found = call.outputs
        else:
            values = self._guarded(self.onnx.run, self._outputs, inputs)
            found = dict(zip(self._outputs, values, strict=True))
        self._work = found.get("updates"), found.get("macs")
        return found

    def _guarded(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """call(*arguments), whose errors name the file."""
        try:
            return call(*arguments)
        except Exception as error:  # onnxruntime raises plain classes of its own
            raise EdgernnError(f"{self.path}: {_first_line(error)}") from None

    def _checked(self, x: ArrayLike, leading: tuple[str, ...]) -> NDArray[Any]:
        """X as float32 (T, B, I) or int64 (T, B); `leading` names its axes before I: the batch may be left out."""
        array = np.asarray(x)
        expected, full = self.shape(*leading), len(leading) + len(self.channels)
        kind, kinds = ("numbers", "fiub") if self.vocabulary is None else ("whole numbers", "iu")
        if array.dtype.kind not in kinds:
            raise UsageError(f"x: expected {kind} of shape {expected}, got dtype {array.dtype}")
        without_batch = array.ndim == full - 1
        if array.ndim not in (full - 1, full) or array.shape[array.ndim - len(self.channels) :] != self.channels:
            raise UsageError(f"x: expected shape {expected}, or without B, got {array.shape}")
        if 0 in array.shape:
            raise UsageError(f"x: expected shape {expected} with no empty axis, got {array.shape}")
        if self.vocabulary is None:
            array = np.ascontiguousarray(array, np.float32)
            self._refuse(array, ~np.isfinite(array), "finite numbers")
        else:
            self._refuse(array, (array < 0) | (array >= self.vocabulary), f"words from 0 to {self.vocabulary - 1}")
            array = array.astype(np.int64)
        array = array.reshape((1,) * (leading == ("B",)) + array.shape)
        return array.reshape(array.shape[:1] + (1,) * without_batch + array.shape[1:])

    def _refuse(self, array: NDArray[Any], bad: NDArray[np.bool_], expected: str) -> None:
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise UsageError(f"x: expected {expected}, got {array[where]} at index {where}")


def _open(
    path: Path, content: bytes, library: str | None, threads: int, device: str, stream: int | None
) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """A session, with the library where that has all kernels of the file, its description and its states' sizes."""
    try:
        session, refused = open_session(path, content, library, threads, device, stream), None
    except EdgernnError as error:
        if library is None:
            raise
        # a node for which the library has no kernel keeps ONNX Runtime from its function, too
        session, refused = open_session(path, content, None, threads, device, stream), error
    try:
        text = session.get_modelmeta().custom_metadata_map.get("edgernn")
        inputs, outputs = (
            [Value(v.name, v.type, tuple(v.shape)) for v in values]
            for values in (session.get_inputs(), session.get_outputs())
        )
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    info = read_info(text, path)
    sizes = state_sizes(info, inputs, outputs, len(content), path)
    if refused is not None and no_native(kernels(info), device) is None:
        raise refused
    return session, info, sizes


def open_session(
    path: Path, content: bytes, library: str | None, threads: int, device: str = "cpu", stream: int | None = None
) -> Any:
    """An onnxruntime.InferenceSession, with the native library for the device registered where one is given."""
    ort = onnxruntime()
    if device == DEVICE:
        require_gpu(ort, library)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # what goes wrong is raised, and said once
    options.log_severity_level = 4
    try:
        if library is not None:
            register(options, library, threads)
        if device == DEVICE:
            options.add_session_config_entry(RECORD, "1")
            return gpu_session(ort, content, options, stream=stream)
        # a session of Python would catch an error, print it and try once more
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except EdgernnError:
        raise
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except Exception as error:  # onnxruntime raises plain classes of its own
        raise EdgernnError(f"{path}: ONNX Runtime cannot load it: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """ONNX Runtime lists what follows from an error on further lines."""
    return str(error).partition("\n")[0]


def _host(value: Any) -> Any:
    """The array of an OrtValue; None and arrays as they are."""
    return value if value is None or isinstance(value, np.ndarray) else value.numpy()


def _backend(wanted: str, session: Any, kernels: list[str], device: str) -> Literal["native", "portable"]:
    """What a model that needs these kernels runs on. Raises EdgernnError for "native" where it cannot be had."""
    if wanted == "portable":
        return "portable"
    reason = no_native(kernels, device)
    if reason is None and device == DEVICE and (left := ops_elsewhere(session, set(op_names(len(kernels))))):
        reason = f"ONNX Runtime's CUDA provider was not given {', '.join(sorted(left))}"
    if reason is None:
        return "native"
    if wanted == "native":
        raise EdgernnError(reason)
    warnings.warn(f"{reason}; running the portable operators, which are slower", EdgernnWarning, stacklevel=3)
    return "portable"
