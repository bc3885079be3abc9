# SPDX-License-Identifier: Apache-2.0
"""The reference of models with residual blocks, in float64 NumPy: the block's equations around layers of `oracle`."""

from typing import Any

import numpy as np

from tests import oracle
from tests.oracle_cells import Array, sigmoid


def normalised(u: Array, scale: Array, shift: Array) -> Array:
    mean = u.mean(-1, keepdims=True)
    variance = ((u - mean) ** 2).mean(-1, keepdims=True)
    return (u - mean) / np.sqrt(variance + 1e-5) * scale + shift


def run(block: str, cell: str, rule: str, weights: dict[str, Any], sizes: list[int], states: int, x: Any) -> Array:
    """Compute the output of the last block at every step, (T, B, H), and that of the head if `weights` have one.

    Args:
        block: linear or gated.
        cell: A name in `oracle.CELLS`.
        rule: A name in `oracle_rules.RULES`.
        weights: By their names in the model's state dict.
        sizes: Numbers of neurons of the layers.
        states: Number of states of the cell, which start as 0 unless the rule learns the start.
        x: Input of the first block (T, B, I).
    """
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    y = np.asarray(x, np.float64)
    for i, H in enumerate(sizes):
        u = y
        if u.shape[-1] != H:
            u = u @ w[f"blocks.{i}.encoder.weight"].T + w[f"blocks.{i}.encoder.bias"]
        read = normalised(u, w[f"blocks.{i}.norm.weight"], w[f"blocks.{i}.norm.bias"])
        prefixes = (f"layers.{i}.cell.", f"layers.{i}.rule.")
        parameters = {name[len(p) :]: value for p in prefixes for name, value in w.items() if name.startswith(p)}
        # a rule may learn them
        starts = [w.get(f"layers.{i}.start.{k}", np.zeros(H)) for k in range(states)]
        h = oracle.run(cell, rule, parameters, read, [np.tile(start, (u.shape[1], 1)) for start in starts]).y
        branch = h @ w[f"blocks.{i}.linear.weight"].T + w[f"blocks.{i}.linear.bias"]
        if block == "gated":
            branch = branch * sigmoid(h @ w[f"blocks.{i}.gate.weight"].T + w[f"blocks.{i}.gate.bias"])
        y = u + branch
    return y @ w["head.weight"].T + w["head.bias"] if "head.weight" in w else y
