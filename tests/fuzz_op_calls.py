# SPDX-License-Identifier: Apache-2.0
"""Calls the native op with random valid and invalid inputs: `python -m tests.fuzz_op_calls CALLS`.

Each call must return outputs of the right shapes, or be refused with a sentence. The calls depend on their number
alone: `1 N` instead of CALLS repeats call N. `make check-calls` runs it with the sanitizers.
"""

import argparse
import collections
import datetime
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edgernn.files import write_json
from tests.native import OPS, Inputs, draw, draw_call, output_names, session

SIZES, STEPS, SAMPLES = (1, 2, 3, 5, 15, 16, 17, 33), (1, 2, 9, 17), (1, 2, 5)
VALUES = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-42, 0.0, -1.0)
# a session takes calls of any sizes; this many calls use the same one
REUSED = 25
ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {"rank": 2},
    {"rank": -1},
    {"group_size": 4},
    {"group_size": 0},
    {"group_size": 2**62},
    {"weight_bits": 8},
    {"weight_bits": 16},
    {"weight_bits": 7},
    {"norm": "layer"},
    {"norm": "recurrent-batch"},
    {"imputer": "rits"},
    {"imputer": "gru-d"},
    {"cell": "lstm"},
    {"rule": "skip"},
    {"schema": 1},
)


def change(rng: np.random.Generator, inputs: Inputs) -> str:
    """Change the shape or some values of one of the inputs, and return a description."""
    name = str(rng.choice(list(inputs)))
    array = inputs[name]
    shape, kind = list(array.shape), int(rng.integers(5))
    if kind == 0 and shape:
        axis = int(rng.integers(len(shape)))
        shape[axis] = max(0, int(rng.choice([0, 1, shape[axis] - 1, shape[axis] + 1, 2 * shape[axis]])))
    elif kind == 1:
        shape.insert(int(rng.integers(len(shape) + 1)), int(rng.choice([0, 1, 2])))
    elif kind == 2 and shape:
        del shape[int(rng.integers(len(shape)))]
    else:
        value = float(rng.choice(VALUES))
        inputs[name] = np.where(rng.random(array.shape) < 0.3, np.float32(value), array)
        return f"{name} has {value}"
    inputs[name] = np.resize(array, shape) if array.size else np.zeros(shape, np.float32)
    return f"{name} is {tuple(shape)}"


@lru_cache(1000)
def _weights(cell: str, rule: str, hidden: int, width: int) -> Inputs:
    return draw(cell, rule, hidden, width)


@lru_cache(5000)
def _feed(*of: Any) -> Inputs:
    return draw_call(*of)


def fault(number: int, run: Any, cell: str, rule: str, rng: np.random.Generator) -> tuple[str, str]:
    """Run a call; return its outcome (ran or refused), and a description if it has a fault, else an empty string."""
    hidden, width = (int(size) for size in rng.choice(SIZES, 2))
    expected = {value.name for value in run.get_inputs()}
    # the gates of some cells depend on whether I = H
    if cell == "sru":
        width = hidden
    elif not expected >= {*_weights(cell, rule, hidden, width)} >= expected - {*_feed(cell, rule, 5, 3, 1, 1)}:
        hidden, width = 5, 3
    steps, batch = int(rng.choice(STEPS)), int(rng.choice(SAMPLES))
    inputs = _feed(cell, rule, hidden, width, steps, batch) | _weights(cell, rule, hidden, width)
    changes = [change(rng, inputs) for _ in range(int(rng.choice([0, 0, 1, 1, 2, 3])))]
    try:
        y = run.run(None, inputs)[0]
    except Exception as error:
        if "edgernn:" in str(error):
            return "refused", ""
        return "refused", f"call {number}: {cell}+{rule}: {changes}: {error}"
    if changes and any(" is " in text for text in changes):
        return "ran", ""
    shape = (steps, batch, hidden)
    return "ran", "" if y.shape == shape else f"call {number}: {cell}+{rule}: expected {shape}, got {y.shape}"


def calls(first: int, count: int) -> Iterator[tuple[str, str]]:
    """Run the calls from `first` on, and yield the result of `fault` for each."""
    group, run, name = -1, None, ("", "")
    for number in range(first, first + count):
        if number // REUSED != group:
            group = number // REUSED
            drawn = np.random.default_rng((1, group))
            name = OPS[int(drawn.integers(len(OPS)))]
            attributes = ATTRIBUTES[int(drawn.integers(len(ATTRIBUTES)))] if drawn.random() < 0.3 else {}
            sizes = (5, 5) if name[0] == "sru" else (5, 3)
            try:
                run = session(*name, draw(*name, *sizes), False, output_names(*name), attributes, sizes)
            except Exception as error:
                run = None
                yield "refused", "" if "edgernn:" in str(error) else f"session {group}: {name}: {error}"
        if run is not None:
            yield fault(number, run, *name, np.random.default_rng((2, number)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", type=int, help="Number of calls.")
    parser.add_argument("first", type=int, nargs="?", default=0, help="Number of the first call.  [default: 0]")
    parser.add_argument("--out", type=Path, help="Write the counts to this JSON file.")
    arguments = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    for outcome, description in calls(arguments.first, arguments.calls):
        outcomes[outcome] += 1
        if description:
            raise SystemExit(description)
    total, ran, refused = sum(outcomes.values()), outcomes["ran"], outcomes["refused"]
    print(f"{total:,} calls: {ran:,} ran, {refused:,} were refused")
    # both outcomes must be covered
    if total >= 1000 and min(ran, refused) < total / 20:
        raise SystemExit("expected calls that run and calls that are refused")
    if arguments.out is not None:
        write_json(arguments.out, {"date": datetime.date.today().isoformat(), "ran": ran, "refused": refused})


if __name__ == "__main__":
    main()
