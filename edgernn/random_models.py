# SPDX-License-Identifier: Apache-2.0
"""Models with random weights, for benchmarks without training."""

from typing import Any

import torch
from torch import nn

from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.model import SequenceModel


def random_model(
    config: ModelConfig | str, *sizes: int, skip: float = 0.0, seed: int = 0, **settings: Any
) -> SequenceModel:
    """Create a model with random weights, which has an output layer (head) only if its size is given.

    The weights of cells are N(0, 1/(4·columns)), so small that rounding errors decay over time. The nonzero blocks of
    sparse weights are random.

    Args:
        config: A ModelConfig, or the name of a cell, as for `SequenceModel`.
        *sizes: I, H and, for a head, O, unless config is a ModelConfig.
        skip: Share of neuron updates that the update rule skips on standard normal input.
        seed: Random seed of the weights.
        **settings: Further settings of `SequenceModel`, unless config is a ModelConfig.

    Returns:
        The model, in evaluation mode.

    Raises:
        UsageError: `skip` is outside [0, 1], or the rule cannot skip.
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
