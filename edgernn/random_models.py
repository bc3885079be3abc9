# SPDX-License-Identifier: Apache-2.0
"""Models with random weights, for measuring without training."""

from typing import Any

import torch
from torch import nn

from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.model import SequenceModel


def random_model(
    config: ModelConfig | str, *sizes: int, skip: float = 0.0, seed: int = 0, **settings: Any
) -> SequenceModel:
    """A model without a head whose weights are N(0, 1/(4·columns)), so that rounding errors die out over time.

    skip: the share of neurons that the rule leaves alone on standard normal input. Raises UsageError outside [0, 1] and
    where the rule cannot skip. config, sizes, settings: as of SequenceModel; the blocks of sparse weights are random.
    """
    if not 0 <= skip <= 1:
        raise UsageError(f"skip: expected between 0 and 1, got {skip}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SequenceModel(config, *sizes, **settings)
        for layer in model.recurrent_layers():
            for parameter in layer.cell.parameters():
                nn.init.normal_(parameter, std=0.5 / parameter.shape[-1] ** 0.5)
            layer.rule.force(1 - skip)
            if layer.cell.is_sparse:
                layer.cell.threshold(hold=True)
    return model.eval()
