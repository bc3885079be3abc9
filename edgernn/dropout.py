# SPDX-License-Identifier: Apache-2.0
"""Dropout for recurrent networks: of inputs and outputs with one mask for all steps, of whole words, and of weights.

What is kept is divided by the share that is kept, so that means stay as they are. Nothing here knows of training and
evaluation: whoever calls does so in training only. All sources are as combined by Merity, Keskar, Socher,
"Regularizing and Optimizing LSTM Language Models", 2017, https://arxiv.org/abs/1708.02182, sections 2 and 4.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace


class Runs(Protocol):
    """A recurrent layer, or what stands for one: y (T, B, H), the last state, a Trace, from x (T, B, I) and a state."""

    def __call__(self, x: Tensor, state: State) -> tuple[Tensor, State, Trace]: ...


def check_rate(name: str, rate: float) -> None:
    """Raises UsageError for a rate outside [0, 1)."""
    if not 0 <= rate < 1:
        raise UsageError(f"{name}: expected at least 0 and below 1, got {rate}")


def _mask(like: Tensor, shape: tuple[int, ...], rate: float) -> Tensor:
    return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)


def locked(x: Tensor, rate: float) -> Tensor:
    """Variational dropout of x (T, B, I), or (B, I): an entry of a sequence is dropped at all steps or at none.

    Source: Gal, Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks", 2016,
    https://arxiv.org/abs/1512.05287.
    """
    return x * _mask(x, x.shape[-2:], rate) if rate else x


def words(embedded: Tensor, tokens: Tensor, vocabulary: int, rate: float) -> Tensor:
    """Embedding dropout of embedded (T, B, I), the rows of tokens (T, B): a dropped word is zero wherever it stands.

    Source: Gal, Ghahramani, as above.
    """
    return embedded * _mask(embedded, (vocabulary,), rate)[tokens].unsqueeze(-1) if rate else embedded


def check_weights(layer: RecurrentLayer, recurrent: float) -> None:
    """Raises UsageError where `with_dropped_weights` finds no recurrent weights to drop, or only a product's factor."""
    if recurrent and not _weights(layer, "RC"):
        raise UsageError(f"weight_drop: {layer.cell.name} has no recurrent weights; weight_drop_input drops the others")
    if recurrent and layer.cell.recurrent.rank is not None:
        raise UsageError("weight_drop: expected either it or rank, not both")


def with_dropped_weights(layer: RecurrentLayer, recurrent: float = 0.0, feed_forward: float = 0.0) -> Runs:
    """The layer with single weights dropped (DropConnect): drawn now, and then the same at all steps of all sequences.

    recurrent: the rate of R and C. feed_forward: that of W and V, which multiply the input and what the middle gates
    make of it: all that the gates of eins have.
    Source: Wan et al., "Regularization of Neural Networks using DropConnect", 2013.
    """
    weights = {name: (weight, recurrent) for name, weight in _weights(layer, "RC").items()}
    weights |= {name: (weight, feed_forward) for name, weight in _weights(layer, "WV").items()}
    dropped = {f"cell.{name}": functional.dropout(weight, rate) for name, (weight, rate) in weights.items() if rate}
    if not dropped:
        return layer

    def run(x: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        result: tuple[Tensor, State, Trace] = torch.func.functional_call(layer, dropped, (x, state))
        return result

    return run


def _weights(layer: RecurrentLayer, names: str) -> dict[str, Tensor]:
    return {name: weight for name, weight in layer.cell.named_parameters(recurse=False) if name in names}
