# SPDX-License-Identifier: Apache-2.0
"""The settings of training that every task has."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgernn.errors import UsageError
from edgernn.training.settings import setting


@dataclass(frozen=True)
class TrainConfig:
    """How long and how a model is trained. A task's `defaults` stand before these, the user's words before both.

    steps, epochs: the most to train, one of the two; neither is `DEFAULT_EPOCHS`.
    hidden_size, layers, bidirectional: of the model.
    last_size: of the last of several layers, where it is not hidden_size.
    tied: the head's weights are those of the embedding, where the task's input is words.
    dropout_embedding, dropout_input, dropout_hidden, dropout_output, weight_drop, weight_drop_input: the shares that
    training leaves out (`SequenceModel`).
    rank, density: recurrent weights of this rank, or with this share of blocks (`SequenceModel`); none: whole.
    norm, norm_steps: layer or recurrent-batch, the latter with statistics for so many steps; none: no normalisation.
    imputer: gru-d or rits, for values that are missing; the input is then values, masks and times.
    imputation: weighs the loss of an imputer's estimates.
    lambda_: weighs the update budget (`SequenceModel.budget`) in the loss. Written `lambda`.
    clip, clip_value: the largest norm of the whole gradient, and the largest size of each of its numbers, which comes
    first; none leaves it alone.
    optimizer: adam, sgd, rmsprop, adadelta or ntasgd; momentum of sgd and rmsprop; weight_decay of each.
    average_from, nonmono: when ntasgd begins to average: at this epoch, counted from 0; or once the metric is worse
    than the best of all evaluations but the last nonmono before it.
    lr_decay: the learning rate is multiplied by it after every epoch beyond the first 1 + lr_hold, lr_decays times at
    most.
    start: how all parameters begin: cell (each its own way), uniform in ±start_scale, or normal with that deviation;
    without start_biases, all parameters of one dimension begin at zero then; those of a normalisation keep their own
    start.
    keep: the weights of the last step, or of the best evaluation, are those of the run.
    anneal: the slope of a learned rule grows with the epochs.
    eval_every: steps between two evaluations on the validation split; none is once an epoch.
    checkpoint_every: steps between two checkpoints.
    stop_solved: stop once the validation metric reaches the task's threshold, and the skip percentage `skip_target`
    (if the rule can skip and it is not none).
    patience: stop after so many evaluations without a better metric; none never does.
    backend: what runs the layers' steps: fused kernels, torch, or auto, which is fused wherever there are kernels.
    """

    steps: int | None = setting(None, at_least=1)
    epochs: int | None = setting(None, at_least=1)
    hidden_size: int = setting(64, at_least=1)
    layers: int = setting(1, at_least=1)
    bidirectional: bool = False
    last_size: int | None = setting(None, at_least=1)
    tied: bool = False
    dropout_embedding: float = setting(0.0, at_least=0)
    dropout_input: float = setting(0.0, at_least=0)
    dropout_hidden: float = setting(0.0, at_least=0)
    dropout_output: float = setting(0.0, at_least=0)
    weight_drop: float = setting(0.0, at_least=0)
    weight_drop_input: float = setting(0.0, at_least=0)
    rank: int | None = setting(None, at_least=1)
    density: float | None = setting(None, above=0)
    norm: str | None = None
    norm_steps: int = setting(1000, at_least=1)
    imputer: str | None = None
    imputation: float = setting(1.0, at_least=0)
    batch_size: int = setting(100, at_least=1)
    lr: float = setting(1e-3, above=0)
    lambda_: float = setting(0.0, at_least=0)
    clip: float | None = setting(1.0, above=0)
    clip_value: float | None = setting(None, above=0)
    optimizer: str = "adam"
    momentum: float = setting(0.0, at_least=0)
    weight_decay: float = setting(0.0, at_least=0)
    lr_decay: float = setting(1.0, above=0)
    lr_hold: int = setting(0, at_least=0)
    lr_decays: int | None = setting(None, at_least=0)
    average_from: int | None = setting(None, at_least=0)
    nonmono: int | None = setting(None, at_least=1)
    start: str = "cell"
    start_scale: float = setting(0.1, above=0)
    start_biases: bool = True
    keep: str = "last"
    anneal: bool = True
    eval_every: int | None = setting(None, at_least=1)
    checkpoint_every: int = setting(200, at_least=1)
    stop_solved: bool = True
    skip_target: float | None = setting(None, at_least=0)
    patience: int | None = setting(None, at_least=1)
    backend: str = "auto"

    def record(self) -> dict[str, Any]:
        """By the names that the user writes."""
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


DEFAULT_EPOCHS = 20


def resolve_config(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> TrainConfig:
    """The config from a task's defaults and the user's values, both by Python name.

    Raises UsageError if the user gives steps and epochs.
    """
    if given.get("steps") is not None and given.get("epochs") is not None:
        raise UsageError(f"steps, epochs: expected one of the two, got steps={given['steps']} epochs={given['epochs']}")
    values = {**defaults, **given}
    if given.get("epochs") is not None:
        values["steps"] = None
    elif given.get("steps") is not None:
        values["epochs"] = None
    if values.get("steps") is None and values.get("epochs") is None:
        values["epochs"] = DEFAULT_EPOCHS
    return TrainConfig(**values)
