# SPDX-License-Identifier: Apache-2.0
"""Comparison of our figures with those that a paper prints: figure by figure, and claim by claim."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import StrictFloat, with_config

from edgernn.errors import UsageError
from edgernn.settings import FILE, Expected
from edgernn.training.statistics import Difference, mean_difference, spread_ratio

WITHIN, ABOVE, BELOW, INCOMPARABLE = "within", "above", "below", "not comparable"
VERDICTS = (WITHIN, ABOVE, BELOW, INCOMPARABLE)
# significance level of the tests
SIGNIFICANCE = 0.05
# keys of a figure in a recipe
PARTS = frozenset({"mean", "interval", "sd"})


@dataclass(frozen=True)
class Reported:
    """A figure as a paper prints it.

    Attributes:
        mean: The printed figure.
        rounding: One unit of the last printed digit, because a paper may round or truncate.
        interval: The number printed after ± or in parentheses, or None; the table's key `interval` says what it means.
        sd: The standard deviation over the paper's runs; None if it is not printed.
    """

    mean: float
    rounding: float
    interval: float | None = None
    sd: float | None = None

    @classmethod
    def read(cls, value: object) -> "Reported":
        """Read a paper's figure from the TOML file of its table.

        Args:
            value: A number, or a dict with mean and maybe interval and sd; its floats are Decimal.

        Returns:
            The figure.

        Raises:
            UsageError: The value has another form.
        """
        parts: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {"mean": value}
        numbers = all(isinstance(n, int | Decimal) and not isinstance(n, bool) for n in parts.values())
        if "mean" not in parts or parts.keys() - PARTS or not numbers:
            raise UsageError(
                f"figure: expected a number, or a table with mean and maybe interval and sd, got {value!r}"
            )
        exponent = Decimal(parts["mean"]).as_tuple().exponent
        assert isinstance(exponent, int)
        optional = {key: float(parts[key]) for key in ("interval", "sd") if key in parts}
        return cls(float(parts["mean"]), 10.0**exponent, **optional)

    @property
    def half_width(self) -> float:
        """Allowed distance from the printed figure: the larger of the number after ± and one unit of the last digit."""
        return max(self.rounding, self.interval or 0.0)


def agreement(paper: Reported | None, ours: Mapping[str, Any], reason: str | None = None) -> str | None:
    """Compare our 95 % confidence interval with the paper's figure.

    Args:
        paper: The paper's figure; None if it prints none.
        ours: Our figure over the seeds, from `statistics.spread`.
        reason: Reason why the two cannot be compared, if any.

    Returns:
        "within" if the intervals overlap; "above" or "below" if ours lies entirely on that side; "not comparable: " and
        the reason; None if nothing is printed or measured.
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
    """Count the results of `agreement`: a dict from each verdict, such as "within", to its number."""
    counts = Counter(verdict.partition(":")[0] for verdict in verdicts if verdict is not None)
    return {verdict: counts[verdict] for verdict in VERDICTS}


@with_config(FILE)
@dataclass(frozen=True)
class Claim:
    """A claim of a paper that our runs can test: a figure is larger in one row of a table than in another.

    Attributes:
        text: The claim in words.
        column: Name of the figure, a column of the table.
        rows: Names of both rows; the figure is said to be larger in the first.
        kind: "mean": the first row has a larger mean. "no-more": it has no larger mean. "spread": it has a larger
            standard deviation.
        variant: Label of both rows' variant (`recipe.label`), for a table with variants.
        than: Label of the second row's variant; None if it is the same.
        size: The paper's difference of means, or ratio of standard deviations; None if its figures do not give it.
    """

    text: str
    column: str
    rows: Annotated[tuple[str, str], Expected("two rows")]
    kind: Literal["mean", "no-more", "spread"] = "mean"
    variant: str = ""
    than: str | None = None
    size: StrictFloat | None = None

    def test(self, first: Mapping[int, float], second: Mapping[int, float]) -> dict[str, Any] | None:
        """Test a paper's claim on our figures.

        Means over the same seeds are compared in pairs, because a seed sets a run's data and initial weights.

        Args:
            first: Dict from seed to the figure of the first row.
            second: Dict from seed to the figure of the second row.

        Returns:
            A dict with "test", "seeds", "value" (the difference or ratio), "interval", "p" and "verdict"; None if a row
            has fewer than two seeds.
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
        shown = difference.value != neutral and (difference.p is None or difference.p < SIGNIFICANCE)
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
