# SPDX-License-Identifier: Apache-2.0
"""Models with random weights, for benchmarks without training."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer
from edgernn.model import SequenceModel
from edgernn.rules import Delta

# sequences on which thresholds are searched, and halvings of their range
_STEPS, _BATCH, _HALVINGS = 200, 16, 11
# first steps, which do not count: values are sent less often at first than later
_SETTLING = 100


def random_model(
    config: ModelConfig | str,
    *sizes: int,
    skip: float = 0.0,
    seed: int = 0,
    x: Tensor | None = None,
    **settings: Any,
) -> SequenceModel:
    """Create a model with random weights; it has an output layer (head) only if O, the size of the head, is given.

    The weights of cells are normal with mean 0 and variance 1 / (4·columns), so small that rounding errors decay over
    time. The nonzero blocks of block-sparse weights are random.

    Args:
        config: A ModelConfig, or the name of a cell, as for `SequenceModel`.
        *sizes: I, H and, for a head, O, unless config is a ModelConfig.
        skip: Share of neuron updates that the update rule skips, on average over the input `x`.
        seed: Random seed of the weights.
        x: Input (T, B, I) with more than 100 steps, on which the thresholds of the rule delta are searched; by default
            standard normal numbers. Other rules skip the same share on every input.
        **settings: Further settings of `SequenceModel`, unless config is a ModelConfig.

    Returns:
        The model, in evaluation mode.

    Raises:
        UsageError: `skip` is outside [0, 1], the rule cannot skip this share of the updates, or `x` is too short.
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
        model.eval()
        if 0 < skip < 1:
            _set_thresholds(model, 1 - skip, x)
    return model


@torch.no_grad()
def _set_thresholds(model: SequenceModel, rate: float, x: Tensor | None) -> None:
    """Set the thresholds of a model with the rule delta, so that it updates the share `rate` of values per step."""
    layers = model.recurrent_layers()
    if not isinstance(layers[0].rule, Delta):
        return
    blocks = model.residual_blocks()
    if x is None:
        x = torch.randn(_STEPS, _BATCH, model.config.features if blocks else layers[0].input_size)
    elif len(x) <= _SETTLING:
        raise UsageError(f"x: expected more than {_SETTLING} steps, got {len(x)}; take a longer sequence")
    for i in range(0, len(layers), model.directions):
        u, x = blocks[i].enter(x) if blocks else (x, x)
        outputs = []
        for direction, layer in enumerate(layers[i : i + model.directions]):
            seen = x.flip(0) if direction else x
            search_thresholds(layer, seen, rate)
            y = layer(seen)[0]
            outputs.append(y.flip(0) if direction else y)
        x = torch.cat(outputs, -1)
        x = blocks[i].leave(u, x) if blocks else x


@torch.no_grad()
def search_thresholds(layer: RecurrentLayer, x: Tensor, rate: float) -> None:
    """Set the thresholds of a layer with the rule delta, so that a step sends the share `rate` of values.

    Args:
        layer: The layer.
        x: Its input (T, B, I).
        rate: Share of the values of x, and of those of h.
    """
    thresholds = layer.rule.weights
    _halve(thresholds["rule_theta_x"], rate, partial(_moved_share, x))
    _halve(thresholds["rule_theta_h"], rate, partial(_sent_share, layer, x))


def _halve(theta: Tensor, rate: float, share: Callable[[Tensor], float]) -> None:
    """Search by bisection the threshold in [0, 8] with share(threshold) = `rate`, and write it to `theta` in place."""
    low, high = 0.0, 8.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        theta.fill_(middle)
        low, high = (middle, high) if share(theta) > rate else (low, middle)


def _moved_share(x: Tensor, theta: Tensor) -> float:
    """Return the share of values that the rule delta sends anew, on input x (T, B, I) with threshold `theta`."""
    sent, count = torch.zeros_like(x[0]), 0
    for t, x_t in enumerate(x):
        moved = (x_t - sent).abs() > theta
        sent = torch.where(moved, x_t, sent)
        count += int(moved.sum()) * (t >= _SETTLING)
    return count / x[_SETTLING:].numel()


def _sent_share(layer: RecurrentLayer, x: Tensor, theta: Tensor) -> float:
    """Return the share of values of h that a layer with the rule delta sends anew, on input x (T, B, I)."""
    decisions = layer(x)[2].decisions
    assert decisions is not None
    return float(decisions[_SETTLING:].float().mean())
