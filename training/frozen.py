# SPDX-License-Identifier: Apache-2.0
"""Models whose first layers keep the weights of another model, and their division into lower and upper layers."""

from dataclasses import replace

import torch

from edgernn.config import HeadConfig, InputConfig
from edgernn.errors import UsageError
from edgernn.frontends import FrontendConfig
from edgernn.model import RecurrentModel, SequenceModel


def freeze(model: RecurrentModel, count: int) -> None:
    """Keep the weights of the first `count` layers of a model, and of all in front of them, out of the training.

    Args:
        model: The model.
        count: The number of layers; 0 keeps none out.

    Raises:
        UsageError: The model is no `SequenceModel` with more layers.
    """
    if not count:
        return
    if not isinstance(model, SequenceModel) or count >= model.config.layers:
        raise UsageError(
            f"start_frozen: expected fewer layers than the model has, got {count}; lower it, or raise layers"
        )
    upper = {p for module in (*_upper_modules(model, count), model.head) if module for p in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in upper)


def frozen_layers(model: SequenceModel) -> int:
    """Return the number of first layers that `freeze` has taken out of the training."""
    trained = [any(p.requires_grad for p in layer.parameters()) for layer in model.layers]
    return trained.index(True) // model.directions if True in trained else model.config.layers


def divided(model: SequenceModel, count: int) -> tuple[SequenceModel, SequenceModel]:
    """Return a model of the first `count` layers, and one of all others and the head, which reads its output.

    Both share the weights of the model. The dropout before layer `count` is that of the second model's input.
    """
    config, first = model.config, count * model.directions
    options, upper_layers = config.layer.rule.layers, config.layers - count
    layers = [
        replace(config.layer, rule=replace(config.layer.rule, layers=part))
        for part in (options[:first], options[first:])
    ]
    with torch.random.fork_rng(devices=[]):
        lower = SequenceModel(
            replace(config, layer=layers[0], layers=count, last_size=None, head=HeadConfig(output="all"))
        )
        upper = SequenceModel(
            replace(
                config,
                layer=replace(layers[1], imputer=None),
                layers=upper_layers,
                hidden_size=config.hidden_size if upper_layers > 1 else config.sizes[-1],
                last_size=config.last_size if upper_layers > 1 else None,
                frontend=FrontendConfig(),
                input=InputConfig(size=config.hidden_size * model.directions),
                dropout=replace(config.dropout, input=config.dropout.hidden, steps=0, channels=0),
            )
        )
    lower.frontend, lower.embedding, upper.head = model.frontend, model.embedding, model.head
    lower.input_mean, lower.input_std = model.input_mean, model.input_std
    lower.layers, upper.layers = model.layers[:first], model.layers[first:]
    lower.blocks, upper.blocks = model.blocks[:count], model.blocks[count:]
    lower.rounding = upper.rounding = model.rounding
    upper.to(model.input_mean.device)
    return lower.eval(), upper


def _upper_modules(model: SequenceModel, count: int) -> list[torch.nn.Module]:
    return [*model.layers[count * model.directions :], *model.blocks[count:]]
