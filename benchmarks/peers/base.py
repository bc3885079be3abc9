# SPDX-License-Identifier: Apache-2.0
"""Interface for timing a GRU or LSTM in other runtimes: the layer to compute, its reference output, and the adapter."""

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
# runs the problem's sequence from its initial state: returns y (T, B, H) and the last h (B, H)
Sequence = Callable[[], tuple[Array, Array]]
# runs one step from the state that the previous call left: x_t (B, I) -> y_t (B, H)
Stream = Callable[[Array], Array]
GATES = {"gru": ("r", "z", "n"), "lstm": ("i", "f", "g", "o")}


class UnsupportedError(Exception):
    """Raised by an adapter if its runtime cannot compute a layer; the message says why."""


@dataclass(frozen=True)
class Problem:
    """A GRU or LSTM layer for a runtime to compute, by the equations of torch.nn, with its input and initial state.

    G is the number of gates. The rows of weights and biases are ordered by gate as in torch: r, z, n or i, f, g, o.

    Attributes:
        cell: The layer, gru or lstm.
        W: Input weights (G·H, I).
        R: Recurrent weights (G·H, H).
        b_x: Biases (G·H,) of the product W x.
        b_h: Biases (G·H,) of the product R h. The reset gate r multiplies R h + b_h of gate n.
        x: Input (T, B, I).
        h: Initial h (B, H).
        c: Initial c (B, H); a GRU ignores it.
        threads: Number of threads that the runtime may use.
    """

    cell: Literal["gru", "lstm"]
    W: Array
    R: Array
    b_x: Array
    b_h: Array
    x: Array
    h: Array
    c: Array
    threads: int = 1

    @property
    def input_size(self) -> int:
        return int(self.W.shape[1])

    @property
    def hidden_size(self) -> int:
        return int(self.R.shape[1])

    @property
    def steps(self) -> int:
        return int(self.x.shape[0])

    @property
    def batch(self) -> int:
        return int(self.x.shape[1])

    @property
    def states(self) -> dict[str, Array]:
        return {"h": self.h} if self.cell == "gru" else {"h": self.h, "c": self.c}

    def gates(self, weight: Array, order: tuple[str, ...]) -> Array:
        """Reorder the gates in the rows of a weight matrix or a bias."""
        blocks = dict(zip(GATES[self.cell], np.split(weight, len(GATES[self.cell])), strict=True))
        return np.ascontiguousarray(np.concatenate([blocks[name] for name in order]))


def random_problem(
    cell: Literal["gru", "lstm"],
    input_size: int,
    hidden_size: int,
    steps: int,
    batch: int = 1,
    threads: int = 1,
    *,
    start: float = 0.5,
    seed: int = 0,
) -> Problem:
    """Draw a random GRU or LSTM, with an input and an initial state.

    The weights are so small that rounding errors decay over time: their standard deviation is 0.5/sqrt(I) in W, and
    0.5/sqrt(H) in R and the biases.
    """
    random = np.random.default_rng((seed, input_size, hidden_size))
    rows = len(GATES[cell]) * hidden_size

    def normal(scale: float, *shape: int) -> Array:
        return (scale * random.standard_normal(shape)).astype(np.float32)

    return Problem(
        cell,
        normal(0.5 / input_size**0.5, rows, input_size),
        normal(0.5 / hidden_size**0.5, rows, hidden_size),
        normal(0.5 / hidden_size**0.5, rows),
        normal(0.5 / hidden_size**0.5, rows),
        normal(1, steps, batch, input_size),
        normal(start, batch, hidden_size),
        normal(start, batch, hidden_size),
        threads,
    )


def reference(problem: Problem) -> NDArray[np.float64]:
    """Compute y (T, B, H) in double precision by the equations of torch.nn; y[-1] is the last h."""
    W, R, b_x, b_h, x, h, c = (
        array.astype(np.float64)
        for array in (problem.W, problem.R, problem.b_x, problem.b_h, problem.x, problem.h, problem.c)
    )
    y = np.empty((problem.steps, problem.batch, problem.hidden_size))
    for t, x_t in enumerate(x):
        from_x, from_h = x_t @ W.T + b_x, h @ R.T + b_h
        if problem.cell == "gru":
            (r_x, z_x, n_x), (r_h, z_h, n_h) = (np.split(p, 3, axis=-1) for p in (from_x, from_h))
            z = _sigmoid(z_x + z_h)
            h = (1 - z) * np.tanh(n_x + _sigmoid(r_x + r_h) * n_h) + z * h
        else:
            i, f, g, o = np.split(from_x + from_h, 4, axis=-1)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
        y[t] = h
    return y


def _sigmoid(a: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-a))


class Peer(ABC):
    """Base class of adapters: runs a GRU or LSTM in one runtime, in the fastest way that its documentation shows.

    `sequence` returns a function that runs all T steps, `stream` a function that runs one step. Both prepare everything
    else, so that only the returned function is timed. Each call of that function may overwrite the arrays that its last
    call returned. `sequence` and `stream` raise UnsupportedError if the runtime does not support the layer.
    """

    name: str
    # the distribution's name on PyPI
    package: str

    def version(self) -> str | None:
        """Return the installed version of the runtime, or None if it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def sequence(self, problem: Problem) -> Sequence: ...

    @abstractmethod
    def stream(self, problem: Problem) -> Stream: ...


def by_steps(step: Stream, reset: Callable[[], Any], problem: Problem) -> Sequence:
    """Build a function that runs a sequence by one call of `step` per time step."""
    y = np.empty((problem.steps, problem.batch, problem.hidden_size), np.float32)

    def call() -> tuple[Array, Array]:
        reset()
        for t, x_t in enumerate(problem.x):
            y[t] = step(x_t)
        return y, y[-1]

    return call
