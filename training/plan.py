# SPDX-License-Identifier: Apache-2.0
"""Preparation of a training: opens the task's data, and builds the configurations of the training and of the model."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import edgernn
from edgernn.cell_files import is_cell_file, is_network, load_network, source_of
from edgernn.config import AnyConfig, InputConfig, ModelConfig, NetworkConfig
from edgernn.config_checks import check_effects, check_together
from edgernn.errors import UsageError, nearest
from edgernn.frontends import LogMel
from edgernn.machine import processor
from edgernn.model import RecurrentModel
from edgernn.names import resolve
from edgernn.own_network import FROM_TASK, OwnNetwork
from edgernn.padding import present_steps
from edgernn.settings import Values, bind, build, fields_of, options_of, record
from edgernn.steering import check_steerable
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.optim import check_names
from edgernn.training.tasks import find_task
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.parts import standardisation
from edgernn.training.tasks.sources import Source

# keys of config.json about the machine; a resumed run may differ in them
MACHINE = ("edgernn", "torch", "threads", "processes", "machine")
# all keys of config.json in which a resumed run may differ
_FREE = (*MACHINE, "command", "folder", "source", "data")


@dataclass(frozen=True)
class Plan:
    """Everything that determines a training run: task with data, configurations, seed and device.

    Attributes:
        task_name: Name of the task; for a user's own data, the name of the file or folder.
        cell: Name of the cell, or of the class of a network of one's own.
        task: The task, with its data.
        config: Training config.
        model: Model config.
        can_skip: True if the update rule can skip updates of neurons.
        seed: Random seed.
        device: cpu or cuda.
        source: Path of the user's own data; None for a task that is chosen by its name.
        data: The user's folder of data sets; None for that in the environment variable EDGERNN_DATA.
    """

    task_name: str
    cell: str
    task: Task
    config: TrainConfig
    model: AnyConfig
    can_skip: bool
    seed: int
    device: str
    source: Path | None = None
    data: Path | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.task.train.steps_per_epoch(self.config.batch_size)

    @property
    def replays(self) -> bool:
        """True if CUDA graphs of a layer's loop over time steps can be replayed at every training step.

        A graph has fixed weights, a fixed number of steps, and no factors of steps in the penalty on updates. Its next
        replay overwrites tensors that the backward pass of the last one needs.
        """
        if isinstance(self.model, NetworkConfig):
            return False
        dropout = self.model.dropout
        new_weights = dropout.weight > 0 or dropout.weight_input > 0
        changing_steps = self.task.repeats_layers or self.task.train.varies_steps
        return not (new_weights or changing_steps or self.config.background is not None)

    def network(self) -> RecurrentModel:
        """Build a new, untrained network on the device."""
        network: RecurrentModel
        if isinstance(self.model, NetworkConfig):
            network = OwnNetwork(self.model)
        else:
            network = self.task.build_network(self.model)
        self.task.check_network(network)
        return network.to(self.device)

    @property
    def kind(self) -> type[nn.Module]:
        """Class of the cell, or of a network of one's own."""
        if isinstance(self.model, NetworkConfig):
            assert isinstance(self.model.name, type)
            return self.model.name
        return self.model.layer.types[0]

    def record(self, command: list[str], processes: int = 1) -> dict[str, Any]:
        """Build the content of a run's config.json.

        Args:
            command: The command line of the run.
            processes: Number of processes that train together.

        Returns:
            The content, with values that JSON can represent.
        """
        task = {
            "name": self.task_name,
            "settings": asdict(self.task),  # type: ignore[call-overload]
            "fingerprint": self.task.fingerprints[0],
            "classes": self.task.classes,
            "channels": self.task.channels,
            **({} if self.task.reading is None else {"reading": self.task.reading}),
            **({} if self.task.detector is None else {"detector": self.task.detector}),
            **({} if self.task.class_weights is None else {"class_weights": self.task.class_weights}),
        }
        content = {
            "edgernn": edgernn.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": processes,
            "machine": processor(),
            "command": command,
            "folder": str(Path.cwd()),
            "seed": self.seed,
            "device": self.device,
            "source": self.source and str(self.source),
            "data": self.data and str(self.data),
            "task": task,
            "train": record(self.config),
            "network": (OwnNetwork if isinstance(self.model, NetworkConfig) else self.task.network).__name__,
            "model": record(self.model),
        }
        if (source := source_of(self.kind)) is not None:
            content |= source.record()
        loaded: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
        return loaded


def choose_device(name: str) -> str:
    """Return the device of a training, cpu or cuda; the name auto means cuda if torch finds a GPU, else cpu.

    Raise UsageError if the name is not auto, cpu or cuda, or if it is cuda and torch finds no GPU.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device: expected auto, cpu or cuda, got {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UsageError("device: expected a GPU for cuda, but torch finds none; use --device cpu")
    return "cuda" if has_gpu and name != "cpu" else "cpu"


@dataclass(frozen=True)
class Choice:
    """Task and configurations of a run before its data is read; sizes that depend on the data are not set yet.

    Attributes:
        task: The task, not opened yet.
        source: Path of the user's own data; None for a task that is chosen by its name.
        can_skip: True if the update rule can skip updates of neurons.
        config: Training config.
        model: Model config.
    """

    task: Task
    source: Path | None
    can_skip: bool
    config: TrainConfig
    model: AnyConfig


# number of training batches from which mean and standard deviation of audio features are computed
_STATISTICS_BATCHES = 8
# default hidden size in training, smaller than that of `SequenceModel`
_DEFAULTS: Values = {("hidden_size",): 64}


def configure(defaults: Mapping[str, object], train: Values, model: Values) -> tuple[TrainConfig, ModelConfig]:
    """Build the configs of training and model from a task's defaults and the user's settings, which override them.

    Args:
        defaults: The task's defaults: a dict from the short name of a setting to its value.
        train: The user's training settings: a dict from a field of TrainConfig to its value. The key is a tuple of
            nested field names, such as ("optimizer", "lr").
        model: The user's model settings: a dict from a field of ModelConfig to its value; the keys are tuples, too.

    Returns:
        The training config, and the model config, whose cell is still the default, a GRU.
    """
    values = bind(defaults, train=fields_of(TrainConfig), model=fields_of(ModelConfig))
    config = resolve_config(values["train"], train)
    return config, build(ModelConfig, {**_DEFAULTS, **values["model"], **model})


def choose(task: str, cell: str, rule: str | None, settings: Mapping[str, object], seed: int = 0) -> Choice:
    """Look up the names of task, cell and rule, and check the settings, before any data is read.

    Args:
        task: The task's name, or a path to the user's data.
        cell: The cell's name, or FILE.py:CLASS of a cell or of a network of one's own.
        rule: The rule's name; None if the cell's name implies it.
        settings: Settings of training, model, task, cell and rule: a dict from name to value. A name is short, such as
            lr, or dotted, such as optimizer.lr.
        seed: The seed of the run. The update rule `random`, which skips updates at random, uses it as well, unless
            its own seed is set.

    Returns:
        The task, not opened yet, and the configs.

    Raises:
        UsageError: A name is unknown, or a setting or the seed is invalid.
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise UsageError(f"seed: expected a whole number from 0 to 2^63 - 1, got {seed!r}")
    task_type, source = find_task(task)
    if is_network(cell):
        return _choose_network(task_type, source, cell, rule, settings)
    cell_type, rule_type = resolve(cell, rule)
    owners = {"train": fields_of(TrainConfig), "model": fields_of(ModelConfig)}
    parts = {"task": fields_of(task_type), "cell": options_of(cell_type), "rule": options_of(rule_type)}
    values = bind(settings, **owners, **parts)
    for name in sorted(task_type.without):
        if any(name in owner and owner[name].path in values[key] for key, owner in owners.items()):
            raise UsageError(f"{name}: the network of the task {task_type.name} has no such setting; leave it out")
    options = {part: {path[0]: value for path, value in values[part].items()} for part in parts}
    config, model = configure(task_type.defaults, values["train"], values["model"])
    check_names(config)
    if config.skip is not None:
        check_steerable("skip", rule_type)
    rule_options = rule_type.training_options(seed, steered=config.skip is not None) | options["rule"]
    layer = model.layer.named(cell, rule, options["cell"], rule_options)
    new_task = task_type(**options["task"])
    if config.background is not None:
        check_steerable("background", rule_type)
        if not new_task.marks_background:
            raise UsageError(
                f"background: expected a task that marks steps at which nothing happens, got {task_type.name}, which "
                "marks none; leave out background, use your own labels per step with background_label, or use "
                "task=adding and set its setting silence"
            )
    model = new_task.adapted(replace(model, layer=layer))
    check_effects(model)
    return Choice(new_task, source, rule_type.can_skip, config, model)


def _choose_network(
    task_type: type[Task], source: Path | None, word: str, rule: str | None, settings: Mapping[str, object]
) -> Choice:
    """Check the settings of a training of one's own network, FILE.py:CLASS; see `choose`."""
    kind = load_network(word)
    if rule is not None:
        raise UsageError(
            f"rule: expected none with the network {kind.__name__}, whose layers have their own; leave it out"
        )
    if task_type.loss is not Task.loss:
        raise UsageError(f"network: the task {task_type.name} has a network of its own; use --cell, or another task")
    owners = {"train": fields_of(TrainConfig), "model": fields_of(NetworkConfig), "task": fields_of(task_type)}
    taken = options_of(kind, FROM_TASK)
    names = {name for owner in (*owners.values(), taken) for name in owner}
    for name in (name for name in settings if "." not in name and name not in names):
        known = f"the network {kind.__name__} takes {', '.join(taken) or 'no settings'}"
        raise UsageError(f"{nearest('setting', name, names)}; {known}, with a type int, float, bool or str")
    values = bind(settings, **owners, network=taken)
    options = {part: {path[0]: value for path, value in values[part].items()} for part in ("task", "network")}
    # of the task's defaults for models, a network has those of the front end
    defaults = bind(task_type.defaults, train=owners["train"], model=fields_of(ModelConfig))
    heard = {path: value for path, value in defaults["model"].items() if path[0] == "frontend"}
    config = resolve_config(defaults["train"], values["train"])
    check_names(config)
    if config.background is not None:
        raise UsageError(
            f"background: expected none with the network {kind.__name__}, whose layers may have other steps than the "
            "task; leave it out"
        )
    model = replace(build(NetworkConfig, {**heard, **values["model"]}), name=kind, options=options["network"])
    task = task_type(**options["task"])
    # tasks without a loss of their own adapt the front end alone
    return Choice(task, source, True, config, task.adapted(model))  # type: ignore[arg-type]


def make_plan(
    task: str,
    cell: str,
    rule: str | None,
    settings: Mapping[str, object],
    *,
    seed: int = 0,
    device: str = "auto",
    data: Path | None = None,
) -> Plan:
    """Plan a training run: look up names, check settings, open the task's data, and complete the configs from it.

    Args:
        task: The task's name, or a path to the user's data.
        cell: The cell's name, or FILE.py:CLASS of a cell or of a network of one's own.
        rule: The rule's name; None if the cell's name implies it.
        settings: Settings of training, model, task, cell and rule: a dict from name to value. A name is short, such as
            lr, or dotted, such as optimizer.lr.
        seed: The seed of the run.
        device: auto, cpu or cuda.
        data: The user's folder of data sets; None for that in the environment variable EDGERNN_DATA.

    Returns:
        The plan of the run.

    Raises:
        UsageError: A name is unknown, or a setting is invalid.
        EdgernnError: Data is missing or invalid.
    """
    choice = choose(task, cell, rule, settings, seed)
    device = choose_device(device)
    opened, model = choice.task, choice.model
    opened.open(choice.source or data, seed)
    model = replace(
        model,
        input=InputConfig(size=opened.input_size, vocabulary=opened.vocabulary),
        head=replace(model.head, size=opened.output_size, output=opened.output),
    )
    if model.frontend.name is None:
        mean, std = _standardisation(opened, isinstance(model, ModelConfig) and model.layer.imputer is not None)
    else:
        if isinstance(model, ModelConfig):
            check_together(model)
        mean, std = _feature_statistics(model, opened.train, choice.config.batch_size)
    model = replace(model, input=replace(model.input, mean=mean, std=std))
    name = choice.source.name if choice.source else task
    cell = model.title if is_cell_file(cell) else cell
    plan = Plan(name, cell, opened, choice.config, model, choice.can_skip, seed, device, choice.source, data)
    return _tried(plan) if isinstance(model, NetworkConfig) else plan


def _tried(plan: Plan) -> Plan:
    """Return the plan of a training of one's own network after a try of the network on some sequences."""
    with torch.random.fork_rng(devices=[]):
        network = replace(plan, device="cpu").network()
    assert isinstance(network, OwnNetwork)
    network.check(next(plan.task.validation.chunks(2)).x)
    rules = [type(rule) for rule in network.rules()]
    if plan.config.skip is not None and not any(rule.steerable() for rule in rules):
        check_steerable("skip", rules[0])
    return replace(plan, can_skip=any(rule.can_skip for rule in rules))


def _standardisation(task: Task, imputes: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the means and the deviations by which the model standardises its input channels."""

    def expanded(numbers: Sequence[float], neutral: float) -> tuple[float, ...]:
        values = tuple(map(float, numbers))
        if not imputes:
            return values
        count = task.input_size // 3
        return (values * (task.input_size if len(values) == 1 else 1))[:count] + (neutral,) * (task.input_size - count)

    return expanded(task.mean, 0.0), expanded(task.std, 1.0)


def _feature_statistics(
    model: AnyConfig, train: Source, batch_size: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return two tuples, mean and standard deviation of each audio feature over the first training batches."""
    frontend = LogMel(model.frontend)
    features = []
    with torch.no_grad():
        for step in range(min(_STATISTICS_BATCHES, train.steps_per_epoch(batch_size))):
            batch = train.batch(step, batch_size)
            x = batch.x.float()
            with frontend.on_energies() if batch.energies else nullcontext():
                heard, _ = frontend(x)
            lengths = batch.lengths
            features.append(heard.flatten(0, 1) if lengths is None else heard[present_steps(lengths, heard)])
    mean, std = standardisation(torch.cat(features)[None])
    # rounded, so that a resumed run has the same numbers with another number of threads
    return tuple(float(f"{number:.4g}") for number in mean), tuple(float(f"{number:.4g}") for number in std)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that a run's config.json lacks because an earlier version wrote it, with their defaults.

    Args:
        config: Content of the config.json.

    Returns:
        The content with all settings of the training and of the model.
    """
    kind = NetworkConfig if config.get("network") == OwnNetwork.__name__ else ModelConfig
    return _completed({"train": record(TrainConfig()), "model": record(kind())}, config)


def _completed(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    completed = {**defaults, **values}
    for key in defaults.keys() & values.keys():
        if isinstance(defaults[key], Mapping) and isinstance(values[key], Mapping):
            completed[key] = _completed(defaults[key], values[key])
    return completed


def first_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...] = ()
) -> tuple[str, Any, Any] | None:
    """Find the first difference between the config.json of two runs that may affect their results.

    Entries that cannot affect the results are ignored: machine, versions, command line, and paths of data.

    Args:
        old: Content of a config.json, or an inner dict of it.
        new: Content of the other config.json, or the same inner dict of it.
        path: Keys that lead to the inner dict; empty for a whole config.json.

    Returns:
        Short name of the setting, its old and its new value; None without a difference.
    """
    for key in sorted(old.keys() | new.keys(), key=["task", "train", "model", *sorted({*old, *new})].index):
        if key in _FREE:
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if difference := first_difference(a, b, (*path, key)):
                return difference
        elif a != b:
            return _short_name((*path, key)), a, b
    return None


def _short_name(path: tuple[str, ...]) -> str:
    """Return the short name of a setting, such as "lr", from its keys in config.json, ("train", "optimizer", "lr")."""
    for key, owner in (("train", TrainConfig), ("model", ModelConfig)):
        for setting in fields_of(owner).values():
            if f"{key}.{setting.dotted}" == ".".join(path):
                return setting.name
    return path[-2] if path[-1] == "name" and len(path) > 1 else path[-1]
