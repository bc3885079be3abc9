# SPDX-License-Identifier: Apache-2.0
"""One step after another at one batch size, in memory that ONNX Runtime is told of once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Stream:
    """Steps of B sequences whose state stays where it is: each step reads one copy of it and writes the other.

    x: what the next step reads, (1, B, I), or (1, B) of words. outputs: what the last step made, by name. Both are
    overwritten in place, so that a step allocates nothing. started: whether there was a step since the last `restart`.
    """

    def __init__(self, session: Any, x: Array, state: Mapping[str, Array], batched: bool) -> None:
        self._run = session.run_with_iobinding
        self._states = [{name: value.copy() for name, value in state.items()} for _ in range(2)]
        self.x, self.started = x.copy(), False
        names = [o.name for o in session.get_outputs() if o.name.removesuffix(".next") not in state]
        # what comes out of a first step has the shapes of all others
        made = session.run(names, {"x": self.x, **state})
        self.outputs = {name: np.empty_like(value) for name, value in zip(names, made, strict=True)}
        # words have bounds of their own, which `take` does not check
        self._finite = np.empty(self.x.shape, bool) if self.x.dtype == np.float32 else None
        self.batched = batched
        self._bindings = []
        for before, after in (self._states, self._states[::-1]):
            binding = session.io_binding()
            for name, array in {"x": self.x, **before}.items():
                binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            for name, array in {**self.outputs, **{f"{n}.next": v for n, v in after.items()}}.items():
                binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._bindings.append(binding)

    @property
    def batched(self) -> bool:
        """Whether the last x had an axis B, as the next ones may have too."""
        return self._batched

    @batched.setter
    def batched(self, batched: bool) -> None:
        self._batched = batched
        self._frame = self.x[0] if batched else self.x[0, 0]

    def take(self, x_t: Any) -> bool:
        """Read x_t if it is an array like the last one, of finite numbers; else return False."""
        frame, finite = self._frame, self._finite
        if type(x_t) is not np.ndarray or finite is None:
            return False
        if x_t.dtype != frame.dtype or x_t.shape != frame.shape:
            return False
        frame[...] = x_t
        np.isfinite(self.x, finite)
        return int(np.count_nonzero(finite)) == finite.size

    def step(self) -> None:
        """One step from self.x; what onnxruntime raises passes."""
        binding, other = self._bindings
        self._run(binding)
        self._bindings = [other, binding]
        self.started = True

    def restart(self, state: Mapping[str, Array]) -> None:
        """The next step starts from a state (B, H) each, by name."""
        for copy in self._states:
            for name, value in state.items():
                copy[name][...] = value
        self.started = False
