# SPDX-License-Identifier: Apache-2.0
"""Dropout for recurrent networks: variational dropout, embedding dropout, DropConnect, and SpecAugment's masks.

In dropout, all entries that are not dropped are divided by 1 - rate, so that the mean stays the same. The functions do
not know about training mode: callers use them in training only. The combination of dropouts follows Merity, Keskar,
Socher, "Regularizing and Optimizing LSTM Language Models", 2017, https://arxiv.org/abs/1708.02182, sections 2 and 4.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace


class Runs(Protocol):
    """Type of a function that runs a recurrent layer over a sequence; `RecurrentLayer` is one.

    It maps x (T, B, I) and the initial state to the outputs (T, B, H), the state after the last step, and the values
    that the layer recorded for losses and statistics (`edgernn.layer.Trace`).
    """

    def __call__(self, x: Tensor, state: State) -> tuple[Tensor, State, Trace]: ...


def _mask(like: Tensor, shape: tuple[int, ...], rate: float) -> Tensor:
    return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)


def locked(x: Tensor, rate: float) -> Tensor:
    """Apply variational dropout: one mask (B, I) for all steps.

    Source: Gal, Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks", 2016,
    https://arxiv.org/abs/1512.05287.

    Args:
        x: Sequence (T, B, I), or one step (B, I).
        rate: Dropout rate, in [0, 1).

    Returns:
        The masked and scaled x; x itself at rate 0.
    """
    return x * _mask(x, x.shape[-2:], rate) if rate else x


def words(embedded: Tensor, tokens: Tensor, vocabulary: int, rate: float) -> Tensor:
    """Apply embedding dropout: a dropped word is zero at each of its occurrences in the batch.

    Source: Gal, Ghahramani, 2016, as in `locked`.

    Args:
        embedded: Embeddings (T, B, I) of `tokens`.
        tokens: Word indices (T, B), from 0 to vocabulary - 1.
        vocabulary: Number of words.
        rate: Dropout rate, in [0, 1).

    Returns:
        The masked and scaled embeddings; `embedded` itself at rate 0.
    """
    return embedded * _mask(embedded, (vocabulary,), rate)[tokens].unsqueeze(-1) if rate else embedded


def masked(x: Tensor, steps: int, channels: int, present: Tensor | None = None) -> Tensor:
    """Mask successive steps and successive channels of each sequence, at random positions, as SpecAugment does.

    Source: Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition",
    Interspeech 2019, https://arxiv.org/abs/1904.08779, without time warping.

    Args:
        x: Sequences (T, B, I).
        steps: Largest number of masked steps. The actual number is uniform from 0 to this one.
        channels: Largest number of masked channels. The actual number is uniform from 0 to this one.
        present: Mask (T, B), False at steps of padding, which the mean leaves out. Default: no padding.

    Returns:
        The sequences, with each masked value replaced by the mean of all values of its sequence; x itself if
            steps and channels are 0.
    """
    if not steps and not channels:
        return x
    T, B, I = x.shape
    hidden = _stretches(x, B, T, steps).T[:, :, None] | _stretches(x, B, I, channels)[None]
    if present is None:
        mean = x.mean((0, 2), keepdim=True)
    else:
        mean = (x * present.unsqueeze(2)).sum((0, 2), keepdim=True) / (I * present.sum(0)).view(1, B, 1)
    return torch.where(hidden, mean, x)


def _stretches(like: Tensor, count: int, size: int, most: int) -> Tensor:
    """Draw a mask (count, size) that is True in one run of successive values in each row, on the device of `like`."""
    length = torch.randint(min(most, size) + 1, (count, 1), device=like.device)
    begin = (torch.rand(count, 1, device=like.device) * (size - length + 1)).long()
    places = torch.arange(size, device=like.device)
    return (places >= begin) & (places < begin + length)


def check_weights(layer: RecurrentLayer, recurrent: float) -> None:
    """Raise UsageError if `recurrent`, the DropConnect rate of recurrent weights, is above 0 but not supported.

    A layer does not support it if its cell has no recurrent weights, or if they are low-rank: stored as two factors.
    """
    if recurrent and not _weights(layer, "RC"):
        raise UsageError(f"weight_drop: {layer.cell.name} has no recurrent weights; use weight_drop_input instead")
    if recurrent and layer.cell.recurrent.rank is not None:
        raise UsageError("weight_drop, rank: expected at most one of the two, got both; leave one out")


def with_dropped_weights(
    layer: RecurrentLayer,
    recurrent: float = 0.0,
    feed_forward: float = 0.0,
    weights: Mapping[str, Tensor] | None = None,
) -> Runs:
    """Return a function that runs a layer with dropped weights (DropConnect), or with other weights than its own.

    The masks are drawn once, by this call; the function applies them at all steps of all sequences. In a cell, W
    multiplies the input, R the output h, C the cell state c, and V the intermediate vector that `Cell.mid` computes.

    Source: Wan et al., "Regularization of Neural Networks using DropConnect", 2013.

    Args:
        layer: The layer, which stays unchanged.
        recurrent: Dropout rate of R and C, in [0, 1).
        feed_forward: Dropout rate of W and V, in [0, 1).
        weights: Values that replace parameters of the layer before they are dropped, such as rounded ones (`Rounding`).
            The names are those of `layer.named_parameters()`.

    Returns:
        A function with the arguments and results of the layer; the layer itself if it runs with its own weights.
    """
    values = dict(weights or {})
    for names, rate in (("RC", recurrent), ("WV", feed_forward)):
        for name, weight in _weights(layer, names).items() if rate else ():
            values[f"cell.{name}"] = functional.dropout(values.get(f"cell.{name}", weight), rate)
    if not values:
        return layer

    def run(x: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        result: tuple[Tensor, State, Trace] = torch.func.functional_call(layer, values, (x, state))
        return result

    return run


def _weights(layer: RecurrentLayer, names: str) -> dict[str, Tensor]:
    return {name: weight for name, weight in layer.cell.named_parameters(recurse=False) if name in names}
