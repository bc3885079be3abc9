# SPDX-License-Identifier: Apache-2.0
"""Outputs of a model as text: the probabilities of its classes, or its numbers, in a row for each sequence or step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# label of a step or sequence that counts neither in the loss nor in metrics; a number is NaN there
IGNORED = -1
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


def answer_table(
    axes: Sequence[str],
    y: Sequence[Any],
    classes: Sequence[str] | None,
    names: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> list[str]:
    """Format outputs as a table, with a header and a row for each sequence or step.

    Args:
        axes: Names of the axes of `y` except the last, such as ["sequence", "step"].
        y: Probabilities of classes, or numbers, (..., O). Sequences may differ in their numbers of steps.
        classes: Names of the O classes, of which each row has the likeliest; None for numbers.
        names: Names along the first axis, such as those of files. Default: 0, 1 and so on.
        targets: Names of the O numbers. Default: y[0], y[1] and so on.

    Returns:
        The lines.
    """
    places: list[tuple[tuple[int, ...], Any]] = [((), y)]
    for _ in axes:
        places = [((*place, i), part) for place, parts in places for i, part in enumerate(parts)]
    if classes is None:
        header = [*axes, *(targets or (f"y[{i}]" for i in range(len(places[0][1]))))]
    else:
        header = [*axes, "class", "probability", *["next", "probability"] * (min(_CLASSES, len(classes)) - 1)]
    rows = [header]
    for place, values in places:
        if classes is None:
            cells = [f"{value:.6g}" for value in values]
        else:
            likeliest = np.argsort(-np.asarray(values), kind="stable")[:_CLASSES]
            cells = [cell for i in likeliest for cell in (classes[i], f"{values[i]:.3f}")]
        labels = [names[place[0]], *map(str, place[1:])] if names else map(str, place)
        rows.append([*labels, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, row, widths, header)).rstrip() for row in rows]


def _aligned(cell: str, width: int, title: str) -> str:
    return cell.ljust(width) if title in ("file", "class", "next") else cell.rjust(width)
