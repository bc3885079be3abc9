# SPDX-License-Identifier: Apache-2.0
"""Models with random weights, for measuring without training."""

import torch
from torch import nn

from edgernn.errors import UsageError
from edgernn.model import SequenceModel


def random_model(
    cell: str,
    input_size: int,
    hidden_size: int,
    *,
    rule: str | None = None,
    skip: float = 0.0,
    layers: int = 1,
    rank: int | None = None,
    density: float | None = None,
    seed: int = 0,
) -> SequenceModel:
    """A model without a head whose weights are N(0, 1/(4·columns)), so that rounding errors die out over time.

    skip: the share of neurons that the rule leaves alone on standard normal input. Raises UsageError outside [0, 1] and
    where the rule cannot skip. rank, density: of the recurrent weights, as in SequenceModel; the blocks are at random.
    """
    if not 0 <= skip <= 1:
        raise UsageError(f"skip: expected between 0 and 1, got {skip}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SequenceModel(cell, input_size, hidden_size, rule=rule, layers=layers, rank=rank, density=density)
        for layer in model.recurrent_layers():
            for parameter in layer.cell.parameters():
                nn.init.normal_(parameter, std=0.5 / parameter.shape[-1] ** 0.5)
            layer.rule.force(1 - skip)
            if density is not None:
                layer.cell.threshold(hold=True)
    return model.eval()
