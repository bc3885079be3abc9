# SPDX-License-Identifier: Apache-2.0
"""Initialisation of weights, optimisers, and the learning rate schedule."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from edgernn.cells.norm import NORMS
from edgernn.errors import UsageError, nearest, some
from edgernn.files import MODEL
from edgernn.model import SequenceModel
from edgernn.rules.base import UpdateRule
from edgernn.settings import as_word
from edgernn.store import WEIGHTS, read_config, read_tensors
from edgernn.training.config import TrainConfig
from edgernn.training.tasks.base import Score

_AVERAGE, _STEP = "average", "step"
_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def _eager(kind: type[_Optimizer]) -> type[_Optimizer]:
    """Return a subclass of an optimiser without the wrappers for torch.compile, which import torch._dynamo (1 s)."""
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


_SGD = _eager(torch.optim.SGD)


class NTASGD(_SGD):  # type: ignore[valid-type,misc]
    """SGD that keeps a running average θ̄ of the parameters θ from some step s on, the first step after `switch`.

    θ_k = θ_{k-1} - lr (∇f + weight_decay θ_{k-1}),    θ̄ = (θ_s + ... + θ_k) / (k - s + 1)

    ∇f is the gradient of the loss at step k. The average does not affect the steps. Evaluations use it instead
    of the parameters (function `averaged`). At the end of the training, it replaces them for good (function `settle`).

    Source: Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language Models", 2017,
    https://arxiv.org/abs/1708.02182, section 3; averaging as in Polyak, Juditsky 1992.
    """

    @property
    def averages(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """List a pair (parameter, its running average) for each parameter; empty before the averaging begins."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        return [(p, self.state[p][_AVERAGE]) for p in parameters if _AVERAGE in self.state.get(p, ())]

    @torch.no_grad()
    def switch(self) -> None:
        """Average the parameters from the next step on; do nothing if they are averaged already."""
        if not self.averages:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p] |= {_AVERAGE: p.clone(), _STEP: torch.zeros(())}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss: float | None = super().step(closure)
        if pairs := self.averages:
            parameters, averages = zip(*pairs, strict=True)
            for p in parameters:
                self.state[p][_STEP] += 1
            with torch.no_grad():
                torch._foreach_lerp_(averages, parameters, 1 / self.state[parameters[0]][_STEP].item())
        return loss


OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": _eager(torch.optim.Adam),
    "sgd": _SGD,
    "rmsprop": _eager(torch.optim.RMSprop),
    "adadelta": _eager(torch.optim.Adadelta),
    "ntasgd": NTASGD,
}
_WITH_MOMENTUM = ("sgd", "rmsprop")
STARTS = ("cell", "uniform", "normal")


def check_names(config: TrainConfig) -> None:
    """Raise UsageError if a training setting has an unknown value or does not fit the chosen optimiser.

    The settings are the optimiser (optimizer, momentum, average_from, nonmono), the initialisation of the weights
    (start), and whether the run keeps its last or its best weights (keep).
    """
    if config.optimizer.name not in OPTIMIZERS:
        raise nearest("optimizer", config.optimizer.name, OPTIMIZERS)
    if config.start.name not in STARTS:
        raise nearest("start", config.start.name, STARTS)
    if config.optimizer.momentum and config.optimizer.name not in _WITH_MOMENTUM:
        raise UsageError(
            f"momentum: optimizer={config.optimizer.name} has no such setting; leave it out, or use "
            f"{' or '.join(_WITH_MOMENTUM)}"
        )
    triggers = [name for name in ("average_from", "nonmono") if getattr(config.optimizer, name) is not None]
    if triggers and config.optimizer.name != "ntasgd":
        raise UsageError(
            f"{triggers[0]}: optimizer={config.optimizer.name} does not average the weights; leave out {triggers[0]}, "
            "or use optimizer=ntasgd"
        )
    if not triggers and config.optimizer.name == "ntasgd":
        raise UsageError(
            "optimizer: ntasgd expects average_from, nonmono or both, got none; set average_from to the epoch at which "
            "the averaging begins, or nonmono to a number of evaluations without improvement"
        )
    if config.keep not in ("last", "best"):
        raise UsageError(f"keep: expected last or best, got {config.keep!r}")


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build the optimiser that a training configuration describes, for all parameters of a model."""
    extra: dict[str, Any] = {"momentum": config.optimizer.momentum} if config.optimizer.name in _WITH_MOMENTUM else {}
    kind = OPTIMIZERS[config.optimizer.name]
    # foreach: one kernel launch for all parameters
    return kind(
        model.parameters(), lr=config.optimizer.lr, weight_decay=config.optimizer.weight_decay, foreach=True, **extra
    )  # type: ignore[call-arg]


@torch.no_grad()
def initialise(model: nn.Module, config: TrainConfig) -> None:
    """Initialise the parameters of a model with the method that the setting `start` names.

    With `start=cell`, all parameters keep the values that their layers set when they were built. With `start=uniform`,
    they are drawn from U(-scale, scale); with `start=normal`, from N(0, scale²). The setting `start_scale` is the
    scale. Both set biases and other vectors to 0 if `start_biases` is false. Parameters of normalisation layers always
    keep their values: a gain of 0 would make their output 0. So do those of update rules with `keeps_start`.
    """
    if config.start.name == "cell":
        return
    kept = {p for module in model.modules() if _keeps_start(module) for p in module.parameters()}
    for parameter in model.parameters():
        if parameter in kept:
            continue
        if parameter.ndim == 1 and not config.start.biases:
            parameter.zero_()
        elif config.start.name == "uniform":
            parameter.uniform_(-config.start.scale, config.start.scale)
        else:
            parameter.normal_(0.0, config.start.scale)


def _keeps_start(module: nn.Module) -> bool:
    """True if the setting `start` leaves the parameters of a module as they were built."""
    return module.keeps_start if isinstance(module, UpdateRule) else isinstance(module, (*NORMS.values(), nn.LayerNorm))


@torch.no_grad()
def copy_weights(model: nn.Module, source: Path) -> str:
    """Copy to a model, in place, the parameters of a trained model that have the same names and shapes.

    The statistics that standardise the input keep the values of the model's own data, unless layers are frozen.

    Args:
        model: The model that is going to be trained.
        source: The trained model: a run directory, an ONNX file that edgernn exported, a folder with its model.onnx, or
            the name of a model in the zoo.

    Returns:
        A sentence that says how many parameters were copied, which were not, and in which settings the audio front
        ends of the two models differ.

    Raises:
        UsageError: No such model exists, the run is not finished, no parameter fits, or a frozen one does not.
        EdgernnError: The run's weights or config.json cannot be read, or `read_exported` refuses the ONNX file, such as
            one with a user-defined cell.
    """
    tensors, config = read_start(source)
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    if isinstance(model, SequenceModel) and not all(p.requires_grad for p in parameters.values()):
        parameters |= {"input_mean": model.input_mean, "input_std": model.input_std}
    fitting = [name for name, p in parameters.items() if name in tensors and tensors[name].shape == p.shape]
    if not fitting:
        raise UsageError(
            f"start_run: expected weights of the shapes of this model, got none in {source}; use the cell, hidden_size "
            "and layers of that model"
        )
    if frozen := [name for name, p in parameters.items() if not p.requires_grad and name not in fitting]:
        raise UsageError(
            f"start_frozen: expected all weights of these layers in {source}, got none of the shape of {frozen[0]}; "
            "use the cell, hidden_size and layers of that model"
        )
    for name in fitting:
        parameters[name].copy_(tensors[name])
    new = [name for name in parameters if name not in fitting]
    note = f"{len(fitting)} weights start from {source}" + (f"; new: {some(new)}" if new else "")
    if isinstance(model, SequenceModel) and model.frontend is not None:
        settings, frontend = asdict(model.config.frontend), config.get("frontend", {})
        differing = [
            f"{name}={as_word(value)}"
            for name, value in frontend.items()
            if frontend.get("name") and settings.get(name, value) != value
        ]
        if differing:
            note += f"; the front end of {source} differs: {' '.join(differing)}"
    return note


def read_start(source: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a trained model that others start from.

    Args:
        source: As for `copy_weights`.

    Returns:
        Its tensors by name, and its configuration as in config.json.

    Raises:
        UsageError: No such model exists, or the run is not finished.
        EdgernnError: A file cannot be read.
    """
    # imports onnxscript, which other trainings do not need
    from edgernn.export.exported_model import read_exported
    from edgernn.runtime.zoo import find_model

    path = find_model(source)
    if not (path / WEIGHTS).is_file() and (path / MODEL).is_file():
        # the folder of a trained model
        path = path / MODEL
    if path.is_file():
        model, _ = read_exported(path)
        return model.state_dict(), asdict(model.config)
    if not (path / WEIGHTS).is_file():
        raise UsageError(
            f"start_run: expected the directory of a finished run, got {path}, which has no {WEIGHTS}; "
            "finish that training, or name another trained model"
        )
    return read_tensors(path / WEIGHTS), read_config(path)["model"]


def course(config: TrainConfig, step: int, total: int) -> float:
    """Return the factor of the learning rate by the settings lr_warmup and lr_cosine at a step of `total` steps.

    It rises linearly over the first lr_warmup steps. With lr_cosine, it then falls from 1 to 0 as (1 + cos(π p)) / 2,
    with p the share of the other steps that are done.

    Args:
        config: Training configuration.
        step: Index of the step, from 0.
        total: Number of steps of the training.

    Returns:
        The factor, above 0 and at most 1.
    """
    warmup = config.schedule.warmup
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if not config.schedule.cosine:
        return 1.0
    return (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))) / 2


def schedule(optimizer: torch.optim.Optimizer, config: TrainConfig, epoch: int, scale: float = 1.0) -> None:
    """Set the optimiser's learning rate for a step; NTASGD also begins to average at the epoch `average_from`.

    The learning rate is scale · lr · lr_decay^n with n = min(max(0, epoch - lr_hold), lr_decays). lr, lr_decay,
    lr_hold, lr_decays and average_from are training settings. If lr_decays is not set, n has no upper bound.

    Args:
        optimizer: The optimiser.
        config: Training configuration.
        epoch: Epoch of the step, counted from 0.
        scale: Factor by which the learning rate is multiplied.
    """
    decays = max(0, epoch - config.schedule.hold)
    if config.schedule.decays is not None:
        decays = min(decays, config.schedule.decays)
    for group in optimizer.param_groups:
        group["lr"] = config.optimizer.lr * config.schedule.decay**decays * scale
    if (
        isinstance(optimizer, NTASGD)
        and config.optimizer.average_from is not None
        and epoch >= config.optimizer.average_from
    ):
        optimizer.switch()


def watch(optimizer: torch.optim.Optimizer, config: TrainConfig, score: Score, values: Sequence[float]) -> None:
    """Let NTASGD begin to average the parameters if the metric has stopped improving (non-monotone trigger).

    Let n be the setting nonmono. The averaging begins if the last value of the metric is worse than the best value
    before the last n + 1 evaluations. Nothing is done if the optimiser is not an `NTASGD`, or if nonmono is not set.

    Args:
        optimizer: The optimiser.
        config: Training configuration.
        score: The task's main metric and whether a higher value is better.
        values: The metric at all evaluations so far, in order.
    """
    if isinstance(optimizer, NTASGD) and config.optimizer.nonmono is not None:
        earlier = values[: -1 - config.optimizer.nonmono]
        if any(score.better(value, values[-1]) for value in earlier):
            optimizer.switch()


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Replace the parameters by their running averages until the `with` block ends, then restore them.

    It does nothing if the optimiser is not an `NTASGD`, or has not begun to average.
    """
    pairs = optimizer.averages if isinstance(optimizer, NTASGD) else []
    kept = [p.detach().clone() for p, _ in pairs]
    settle(optimizer)
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), value in zip(pairs, kept, strict=True):
                p.copy_(value)


@torch.no_grad()
def settle(optimizer: torch.optim.Optimizer) -> None:
    """Replace the parameters by their running averages for good.

    It does nothing if the optimiser is not an `NTASGD`, or has not begun to average.
    """
    if isinstance(optimizer, NTASGD):
        for p, average in optimizer.averages:
            p.copy_(average)
