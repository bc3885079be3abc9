# SPDX-License-Identifier: Apache-2.0
"""Times of calls that are compared with each other: every round visits all of them in shuffled order."""

import gc
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgernn.progress import Progress, Silent

# seconds that so many calls in a row take
Clock = Callable[[Callable[[], Any], int], float]


def wall(call: Callable[[], Any], count: int) -> float:
    """By the processor's clock: of calls that return when all is done."""
    start = time.perf_counter()
    for _ in itertools.repeat(None, count):
        call()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Rounds:
    """How much is measured: visits to each call, calls before the first, and about how long a visit lasts.

    group_us: calls that are shorter are timed several at once, so that the clock takes no part of the time.
    pause_ms: before each visit, for what the call before may have left running, as threads that spin while they wait.
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
    """Seconds of a call, by name and round; every visit begins with a call that is not timed.

    clocks: of those calls that `wall` does not time.
    """
    order = list(calls)
    shuffle = random.Random(0)
    plans = {}
    for name, call in calls.items():
        for _ in range(settings.warmup):
            call()
        clock = (clocks or {}).get(name, wall)
        taken = clock(call, 1)
        group = max(1, int(settings.group_us / 1e6 / taken))
        plans[name] = (clock, group, max(1, min(2000, int(settings.block_ms / 1e3 / (taken * group)))))
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
