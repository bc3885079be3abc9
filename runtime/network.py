# SPDX-License-Identifier: Apache-2.0
"""Runs the exported file of a network of one's own, and keeps its states from call to call."""

import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.info import kernels, read_model
from edgernn.runtime.input_check import as_array
from edgernn.runtime.interface import next_values
from edgernn.runtime.library import SCHEMA, library_missing, library_path
from edgernn.runtime.open_model import choose_backend, first_line, open_session
from edgernn.runtime.session import busy

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = NDArray[Any]
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}
# largest state that a file may declare, in numbers: 1 GB
_MOST_NUMBERS = 1 << 28


class NetworkSession:
    """Runs an ONNX file that `edgernn.export.to_onnx` wrote of a torch module other than SequenceModel.

    `s.run(x)` runs it from the initial state, and `s.step(x)` from the state after the call before; both return the
    outputs that are no states, as a dict by name. States, inputs NAME with an output NAME.next, start as zeros. Further
    inputs are passed by name: `s.run(x, mask=mask)`.

    Args:
        path: The file.
        backend: "native" runs the kernels of edgernn's library, "portable" the standard ONNX operators in the file.
            "auto" is native if possible, else portable with a warning.
        threads: Number of threads that ONNX Runtime uses within an operator.

    Attributes:
        backend: "native" or "portable".
        onnx: The onnxruntime.InferenceSession.
        info: The file's metadata.
        states: The states after the last `step`, as a dict by name; empty before the first one.

    Raises:
        EdgernnError: The file is missing, cannot be read, or is not of such a network, or the backend is not available.
        UsageError: The backend is unknown, or there is less than one thread.
    """

    backend: str
    onnx: "InferenceSession"
    info: dict[str, Any]
    states: dict[str, Any]

    def __init__(
        self, path: str | Path, *, backend: Literal["auto", "native", "portable"] = "auto", threads: int = 1
    ) -> None:
        if backend not in ("auto", "native", "portable"):
            raise UsageError(f"backend: expected auto, native or portable, got {backend!r}")
        if threads < 1:
            raise UsageError(f"threads: expected at least 1, got {threads}")
        path = Path(path)
        native = backend != "portable" and library_missing() is None
        self.onnx = open_session(path, read_model(path), library_path() if native else None, threads)
        self.info = _read_info(self.onnx.get_modelmeta().custom_metadata_map.get("edgernn"), path)
        self.backend = choose_backend(backend, self.onnx, kernels(self.info), "cpu")
        self._inputs = {value.name: value for value in self.onnx.get_inputs()}
        outputs = [value.name for value in self.onnx.get_outputs()]
        self._next = next_values(self._inputs, outputs)
        for name in self._next:
            # 0 for an axis without a size or a name
            sizes = [1 if type(axis) is str else axis or 0 for axis in self._inputs[name].shape]
            if min(sizes, default=1) < 1 or math.prod(sizes) > _MOST_NUMBERS:
                raise EdgernnError(
                    f"{path}: state {name:.50}: expected axes with a name or a size, and at most {_MOST_NUMBERS} "
                    f"numbers, got {self._inputs[name].shape}; export the network again"
                )
        self._sizes: dict[str, tuple[int, int | None]] = self.info["sizes"]
        self._results = [name for name in outputs if name not in self._next.values()]
        self.states = {}
        self._lock = threading.Lock()

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(self._next)

    def run(self, /, *arrays: ArrayLike, **named: ArrayLike) -> dict[str, Array]:
        """Run the network from the initial state, or from states that are passed by name.

        Args:
            *arrays: Inputs in the order of the file, without states.
            **named: Inputs and states by name.

        Returns:
            The outputs by name, without the next states.

        Raises:
            UsageError: An input is missing, unknown, or has another dtype or shape.
        """
        return self._compute(self._feed(arrays, named), {})[0]

    def step(self, /, *arrays: ArrayLike, **named: ArrayLike) -> dict[str, Array]:
        """Run the network from the states after the call before, and keep the new ones.

        Args:
            *arrays: Inputs in the order of the file, without states.
            **named: Inputs and states by name.

        Returns:
            The outputs by name, without the next states.

        Raises:
            UsageError: As `run`, or a number of an input is NaN or infinite, which would stay in the states.
            EdgernnError: Another thread is in a step of this session.
        """
        if not self._lock.acquire(blocking=False):
            raise busy("step")
        try:
            feed = self._feed(arrays, named)
            for name, array in feed.items():
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise UsageError(f"{name}: expected finite numbers, got NaN or infinity; replace them")
            results, self.states = self._compute(feed, self.states)
        finally:
            self._lock.release()
        return results

    def reset(self) -> None:
        """Start from the initial state at the next `step`."""
        self.states = {}

    def _feed(self, arrays: tuple[ArrayLike, ...], named: Mapping[str, ArrayLike]) -> dict[str, Array]:
        free = [name for name in self._inputs if name not in self._next and name not in named]
        if len(arrays) != len(free) or (unknown := named.keys() - self._inputs.keys()):
            expected = ", ".join(name for name in self._inputs if name not in self._next)
            got = ", ".join([*free[: len(arrays)], *named]) or "none"
            more = f", and {len(arrays) - len(free)} more" if len(arrays) > len(free) else ""
            if len(arrays) == len(free):
                got = f"the unknown {', '.join(sorted(unknown))}"
            raise UsageError(f"inputs: expected {expected}, got {got}{more}; pass each of them once")
        return {name: self._read(name, value) for name, value in (*zip(free, arrays, strict=True), *named.items())}

    def _compute(
        self, feed: dict[str, Array], states: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        axes: dict[str, int] = {}
        for name, value in feed.items():
            for axis, size in zip(self._inputs[name].shape, value.shape, strict=True):
                if type(axis) is not str:
                    continue
                if axes.setdefault(axis, size) != size:
                    raise UsageError(
                        f"{name}: expected {axis} = {axes[axis]} as in the inputs before, got {size}; reshape it"
                    )
                least, most = self._sizes.get(axis, (0, None))
                if size < least or (most is not None and size > most):
                    expected = f"{least} or more" if most is None else f"{least} to {most}"
                    raise UsageError(
                        f"{name}: expected {axis} = {expected}, as the network branches on this size, got {size}; "
                        "pass another, or export the network with an example of this one"
                    )
        for name in self._next:
            if name in feed:
                continue
            shape = tuple(axes.get(axis, 1) if type(axis) is str else axis for axis in self._inputs[name].shape)
            state = states.get(name)
            if state is None:
                state = np.zeros(shape, _TYPES.get(self._inputs[name].type, np.float32))
            if state.shape != shape:
                raise UsageError(f"{name}: expected shape {state.shape} as in the last step, got {shape}; call reset()")
            feed[name] = state
        names = [*self._results, *self._next.values()]
        try:
            values = dict(zip(names, self.onnx.run(names, feed), strict=True))
        except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
            raise UsageError(f"inputs: ONNX Runtime cannot run them: {first_line(error)}; pass other shapes") from None
        return {n: values[n] for n in self._results}, {name: values[last] for name, last in self._next.items()}

    def _read(self, name: str, value: ArrayLike) -> Array:
        declared = self._inputs[name]
        array = as_array(name, value)
        dtype = _TYPES.get(declared.type)
        same = [axis for axis in zip(declared.shape, array.shape, strict=False) if type(axis[0]) is not int]
        fits = len(same) + sum(a == b for a, b in zip(declared.shape, array.shape, strict=False)) >= array.ndim
        if array.ndim != len(declared.shape) or not fits:
            raise UsageError(f"{name}: expected shape {tuple(declared.shape)}, got {array.shape}; reshape it")
        if dtype is None or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise UsageError(f"{name}: expected {declared.type}, got {array.dtype}; convert it")
        return array.astype(dtype, copy=False)


def _read_info(text: str | None, path: Path) -> dict[str, Any]:
    """Parse and check the description of a network in a file's metadata."""
    try:
        info = json.loads(text or "null")
        names = (info["network"], *info["kernels"], *info["programs"].values())
        # files of earlier versions have no sizes
        sizes = info.setdefault("sizes", {})
        limits = all(type(least) is int and type(most) in (int, type(None)) for least, most in sizes.values())
        texts = all(isinstance(name, str) for name in names)
        if info["schema"] == SCHEMA and type(info["kernels"]) is list and limits and texts:
            return dict(info)
    except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise EdgernnError(
        f"{path}: expected a file that edgernn.export.to_onnx wrote of a network of one's own, got another; open that "
        "of a SequenceModel with edgernn.runtime.Session"
    )
