# SPDX-License-Identifier: Apache-2.0
"""Cutting of long recordings into windows of one length, so that every step counts once in the loss and metrics."""

import numpy as np

from edgernn.training.tasks.parts import Array

# target of a step that carries no loss and is not counted, such as the lead-in of a window
UNCOUNTED = -2


def cut(length: int, window: int, lead: int) -> list[tuple[int, int]]:
    """Cut a recording into windows of one length, in which each step of the recording counts once.

    A step that counts enters the loss and the metrics. A window begins with a lead-in of `lead` steps that do not
    count but warm up the state of the model. The first window has no lead-in, and the last window ends with the
    recording.

    Args:
        length: Number of steps of the recording, at least `window`.
        window: Number of steps of a window, more than `lead`.
        lead: Number of steps of the lead-in; the last window may have a longer one.

    Returns:
        A pair for each window: the index in the recording of its first step, and of its first step that counts. All
        later steps of the window count.
    """
    windows, end = [(0, 0)], window
    while end < length:
        begin = min(end - lead, length - window)
        windows.append((begin, end))
        end = begin + window
    return windows


def windows_of(x: Array, target: Array, background: Array, window: int, lead: int) -> tuple[Array, Array, Array]:
    """Cut a recording into N windows (see `cut`).

    Args:
        x: Inputs (length, I).
        target: Targets (length,).
        background: Mask (length,), True at steps at which nothing happens.
        window: Number of steps of a window.
        lead: Number of steps of the lead-in, the first steps of a window, which repeat steps of the previous window.

    Returns:
        Inputs (N, window, I), targets (N, window) and masks (N, window). The targets of a lead-in are UNCOUNTED (-2),
        which the loss and the metrics ignore.
    """
    places = cut(len(x), window, lead)
    targets = np.stack([target[begin : begin + window] for begin, _ in places])
    for row, (begin, counted) in zip(targets, places, strict=True):
        row[: counted - begin] = UNCOUNTED
    inputs, masks = (np.stack([a[begin : begin + window] for begin, _ in places]) for a in (x, background))
    return inputs, targets, masks
