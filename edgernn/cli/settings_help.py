# SPDX-License-Identifier: Apache-2.0
"""Lists of settings for `edgernn train --help`."""

import inspect
import re
from collections.abc import Iterable, Iterator

from edgernn.cell_files import load_network
from edgernn.config import ModelConfig, NetworkConfig
from edgernn.names import resolve
from edgernn.own_network import FROM_TASK
from edgernn.settings import Setting, as_word, expected, fields_of, flat, options_of, record
from edgernn.training.config import TrainConfig
from edgernn.training.plan import configure
from edgernn.training.tasks import find_task
from edgernn.training.tasks.base import Task

# section of the help: title, introductory text, and a pair for each setting: NAME=DEFAULT, and its description
Section = tuple[str, str, list[tuple[str, str]]]
# paragraph of a task's docstring before the list of its settings
_SETTINGS = "Settings:"


def sections(
    task: str | None = None, cell: str | None = None, rule: str | None = None, network: str | None = None
) -> Iterator[Section]:
    """List all settings of training and of the model, and those of a task, a cell and an update rule if they are named.

    Args:
        task: A task's name, to show its settings and its defaults of training and model. None: the general defaults.
        cell: A cell's name; None to leave out the settings of cells.
        rule: An update rule's name; None to leave out its settings, unless the cell's name implies a rule.
        network: FILE.py:CLASS of a network of one's own, whose settings take the place of those of a model.

    Yields:
        The sections of the help text, as tuples of title, introduction, and a list with a pair for each setting: the
        text NAME=DEFAULT, and a description.

    Raises:
        UsageError: A name is unknown.
    """
    kind = None if task is None else find_task(task)[0]
    config, model = configure({} if kind is None else kind.defaults, {}, {})
    yield from _tree("train", config)
    if kind is not None:
        yield _named("task", kind, fields_of(kind).values())
    if network is None:
        yield from model_sections(cell, rule, model)
        return
    owner = load_network(network)
    yield from _tree("model", NetworkConfig(frontend=model.frontend))
    rows = [_row(setting, setting.default) for setting in options_of(owner, FROM_TASK).values()]
    yield f"Settings of the network {owner.__name__}", inspect.getdoc(owner) or "", rows


def model_sections(
    cell: str | None = None, rule: str | None = None, model: ModelConfig | None = None
) -> Iterator[Section]:
    """List all settings of a model, and those of a cell and an update rule if these are named.

    Args:
        cell: A cell's name, which may imply an update rule; None to leave out the settings of cells.
        rule: An update rule's name; None to leave out its settings, unless the cell's name implies a rule.
        model: Model config whose values are shown as the defaults. Default: `ModelConfig()`.

    Yields:
        The sections of the help text, as tuples of title, introduction, and a list with a pair for each setting: the
        text NAME=DEFAULT, and a description.

    Raises:
        UsageError: A name is unknown.
    """
    yield from _tree("model", model or ModelConfig())
    cell_type, rule_type = resolve(cell or "gru", rule)
    if cell is not None:
        yield _named("cell", cell_type, options_of(cell_type).values())
    if rule is not None or options_of(rule_type):
        yield _named("rule", rule_type, options_of(rule_type).values())


def task_doc(task: type[Task]) -> str:
    """Return the docstring of a task, completed by those of its base classes.

    The settings of a base class follow those of the task, in one list. Its other paragraphs, except the summary, follow
    those of the task before the list, or after it.
    """
    before: list[str] = []
    settings: list[str] = []
    after: list[str] = []
    for owner in task.__mro__[: task.__mro__.index(Task)]:
        parts = re.split(r"\n\s*\n", inspect.cleandoc(owner.__doc__ or ""))
        ends = (i for i, part in enumerate(parts) if part.startswith((_SETTINGS, "File", "Source")))
        end = next(ends, len(parts))
        before += parts[0 if owner is task else 1 : end]
        has_settings = parts[end : end + 1] == [_SETTINGS]
        settings += parts[end + 1 : end + 2] if has_settings else []
        after += parts[end + 2 * has_settings :]
    listed = [_SETTINGS, "\n".join(settings)] if settings else []
    return "\n\n".join([*before, *listed, *after])


def _tree(name: str, config: TrainConfig | ModelConfig | NetworkConfig) -> Iterator[Section]:
    settings = fields_of(type(config))
    defaults = flat(settings, record(config))
    parts: dict[str, list[tuple[str, str]]] = {}
    for setting in sorted(settings.values(), key=lambda setting: len(setting.path)):
        parts.setdefault(".".join((name, *setting.path[:-1])), []).append(_row(setting, defaults[setting.name]))
    for part, rows in parts.items():
        yield f"Settings of {part}", "", rows


def _named(part: str, owner: type, settings: Iterable[Setting]) -> Section:
    name: str = owner.name  # type: ignore[attr-defined]
    doc = task_doc(owner) if issubclass(owner, Task) else inspect.getdoc(owner) or ""
    rows = [_row(setting, setting.default) for setting in settings]
    return f"Settings of the {part} {name}", doc, rows


def _row(setting: Setting, default: object) -> tuple[str, str]:
    return f"{setting.name}={as_word(default)}", setting.doc or f"{expected(setting.hint).capitalize()}."
