# SPDX-License-Identifier: Apache-2.0
"""Input of models for series with missing values: values, observation masks, and times since the last observation."""

import torch
from torch import Tensor


def times_since(masks: Tensor, times: Tensor) -> Tensor:
    """Compute, for each step and feature, the time δ since the last earlier step at which the feature was observed.

    If the feature was not observed at any earlier step, δ is the time since the first step.

    δ_1 = 0, δ_t = s_t - s_{t-1} + (1 - m_{t-1}) δ_{t-1}
    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", 2018, arXiv:1805.10572, section 3.

    Args:
        masks: m (T, B, F), 1 where a value was observed, else 0; F is the number of features.
        times: Times s of the steps, non-decreasing, of any shape that broadcasts to (T, B, F).

    Returns:
        δ (T, B, F), in the unit of `times`.
    """
    times = times.expand(masks.shape)
    last = torch.where(masks > 0, times, times[:1]).cummax(0).values
    return times - torch.cat([times[:1], last[:-1]])


def with_gaps(values: Tensor, times: Tensor) -> Tensor:
    """Build the input of an imputer, the layer that fills in missing values.

    Args:
        values: Values (T, B, F), NaN if missing.
        times: Times of the steps, non-decreasing, of any shape that broadcasts to (T, B, F).

    Returns:
        Concatenation (T, B, 3F) of the values (0 if missing), the masks (1 if observed, else 0), and the times since
        the last observation, see `times_since`.
    """
    masks = (~values.isnan()).to(values.dtype)
    return torch.cat([values.nan_to_num(nan=0.0), masks, times_since(masks, times)], -1)


def backwards(x: Tensor) -> Tensor:
    """Reverse the input x (T, B, 3F) of an imputer, as built by `with_gaps`, in time.

    The reversed input has the same shape. Its times since the last observation are computed for the reversed sequence.
    """
    values, masks, since = x.chunk(3, -1)
    steps = since[1:] - (1 - masks[:-1]) * since[:-1]
    to_end = torch.cat([steps.flip(0).cumsum(0).flip(0), torch.zeros_like(since[:1])])
    masks = masks.flip(0)
    return torch.cat([values.flip(0), masks, times_since(masks, to_end.flip(0))], -1)
