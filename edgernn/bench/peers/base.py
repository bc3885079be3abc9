# SPDX-License-Identifier: Apache-2.0
"""One recurrent layer to be computed by any runtime, what it should give, and what a runtime's adapter looks like."""

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
# y (T, B, H) and the last h (B, H) of the problem's sequence, from its state
Sequence = Callable[[], tuple[Array, Array]]
# y_t (B, H) of x_t (B, I), from the state that the call before left, first from the problem's
Stream = Callable[[Array], Array]
GATES = {"gru": ("r", "z", "n"), "lstm": ("i", "f", "g", "o")}


class UnsupportedError(Exception):
    """A runtime cannot do a case; the text says why."""


@dataclass(frozen=True)
class Problem:
    """A layer of torch.nn.GRU or LSTM, with an input and a state to start from, on so many threads.

    Rows of the weights by gate as torch has them: r, z, n, the reset gate after the product, or i, f, g, o.
    """

    cell: Literal["gru", "lstm"]
    W: Array  # (G·H, I)
    R: Array  # (G·H, H)
    b_x: Array  # (G·H,)
    b_h: Array  # (G·H,)
    x: Array  # (T, B, I)
    h: Array  # (B, H)
    c: Array  # (B, H), of lstm
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
        """The rows of W, R or a bias with the gates in another order."""
        blocks = dict(zip(GATES[self.cell], np.split(weight, len(GATES[self.cell])), strict=True))
        return np.ascontiguousarray(np.concatenate([blocks[name] for name in order]))


def problem(
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
    """A problem at random: weights N(0, 1/(4·columns)), so that rounding errors die out; the state N(0, start²)."""
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


def reference(given: Problem) -> NDArray[np.float64]:
    """Y (T, B, H) in double precision, by the equations of torch.nn; its last step is the last h."""
    W, R, b_x, b_h, x, h, c = (
        array.astype(np.float64) for array in (given.W, given.R, given.b_x, given.b_h, given.x, given.h, given.c)
    )
    y = np.empty((given.steps, given.batch, given.hidden_size))
    for t, x_t in enumerate(x):
        from_x, from_h = x_t @ W.T + b_x, h @ R.T + b_h
        if given.cell == "gru":
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
    """A runtime, called in the fastest way that its documents show.

    Both methods do all that can be done once, and raise UnsupportedError where the runtime has no way to do it. What
    the calls that they return give may be memory that the next call overwrites.
    """

    name: str
    # as pip knows it
    package: str

    def version(self) -> str | None:
        """The version that is installed, or None."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    @abstractmethod
    def sequence(self, given: Problem) -> Sequence: ...

    @abstractmethod
    def stream(self, given: Problem) -> Stream: ...


def by_steps(step: Stream, reset: Callable[[], Any], given: Problem) -> Sequence:
    """A whole sequence for a runtime whose fastest way to do one is a call for each step."""
    y = np.empty((given.steps, given.batch, given.hidden_size), np.float32)

    def call() -> tuple[Array, Array]:
        reset()
        for t, x_t in enumerate(given.x):
            y[t] = step(x_t)
        return y, y[-1]

    return call
