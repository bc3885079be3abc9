# SPDX-License-Identifier: Apache-2.0
"""Whether we have become slower, by a few ratios to ONNX Runtime's GRU in the same rounds. Says so, and never fails.

`python -m tests.test_regression` stores the ratios anew, on a machine that does nothing else.
"""

import json
import math
from pathlib import Path

import pytest

from edgernn.runtime.bench import case as cases
from edgernn.runtime.bench.peers import PEERS
from edgernn.runtime.bench.suite import chosen
from edgernn.runtime.bench.timing import Rounds

STORED = Path(__file__).with_name("performance_ratios.json")
NAMES = ("gru (2, 128), T=500", "sarnn (2, 128), T=500, 90 % skipped", "skiprnn (2, 128), T=500, 80 % skipped")
SETTINGS = Rounds(rounds=9, warmup=2, block_ms=5, group_us=50)


def ratio(name: str) -> float:
    """Our time by that of ONNX Runtime's GRU."""
    with pytest.MonkeyPatch.context() as patch:
        # the others would only take time
        patch.setattr(cases, "PEERS", PEERS[:1])
        (case,) = (case for case in chosen(name) if case.name == name)
        return float(cases.measure(case, SETTINGS)["contenders"][cases.ORT]["ratio"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_slower_than_stored(name, say):
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    expected, tolerance = stored["ratios"][name], stored["tolerance"]
    got = ratio(name)
    assert math.isfinite(got)
    if got > expected * tolerance:
        say(f"{name}: {got:.3f} of the time of ONNX Runtime's GRU, stored {expected:.3f}, allowed {tolerance} x that")


def main() -> None:
    from edgernn.files import write_json

    tolerance = json.loads(STORED.read_text(encoding="utf-8"))["tolerance"]
    write_json(STORED, {"tolerance": tolerance, "ratios": {name: round(ratio(name), 3) for name in NAMES}})


if __name__ == "__main__":
    main()
