# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments `lengths` and `rows` of `Session`, and splitting of padded batches, with NumPy alone."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.errors import UsageError
from edgernn.runtime.input_check import as_array

Rows = NDArray[np.int64]
# a part of a padded batch: indices of its sequences, its first step, and the step after its last one
Part = tuple[Rows, int, int]


def checked_lengths(lengths: ArrayLike, steps: int, batch: int) -> Rows:
    """Check the lengths of the sequences of a padded batch.

    Args:
        lengths: Number of steps of each sequence without padding (B,), from 0 to T.
        steps: T, the number of steps of the padded x.
        batch: B, the number of sequences.

    Returns:
        The lengths as int64.

    Raises:
        UsageError: The shape or dtype is wrong, or a length is negative or above T.
    """
    array = as_array("lengths", lengths)
    if array.shape != (batch,):
        raise UsageError(
            f"lengths: expected shape ({batch},), one length for each sequence, got {array.shape}; correct lengths"
        )
    if array.dtype.kind not in "iu":
        raise UsageError(f"lengths: expected whole numbers, got dtype {array.dtype}; pass a list or array of integers")
    if (bad := (array < 0) | (array > steps)).any():
        at = int(np.argmax(bad))
        raise UsageError(
            f"lengths: expected from 0 to {steps} (the steps of x), got {array[at]} at index {at}; correct lengths, or "
            "pad x to the longest sequence"
        )
    return array.astype(np.int64)


def checked_rows(rows: ArrayLike, batch: int) -> Rows:
    """Check the argument `rows` of `Session.reset`: the indices of some of the B streams in a batch.

    Args:
        rows: N indices (N,), each from 0 to B - 1.
        batch: B, the number of streams.

    Returns:
        The indices as int64.

    Raises:
        UsageError: `rows` is not a list of integers, or an index is outside the batch.
    """
    array = as_array("rows", rows)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise UsageError(f"rows: expected a list of stream indices such as [0, 2], got {rows!r:.50}; correct rows")
    if (bad := (array < 0) | (array >= batch)).any():
        raise UsageError(
            f"rows: expected indices from 0 to {batch - 1}, the streams of the batch, got {array[bad][0]}; correct rows"
        )
    return array.astype(np.int64)


def without_padding(x: NDArray[Any], lengths: Rows, axes: int) -> NDArray[Any]:
    """Replace the padding of a batch by zeros.

    Args:
        x: Inputs (T, B, ...), or (T, ...) for one sequence.
        lengths: The number of steps of each sequence without padding (B,); (1,) if x has no axis B.
        axes: Number of the axes T and B that x has: 2 with the axis B, 1 without it.

    Returns:
        A copy of x with zeros in the padding: the steps after the end of each sequence.
    """
    real = np.arange(len(x))[:, None] < lengths
    shape = x.shape[:axes] + (1,) * (x.ndim - axes)
    return np.where(real.reshape(shape), x, x.dtype.type(0))


def split_batch(lengths: Rows, streaming: bool) -> list[Part]:
    """Split a padded batch into parts without padding.

    Args:
        lengths: The number of steps of each sequence without padding (B,).
        streaming: True if the model can continue from a state. A new part then starts at each step where a sequence has
            ended, and has only the sequences that go on. False: each part has all sequences of one length, from step 0
            to their end.

    Returns:
        The parts as tuples (indices of the sequences, first step, step after the last one), in ascending order of the
        last step. Sequences of length 0 are in no part.
    """
    ends = np.unique(lengths[lengths > 0]).tolist()
    if not streaming:
        return [(np.flatnonzero(lengths == end), 0, end) for end in ends]
    return [(np.flatnonzero(lengths >= end), start, end) for start, end in zip([0, *ends], ends, strict=False)]
