# SPDX-License-Identifier: Apache-2.0
"""Streams that keep sums stay near a float64 oracle: a short run of tests.long_run."""

import numpy as np
import pytest

from tests.long_run import STREAMS, LongStream, measure
from tests.models import state_of

# under delta, a rounding error of the sums stays in them for up to 256 steps
BOUNDS = {"selective": 1e-6, "delta": 2e-5}


@pytest.mark.parametrize("name", STREAMS)
def test_errors_stay_bounded(name):
    result = measure(name, 3000, block=211)
    assert result["steps"] >= 3000
    assert result["left_out"] <= 3
    assert 0 < max(result["errors"]) < BOUNDS[name.partition("+")[2]]


def test_a_wrong_sum_is_seen():
    stream = LongStream("gru+delta")
    stream.run(300)
    # the last of the states are the kept sums
    state_of(stream._stream)[-5:] += np.float32(1e-2)
    stream.check()
    assert max(stream.errors) > BOUNDS["delta"]
