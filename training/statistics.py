# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds: confidence intervals of a mean, tests of a difference, and Pareto fronts."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Compute mean, standard deviation and 95 % confidence interval of the mean of a metric over n seeds.

    The interval is mean ± t s / √n. s is the sample standard deviation, and t is the 0.975 quantile of Student's t
    distribution with n - 1 degrees of freedom. The values are assumed to be normally distributed.

    The result has "n", "mean", "sd" (s), "interval" ([low, high]) and "values" (all values). The mean is None if there
    are no values; sd and interval are None if there are fewer than two.
    """
    summary: dict[str, Any] = {"n": len(values), "mean": None, "sd": None, "interval": None, "values": list(values)}
    if values:
        summary["mean"] = statistics.fmean(values)
    if len(values) > 1:
        summary["sd"] = statistics.stdev(values)
        half = _quantile(len(values) - 1) * summary["sd"] / math.sqrt(len(values))
        summary["interval"] = [summary["mean"] - half, summary["mean"] + half]
    return summary


def _quantile(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


@dataclass(frozen=True)
class Difference:
    """Result of a two-sided test: a difference of means, or a ratio of standard deviations.

    Attributes:
        value: mean(first) - mean(second), or std(first) / std(second).
        interval: 95 % confidence interval of the difference; None for a ratio.
        p: p-value of the test. None if there is no test: all paired differences are equal, both unpaired samples are
            constant, the second sample of a ratio is constant, or in each sample of a ratio all values are equally far
            from the median.
    """

    value: float
    interval: tuple[float, float] | None
    p: float | None


def mean_difference(first: Sequence[float], second: Sequence[float], *, paired: bool) -> Difference:
    """Test mean(first) - mean(second) by Student's paired t-test, or by Welch's t-test.

    Args:
        first: Values of one sample. Give at least two, because one value has no spread to test; this is not checked.
        second: Values of the other sample, at least two as well.
        paired: True for the paired test, if values at the same index belong together. False for Welch's test.

    Returns:
        The difference with its confidence interval and p-value. If all paired differences are equal, or both unpaired
        samples are constant, the interval is [value, value] and p is None.

    Raises:
        ValueError: A sample is empty, or the numbers of paired values differ.
    """
    from scipy import stats

    value = statistics.fmean(first) - statistics.fmean(second)
    samples = [[a - b for a, b in zip(first, second, strict=True)]] if paired else [first, second]
    if all(len(set(sample)) == 1 for sample in samples):
        return Difference(value, (value, value), None)
    test = stats.ttest_rel(first, second) if paired else stats.ttest_ind(first, second, equal_var=False)
    bounds = test.confidence_interval(CONFIDENCE)
    return Difference(value, (float(bounds.low), float(bounds.high)), float(test.pvalue))


@dataclass(frozen=True)
class Price:
    """Cost (less is better) and worth (more is better) of a candidate for the Pareto front."""

    cost: float
    worth: float

    def beats(self, other: "Price") -> bool:
        return self.cost <= other.cost and self.worth >= other.worth and self != other


def front(prices: dict[str, Price]) -> list[str]:
    """Return the Pareto front: the names of the candidates that no other candidate beats, the cheapest first.

    `prices` is a dict from a candidate's name to its cost and worth. A candidate beats another if it is at least as
    good in both and better in one.
    """
    best = [name for name, price in prices.items() if not any(other.beats(price) for other in prices.values())]
    return sorted(best, key=lambda name: prices[name].cost)
