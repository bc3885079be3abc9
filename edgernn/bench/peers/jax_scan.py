# SPDX-License-Identifier: Apache-2.0
"""JAX: the cell as a jitted function, under lax.scan for sequences."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from edgernn.bench.peers.base import Array, Peer, Problem, Sequence, Stream, UnsupportedError


class Jax(Peer):
    """Its threads are those of the process, and one where the problem asks for one when it is first used.

    input_first: whether the products with x are computed for all steps before the scan, or each in its step. Which is
    faster depends on the cell and its sizes.
    """

    package = "jax"

    def __init__(self, name: str, input_first: bool) -> None:
        self.name = name
        self._input_first = input_first

    def sequence(self, given: Problem) -> Sequence:
        jax, weights, cell = _made(given)
        start = tuple(jax.numpy.asarray(value) for value in given.states.values())
        x = jax.numpy.asarray(given.x)

        def run(weights: Any, state: Any, x: Any) -> Any:
            if self._input_first:
                return jax.lax.scan(lambda state, p: cell(weights, state, p), state, _from_x(weights, x))
            return jax.lax.scan(lambda state, x_t: cell(weights, state, _from_x(weights, x_t)), state, x)

        compiled = jax.jit(run)

        def call() -> tuple[Array, Array]:
            state, y = compiled(weights, start, x)
            return np.asarray(y), np.asarray(state[0])

        return call

    def stream(self, given: Problem) -> Stream:
        if self._input_first:
            raise UnsupportedError("one step has nothing to compute before it")
        jax, weights, cell = _made(given)
        state = tuple(jax.numpy.asarray(value) for value in given.states.values())

        def run(weights: Any, state: Any, x_t: Any) -> Any:
            return cell(weights, state, _from_x(weights, x_t))

        compiled = jax.jit(run)

        def step(x_t: Array) -> Array:
            nonlocal state
            state, y = compiled(weights, state, x_t)
            return np.asarray(y)

        return step


def _from_x(weights: dict[str, Any], x: Any) -> Any:
    return x @ weights["W"] + weights["b_x"]


def _made(given: Problem) -> tuple[Any, dict[str, Any], Callable[[Any, Any, Any], Any]]:
    """The module, the weights on its device, and the cell: (weights, state, input part) -> (state, y)."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if given.threads == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import jax

    numpy, sigmoid = jax.numpy, jax.nn.sigmoid

    def gru(weights: Any, state: Any, from_x: Any) -> Any:
        (h,) = state
        from_h = h @ weights["R"] + weights["b_h"]
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (numpy.split(p, 3, axis=-1) for p in (from_x, from_h))
        z = sigmoid(z_x + z_h)
        h = (1 - z) * numpy.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        return (h,), h

    def lstm(weights: Any, state: Any, from_x: Any) -> Any:
        h, c = state
        i, f, g, o = numpy.split(from_x + h @ weights["R"] + weights["b_h"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * numpy.tanh(g)
        h = sigmoid(o) * numpy.tanh(c)
        return (h, c), h

    weights = {"W": given.W.T.copy(), "R": given.R.T.copy(), "b_x": given.b_x, "b_h": given.b_h}
    return jax, jax.device_put(weights), {"gru": gru, "lstm": lstm}[given.cell]
