# SPDX-License-Identifier: Apache-2.0
"""Outputs of a model as text: the probabilities of its classes, or its numbers, in a row for each sequence or step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# classes in a row: the likeliest ones
_CLASSES = 3


def class_names(info: Mapping[str, Any], count: int) -> list[str] | None:
    """Return the names of a model's classes, or None if its outputs are not the scores of classes.

    Args:
        info: The description of the model in its file.
        count: Number of the model's outputs, O.

    Returns:
        O names. Classes without names are called 0, 1 and so on.
    """
    names = info.get("classes")
    if type(names) is list and len(names) == count and all(type(name) is str for name in names):
        return names
    return [str(i) for i in range(count)] if info.get("metric") == "accuracy" else None


def probabilities(y: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the probabilities of classes from their scores (logits) y (..., O): softmax over the last axis."""
    exponents: NDArray[np.float64] = np.exp(y.astype(np.float64) - y.max(-1, keepdims=True))
    likelihoods: NDArray[np.float64] = exponents / exponents.sum(-1, keepdims=True)
    return likelihoods


def answer_table(axes: Sequence[str], y: ArrayLike, classes: Sequence[str] | None) -> list[str]:
    """Format outputs as a table, with a header and a row for each sequence or step.

    Args:
        axes: Names of the axes of `y` except the last, such as ["sequence", "step"].
        y: Probabilities of classes, or numbers, (..., O).
        classes: Names of the O classes, of which each row has the likeliest; None for numbers.

    Returns:
        The lines.
    """
    y = np.asarray(y)
    if classes is None:
        header = [*axes, *(f"y[{i}]" for i in range(y.shape[-1]))]
    else:
        header = [*axes, "class", "probability", *["next", "probability"] * (min(_CLASSES, len(classes)) - 1)]
    rows = [header]
    for place in np.ndindex(y.shape[:-1]):
        if classes is None:
            cells = [f"{value:.6g}" for value in y[place]]
        else:
            likeliest = np.argsort(-y[place], kind="stable")[:_CLASSES]
            cells = [cell for i in likeliest for cell in (classes[i], f"{y[place][i]:.3f}")]
        rows.append([*map(str, place), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, row, widths, header)).rstrip() for row in rows]


def _aligned(cell: str, width: int, title: str) -> str:
    return cell.ljust(width) if title in ("class", "next") else cell.rjust(width)
