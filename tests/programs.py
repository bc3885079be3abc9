# SPDX-License-Identifier: Apache-2.0
"""Nodes whose cell is a program, for tests of the native library."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.program import Program
from tests.native import node_session

TERMS = {"x": 1, "h": 2, "m": 4, "bias": 8, "mid": 16, "c": 32}


def program_attributes(**programs: Program) -> dict[str, list[int] | list[float]]:
    """Return the attributes of programs by name, without empty lists."""
    lists: dict[str, list[int] | list[float]] = {}
    for name, program in programs.items():
        lists[name], lists[f"{name}_numbers"] = program.serialise()
    return {name: numbers for name, numbers in lists.items() if numbers}


def run_equations(
    states: int,
    program: Program,
    x: NDArray[Any],
    *before: NDArray[Any],
    vectors: Sequence[tuple[int, ArrayLike]] = (),
    map: Program | None = None,
) -> list[NDArray[np.float32]]:
    """Run one step of a cell with these equations under `always`; return the states. I = H; the gate may be unread.

    Args:
        states: Number of states.
        program: The update.
        x: (B, H).
        before: The states before the step, (B, H) each.
        vectors: Size and values of each own vector.
        map: The program that maps the vectors.
    """
    hidden = x.shape[1]
    attributes: dict[str, Any] = {"schema": 2, "cell": "equations", "rule": "always", "macs": 0}
    attributes |= {"gates": [TERMS["x"]], "layout": [states, 0, 0, 1, 0]}
    attributes |= program_attributes(update=program, **({} if map is None else {"map": map}))
    if vectors:
        attributes["vectors"] = [size for size, _ in vectors]
    weights = {"W": np.zeros((hidden, hidden), np.float32)}
    weights |= {f"v{i}": np.asarray(values, np.float32) for i, (_, values) in enumerate(vectors)}
    names = [f"s{i}" for i in range(states)]
    session = node_session(weights, names, ["", "", "", *(f"{name}_out" for name in names)], attributes)
    feed = dict(zip(names, before, strict=True)) | {"X": x[None]}
    results: list[NDArray[np.float32]] = session.run(None, {n: a.astype(np.float32) for n, a in feed.items()})
    return results
