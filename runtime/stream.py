# SPDX-License-Identifier: Apache-2.0
"""One step after another at one batch size, in memory that is told of once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.library import onnxruntime
from edgernn.runtime.stepper import Stepper

Array = NDArray[Any]


class Stream(ABC):
    """Steps of B sequences, whose state is kept.

    x: what the next step reads, (B, I), or (B,) of words; y: what the last one made, (B, O). Both are overwritten in
    place, so that a step allocates nothing. started: whether there was a step since the last `restart`.
    """

    def __init__(self, x: Array, y: Array) -> None:
        self.x, self.y, self.started = x, y, False
        self.put(x.copy(), True)

    @property
    def batch(self) -> int:
        return len(self.x)

    def put(self, frame: Array, batched: bool) -> None:
        """The next step reads frame (B, …); `batched`: later ones, and what is returned, have the axis B."""
        self.x[...] = frame
        self._frame = self.x if batched else self.x[0]
        self._made = self.y if batched else self.y[0]

    def take(self, x_t: Any) -> bool:
        """Read x_t if it is an array like the last one; else return False."""
        frame = self._frame
        if type(x_t) is not np.ndarray or x_t.dtype != frame.dtype or x_t.shape != frame.shape:
            return False
        frame[...] = x_t
        return True

    def result(self) -> Array:
        """Y of the last step, as a copy."""
        return self._made.copy()

    @abstractmethod
    def step(self) -> str | None:
        """One step from self.x, or why x is refused."""

    @abstractmethod
    def restart(self) -> None:
        """The next step starts a new sequence."""

    @property
    @abstractmethod
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Neurons updated at the last step (1, B) and multiply-adds (B,), where the model counts them."""


class NativeStream(Stream):
    """Of a packed model, past ONNX Runtime."""

    def __init__(self, packed: bytes, batch: int) -> None:
        self._stepper = Stepper(packed, batch)
        super().__init__(self._stepper.x, self._stepper.y)

    def step(self) -> str | None:
        self.started = True
        return None if self._stepper.step() else self._stepper.refusal()

    def restart(self) -> None:
        self._stepper.restart()
        self.started = False

    @property
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        updates = self._stepper.updates
        return None if updates is None else updates[None], self._stepper.macs


class OnnxStream(Stream):
    """Of ONNX Runtime, on the CPU or a GPU: each step reads one copy of the state and writes the other.

    vocabulary: how many words there are, where x is words.
    """

    def __init__(
        self, session: Any, x: Array, state: Mapping[str, Array], device: str = "cpu", vocabulary: int | None = None
    ) -> None:
        self._run, self._start, self._device, self._vocabulary = session.run_with_iobinding, state, device, vocabulary
        names = [o.name for o in session.get_outputs() if o.name.removesuffix(".next") not in state]
        # what comes out of a first step has the shapes of all others
        made = session.run(names, {"x": x[None], **state})
        outputs = {name: np.empty_like(value) for name, value in zip(names, made, strict=True)}
        # with an axis T of a model that has an output at every step
        super().__init__(x.copy(), outputs["y"].reshape(len(x), -1))
        self._finite = np.empty(x.shape, bool)
        # on the CPU an OrtValue is the memory of its array, on a GPU a copy of it
        self._input, self._made_there = self._value(self.x[None]), {n: self._value(v) for n, v in outputs.items()}
        self._states = [{name: self._value(value.copy()) for name, value in state.items()} for _ in range(2)]
        self._inputs = [{"x": self._input, **before} for before in self._states]
        self._bindings = []
        for inputs, after in zip(self._inputs, self._states[::-1], strict=True):
            binding = session.io_binding()
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in {**self._made_there, **{f"{n}.next": v for n, v in after.items()}}.items():
                binding.bind_ortvalue_output(name, value)
            self._bindings.append(binding)
        self._turn = 0

    def _value(self, array: Array) -> Any:
        return onnxruntime().OrtValue.ortvalue_from_numpy(array, self._device, 0)

    def step(self) -> str | None:
        if self._refuses():
            return "x is refused"
        binding = self._bindings[self._turn]
        try:
            if self._device != "cpu":
                self._input.update_inplace(self.x[None])
                # a node on the CPU would read a copy of its input, as it was when it was bound
                for name, value in self._inputs[self._turn].items():
                    binding.bind_ortvalue_input(name, value)
            self._run(binding)
            if self._device != "cpu":
                self.y[...] = self._made_there["y"].numpy().reshape(self.y.shape)
        except Exception as error:  # onnxruntime raises plain classes of its own
            return str(error)
        self._turn = 1 - self._turn
        self.started = True
        return None

    def _refuses(self) -> bool:
        if self._vocabulary is not None:
            return bool((self.x < 0).any() or (self.x >= self._vocabulary).any())
        return not bool(np.isfinite(self.x, self._finite).all())

    def restart(self) -> None:
        for copy in self._states:
            for name, value in self._start.items():
                copy[name].update_inplace(value)
        self.started = False

    @property
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        updates, macs = (self._made_there.get(name) for name in ("updates", "macs"))
        return None if updates is None else updates.numpy().copy(), None if macs is None else macs.numpy().copy()
