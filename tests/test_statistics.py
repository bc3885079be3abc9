# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds, and the comparison of our figures with a paper's."""

import math
from decimal import Decimal

import pytest

from edgernn.errors import UsageError
from edgernn.training.papers.agreement import Claim, Reported, agreement, count_verdicts, spread_ratio
from edgernn.training.statistics import Price, front, mean_difference, spread

# the 0.975 quantiles of Student's t, from printed tables
QUANTILES = {1: 12.7062, 2: 4.30265, 3: 3.18245, 9: 2.26216}


@pytest.mark.parametrize("freedom", QUANTILES)
def test_an_interval_is_students(freedom):
    values = [float(v) for v in range(freedom + 1)]
    mean = freedom / 2
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / freedom)
    half = QUANTILES[freedom] * deviation / math.sqrt(freedom + 1)
    assert spread(values)["interval"] == pytest.approx([mean - half, mean + half], rel=1e-5)


def test_an_interval_needs_two_seeds():
    assert spread([]) == {"n": 0, "mean": None, "sd": None, "interval": None, "values": []}
    assert spread([3.0]) == {"n": 1, "mean": 3.0, "sd": None, "interval": None, "values": [3.0]}


def test_paired_differences_are_those_of_the_pairs():
    # differences 1, 2, 3: mean 2, deviation 1, t = 2 √3 with 2 degrees of freedom
    difference = mean_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0], paired=True)
    half = QUANTILES[2] / math.sqrt(3)
    assert difference.value == pytest.approx(2)
    assert difference.interval == pytest.approx((2 - half, 2 + half), rel=1e-5)
    # P(|T| > t) = 1 - t / √(2 + t²) for 2 degrees of freedom
    assert difference.p == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-6)


def test_unpaired_differences_allow_other_variances():
    # Welch: variances 1 and 4, n = 3 each, so the standard error is √(5 / 3), t = 4 / √(5 / 3), freedom 50 / 17
    difference = mean_difference([1.0, 2.0, 3.0], [4.0, 6.0, 8.0], paired=False)
    assert difference.value == pytest.approx(-4)
    low, high = difference.interval
    assert (low + high) / 2 == pytest.approx(-4)
    assert QUANTILES[3] < (high - low) / 2 / math.sqrt(5 / 3) < QUANTILES[2]
    assert 0.01 < difference.p < 0.06


def test_equal_values_have_no_p():
    difference = mean_difference([2.0, 2.0], [1.0, 1.0], paired=True)
    assert (difference.value, difference.interval, difference.p) == (1.0, (1.0, 1.0), None)


def test_a_ratio_of_deviations():
    ratio = spread_ratio([0.0, 10.0, 20.0, 30.0], [1.0, 1.1, 1.2, 1.3])
    assert ratio.value == pytest.approx(100)
    assert ratio.interval is None
    assert 0 < ratio.p < 0.05
    assert spread_ratio([1.0, 2.0], [3.0, 3.0]).value == math.inf
    # two values are always equally far from their median, so that Brown-Forsythe would divide by 0
    for first, second, value in (([1.0, 2.0], [3.0, 3.1], 10), ([1.0, 1.0], [3.0, 3.1], 0)):
        ratio = spread_ratio(first, second)
        assert (ratio.value, ratio.p) == (pytest.approx(value), None)


def test_a_front_holds_what_nothing_beats():
    prices = {
        "cheap": Price(1, 1),
        "beaten": Price(3, 2),
        "middle": Price(2, 2),
        "same": Price(2, 2),
        "worse": Price(2, 1.5),
        "best": Price(9, 5),
    }
    assert front(prices) == ["cheap", "middle", "same", "best"]
    assert front({}) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (76, Reported(76, 1)),
        (Decimal("84.7"), Reported(84.7, 0.1)),
        (Decimal("0.270"), Reported(0.27, 0.001)),
        (Decimal("6.4e4"), Reported(64000, 1000)),
        ({"mean": Decimal("95.6"), "interval": Decimal("0.1"), "sd": Decimal("0.37")}, Reported(95.6, 0.1, 0.1, 0.37)),
    ],
)
def test_a_printed_figure_stands_for_its_digits(value, expected):
    assert Reported.read(value) == expected


@pytest.mark.parametrize("value", ["76", True, {"interval": 1}, {"mean": 1, "std": 2}, {"mean": "1"}])
def test_other_figures_are_refused(value):
    with pytest.raises(UsageError, match="figure: expected a number, or a table with mean and, optionally, interval"):
        Reported.read(value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Student's interval of [a, b] is their mean ± 12.7 |a - b| / 2
        ([84.60, 84.61], "within"),
        ([85.60, 85.61], "above"),
        ([83.80, 83.81], "below"),
        ([80.0, 90.0], "within"),
        ([84.7], "not comparable: one seed has no interval"),
        ([], None),
    ],
)
def test_agreement_is_that_of_the_intervals(values, expected):
    assert agreement(Reported(84.7, 0.05, 0.8), spread(values)) == expected


@pytest.mark.parametrize(
    ("ours", "expected"), [(75.4, "below"), (75.5, "within"), (76.5, "within"), (76.6, "above"), (77.0, "above")]
)
def test_a_number_that_rounds_to_the_printed_one_agrees(ours, expected):
    assert agreement(Reported(76, 1), spread([ours, ours])) == expected
    # an interval that is narrower than the rounding changes nothing, and a wider one counts in full
    assert agreement(Reported(76, 1, 0.2), spread([ours, ours])) == expected
    assert agreement(Reported(76, 1, 1.0), spread([ours, ours])) == "within"


def test_a_reason_goes_before_the_figures():
    paper = Reported(1, 0.5)
    assert agreement(paper, spread([1.0, 1.0]), "other data") == "not comparable: other data"
    assert agreement(None, spread([1.0, 1.0]), "other data") is None
    verdicts = ["within", "not comparable: a", "not comparable: b", None]
    assert count_verdicts(verdicts) == {"within": 1, "above": 0, "below": 0, "not comparable": 2}


def by_seed(*values):
    return dict(enumerate(values))


def test_a_claim_is_tested_in_pairs_of_seeds():
    claim = Claim("A is far better than B", "accuracy", ("a", "b"), size=30.0)
    result = claim.test(by_seed(96.0, 97.0, 96.5, 96.8), by_seed(95.0, 95.7, 95.4, 95.6))
    assert result["test"] == "paired t-test"
    assert result["value"] == pytest.approx(1.15)
    assert result["verdict"] == "holds here, with a smaller difference"
    assert claim.test(by_seed(1.0, 2.0), by_seed(3.0)) is None
    assert claim.test({0: 1.0, 1: 2.0}, {1: 3.0, 2: 9.0})["test"] == "Welch's t-test"


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((3.0, 3.1, 3.2), (2.0, 2.1, 2.2), "holds here"),
        ((2.0, 2.1, 2.2), (3.0, 3.1, 3.3), "the opposite holds here"),
        ((2.0, 2.5, 3.0), (3.0, 2.5, 2.1), "not shown here"),
        ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), "not shown here"),
    ],
)
def test_verdicts_on_a_claim_of_means(first, second, verdict):
    assert Claim("A over B", "mse", ("a", "b")).test(by_seed(*first), by_seed(*second))["verdict"] == verdict


def test_verdicts_on_a_claim_of_spread():
    claim = Claim("B is steadier than A", "accuracy", ("a", "b"), kind="spread")
    wide, narrow = by_seed(90.0, 95.0, 100.0, 85.0), by_seed(95.0, 95.1, 94.9, 95.2)
    assert claim.test(wide, narrow)["verdict"] == "holds here"
    assert claim.test(narrow, wide)["verdict"] == "the opposite holds here"
    assert claim.test(narrow, narrow)["verdict"] == "not shown here"
    # no test is possible
    assert claim.test(by_seed(90.0, 95.0), by_seed(95.0, 95.1))["verdict"] == "not shown here"
    assert claim.test(wide, by_seed(95.0, 95.0))["verdict"] == "not shown here"
