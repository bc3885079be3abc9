# SPDX-License-Identifier: Apache-2.0
"""Runs of an ONNX file with several lengths of its variable axes, which show how the shapes of its values change."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edgernn.errors import EdgernnError
from edgernn.export.delta_graph import with_outputs
from edgernn.runtime.graph_states import RECURRENT, axes_of, inputs_of
from edgernn.runtime.library import run_interruptibly
from edgernn.runtime.open_model import first_line, open_session

Array = NDArray[Any]
# lengths of the variable axes that are tried, until one runs: of those without a name, and of those with one
_LENGTHS = ((1, 3), (3, 3), (1, 1), (16, 16), (64, 64))
# a length at which strides leave more steps than at those
_LONG = 96
# largest array of an input in numbers
_MOST = 1 << 26


class Runner:
    """A model in ONNX Runtime.

    Args:
        proto: The model.
        path: Path of its file, for error messages.

    Attributes:
        path: As above.
    """

    path: Path

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self.path = path
        self._session = open_session(path, proto, None, 1)
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._names = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once and return its outputs by name; feeds of other names are ignored."""
        try:
            arrays = {name: array for name, array in feeds.items() if name in self._inputs}
            return run_interruptibly(self._session, self._names, arrays)
        except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
            shapes = ", ".join(f"{name} {feeds[name].shape}" for name in sorted(self._inputs & feeds.keys()))
            raise EdgernnError(
                f"{self.path}: does not run in ONNX Runtime with {shapes}: {first_line(error)}; give the shapes of "
                "its inputs with --shape, or inputs that fit with --data; a file that takes one length alone must be "
                "exported anew, as with torch.onnx.export(..., dynamo=False, dynamic_axes=...)"
            ) from None


def shape_of(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input for lengths of its variable axes; an axis without a length has length 1."""
    return tuple(length_of(axis, sizes) for axis in axes_of(value))


def length_of(axis: int | str, sizes: Mapping[str, int]) -> int:
    """Return the length of an axis, such as 4, T or 33*batch; a variable one without a length has length 1."""
    if isinstance(axis, int):
        return axis
    if axis in sizes:
        return sizes[axis]
    return math.prod(int(part) if part.isdecimal() else sizes.get(part, 1) for part in axis.split("*"))


def is_along(axis: int | str, time: str | None) -> bool:
    """Return True if an axis is the variable one `time`, or a multiple of it, such as 2*T."""
    return isinstance(axis, str) and time in (axis, axis.rpartition("*")[2])


def random_feeds(
    proto: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0, steps: int | None = None
) -> dict[str, Array]:
    """Draw inputs of a model: floats of a normal distribution, integers 0 or 1.

    Args:
        proto: The model.
        sizes: Lengths of the variable axes by name.
        seed: Random seed.
        steps: Value of inputs that are the lengths of the sequences. Default: the smallest of `sizes`.

    Returns:
        The inputs by name.
    """
    rng, feeds = np.random.default_rng(seed), {}
    lengths = {node.input[4] for node in proto.graph.node if node.op_type in RECURRENT and len(node.input) > 4}
    for name, value in inputs_of(proto.graph).items():
        shape = shape_of(value, sizes)
        if np.prod(shape, dtype=float) > _MOST:
            raise EdgernnError(f"input {name}: expected at most {_MOST:,} numbers, got the shape {shape}")
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if name in lengths:
            feeds[name] = np.full(shape, steps or min(sizes.values(), default=1), dtype)
        elif dtype.kind in "iub":
            feeds[name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[name] = (0.5 * rng.standard_normal(shape)).astype(dtype)
    return feeds


class Probe:
    """Shapes of values of a model, and how they change with the lengths of its variable axes.

    Args:
        proto: The model.
        path: Path of its file, for error messages.
        names: Names of the values.
        example: Inputs that run, by name. Default: random ones.

    Attributes:
        sizes: Lengths of the variable axes of the first run.
        values: The values of the first run.

    Raises:
        EdgernnError: The model runs with no lengths that are tried.
    """

    sizes: dict[str, int]
    values: dict[str, Array]

    def __init__(
        self, proto: onnx.ModelProto, path: Path, names: Sequence[str], example: Mapping[str, Array] | None
    ) -> None:
        runner, inputs = Runner(with_outputs(proto, names), path), inputs_of(proto.graph)
        axes = {a: "." in a for value in inputs.values() for a in axes_of(value) if isinstance(a, str)}
        if example is None:
            tries = [{a: unnamed if axes[a] else named for a in axes} for unnamed, named in _LENGTHS]
        else:
            tries = [{}]
            for name, value in inputs.items():
                lengths = zip(axes_of(value), example[name].shape, strict=True)
                tries[0] |= {axis: n for axis, n in lengths if isinstance(axis, str)}
        for sizes in tries:
            feeds = random_feeds(proto, sizes) | dict(example or {})
            try:
                self.sizes, self.values = sizes, feeds | runner.run(feeds)
                break
            except EdgernnError:
                # a file without variable axes runs, or fails, once
                if sizes == tries[-1]:
                    raise
        self._longer: dict[str, dict[str, Array]] = {}
        for axis in axes:
            size = self.sizes[axis]
            for factor in dict.fromkeys((max(2, -(-_LONG // size)), 2)):
                try:
                    feeds = random_feeds(proto, self.sizes | {axis: factor * size})
                    self._longer[axis] = feeds | runner.run(feeds)
                    break
                except EdgernnError:
                    # a length that the file fixes, though it does not declare it
                    continue

    def axes(self, name: str) -> list[int | str]:
        """Return for each axis of a value its length, or the variable axes with which it grows: batch, 33*batch."""
        shape: list[int | str] = []
        for k, length in enumerate(self.values[name].shape):
            growing = [axis for axis, values in self._longer.items() if values[name].shape[k] != length]
            factor, remainder = divmod(length, math.prod(self.sizes[axis] for axis in growing))
            words = [str(factor)] * (factor > 1 and not remainder) + growing
            shape.append("*".join(words) if growing else length)
        return shape
