# SPDX-License-Identifier: Apache-2.0
"""Streaming inference: models that run step by step at a fixed batch size, in preallocated buffers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.input_check import InputCheck, OnNonfinite
from edgernn.runtime.library import onnxruntime
from edgernn.runtime.saved_state import Model, SavedState, encode
from edgernn.runtime.stepper import Stepper

Array = NDArray[Any]


class Stream(ABC):
    """A model that runs step by step on B sequences, and keeps their state between steps.

    The array `x`, float32 (B, I) or int64 (B,) for word indices, is the input of the next step. The array `y` (B, O)
    has the O outputs of the last step. Both are overwritten in place, so that a step allocates no memory. `started`
    becomes True at a step or at `restore`, and False at `restart`.
    """

    def __init__(self, x: Array, y: Array) -> None:
        self.x, self.y, self.started = x, y, False
        self.put(x.copy(), True)

    @property
    def batch(self) -> int:
        return len(self.x)

    def put(self, frame: Array, batched: bool) -> None:
        """Copy the next step's input to the array `x`.

        Args:
            frame: The input (B, I), or (B,) for word indices.
            batched: True if the caller's inputs and outputs have the axis B, False for one sequence without it.
        """
        self.x[...] = frame
        # a view, also of words (B,), of which x[0] would be a number
        self._frame = self.x if batched else self.x[0, ...]
        self._output = self.y if batched else self.y[0, ...]

    def try_put(self, x_t: Any) -> bool:
        """Copy the next step's input x_t to `x` and return True; return False if `put` must be called instead.

        That is the case if x_t is not a NumPy array with the dtype and shape of the last input.
        """
        frame = self._frame
        if type(x_t) is not np.ndarray or x_t.dtype != frame.dtype or x_t.shape != frame.shape:
            return False
        frame[...] = x_t
        return True

    def result(self) -> Array:
        """Return a copy of the last step's output y: (B, O), or (O,) if the input had no batch axis."""
        return self._output.copy()

    @abstractmethod
    def step(self) -> str | None:
        """Run one step on `x` and return None; if x is invalid, return the reason and keep the state."""

    @abstractmethod
    def restart(self) -> None:
        """Restore the initial state: the next step starts a new sequence."""

    @abstractmethod
    def restart_rows(self, rows: NDArray[np.int64]) -> None:
        """Restore the initial state of the sequences with the indices `rows`; the others keep their state."""

    @abstractmethod
    def save(self, model: Model) -> bytes:
        """Return the state of all sequences as bytes, with `model`, the identity of the model that it belongs to."""

    @abstractmethod
    def restore(self, saved: SavedState) -> None:
        """Restore a saved state of the same model and batch size."""

    @property
    @abstractmethod
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Numbers of updated neurons (1, B) and of executed multiply-adds (B,) in the last step.

        Both are None for a model that runs all of its work at every step.
        """

    @property
    @abstractmethod
    def nonfinite(self) -> NDArray[np.int64]:
        """Number of steps (B,) at which x had a NaN or an infinite number, since each sequence started."""


class NativeStream(Stream):
    """Streaming inference of a packed model by the native library, without ONNX Runtime."""

    def __init__(self, packed: bytes, batch: int, on_nonfinite: OnNonfinite) -> None:
        self._stepper = Stepper(packed, batch, on_nonfinite)
        super().__init__(self._stepper.x, self._stepper.y)

    def step(self) -> str | None:
        if not self._stepper.step():
            return self._stepper.refusal()
        self.started = True
        return None

    def restart(self) -> None:
        self._stepper.restart()
        self.started = False

    def restart_rows(self, rows: NDArray[np.int64]) -> None:
        for row in rows:
            self._stepper.restart_row(int(row))

    def save(self, model: Model) -> bytes:
        return self._stepper.save_state()

    def restore(self, saved: SavedState) -> None:
        self._stepper.restore_state(saved.content)
        self.started = True

    @property
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        updates = self._stepper.updates
        return None if updates is None else updates[None], self._stepper.macs

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        return self._stepper.nonfinite


class OnnxStream(Stream):
    """Streaming inference by ONNX Runtime on a CPU or GPU.

    The state has two buffers: a step reads one and writes the next state to the other, and the next step swaps them.
    """

    def __init__(
        self,
        session: Any,
        x: Array,
        state: Mapping[str, Array],
        check: InputCheck,
        on_nonfinite: OnNonfinite = "error",
        device: str = "cpu",
    ) -> None:
        """Allocate buffers for input, output and state, and bind them to the session.

        Args:
            session: The onnxruntime.InferenceSession.
            x: The first input (B, I), or words (B,).
            state: Dict from the name of each state to its initial value (B, H).
            check: Object that finds the invalid values of x.
            on_nonfinite: What `step` does if a number of x is NaN or infinite: "error", "hold" or "reset", as in
                `Session`.
            device: "cpu" or "cuda".
        """
        self._run, self._start, self._device = session.run_with_iobinding, state, device
        self._check, self._on_nonfinite = check, on_nonfinite
        names = [o.name for o in session.get_outputs() if o.name.removesuffix(".next") not in state]
        # run one step to find out the shapes of the outputs
        values = session.run(names, {"x": x[None], **state})
        outputs = {name: np.empty_like(value) for name, value in zip(names, values, strict=True)}
        # removes the axis T of a model with an output at every step
        super().__init__(x.copy(), outputs["y"].reshape(len(x), -1))
        self._finite = np.empty(x.shape, bool)
        # the last finite number of each channel, kept unless on_nonfinite is "error"
        self._held = self.x.copy()
        self._counts = np.zeros(len(x), np.int64)
        self._restart_input(slice(None))
        # an OrtValue shares its array's memory on the CPU, and is a copy on a GPU
        self._input, self._outputs = self._value(self.x[None]), {n: self._value(v) for n, v in outputs.items()}
        self._states = [{name: self._value(value.copy()) for name, value in state.items()} for _ in range(2)]
        self._inputs = [{"x": self._input, **before} for before in self._states]
        self._bindings = []
        for inputs, after in zip(self._inputs, self._states[::-1], strict=True):
            binding = session.io_binding()
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in {**self._outputs, **{f"{n}.next": v for n, v in after.items()}}.items():
                binding.bind_ortvalue_output(name, value)
            self._bindings.append(binding)
        self._turn = 0

    def _value(self, array: Array) -> Any:
        return onnxruntime().OrtValue.ortvalue_from_numpy(array, self._device, 0)

    def step(self) -> str | None:
        if not self._accept():
            return "x is refused"
        binding = self._bindings[self._turn]
        try:
            if self._device != "cpu":
                self._input.update_inplace(self.x[None])
                # a node on the CPU reads a copy that was made when its input was bound
                for name, value in self._inputs[self._turn].items():
                    binding.bind_ortvalue_input(name, value)
            self._run(binding)
            if self._device != "cpu":
                self.y[...] = self._outputs["y"].numpy().reshape(self.y.shape)
        except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
            return str(error)
        self._turn = 1 - self._turn
        self.started = True
        return None

    def _accept(self) -> bool:
        """Check the values of the array `x`, and replace NaN and infinite numbers as `on_nonfinite` says."""
        if self._check.words:
            return not self._check.bad(self.x).any()
        finite = bool(np.isfinite(self.x, self._finite).all())
        bad = None if finite else self._check.bad(self.x)
        if self._on_nonfinite == "error":
            return bad is None or not bad.any()
        np.copyto(self._held, self.x, where=self._finite)
        if bad is not None:
            rows = np.flatnonzero(bad.any(1))
            self._counts[rows] += 1
            if self._on_nonfinite == "reset":
                self._restart_state(rows)
            self.x[...] = self._held
        return True

    def restart(self) -> None:
        for copy in self._states:
            for name, value in self._start.items():
                copy[name].update_inplace(value)
        self._restart_input(slice(None))
        self.started = False

    def restart_rows(self, rows: NDArray[np.int64]) -> None:
        self._restart_state(rows)
        self._restart_input(rows)

    def save(self, model: Model) -> bytes:
        state = {name: value.numpy() for name, value in self._states[self._turn].items()}
        return encode(model, self._counts, state, self._held)

    def restore(self, saved: SavedState) -> None:
        for name, value in saved.state.items():
            self._states[self._turn][name].update_inplace(value)
        self._counts[...] = saved.counts
        if not self._check.words:
            self._held[...] = saved.held
        self.started = True

    def _restart_state(self, rows: NDArray[np.int64]) -> None:
        for name, start in self._start.items():
            state = self._states[self._turn][name]
            value = state.numpy().copy()
            value[rows] = start[rows]
            state.update_inplace(value)

    def _restart_input(self, rows: NDArray[np.int64] | slice) -> None:
        self._counts[rows] = 0
        if not self._check.words:
            self._held[rows] = self._check.start

    @property
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        updates, macs = (self._outputs.get(name) for name in ("updates", "macs"))
        return None if updates is None else updates.numpy().copy(), None if macs is None else macs.numpy().copy()

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        return self._counts.copy()
