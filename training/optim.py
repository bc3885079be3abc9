# SPDX-License-Identifier: Apache-2.0
"""Where a training starts, and the steps that it takes."""

import torch
from torch import nn

from edgernn.errors import UsageError, nearest
from edgernn.training.config import TrainConfig

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adadelta": torch.optim.Adadelta,
}
_WITH_MOMENTUM = ("sgd", "rmsprop")
STARTS = ("cell", "uniform", "normal")


def check_names(config: TrainConfig) -> None:
    """Raises UsageError for an unknown optimizer or start, and for a setting that the chosen one does not have."""
    if config.optimizer not in OPTIMIZERS:
        raise nearest("optimizer", config.optimizer, OPTIMIZERS)
    if config.start not in STARTS:
        raise nearest("start", config.start, STARTS)
    if config.momentum and config.optimizer not in _WITH_MOMENTUM:
        raise UsageError(f"momentum: {config.optimizer} has none of that kind; {' and '.join(_WITH_MOMENTUM)} have")
    if config.keep not in ("last", "best"):
        raise UsageError(f"keep: expected last or best, got {config.keep!r}")


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser of a config, over all parameters."""
    extra = {"momentum": config.momentum} if config.optimizer in _WITH_MOMENTUM else {}
    kind = OPTIMIZERS[config.optimizer]
    # foreach: one call for all parameters instead of one each
    return kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay, foreach=True, **extra)  # type: ignore[call-arg]


@torch.no_grad()
def initialise(model: nn.Module, config: TrainConfig) -> None:
    """Draw all parameters anew, unless a cell's own start is wanted: U(-scale, scale) or N(0, scale²)."""
    if config.start == "cell":
        return
    for parameter in model.parameters():
        if config.start == "uniform":
            parameter.uniform_(-config.start_scale, config.start_scale)
        else:
            parameter.normal_(0.0, config.start_scale)


def schedule(optimizer: torch.optim.Optimizer, config: TrainConfig, epoch: int) -> None:
    """Set the learning rate of an epoch, counted from 0: lr · lr_decay^max(0, epoch - lr_hold)."""
    for group in optimizer.param_groups:
        group["lr"] = config.lr * config.lr_decay ** max(0, epoch - config.lr_hold)
