# SPDX-License-Identifier: Apache-2.0
"""Comparison of our results with a paper's table of results: number by number, and claim by claim."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import StrictFloat, with_config

from edgernn.errors import UsageError
from edgernn.settings import FILE, Expected
from edgernn.training.statistics import Difference, mean_difference

WITHIN, ABOVE, BELOW, INCOMPARABLE = "within", "above", "below", "not comparable"
VERDICTS = (WITHIN, ABOVE, BELOW, INCOMPARABLE)
# significance level of the tests
SIGNIFICANCE = 0.05
# keys of a paper's number in a recipe file
PARTS = frozenset({"mean", "interval", "sd"})


@dataclass(frozen=True)
class Reported:
    """One number (figure) of a paper's table of results, such as an accuracy, as the paper prints it.

    Attributes:
        mean: The printed number.
        rounding: One unit of the last printed digit, such as 0.1 for 97.3.
        interval: The number printed after ± or in parentheses, or None. The key `interval` of the paper's table, in its
            TOML file, says what the number means.
        sd: The standard deviation over the paper's runs; None if it is not printed.
    """

    mean: float
    rounding: float
    interval: float | None = None
    sd: float | None = None

    @classmethod
    def read(cls, value: object) -> "Reported":
        """Convert the entry for a paper's number in the TOML file of its table; UsageError for another form.

        The entry is the number, or a dict with the key "mean" and optionally "interval" and "sd". Numbers are int or
        Decimal; the digits of a Decimal show how the paper rounded.
        """
        parts: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {"mean": value}
        numbers = all(isinstance(n, int | Decimal) and not isinstance(n, bool) for n in parts.values())
        if "mean" not in parts or parts.keys() - PARTS or not numbers:
            raise UsageError(
                f"figure: expected a number, or a table with mean and, optionally, interval and sd, got {value!r}"
            )
        exponent = Decimal(parts["mean"]).as_tuple().exponent
        assert isinstance(exponent, int)
        optional = {key: float(parts[key]) for key in ("interval", "sd") if key in parts}
        return cls(float(parts["mean"]), 10.0**exponent, **optional)

    @property
    def half_width(self) -> float:
        """Allowed distance from the printed number.

        It is the number after ±, but at least half a unit of the last printed digit, the error of rounding.
        """
        return max(self.rounding / 2, self.interval or 0.0)


def agreement(paper: Reported | None, ours: Mapping[str, Any], reason: str | None = None) -> str | None:
    """Compare the 95 % confidence interval of our result with the number that a paper prints.

    The paper's interval is its printed number ± `Reported.half_width`.

    Args:
        paper: The paper's number; None if it prints none.
        ours: Our result over the seeds, from `statistics.spread`. Only "mean" (None without a result) and "interval"
            ([low, high], None for one seed) are read.
        reason: Reason why the paper's number cannot be compared with ours; None if it can.

    Returns:
        "within" if the two intervals overlap. "above" or "below" if our interval lies entirely above or below the
        paper's. "not comparable: REASON" if `reason` is given or we have only one seed. None if the paper prints no
        number or we have no result.
    """
    if paper is None or ours["mean"] is None:
        return None
    if reason is not None:
        return f"{INCOMPARABLE}: {reason}"
    if ours["interval"] is None:
        return f"{INCOMPARABLE}: one seed has no interval"
    low, high = ours["interval"]
    # tolerance for rounding errors of the printed bounds in binary
    slack = 1e-9 * max(abs(paper.mean), paper.half_width)
    if low > paper.mean + paper.half_width + slack:
        return ABOVE
    if high < paper.mean - paper.half_width - slack:
        return BELOW
    return WITHIN


def count_verdicts(verdicts: Iterable[str | None]) -> dict[str, int]:
    """Count the results of `agreement`; return a dict from each of VERDICTS, such as "within", to its count."""
    counts = Counter(verdict.partition(":")[0] for verdict in verdicts if verdict is not None)
    return {verdict: counts[verdict] for verdict in VERDICTS}


@with_config(FILE)
@dataclass(frozen=True)
class Claim:
    """A claim of a paper that our runs can test by comparing a metric between two rows of the paper's table.

    Attributes:
        text: The claim in words.
        column: Name of the metric, a column of the table.
        rows: Names of the two rows that are compared, the first with the second.
        kind: "mean": the first row has a larger mean over the seeds than the second. "no-more": its mean is not larger.
            "spread": its standard deviation over the seeds is larger.
        variant: Label (`recipe.label`) of the setting values, such as "T=10", with which both rows were trained; "" for
            a table that varies no settings.
        than: Label of the setting values of the second row; None if `variant` holds for both rows.
        size: The paper's difference of means, or ratio of standard deviations; None if the paper does not give it.
    """

    text: str
    column: str
    rows: Annotated[tuple[str, str], Expected("two rows")]
    kind: Literal["mean", "no-more", "spread"] = "mean"
    variant: str = ""
    than: str | None = None
    size: StrictFloat | None = None

    def test(self, first: Mapping[int, float], second: Mapping[int, float]) -> dict[str, Any] | None:
        """Test a paper's claim on our results by a two-sided significance test.

        Means over the same seeds are compared in pairs, because a seed sets a run's data and initial weights.

        Args:
            first: Our value of `column` in the first row, as a dict from seed to value.
            second: Our value of `column` in the second row, as a dict from seed to value.

        Returns:
            None if a row has fewer than two seeds. Otherwise a dict with "test" (name of the test), "seeds" (number of
            seeds of each row), "value" (the difference of means, or the ratio of standard deviations; None if that is
            infinite), "interval" (95 % confidence interval of the difference; None for a ratio), "p" (p-value; None
            if there is no test, see `Difference`) and "verdict" (a phrase such as "holds here").
        """
        if min(len(first), len(second)) < 2:
            return None
        paired = first.keys() == second.keys()
        if self.kind == "spread":
            difference, name = spread_ratio(list(first.values()), list(second.values())), "Brown-Forsythe test"
        elif paired:
            pairs = [second[seed] for seed in first]
            difference, name = mean_difference(list(first.values()), pairs, paired=True), "paired t-test"
        else:
            values = list(first.values()), list(second.values())
            difference, name = mean_difference(*values, paired=False), "Welch's t-test"
        return {
            "test": name,
            "seeds": [len(first), len(second)],
            "value": difference.value if math.isfinite(difference.value) else None,
            "interval": None if difference.interval is None else list(difference.interval),
            "p": difference.p,
            "verdict": self._verdict(difference),
        }

    def _verdict(self, difference: Difference) -> str:
        neutral = 1.0 if self.kind == "spread" else 0.0
        # without a p-value, two means differ by the same amount in all seeds, but a ratio of spreads is not tested
        certain = self.kind != "spread" if difference.p is None else difference.p < SIGNIFICANCE
        shown = certain and difference.value != neutral
        if self.kind == "no-more":
            if not shown:
                return "not contradicted here"
            return "the opposite holds here" if difference.value > 0 else "holds here"
        if not shown:
            return "not shown here"
        if difference.value < neutral:
            return "the opposite holds here"
        if self.size is not None and difference.interval is not None:
            low, high = difference.interval
            if not low <= self.size <= high:
                return (
                    "holds here, with a smaller difference"
                    if high < self.size
                    else "holds here, with a larger difference"
                )
        return "holds here"


def spread_ratio(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compute the ratio of two standard deviations, first / second, and test by Brown-Forsythe whether they differ.

    Args:
        first: Values of one sample, at least two.
        second: Values of the other sample, at least two.

    Returns:
        The ratio and the p-value. If `second` is constant, the ratio is infinite, or 1 if `first` is constant, too. p
        is None if there is no test: `second` is constant, or in each sample all values are equally far from the median,
        as two values always are.
    """
    from scipy import stats

    above, below = statistics.stdev(first), statistics.stdev(second)
    if not below:
        return Difference(math.inf if above else 1.0, None, None)
    distances = [[abs(value - statistics.median(sample)) for value in sample] for sample in (first, second)]
    # nearly equal distances differ by rounding alone
    if all(max(sample) - min(sample) <= 1e-9 * max(sample) for sample in distances):
        return Difference(above / below, None, None)
    return Difference(above / below, None, float(stats.levene(first, second, center="median").pvalue))
