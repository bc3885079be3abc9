# SPDX-License-Identifier: Apache-2.0
"""What a sweep trains: a TOML file becomes rows, and a training for each row and seed.

task               as in `edgernn train`
cells              as in `edgernn train --cell`
rules              as in --rule (optional; else what each cell's name implies)
seeds              how many trainings a row gets, with the seeds 0, 1, ...; or a list of seeds
[settings]         of all trainings (optional)
[vary]             settings and their values: every combination is a row (optional)
[search]           settings and their values: every combination is a row, too, and of those that differ in nothing else
                   the one with the best mean on the validation split is chosen (optional)

"none" stands for none. λ changes nothing for a rule that cannot skip, so there it is left out.
"""

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.names import resolve, resolve_imputer
from edgernn.training.jobs import Job
from edgernn.training.plan import choose
from edgernn.training.recipe import Content, Settings, combinations, label, over

LAMBDA = "lambda"


@dataclass(frozen=True)
class Row:
    """One combination. varied: its settings of [vary] and [search]. rivals: the number of those it is chosen from."""

    name: str
    cell: str
    rule: str | None
    varied: Settings
    rivals: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read. varied, searched: the names in [vary] and in [search]."""

    path: Path
    task: str
    seeds: tuple[int, ...]
    varied: tuple[str, ...]
    searched: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def jobs(self) -> list[Job]:
        """The first seed of every row, then the second: a sweep that is stopped has something of each."""
        return [job for of_seed in zip(*(row.jobs for row in self.rows), strict=True) for job in of_seed]


def load_sweep(path: Path, out: Path) -> Sweep:
    """Read a sweep file; its runs are to lie in `out`.

    Raises UsageError where there is no such file, and for unknown names and bad settings in it; EdgernnError for any
    other mistake in it.
    """
    if not path.is_file():
        raise UsageError(f"sweep: no such file: {path}")
    content = Content(path)
    task, seeds = content.take("task", str), _seeds(path, content.take("seeds", object))
    cells = _names(path, "cells", content.take("cells", list))
    rules: list[str | None] = [None]
    if given := content.take("rules", list, []):
        rules = list(_names(path, "rules", given))
    settings, vary, search = content.settings("settings"), content.choices("vary"), content.choices("search")
    content.finish()
    for name in [*vary, *search]:
        if (name in settings) + (name in vary) + (name in search) > 1:
            raise EdgernnError(f"{path}: {name}: expected in one of [settings], [vary] and [search], got it in two")
    rows: dict[object, Row] = {}
    for rivals, (cell, rule, varied) in enumerate(product(cells, rules, combinations(vary))):
        for searched in combinations(search):
            own = {**varied, **searched}
            try:
                if not choose(task, cell, rule, over(settings, own)).can_skip:
                    own.pop(LAMBDA, None)
            except UsageError as error:
                raise UsageError(f"{path}: {error}") from None
            # two names of one model are one row
            key = (*resolve(cell, rule), resolve_imputer(cell), label(own))
            name = re.sub(r"[^\w=,.+-]", "_", "-".join(filter(None, [cell, rule, label(own)])))
            jobs = (Job(task, cell, rule, seed, over(settings, own), out / f"{name}-seed{seed}") for seed in seeds)
            rows.setdefault(key, Row(name, cell, rule, own, rivals, tuple(jobs)))
    return Sweep(path, task, seeds, tuple(vary), tuple(search), tuple(rows.values()))


def _names(path: Path, key: str, given: list[Any]) -> list[str]:
    if not given or not all(isinstance(name, str) for name in given):
        raise EdgernnError(f"{path}: {key}: expected a list of names, got {given!r}")
    return given


def _seeds(path: Path, given: object) -> tuple[int, ...]:
    numbers = list(range(given)) if type(given) is int else given
    if isinstance(numbers, list) and numbers and all(type(n) is int and n >= 0 for n in numbers):
        return tuple(dict.fromkeys(numbers))
    raise EdgernnError(f"{path}: seeds: expected how many, at least 1, or a list of numbers, got {given!r}")
