# SPDX-License-Identifier: Apache-2.0
"""Search for the thresholds of the update rule delta that need the fewest multiply-adds at an allowed loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.progress import Progress

# multiples of the mean change of a value per step: those of the curve, the number of halvings of the interval in which
# the loss is reached, and the factor by which one multiple alone is then raised
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_HALVINGS = 3
_FACTOR, _RAISES = 1.5, 3


@dataclass(frozen=True)
class MeasuredPair:
    """Cost and quality of a model with one pair of thresholds.

    Attributes:
        scale_x: Threshold of x, as a multiple of the mean change of x from one step to the next.
        scale_h: Threshold of h, likewise.
        executed: Multiply-adds of the recurrent layers, as a share of those of the dense model.
        value: The metric, or without labels the relative change of the output.
    """

    scale_x: float
    scale_h: float
    executed: float
    value: float


def mean_changes(x: Any, h: Any) -> tuple[float, float]:
    """Return the mean absolute change per step of x and of h, the units of the thresholds; 1e-6 in place of 0.

    Both are torch tensors or NumPy arrays with the steps along the first axis. If x or h is
    constant, it has no changes, and any threshold is suitable for it.
    """
    changes = [float(abs(part[1:] - part[:-1]).mean()) if len(part) > 1 else 0.0 for part in (x, h)]
    return changes[0] or 1e-6, changes[1] or 1e-6


def search_thresholds(
    measure: Callable[[float, float], tuple[float, float]],
    good: Callable[[float], bool],
    loss: float,
    dense: float,
    progress: Progress,
) -> tuple[MeasuredPair, list[MeasuredPair]]:
    """Search for the pair of thresholds with the fewest multiply-adds among the pairs whose loss is allowed.

    Each threshold, of x and of h, is a multiple of the mean change of x or h from one step to the next. First, each
    multiple in CURVE is tried for x and h together. Then, a bisection searches between the largest good multiple and
    the next one in CURVE. Last, the multiple is raised for x alone, then for h alone.

    Args:
        measure: Function of the multiples for x and for h. It returns the share of the multiply-adds that the model
            executes, and the `value` (see `MeasuredPair`).
        good: Function that returns True if a `value` is within the allowed loss.
        loss: The allowed loss, for error messages.
        dense: The `value` of the dense model, for error messages.
        progress: Progress bar.

    Returns:
        The best pair, and all measured pairs from the most to the fewest multiply-adds.

    Raises:
        UsageError: `loss` is not above 0.
        EdgernnError: Even the smallest thresholds lose more than the allowed loss.
    """
    if not loss > 0:
        raise UsageError(f"loss: expected above 0, got {loss:g}")
    pairs: dict[tuple[float, float], MeasuredPair] = {}
    total = len(CURVE) + _HALVINGS + 2 * _RAISES
    progress.begin("calibrating", total, line=f"calibrating: at most {total} pairs of thresholds")

    def pair(*scales: float) -> MeasuredPair:
        scale_x, scale_h = scales
        if (scale_x, scale_h) not in pairs:
            pairs[scale_x, scale_h] = MeasuredPair(scale_x, scale_h, *measure(scale_x, scale_h))
            progress.update(len(pairs))
        return pairs[scale_x, scale_h]

    low = 0.0
    for scale in CURVE:
        if good(pair(scale, scale).value):
            low = scale
    high = next((scale for scale in CURVE if scale > low), None)
    if low == 0:
        raise EdgernnError(
            f"loss: expected thresholds that lose at most {loss:g}, found none; the smallest thresholds give "
            f"{pair(CURVE[0], CURVE[0]).value:.5g}, the dense model {dense:.5g} (the metric, or the relative change of "
            "the output if the data have no labels); allow a larger loss"
        )
    for _ in range(_HALVINGS if high is not None else 0):
        middle = (low + high) / 2  # type: ignore[operator]
        low, high = (middle, high) if good(pair(middle, middle).value) else (low, middle)
    best = (low, low)
    for axis in (0, 1):
        for _ in range(_RAISES):
            raised = (best[0] * (_FACTOR if axis == 0 else 1), best[1] * (_FACTOR if axis else 1))
            if not good(pair(*raised).value):
                break
            best = raised
    chosen = min((p for p in pairs.values() if good(p.value)), key=lambda p: p.executed)
    return chosen, sorted(pairs.values(), key=lambda p: -p.executed)
