# SPDX-License-Identifier: Apache-2.0
"""Uses the native op from several threads at once: `python -m tests.use_op_threads`.

`make check-threads` runs it under ThreadSanitizer. Every output must equal that of one thread alone.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from tests.native import Inputs, draw, draw_call, output_names, session

# a rule of each kind; the cell has one stage or two
KERNELS = [
    ("gru", "always"),
    ("gru", "selective"),
    ("gru", "delta"),
    ("gru", "topk"),
    ("gru-before", "selective"),
    ("lstm", "skip"),
]
WORKERS, SEEDS, INPUTS, HIDDEN = 4, 2, 5, 24
# a step, a sequence, and a batch that the threads of one session share
SHAPES = ((1, 1), (9, 3), (7, 16))
FORKS = 10

Run = Callable[[Inputs], list[np.ndarray]]


def open_op(cell: str, rule: str, constant: bool, threads: int) -> Run:
    """Return a function that runs a session of one node.

    `constant` weights are in the model; others are inputs of each call.
    """
    weights = draw(cell, rule, HIDDEN, INPUTS)
    op = session(cell, rule, weights, constant, output_names(cell, rule), {}, (HIDDEN, INPUTS), threads=threads)
    return lambda call: op.run(None, call if constant else call | weights)


def calls(cell: str, rule: str) -> list[Inputs]:
    return [
        draw_call(cell, rule, HIDDEN, INPUTS, steps, batch, seed) for seed in range(SEEDS) for steps, batch in SHAPES
    ]


def assert_same(got: list[np.ndarray], expected: list[np.ndarray], layer: str) -> None:
    for a, b in zip(got, expected, strict=True):
        if not np.array_equal(a, b, equal_nan=True):
            raise SystemExit(f"{layer}: expected equal outputs with and without other threads, got different ones")


def use(cell: str, rule: str, constant: bool, threads: int) -> None:
    """Run one session, and sessions that come and go, from several threads."""
    run, inputs, layer = open_op(cell, rule, constant, threads), calls(cell, rule), f"{cell}+{rule}"
    expected = [run(call) for call in inputs]

    def shared(first: int) -> None:
        for i in (*range(first, len(inputs)), *range(first)):
            assert_same(run(inputs[i]), expected[i], layer)

    def alone(first: int) -> None:
        for i in range(first, len(inputs), WORKERS):
            assert_same(open_op(cell, rule, constant, threads)(inputs[i]), expected[i], layer)

    def both(first: int) -> None:
        (alone if first % 2 else shared)(first)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(both, range(WORKERS)))


def fork_while_others_open(run: Run, call: Inputs) -> None:
    """Forked processes that run a session while other threads open sessions."""
    expected, done = run(call), False

    def opens() -> None:
        while not done:
            open_op("gru", "always", True, 1)

    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(opens)
        try:
            for _ in range(FORKS):
                child = os.fork()
                if child == 0:
                    different = 1
                    try:
                        different = int(not all(map(np.array_equal, run(call), expected)))
                    finally:
                        os._exit(different)
                if os.waitpid(child, 0)[1] != 0:
                    raise SystemExit("a forked process: expected the outputs of its parent, got others")
        finally:
            done = True
        opened.result()


def main() -> None:
    for (cell, rule), (constant, threads) in product(KERNELS, ((True, 1), (False, 1), (True, 2))):
        use(cell, rule, constant, threads)
    fork_while_others_open(open_op("gru", "always", True, 1), calls("gru", "always")[0])
    print(f"the op in {len(KERNELS)} layers on {WORKERS} threads: no fault")


if __name__ == "__main__":
    main()
