# SPDX-License-Identifier: Apache-2.0
"""Interval of the rate of rare events, such as false alarms, from their number."""

import math
from collections.abc import Callable

# share of each tail outside of the 95 % interval
_TAIL = 0.025
# smallest share of a sum that a term adds to it
_PRECISION = 1e-17


def poisson_interval(count: int) -> tuple[float, float]:
    """Return the exact 95 % interval (Garwood's) of the expected number of events of which `count` were seen.

    Both tails have 2.5 %; for no event, the lower end is 0.
    """
    low = _root(lambda mean: _tail(count, mean, 1) - _TAIL, 0.0, count) if count else 0.0
    return low, _root(lambda mean: _TAIL - _tail(count, mean, -1), count, count + 10 * math.sqrt(count + 1) + 10)


def _tail(count: int, mean: float, step: int) -> float:
    """Return the probability of `count` events and all larger (step 1) or smaller numbers (-1), by their mean."""
    term, total = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)), 0.0
    # each term follows from the one before; those below the precision of the sum are left out
    while term > _PRECISION * total:
        total += term
        term *= mean / (count + 1) if step > 0 else count / mean
        count += step
    return total


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function is 0 between two bounds, by bisection until no float is between them."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high
