# SPDX-License-Identifier: Apache-2.0
"""Values that products read in place of x on a GPU, under a rule of the kind COLUMN, by one launch.

They depend on x alone, not on the recurrence. A Triton kernel therefore computes them for all steps before the layer's
own kernel starts, and torch computes their product with W. The layer's kernel computes those of h.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from edgernn.kernels.triton_source import load
from edgernn.kernels.writer import HEADER

# number of values for which one Triton program computes all steps
_BLOCK = 128

_SOURCE = (
    HEADER
    + '''

@triton.jit(do_not_specialize=["T", "N"])
def send(values_ptr, start_ptr, theta_ptr, sent_ptr, T, N, BLOCK: tl.constexpr):
    """Write the values (T, N) that products read in place of `values`; before the first step they are `start` (N,)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    theta = tl.load(theta_ptr)
    sent = tl.load(start_ptr + at, at < N, 0.0)
    for t in range(T):
        place = tl.cast(t, tl.int64) * N + at
        sent = value_to_send(tl.load(values_ptr + place, at < N, 0.0), sent, theta)
        tl.store(sent_ptr + place, sent, at < N)
'''
)


def kernels() -> ModuleType:
    """Load the Python module with the Triton kernel `send`."""
    return load(_SOURCE)


def send(values: Tensor, start: Tensor, theta: Tensor, dry: bool = False) -> Tensor:
    """Compute the values that products read in place of `values`, at all steps; the result has no gradient.

    A value is sent, that is, taken over, where it differs by more than the threshold from the one that products read at
    the step before.

    Args:
        values: Values of x (T, B, columns of W).
        start: Values that products read before the first step (B, columns of W).
        theta: The threshold Θ_x (1,).
        dry: True to allocate the result without computing it.

    Returns:
        The values (T, B, columns of W) that products read.
    """
    values, start = values.contiguous(), start.contiguous()
    sent = torch.empty_like(values)
    count = start.numel()
    on_device: Any = torch.cuda.device_of
    if count and not dry:
        with on_device(values):
            kernels().send[(-(-count // _BLOCK),)](values, start, theta, sent, len(values), count, BLOCK=_BLOCK)
    return sent
