# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing of functions for comparison: each round times all functions, in shuffled order."""

import gc
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgernn.progress import Progress, Silent

# (call, count) -> seconds of `count` successive calls
Clock = Callable[[Callable[[], Any], int], float]
# bytes that `at_rate` overwrites before each call
OVERWRITTEN = 64 << 20


def wall(call: Callable[[], Any], count: int) -> float:
    """Measure the wall-clock time of successive calls of a function.

    Args:
        call: The function. It must return only when its work is done, so a GPU function must synchronise.
        count: Number of calls.

    Returns:
        Time of all calls together, in seconds.
    """
    start = time.perf_counter()
    for _ in itertools.repeat(None, count):
        call()
    return time.perf_counter() - start


def at_rate(call: Callable[[], Any], rate: float, count: int) -> list[float]:
    """Time calls of a function at the rate of a sensor, with cold caches.

    Before each call, OVERWRITTEN bytes of other memory are written, so that little of the function's data is left in
    the caches, and the process sleeps until the call is due.

    Args:
        call: The function.
        rate: Calls per second.
        count: Number of calls.

    Returns:
        Duration of each call in seconds.
    """
    others = np.zeros(OVERWRITTEN, np.uint8)
    seconds, due = [], time.perf_counter()
    for _ in range(count):
        others += 1
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        seconds.append(wall(call, 1))
    return seconds


@dataclass(frozen=True)
class Rounds:
    """Settings of `interleaved`: the number of rounds, the warm-up and durations.

    Attributes:
        rounds: Number of rounds; each round times one block of successive calls of each function.
        warmup: Calls of each function before the first round.
        block_ms: Approximate duration of a block in milliseconds.
        group_us: Approximate duration in µs of one time measurement. Shorter calls are timed together in groups,
            because reading the clock takes time. 0: Each call is timed alone.
        pause_ms: Milliseconds of sleep before each block, so that threads of the previous function stop busy-waiting.
    """

    rounds: int = 15
    warmup: int = 3
    block_ms: float = 20.0
    group_us: float = 0.0
    pause_ms: float = 0.0


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    settings: Rounds,
    progress: Progress | None = None,
    clocks: Mapping[str, Clock] | None = None,
) -> dict[str, list[list[float]]]:
    """Time functions in interleaved rounds, so that changes of the machine's speed affect all of them alike.

    In each round, the functions take turns, in random order: each is called many times in succession, a block of calls.
    The first call of a block is not timed.

    Args:
        calls: Dict from a name to the function that is timed, without arguments.
        settings: Number of rounds, their duration and warm-up.
        progress: Progress bar. Default: none.
        clocks: Dict from a name in `calls` to a clock, a function (call, count) that returns the seconds which `count`
            calls take, such as a GPU timer. Default for a missing name: `wall`, the wall-clock time.

    Returns:
        Dict from name to a list with one entry per round. An entry is the list of the durations in seconds of the calls
        in this round. If calls are timed in groups (`Rounds.group_us`), it has one mean duration for each group.
    """
    order = list(calls)
    shuffle = random.Random(0)
    plans = {}
    for name, call in calls.items():
        for _ in range(settings.warmup):
            call()
        clock = (clocks or {}).get(name, wall)
        duration = clock(call, 1)
        group = max(1, int(settings.group_us / 1e6 / duration))
        plans[name] = (clock, group, max(1, min(2000, int(settings.block_ms / 1e3 / (duration * group)))))
    seconds: dict[str, list[list[float]]] = {name: [] for name in calls}
    collects = gc.isenabled()
    gc.disable()
    progress = progress or Silent()
    progress.begin("rounds", settings.rounds)
    try:
        for done in range(settings.rounds):
            shuffle.shuffle(order)
            for name in order:
                time.sleep(settings.pause_ms / 1e3)
                seconds[name].append(_block(calls[name], *plans[name]))
            progress.update(done + 1)
    finally:
        progress.close()
        if collects:
            gc.enable()
    return seconds


def _block(call: Callable[[], Any], clock: Clock, group: int, repeats: int) -> list[float]:
    call()
    return [clock(call, group) / group for _ in range(repeats)]
