# SPDX-License-Identifier: Apache-2.0
"""Search for the thresholds of the update rule delta that need the fewest multiply-adds at an allowed loss."""

import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from edgernn.cells import Cell
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.progress import Progress

# thresholds of x and h of each layer, as multiples of units: mean changes of x and of h per step
Scales = tuple[tuple[float, float], ...]
# multiples of the curve, the number of halvings of the interval in which the loss is reached, and the factor by which
# one multiple alone is then raised
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_HALVINGS = 3
# halvings of the first multiple of the curve, if all of the curve lose too much
_FINER = 5
_FACTOR, _RAISES = 1.5, 3
# share of the multiply-adds below which the layers hardly read their inputs
_LEAST_EXECUTED = 0.005
# difference of two equal shares of labels that their rounding explains
ROUNDING = 1e-9


@dataclass(frozen=True)
class MeasuredPoint:
    """Cost and quality of a model with thresholds.

    Attributes:
        scales: For each layer, its thresholds of x and of h, as multiples of their units: the mean change of x and of h
            from one step to the next.
        executed: Multiply-adds of the recurrent layers, as a share of those of the dense model.
        value: The metric, or without labels the relative change of the output.
    """

    scales: Scales
    executed: float
    value: float


def mean_changes(x: Any, h: Any) -> tuple[float, float]:
    """Return the mean absolute change per step of x and of h, the units of the thresholds; 1e-6 in place of 0.

    Both are torch tensors or NumPy arrays with the steps along the first axis. If x or h is
    constant, it has no changes, and any threshold is suitable for it.
    """
    changes = [float(abs(part[1:] - part[:-1]).mean()) if len(part) > 1 else 0.0 for part in (x, h)]
    return changes[0] or 1e-6, changes[1] or 1e-6


def scaled(scales: Scales, units: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the thresholds of x and h of each layer: the multiples `scales` of `units`."""
    return [(x * unit_x, h * unit_h) for (x, h), (unit_x, unit_h) in zip(scales, units, strict=True)]


def described(name: str, cell: Cell, thresholds: tuple[float, float]) -> dict[str, Any]:
    """Return a layer's name, its cell's name and sizes, and its thresholds, as a JSON-compatible dict."""
    return {
        "name": name,
        "cell": cell.name,
        "input_size": cell.input_size,
        "hidden_size": cell.hidden_size,
        "theta_x": thresholds[0],
        "theta_h": thresholds[1],
    }


def warn_of_fine_loss(loss: float, labels: int) -> None:
    """Warn if the allowed loss, in percentage points, is less than one of the labels by which it is measured.

    Args:
        loss: The allowed loss.
        labels: Number of the labels.
    """
    least = 100 / labels
    if 0 < loss < least:
        warnings.warn(
            f"loss: {loss:g} percentage points allow no loss at all, as one of the {labels:,} labels makes {least:.3g} "
            f"points; allow a loss of at least {math.ceil(1000 * least) / 1000:g}, or use more sequences",
            EdgernnWarning,
            stacklevel=3,
        )


def search_thresholds(
    measure: Callable[[Scales], tuple[float, float]],
    layers: int,
    good: Callable[[float], bool],
    loss: float,
    dense: float,
    progress: Progress,
    without_h: Collection[int] = (),
) -> tuple[MeasuredPoint, list[MeasuredPoint]]:
    """Search for the thresholds with the fewest multiply-adds among those whose loss is allowed.

    Each threshold, of x and of h, is a multiple of the mean change of x or h from one step to the next.

    First, each multiple in CURVE is tried for x and h of all layers together. If all lose too much, the smallest one is
    halved until one does not, at most five times. Then, a bisection searches between the
    largest good multiple and the next one in CURVE. A smaller multiple may be bad, as the loss need not rise with the
    thresholds. Then, the multiple is raised for x alone, and for h alone. Last, if the model has several layers, the
    multiples of x and of h are raised in each layer alone. The loss of the best point is small in part by chance, as
    the point is chosen on the data that `measure` reads.

    Args:
        measure: Function of the multiples. It returns the share of the multiply-adds that the model executes, and the
            `value` (see `MeasuredPoint`).
        layers: Number of layers.
        good: Function that returns True if a `value` is within the allowed loss.
        loss: The allowed loss, for error messages.
        dense: The `value` of the dense model, for error messages.
        progress: Progress bar.
        without_h: Indices of layers that have no threshold of h.

    Returns:
        The best point, and all measured points with a finite `value`, from the most to the fewest multiply-adds.

    Raises:
        UsageError: `loss` is not above 0.
        EdgernnError: Even the smallest thresholds lose more than the allowed loss.
    """
    if not loss > 0:
        raise UsageError(f"loss: expected above 0, got {loss:g}")
    points: dict[Scales, MeasuredPoint] = {}
    groups = [range(layers)] + ([range(i, i + 1) for i in range(layers)] if layers > 1 else [])
    total = len(CURVE) + _FINER + _HALVINGS + 2 * _RAISES * len(groups)
    progress.begin("calibrating", total, line=f"calibrating: at most {total} sets of thresholds")

    def point(scales: Scales) -> MeasuredPoint:
        if scales not in points:
            points[scales] = MeasuredPoint(scales, *measure(scales))
            progress.update(len(points))
        return points[scales]

    def same(scale: float) -> Scales:
        return ((scale, scale),) * layers

    low = 0.0
    for scale in CURVE:
        if good(point(same(scale)).value):
            low = scale
    finest = CURVE[0]
    while low == 0 and finest > CURVE[0] / 2**_FINER:
        finest /= 2
        low = finest if good(point(same(finest)).value) else 0.0
    high = next((scale for scale in CURVE if scale > low), None)
    if low == 0:
        raise EdgernnError(
            f"loss: expected thresholds that lose at most {loss:g}, found none; the smallest thresholds give "
            f"{point(same(finest)).value:.5g}, the dense model {dense:.5g} (the metric, or the relative change of "
            "the output if the data have no labels); allow a larger loss"
        )
    for _ in range(_HALVINGS if high is not None else 0):
        middle = (low + high) / 2  # type: ignore[operator]
        low, high = (middle, high) if good(point(same(middle)).value) else (low, middle)
    best = same(low)
    for group in groups:
        for factors in ((_FACTOR, 1.0), (1.0, _FACTOR))[: 1 + bool(set(group) - set(without_h))]:
            for _ in range(_RAISES):
                raised = tuple(
                    (x * factors[0], h * factors[1]) if i in group else (x, h) for i, (x, h) in enumerate(best)
                )
                if not good(point(raised).value):
                    break
                best = raised
    chosen = min((p for p in points.values() if good(p.value)), key=lambda p: p.executed)
    if chosen.executed < _LEAST_EXECUTED:
        warnings.warn(
            f"loss: the chosen thresholds execute {100 * chosen.executed:.2g} % of the multiply-adds, so the recurrent "
            f"layers hardly read their inputs, and yet the loss is within {loss:g}: the metric does not show what they "
            "compute; use data that need the recurrent layers, or allow a smaller loss",
            EdgernnWarning,
            stacklevel=3,
        )
    finite = [p for p in points.values() if math.isfinite(p.value)]
    return chosen, sorted(finite, key=lambda p: -p.executed)
