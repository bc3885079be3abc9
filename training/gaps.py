# SPDX-License-Identifier: Apache-2.0
"""Series with gaps, as an imputer reads them: values, masks and times, forwards or backwards."""

import torch
from torch import Tensor


def times_since(masks: Tensor, times: Tensor) -> Tensor:
    """δ (T, B, F), the time since a feature was last observed before a step, or since the first step.

    δ_1 = 0, δ_t = s_t - s_{t-1} + (1 - m_{t-1}) δ_{t-1}, for masks m (T, B, F) and times s, which never fall, of any
    shape that broadcasts to that. Source: Cao et al. 2018, arXiv:1805.10572, section 3; System C.1 of the EINS paper.
    """
    times = times.expand(masks.shape)
    last = torch.where(masks > 0, times, times[:1]).cummax(0).values
    return times - torch.cat([times[:1], last[:-1]])


def with_gaps(values: Tensor, times: Tensor) -> Tensor:
    """X (T, B, 3F) of values (T, B, F), NaN where one is missing, and times as in times_since."""
    masks = (~values.isnan()).to(values.dtype)
    return torch.cat([values.nan_to_num(nan=0.0), masks, times_since(masks, times)], -1)


def backwards(x: Tensor) -> Tensor:
    """X (T, B, 3F) read from its end: values and masks in reverse, and the times anew for that direction."""
    values, masks, since = x.chunk(3, -1)
    steps = since[1:] - (1 - masks[:-1]) * since[:-1]
    to_end = torch.cat([steps.flip(0).cumsum(0).flip(0), torch.zeros_like(since[:1])])
    masks = masks.flip(0)
    return torch.cat([values.flip(0), masks, times_since(masks, to_end.flip(0))], -1)
