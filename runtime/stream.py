# SPDX-License-Identifier: Apache-2.0
"""One step after another at one batch size, in memory that is told of once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        """y of the last step, as a copy."""
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


class PortableStream(Stream):
    """Of ONNX Runtime: each step reads one copy of the state and writes the other."""

    def __init__(self, session: Any, x: Array, state: Mapping[str, Array]) -> None:
        self._run, self._start = session.run_with_iobinding, state
        self._states = [{name: value.copy() for name, value in state.items()} for _ in range(2)]
        names = [o.name for o in session.get_outputs() if o.name.removesuffix(".next") not in state]
        # what comes out of a first step has the shapes of all others
        made = session.run(names, {"x": x[None], **state})
        outputs = {name: np.empty_like(value) for name, value in zip(names, made, strict=True)}
        # with an axis T of a model that has an output at every step
        super().__init__(x.copy(), outputs["y"].reshape(len(x), -1))
        self._counts = outputs.get("updates"), outputs.get("macs")
        # words have bounds, which Gather checks
        self._finite = np.empty(x.shape, bool) if x.dtype == np.float32 else None
        self._bindings = []
        for before, after in (self._states, self._states[::-1]):
            binding = session.io_binding()
            for name, array in {"x": self.x[None], **before}.items():
                binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            for name, array in {**outputs, **{f"{n}.next": v for n, v in after.items()}}.items():
                binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._bindings.append(binding)

    def step(self) -> str | None:
        if self._finite is not None and not np.isfinite(self.x, self._finite).all():
            return "x is not finite"
        binding, other = self._bindings
        try:
            self._run(binding)
        except Exception as error:  # onnxruntime raises plain classes of its own
            return str(error)
        self._bindings = [other, binding]
        self.started = True
        return None

    def restart(self) -> None:
        for copy in self._states:
            for name, value in self._start.items():
                copy[name][...] = value
        self.started = False

    @property
    def work(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        updates, macs = self._counts
        return None if updates is None else updates.copy(), None if macs is None else macs.copy()
