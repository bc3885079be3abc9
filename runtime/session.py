# SPDX-License-Identifier: Apache-2.0
"""Inference sessions of an exported file: whole sequences, or one step at a time with the state kept."""

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.device import DEVICE, Call, to_device
from edgernn.runtime.info import is_network, kernels, layer_sizes, read_model
from edgernn.runtime.input_check import ACTIONS, InputCheck, OnNonfinite, as_array
from edgernn.runtime.lengths import Part, checked_lengths, checked_rows, split_batch, without_padding
from edgernn.runtime.library import cuda_library_path, library_missing, library_path
from edgernn.runtime.open_model import choose_backend, first_line, open_model
from edgernn.runtime.packed import pack
from edgernn.runtime.packed_format import identity_of
from edgernn.runtime.packed_session import packed_content, packed_info, run_steps
from edgernn.runtime.saved_state import Model, decode
from edgernn.runtime.stream import NativeStream, OnnxStream, Stream
from edgernn.runtime.zoo import find_model

_T = TypeVar("_T")
Array = NDArray[np.float32]


def busy(name: str) -> EdgernnError:
    """Return the error of the method `name` of a session while another thread uses the session's state."""
    return EdgernnError(
        f"{name}: expected one thread at a time, got a call while another thread uses the state of this session; "
        "open a session for each thread"
    )


class Session:
    """A model that runs whole sequences, or one step at a time with the state kept.

    s = Session("model.onnx")
    y = s.run(x)          # a whole sequence x (T, B, I) or (T, I), from the initial state
    y_t = s.step(x_t)     # one step x_t (B, I) or (I,), from the state after the previous step
    s.reset()             # restores the initial state: the next step starts a new sequence
    s.reset(rows=[2])     # restores the initial state of sequence 2 of the batch only

    A word model, which has a vocabulary, has no axis I: x (T, B) or (T,) and x_t (B,) or () are integers from 0 to
    `s.vocabulary - 1`. A model with an audio front end reads I samples from -1 to 1 at each step. Steps of the native
    backend on a CPU do not go through ONNX Runtime, unless the file of a network of one's own has a node that no packed
    model has.

    A packed model, and the file of another tool whose calls are steps, run in the native library alone, step by step.
    x_t (B, I) has the inputs of the file that are no states, one after the other, and y (B, O) has such outputs. The
    states have no names; `save_state` and `restore_state` keep them. `updates` and `macs` count layers that skip alone;
    if the file has an If that the graph decides, they count all layers and multiply-adds.

    `s.backend` is "native" (kernels of edgernn's library) or "portable" (standard ONNX operators), and `s.onnx` the
    onnxruntime.InferenceSession, None for a packed model. After a run or a step, `s.updates` (T, B) is the number of
    updated neurons, or under the rule delta of values of h that were sent, and `s.macs` (B,) the number of executed
    multiply-adds, without those of an audio front end. Both are None for a model that skips nothing.

    Several threads may call `run` of one session. The methods that read or change the kept state (`step`, `reset`,
    `save_state`, `restore_state`) serve one thread at a time: a call while another thread is in one of them raises
    EdgernnError. Give each stream a session of its own, or put the streams into one batch.

    Methods raise UsageError for a wrong shape, dtype or value of x.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        backend: Literal["auto", "native", "portable"] = "auto",
        threads: int = 1,
        device: str = "cpu",
        stream: int | None = None,
        on_nonfinite: OnNonfinite = "error",
    ) -> None:
        """Load a model.

        Args:
            path: A file that edgernn exported or packed, a streaming ONNX file of another tool, or a name that
                `edgernn models` lists.
            backend: "native" runs the kernels of edgernn's library, "portable" the standard ONNX operators in the file.
                "auto" is native if possible, else portable with a warning.
            threads: Number of threads that ONNX Runtime uses within an operator.
            device: "cpu", or "cuda" for the first GPU. On a GPU, `step` keeps the state there and copies only x and y.
            stream: Handle of a CUDA stream (cudaStream_t) as an integer, for all work of the session on a GPU. Default:
                ONNX Runtime's own stream.
            on_nonfinite: What `step` does if a number of x is NaN or infinite. "error" raises UsageError and keeps the
                state. "hold" replaces the number by the last finite number of that sequence and channel. Before the
                first finite number, it takes the mean that the model subtracts from x, or 0 if it subtracts none.
                "reset" restores the initial state of that sequence, and then replaces the number as "hold" does.

        Raises:
            EdgernnError: The file is missing, corrupt or newer than this version, or the device or the backend is not
                available. The message names the remedy.
            UsageError: The backend, the device or `on_nonfinite` is unknown, there is less than one thread, or the file
                of another tool is not computed step by step.
        """
        if backend not in ("auto", "native", "portable"):
            raise UsageError(f"backend: expected auto, native or portable, got {backend!r}")
        if device not in ("cpu", DEVICE):
            raise UsageError(f"device: expected cpu or {DEVICE}, got {device!r}")
        if on_nonfinite not in ACTIONS:
            raise UsageError(f"on_nonfinite: expected error, hold or reset, got {on_nonfinite!r}")
        if threads < 1:
            raise UsageError(f"threads: expected at least 1, got {threads}")
        self.path, self.device, self.on_nonfinite = find_model(Path(path)), device, on_nonfinite
        content = read_model(self.path)
        # the packed model; empty until a step of a file that edgernn exported
        self._packed, self._unpacked = packed_content(content, self.path), (0, 0)
        self.onnx: Any = None
        self.backend: Literal["native", "portable"] = "native"
        self.state_names, self._outputs = list[str](), list[str]()
        if self._packed:
            if backend == "portable" or device == DEVICE:
                argument = "backend: expected native" if backend == "portable" else "device: expected cpu"
                raise UsageError(
                    f"{argument} for a packed model or the file of another tool; run its ONNX file in ONNX Runtime"
                )
            self.info, width = packed_info(self._packed, self.path)
            self._state_sizes = {"state": width}
        else:
            library = None
            if backend != "portable" and library_missing(device) is None:
                library = cuda_library_path() if device == DEVICE else library_path()
            self.onnx, self.info, self._state_sizes = open_model(self.path, content, library, threads, device, stream)
            self.backend = choose_backend(backend, self.onnx, kernels(self.info), device)
            self.state_names, self._outputs = list(self._state_sizes), [o.name for o in self.onnx.get_outputs()]
        self._check = InputCheck(self.info, self.path)
        # a packed model knows which NaN are missing values that it fills in
        self._checks_values = not self._packed
        self._stream: Stream | None = None
        # reentrant: an interrupt between acquire and release does not lock out its own thread
        self._lock = threading.RLock()
        # the content of a streaming model's file until it is packed
        self._content: bytes | None = None if self.onnx is None or not self.info["streaming"] else content
        # batch and initial state of the last run on a GPU
        self._start: tuple[int, dict[str, Any]] = (0, {})
        # updates and macs of the last `run()`, or the stream of the last `step()`
        self._work: Stream | tuple[Any, Any] = (None, None)

    def __reduce__(self) -> NoReturn:
        """Refuse copy and pickle: a shallow copy would share the kept state."""
        raise UsageError(
            f"session of {self.path}: expected no copy; open the file in another session, and pass it the state with "
            "save_state and restore_state"
        )

    @property
    def updates(self) -> NDArray[np.int64] | None:
        """Number of neurons (T, B) that the last run or step updated; None if the model skips nothing."""
        return _host(self._work[0]) if isinstance(self._work, tuple) else self._work.work[0]

    @property
    def macs(self) -> NDArray[np.int64] | None:
        """Number of multiply-adds (B,) of the last run or step; None if the model skips nothing."""
        return _host(self._work[1]) if isinstance(self._work, tuple) else self._work.work[1]

    @property
    def nonfinite(self) -> NDArray[np.int64] | None:
        """Number of steps (B,) at which x had a NaN or infinite number, since the start of each sequence of the batch.

        Steps are not counted if `on_nonfinite` is "error". None before the first call of `step` or `restore_state`.
        """
        return None if self._stream is None else self._stream.nonfinite

    @property
    def input_size(self) -> int:
        return int(self.info["model"]["input"]["size"])

    @property
    def vocabulary(self) -> int | None:
        """Number of words in the vocabulary of a model that reads word indices, None for other models."""
        size = self.info["model"]["input"]["vocabulary"]
        return None if size is None else int(size)

    @property
    def neurons(self) -> int:
        """Number of neurons of all layers; those of a bidirectional model count once for each direction."""
        return sum(layer_sizes(self.info)) * (2 if self.info["model"].get("bidirectional") else 1)

    def shape(self, *leading: str) -> str:
        """Return the shape of x as text, such as "(T, B, 2)"; `leading` names the axes before I, such as "T", "B"."""
        return self._check.shape(*leading)

    @property
    def channels(self) -> tuple[int, ...]:
        """Shape of x at one step of one sequence: (I,), or () for a word model."""
        return self._check.channels

    def run(self, x: ArrayLike, lengths: ArrayLike | None = None) -> Array:
        """Run a whole sequence from the initial state, without changing the state that `step` keeps.

        If several threads call it, `updates` and `macs` are those of the run that ended last.

        Args:
            x: Inputs (T, B, I), or (T, I) for one sequence. A word model has no axis I.
            lengths: Number of steps of each sequence (B,), from 0 to T. Later steps are padding, which may hold any
                numbers and is not read. Default: T for all sequences.

        Returns:
            The O outputs y (T, B, O), or (B, O) for a model with an output at the last step only; without the axis B if
            x has none. With `lengths`, y (B, O) is the output at the last step of each sequence, and y (T, B, O) is
            zero at padded steps. A sequence of length 0 has zeros.
        """
        sequence, parts = self._sequence(x, lengths)
        batch = sequence.shape[1]
        if self.onnx is None:
            is_step = np.full(sequence.shape[:2], parts is None)
            for rows, start, stop in parts or ():
                is_step[start:stop, rows] = True
            y, updates, macs = run_steps(self._packed, sequence, is_step)
            self._work = updates, macs
        elif parts is None:
            y = _host(self._call(sequence, self._starts(batch))["y"])
        else:
            y = self._run_parts(sequence, self.initial_state(batch), parts)["y"]
        return y if np.ndim(x) == sequence.ndim else y[..., 0, :]

    def step(self, x_t: ArrayLike) -> Array:
        """Run one step from the state after the previous step, and keep the new state.

        A float32 NumPy array with the shape of the previous step is fastest: the step then allocates only y.

        Args:
            x_t: Input (B, I), or (I,) for one sequence. A word model has no axis I.

        Returns:
            The O outputs y of the step (B, O), or (O,) if x_t has no axis B.

        Raises:
            EdgernnError: Another thread is in a step of this session.
        """
        # `with self._alone("step")` takes longer
        if not self._lock.acquire(blocking=False):
            raise busy("step")
        try:
            stream = self._stream
            if stream is None or not stream.try_put(x_t):
                stream = self._begin(x_t)
            self._work = stream
            refusal = stream.step()
            if refusal is not None:
                if self.onnx is None:
                    raise UsageError(refusal)
                # raises the usual error for a wrong value
                self._check.checked(x_t, ("B",))
                raise EdgernnError(f"{self.path}: the step failed: {refusal}; correct x_t, or export the model again")
            return stream.result()
        finally:
            self._lock.release()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Hold the lock of the kept state; raise EdgernnError if another thread holds it. `name` is the method."""
        if not self._lock.acquire(blocking=False):
            raise busy(name)
        try:
            yield
        finally:
            self._lock.release()

    def _begin(self, x_t: ArrayLike) -> Stream:
        """Check x_t, the input of a step, and copy it to the `Stream` that runs the steps and keeps the state."""
        self._require_streaming("step")
        frame = self._check.checked(x_t, ("B",), self._checks_values and self.on_nonfinite == "error")[0]
        batch, batched = len(frame), np.ndim(x_t) == frame.ndim
        stream = self._stream
        if stream is not None and stream.batch != batch:
            if stream.started:
                expected = stream.batch
                raise UsageError(
                    f"x_t: expected the batch size of the kept state, {expected}, got {batch}; call reset() first"
                )
            stream = None
        if stream is None:
            stream = self._stream = self._make_stream(frame)
        stream.put(frame, batched)
        return stream

    def _make_stream(self, frame: NDArray[Any]) -> Stream:
        packed = b"" if self.device == DEVICE or self.backend == "portable" else self._packed_model()
        if not packed:
            start = self.initial_state(len(frame))
            return self._guarded(OnnxStream, self.onnx, frame, start, self._check, self.on_nonfinite, self.device)
        return NativeStream(packed, len(frame), self.on_nonfinite)

    def _packed_model(self) -> bytes:
        """Return the packed model, empty for a file that no packed model computes but ONNX Runtime does."""
        if self._content is not None:
            try:
                self._packed = pack(self._content, self.path)
            except UsageError:
                if self.backend == "native" and not is_network(self.info):
                    raise
            if not self._packed:
                self._unpacked = len(self._content), zlib.crc32(self._content)
            self._content = None
        return self._packed

    def _identity(self) -> tuple[int, int]:
        """Return size and checksum of the packed model without names, or else of the file."""
        packed = self._packed_model()
        return identity_of(packed) if packed else self._unpacked

    def _saved_model(self) -> Model:
        """Return the model's identity (size, checksum); `restore_state` compares it with that in the saved state."""
        return Model(*self._identity(), self._state_sizes, 0 if self._check.words else self.input_size)

    def save_state(self) -> bytes:
        """Save the state that `step` keeps for all sequences, and the last finite x, which `on_nonfinite` needs.

        Returns:
            The saved state. A session of the same file, in any process, can restore it and continues with the same
            results, bit for bit if the backend is the same. C programs restore it with `edgernn_restore_state`.

        Raises:
            UsageError: No step has run and no state was restored, or the model needs whole sequences.
            EdgernnError: The state has a NaN, or another thread is in a step of this session.
        """
        self._require_streaming("save_state")
        with self._alone("save_state"):
            if self._stream is None:
                raise UsageError("save_state: expected a kept state, got none; call step first")
            return self._stream.save(self._saved_model())

    def restore_state(self, saved: bytes) -> None:
        """Restore a saved state; the next step must have the batch size of the saved state.

        Args:
            saved: Bytes from `save_state`, or from the C function `edgernn_save_state` of the same model.

        Raises:
            EdgernnError: The bytes are damaged, or from another model or version, or another thread is in a step of
                this session. The session keeps its state.
            UsageError: `saved` is not bytes, or the model needs whole sequences.
        """
        self._require_streaming("restore_state")
        if not isinstance(saved, bytes | bytearray | memoryview):
            kind = type(saved).__name__
            raise UsageError(f"saved: expected the bytes that save_state returned, got {kind}; pass those bytes")
        with self._alone("restore_state"):
            state = decode(bytes(saved), self._saved_model())
            stream = self._stream
            if stream is None or stream.batch != len(state.counts):
                shape = (len(state.counts), *self.channels)
                stream = self._make_stream(np.zeros(shape, np.int64 if self._check.words else np.float32))
            stream.restore(state)
            self._stream = stream

    def _require_streaming(self, name: str) -> None:
        if not self.info["streaming"]:
            raise UsageError(
                f"{name}: expected a model that runs step by step, got one that needs the whole sequence; use run()"
            )

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Restore the initial state: the next step starts a new sequence.

        Args:
            rows: Indices of the sequences of the batch to reset; the others keep their state. Default: all sequences,
                and the next step may have another batch size.

        Raises:
            UsageError: `rows` is not a list of integers, or an index is outside the batch.
            EdgernnError: Another thread is in a step of this session.
        """
        with self._alone("reset"):
            if self._stream is None:
                return
            if rows is None:
                self._stream.restart()
            else:
                self._stream.restart_rows(checked_rows(rows, self._stream.batch))

    def checked(self, x: ArrayLike) -> NDArray[Any]:
        """Check x and convert it to float32 (T, B, I) or int64 (T, B), with B = 1 if x has no batch axis."""
        return self._check.checked(x, ("T", "B"), self._checks_values)

    def initial_state(self, batch: int) -> dict[str, Array]:
        """Return the initial states.

        Args:
            batch: Number of sequences.

        Returns:
            Dict from the name of each state to its initial value (batch, H): the file's numbers, or zeros.

        Raises:
            UsageError: The model is packed or the file of another tool.
        """
        if self.onnx is None:
            raise UsageError(
                "state: expected a file that edgernn exported, got a packed model or the file of another tool, whose "
                "states have no names; keep them with save_state and restore_state"
            )
        starts = self.info["initial_state"]
        return {n: np.full((batch, size), starts.get(n, 0), np.float32) for n, size in self._state_sizes.items()}

    def run_from(
        self, x: NDArray[Any], state: Mapping[str, Array], lengths: ArrayLike | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Run a sequence from a state.

        Args:
            x: Inputs (T, B, I), or words (T, B).
            state: Dict from the name of each state to its value (B, H).
            lengths: Number of steps of each sequence (B,), from 0 to T; later steps are padding. Default: T for all.

        Returns:
            The outputs y as in `run`, always with the axis B, and a dict from the name of each state to its value
            (B, H) after the last step of each sequence. Padded steps do not change the state.

        Raises:
            UsageError: A state is missing, unknown or has another shape, or the model is as for `initial_state`.
        """
        sequence, parts = self._sequence(x, lengths)
        expected = {name: zero.shape for name, zero in self.initial_state(sequence.shape[1]).items()}
        arrays = {name: as_array(name, value) for name, value in state.items()}
        if bad := [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]:
            raise UsageError(f"{bad[0]}: expected real numbers, got dtype {arrays[bad[0]].dtype}; convert the state")
        start = {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}
        got = {name: value.shape for name, value in start.items()}
        if got != expected:
            raise UsageError(f"state: expected {expected}, got {got}; start from initial_state(batch)")
        outputs = self._call(sequence, start) if parts is None else self._run_parts(sequence, start, parts)
        return _host(outputs["y"]), {name: _host(outputs[f"{name}.next"]) for name in self.state_names}

    def _sequence(self, x: ArrayLike, lengths: ArrayLike | None) -> tuple[NDArray[Any], list[Part] | None]:
        """Check and convert x and set padded steps to zero; return x and the parts of the batch to run one by one."""
        if lengths is None:
            return self.checked(x), None
        array = self._check.shaped(x, ("T", "B"))
        axes = array.ndim - len(self.channels)
        sizes = checked_lengths(lengths, len(array), array.shape[1] if axes == 2 else 1)
        sequence = self._check.converted(without_padding(array, sizes, axes), ("T", "B"), self._checks_values)
        return sequence, split_batch(sizes, self.info["streaming"])

    def _run_parts(self, x: NDArray[Any], state: Mapping[str, Array], parts: list[Part]) -> dict[str, Any]:
        """Run the parts of a padded batch one by one; return the outputs of the batch by name."""
        steps, batch = x.shape[:2]
        shapes = {"y": (steps, batch), "updates": (steps, batch), "macs": (batch,)}
        if self.info["model"]["head"]["output"] == "last":
            shapes["y"] = (batch,)
        outputs: dict[str, Any] = {f"{name}.next": value.copy() for name, value in state.items()}
        for value in self.onnx.get_outputs():
            if value.name == "y":
                outputs["y"] = np.zeros((*shapes["y"], value.shape[-1]), np.float32)
            elif value.name in shapes:
                outputs[value.name] = np.zeros(shapes[value.name], np.int64)
        for rows, start, stop in parts:
            before = {name: outputs[f"{name}.next"][rows] for name in state}
            for name, value in self._call(np.ascontiguousarray(x[start:stop, rows]), before).items():
                whole, part = outputs[name], _host(value)
                if name == "macs":
                    whole[rows] += part
                elif len(shapes.get(name, ())) == 2:
                    whole[start:stop, rows] = part
                else:
                    whole[rows] = part
        self._work = outputs.get("updates"), outputs.get("macs")
        return outputs

    def _starts(self, batch: int) -> Mapping[str, Any]:
        """Return the dict of `initial_state`, copied to the GPU if the session runs there; that copy is cached."""
        if self.device != DEVICE:
            return self.initial_state(batch)
        cached_batch, start = self._start
        if cached_batch != batch:
            start = {name: to_device(value) for name, value in self.initial_state(batch).items()}
            self._start = batch, start
        return start

    def _call(self, x: NDArray[Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Run a sequence from a state in ONNX Runtime; return a dict from the name of each output to its value."""
        inputs = {"x": x, **state}
        if self.device == DEVICE:
            call = self._guarded(Call, self.onnx, inputs)
            self._guarded(call)
            outputs = call.outputs
        else:
            values = self._guarded(self.onnx.run, self._outputs, inputs)
            outputs = dict(zip(self._outputs, values, strict=True))
        self._work = outputs.get("updates"), outputs.get("macs")
        return outputs

    def _guarded(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function of ONNX Runtime; return its result, or raise EdgernnError with the file's path on failure."""
        try:
            return call(*arguments)
        except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
            reason = first_line(error)
            raise EdgernnError(f"{self.path}: ONNX Runtime cannot run it: {reason}; export the model again") from None


def _host(value: Any) -> Any:
    """Copy an OrtValue to a NumPy array; return None and arrays unchanged."""
    return value if value is None or isinstance(value, np.ndarray) else value.numpy()
