# SPDX-License-Identifier: Apache-2.0
"""Configuration of training: optimiser, schedule, initialisation and stopping, for all tasks."""

from typing import Annotated, Any, TypedDict

from pydantic import Field

from edgernn.errors import UsageError
from edgernn.settings import Values, Word, bind, build, configuration, fields_of

_Count = Annotated[int | None, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0)]
_Weight = Annotated[float, Field(ge=0)]


@configuration
class OptimizerConfig:
    """Settings of the optimiser."""

    name: Annotated[str, Field(description="Optimiser: adam, sgd, rmsprop, adadelta or ntasgd."), Word("optimizer")] = (
        "adam"
    )
    lr: Annotated[_Positive, Field(description="Learning rate.")] = 1e-3
    momentum: Annotated[_Weight, Field(description="Momentum of sgd and rmsprop.")] = 0.0
    weight_decay: Annotated[_Weight, Field(description="Weight decay.")] = 0.0
    clip: Annotated[
        float | None, Field(gt=0, description="Largest norm of the gradient; a longer one is scaled down.")
    ] = 1.0
    clip_value: Annotated[
        float | None, Field(gt=0, description="Largest absolute value of each gradient entry, applied before clip.")
    ] = None
    average_from: Annotated[
        int | None, Field(ge=0, description="Epoch, counted from 0, at which ntasgd begins to average the weights.")
    ] = None
    nonmono: Annotated[
        _Count,
        Field(
            description="ntasgd begins to average once the metric is worse than its best before the last N evaluations."
        ),
    ] = None


@configuration
class ScheduleConfig:
    """Settings of the learning rate schedule."""

    decay: Annotated[
        _Positive, Field(description="Factor that multiplies the learning rate at each new epoch."), Word("lr_decay")
    ] = 1.0
    hold: Annotated[
        int, Field(ge=0, description="Number of epochs by which the first lr_decay is delayed."), Word("lr_hold")
    ] = 0
    decays: Annotated[
        int | None,
        Field(ge=0, description="Largest number of times that lr_decay is applied. Default: no limit."),
        Word("lr_decays"),
    ] = None
    warmup: Annotated[
        int,
        Field(ge=0, description="Number of training steps in which the learning rate rises from 0 to lr."),
        Word("lr_warmup"),
    ] = 0
    cosine: Annotated[
        bool,
        Field(description="Let the learning rate fall to 0 over the training, along half a period of a cosine."),
        Word("lr_cosine"),
    ] = False


@configuration
class StartConfig:
    """Settings of the initial weights.

    Parameters of a normalisation (setting norm) and of the rules delta, phased and skip are never drawn at random.
    """

    name: Annotated[
        str,
        Field(description="Initialisation of the weights: cell (that of the cell), uniform or normal."),
        Word("start"),
    ] = "cell"
    scale: Annotated[
        _Positive,
        Field(description="Bound of the uniform, or standard deviation of the normal initialisation."),
        Word("start_scale"),
    ] = 0.1
    biases: Annotated[
        bool,
        Field(
            description="Also draw biases and other vectors at random, with start=uniform or normal; if false, they "
            "start at 0."
        ),
        Word("start_biases"),
    ] = True
    run: Annotated[
        str | None,
        Field(
            description="Trained model with the weights to start from: a run directory such as runs/adding-gru, an "
            "ONNX file that edgernn exported, or a name that `edgernn models` lists. A weight that it does not have, "
            "or has in another shape, starts as start says."
        ),
        Word("start_run"),
    ] = None
    frozen: Annotated[
        int,
        Field(
            ge=0,
            description="Number of first layers whose weights stay those of start_run, with all weights in front of "
            "them.",
        ),
        Word("start_frozen"),
    ] = 0


@configuration
class StopConfig:
    """Settings of early stopping."""

    solved: Annotated[
        bool, Field(description="Stop once the validation metric reaches the task's threshold."), Word("stop_solved")
    ] = True
    skip_target: Annotated[
        _Weight | None,
        Field(
            description="Percentage of updates that must be skipped, too, for the task to count as solved. keep=best "
            "prefers evaluations that skip as many."
        ),
    ] = None
    patience: Annotated[
        _Count, Field(description="Stop after N evaluations in a row that are not better (see keep).")
    ] = None


@configuration
class TrainConfig:
    """Settings of training. A task's `defaults` override the defaults here, and the user's settings override both."""

    steps: Annotated[_Count, Field(description="Number of training steps, in place of epochs.")] = None
    epochs: Annotated[_Count, Field(description="Number of training epochs, in place of steps.")] = None
    batch_size: Annotated[int, Field(ge=1, description="Number of sequences in a batch.")] = 100
    lambda_: Annotated[
        _Weight, Field(description="Weight of the penalty on neuron updates (the budget) in the loss.")
    ] = 0.0
    skip: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Share of neuron updates to skip; training adapts lambda to reach it."),
    ] = None
    background: Annotated[
        _Weight | None,
        Field(description="Factor of the penalty on updates at steps that the task marks as background. Default: 1."),
    ] = None
    imputation: Annotated[_Weight, Field(description="Weight of the imputer's error on known values in the loss.")] = (
        1.0
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    start: StartConfig = StartConfig()
    stop: StopConfig = StopConfig()
    keep: Annotated[
        str,
        Field(
            description="Weights to keep at the end: last, or best (best evaluation). Default: last; best with skip "
            "and for your own arrays and tables."
        ),
    ] = "last"
    anneal: Annotated[
        bool, Field(description="Anneal a learned update rule: its surrogate gradient gets steeper with the epochs.")
    ] = True
    eval_every: Annotated[
        _Count, Field(description="Number of training steps between evaluations. Default: one epoch.")
    ] = None
    checkpoint_every: Annotated[int, Field(ge=1, description="Number of training steps between checkpoints.")] = 200
    backend: Annotated[
        str,
        Field(
            description="Implementation of the recurrence: fused kernels, a loop in torch, or auto (fused if possible)."
        ),
    ] = "auto"

    @classmethod
    def of(cls, **settings: Any) -> "TrainConfig":
        """Build a config from settings as keyword arguments, such as lr=0.01; raise UsageError for an invalid one."""
        words = {name.rstrip("_"): value for name, value in settings.items()}
        return build(cls, bind(words, train=fields_of(cls))["train"])


class Settings(TypedDict, total=False):
    """Settings of a training by keyword, with their types, for `edgernn.training.train` and for editors.

    They are those of `edgernn train` for a user's own data; cells, rules and other tasks have further ones, which are
    passed as the dict `settings`. `lambda_` is the setting lambda.
    """

    # training
    steps: int | None
    epochs: int | None
    batch_size: int
    lambda_: float
    skip: float | None
    background: float | None
    imputation: float
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    clip: float | None
    clip_value: float | None
    average_from: int | None
    nonmono: int | None
    lr_decay: float
    lr_hold: int
    lr_decays: int | None
    lr_warmup: int
    lr_cosine: bool
    start: str
    start_scale: float
    start_biases: bool
    start_run: str | None
    start_frozen: int
    stop_solved: bool
    skip_target: float | None
    patience: int | None
    keep: str
    anneal: bool
    eval_every: int | None
    checkpoint_every: int
    backend: str
    # model
    rank: int | None
    density: float | None
    norm: str | None
    norm_steps: int
    imputer: str | None
    hidden_size: int
    layers: int
    last_size: int | None
    bidirectional: bool
    block: str | None
    frontend: str | None
    sample_rate: int
    window_size: int
    hop: int
    stack: int
    bands: int
    low_frequency: float
    high_frequency: float | None
    energy_floor: float
    normalise: str
    floor_rise: float
    floor_fall: float
    pcen_smoothing: float
    tied: bool
    dropout_embedding: float
    dropout_input: float
    dropout_hidden: float
    dropout_output: float
    weight_drop: float
    weight_drop_input: float
    mask_steps: int
    mask_channels: int
    weights: str
    # own arrays and tables
    jitter: float
    scaling: float
    rotation: float
    warp: float
    folds: int | None
    predict: str
    background_label: int | None
    balance: bool
    time: str
    label: str | None
    targets: str | None
    sequence: str | None
    split_by: str | None
    features: str | None
    T: int | None
    resample: float | None
    gap: float | None
    window: int | None
    stride: int | None
    label_by: str
    # own sounds
    words: str | None
    seconds: float
    silence: float
    unknown: float
    noise_folder: str | None
    noisy: float
    snr_low: float
    snr_high: float
    shift: float
    stream: float
    room: float
    talk: float
    threshold: float
    smoothing: float
    refractory: float


DEFAULT_EPOCHS = 20
_STEPS, _EPOCHS = ("steps",), ("epochs",)
_SKIP, _LAMBDA, _SKIP_TARGET, _KEEP = ("skip",), ("lambda_",), ("stop", "skip_target"), ("keep",)


def resolve_config(defaults: Values, settings: Values) -> TrainConfig:
    """Merge a task's default training settings with the user's, which win.

    Args:
        defaults: The task's settings: a dict from the path of a field of TrainConfig, such as ("optimizer", "lr"), to
            its value.
        settings: The user's settings, in the same form.

    Returns:
        The configuration. Only one of its steps and epochs is set. If the user sets `skip`, the share of updates to
        skip, the training adapts `lambda_`, the weight of the penalty on updates: `lambda_` is 0 at first, the task's
        `skip_target` is ignored, and the default of `keep` is "best". If the user sets `lambda_`, the task's `skip` is
        ignored.

    Raises:
        UsageError: The user sets two settings that exclude each other, or `start_frozen` without `start_run`.
    """
    steps, epochs = settings.get(_STEPS), settings.get(_EPOCHS)
    if steps is not None and epochs is not None:
        raise UsageError(f"steps, epochs: expected one of the two, got steps={steps} epochs={epochs}; leave one out")
    values = {**defaults, **settings}
    if epochs is not None:
        values[_STEPS] = None
    elif steps is not None:
        values[_EPOCHS] = None
    if values.get(_STEPS) is None and values.get(_EPOCHS) is None:
        values[_EPOCHS] = DEFAULT_EPOCHS
    if (skip := settings.get(_SKIP)) is not None:
        for path in (_LAMBDA, _SKIP_TARGET):
            if (value := settings.get(path)) is not None:
                name = path[-1].rstrip("_")
                raise UsageError(
                    f"skip, {name}: expected one of the two, got skip={skip} {name}={value}; leave one out"
                )
        values |= {_LAMBDA: 0.0, _SKIP_TARGET: None, _KEEP: settings.get(_KEEP, "best")}
    elif settings.get(_LAMBDA) is not None:
        values[_SKIP] = None
    config = build(TrainConfig, values)
    if config.start.frozen and config.start.run is None:
        raise UsageError("start_frozen: expected start_run, whose layers are kept, got none; set it, or leave both out")
    return config
