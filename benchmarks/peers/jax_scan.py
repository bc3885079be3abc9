# SPDX-License-Identifier: Apache-2.0
"""JAX: the cell as a jitted function, inside lax.scan for sequences."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream, UnsupportedError


class Jax(Peer):
    """Adapter of JAX on the CPU.

    JAX fixes its number of threads when it is first imported: one if the first benchmark case has one thread, else all
    processors.
    """

    package = "jax"

    def __init__(self, name: str, input_first: bool) -> None:
        """Select one of two implementations. The cell and its sizes decide which one is faster."""
        self.name = name
        self._input_first = input_first

    def sequence(self, problem: Problem) -> Sequence:
        jax, weights, cell = _build(problem)
        start = tuple(jax.numpy.asarray(value) for value in problem.states.values())
        x = jax.numpy.asarray(problem.x)

        def run(weights: Any, state: Any, x: Any) -> Any:
            if self._input_first:
                return jax.lax.scan(lambda state, p: cell(weights, state, p), state, _from_x(weights, x))
            return jax.lax.scan(lambda state, x_t: cell(weights, state, _from_x(weights, x_t)), state, x)

        compiled = jax.jit(run)

        def call() -> tuple[Array, Array]:
            state, y = compiled(weights, start, x)
            return np.asarray(y), np.asarray(state[0])

        return call

    def stream(self, problem: Problem) -> Stream:
        if self._input_first:
            raise UnsupportedError(
                "this variant needs the whole sequence, to compute the input products first; a stream has single steps"
            )
        jax, weights, cell = _build(problem)
        state = tuple(jax.numpy.asarray(value) for value in problem.states.values())

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


def _build(problem: Problem) -> tuple[Any, dict[str, Any], Callable[[Any, Any, Any], Any]]:
    """Return the module jax, the weights as JAX arrays, and a step: (weights, state, W x + b_x) -> (state, y)."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if problem.threads == 1:
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

    weights = {"W": problem.W.T.copy(), "R": problem.R.T.copy(), "b_x": problem.b_x, "b_h": problem.b_h}
    return jax, jax.device_put(weights), {"gru": gru, "lstm": lstm}[problem.cell]
