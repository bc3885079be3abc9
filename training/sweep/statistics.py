# SPDX-License-Identifier: Apache-2.0
"""What several seeds say of a mean, and which rows no other one beats."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


def student(t: float, freedom: int) -> float:
    """P(|T| < t) of Student's t distribution with so many degrees of freedom, at least 1; t >= 0.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = confidence."""
    low, high = 0.0, 1.0
    while student(high, freedom) < confidence:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < confidence else (low, middle)
    return high


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Of the values of n seeds: n, mean, sample standard deviation s, a confidence interval [low, high] of the mean.

    The interval is Student's: mean ± t s / √n, with n - 1 degrees of freedom. It takes the values for draws from a
    normal distribution. One seed has neither deviation nor interval; none has no mean either.
    """
    found: dict[str, Any] = {"n": len(values), "mean": None, "sd": None, "interval": None, "values": list(values)}
    if values:
        found["mean"] = statistics.fmean(values)
    if len(values) > 1:
        found["sd"] = statistics.stdev(values)
        half = quantile(CONFIDENCE, len(values) - 1) * found["sd"] / math.sqrt(len(values))
        found["interval"] = [found["mean"] - half, found["mean"] + half]
    return found


@dataclass(frozen=True)
class Price:
    """What a row costs, and what it is worth: less and more are better."""

    cost: float
    worth: float

    def beats(self, other: "Price") -> bool:
        return self.cost <= other.cost and self.worth >= other.worth and self != other


def front(prices: dict[str, Price]) -> list[str]:
    """The Pareto front: those that no other one beats, the cheapest first."""
    best = [name for name, price in prices.items() if not any(other.beats(price) for other in prices.values())]
    return sorted(best, key=lambda name: prices[name].cost)
