# SPDX-License-Identifier: Apache-2.0
"""What a sweep trains: a TOML file becomes rows, and a training for each row and seed.

task               as in `edgernn train`
cells              as in `edgernn train --cell`; the file of FILE.py:CLASS is copied to OUT/cells when the sweep
                   begins, and the sweep goes on with that copy
rules              as in --rule (optional; else what each cell's name implies)
seeds              how many trainings a row gets, with the seeds 0, 1, ...; or a list of seeds
[settings]         of all trainings (optional)
[vary]             settings and their values: every combination is a row (optional)
[search]           settings and their values: every combination is a row, too, and of those that differ in nothing else
                   the one with the best mean on the validation split is chosen (optional)

"none" stands for none. λ changes nothing for a rule that cannot skip, so there it is left out.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt, with_config

from edgernn.cell_files import differs, is_cell_file, split_word
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.names import resolve, resolve_imputer
from edgernn.settings import FILE, Expected, parse
from edgernn.training.jobs import Job
from edgernn.training.plan import choose
from edgernn.training.recipe import Choices, Settings, combinations, label, over, read_toml
from edgernn.training.table import Row

LAMBDA = "lambda"
# the folder of copies of users' cells, in that of the runs
CELL_FILES = "cells"


_Names = Annotated[list[str], Field(min_length=1), Expected("a list of names")]
_Seeds = Annotated[
    Annotated[StrictInt, Field(ge=1)] | Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)],
    Expected("how many, at least 1, or a list of numbers"),
]


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _SweepFile:
    task: str
    cells: _Names
    rules: _Names | None = None
    seeds: _Seeds
    settings: Settings = field(default_factory=dict)
    vary: Choices = field(default_factory=dict)
    search: Choices = field(default_factory=dict)


@dataclass(frozen=True)
class SweepRow(Row):
    """One combination; `settings` are those of [vary] and [search]. rivals: the number of those it is chosen from."""

    cell: str
    rule: str | None
    rivals: int


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read.

    varied, searched: the names in [vary] and in [search]. cell_files: what is to be copied to where, of users' cells.
    """

    path: Path
    task: str
    seeds: tuple[int, ...]
    varied: tuple[str, ...]
    searched: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    cell_files: dict[Path, bytes]


def load_sweep(path: Path, out: Path) -> Sweep:
    """Read a sweep file; its runs are to lie in `out`.

    Raises UsageError where there is no such file, and for unknown names and bad settings in it; EdgernnError for any
    other mistake in it.
    """
    if not path.is_file():
        raise UsageError(f"sweep: no such file: {path}")
    file = parse(_SweepFile, read_toml(path), str(path))
    task, seeds = file.task, tuple(range(file.seeds) if isinstance(file.seeds, int) else dict.fromkeys(file.seeds))
    for name in [*file.vary, *file.search]:
        if (name in file.settings) + (name in file.vary) + (name in file.search) > 1:
            raise EdgernnError(f"{path}: {name}: expected in one of [settings], [vary] and [search], got it in two")
    rules: Sequence[str | None] = file.rules or [None]
    rows: dict[object, SweepRow] = {}
    copies = _copies(file.cells, out)
    for rivals, (word, rule, varied) in enumerate(product(file.cells, rules, combinations(file.vary))):
        kept = copies.get(word, word)
        # a copy is written when the sweep begins
        cell = kept if is_cell_file(word) and split_word(kept)[0].is_file() else word
        for searched in combinations(file.search):
            own = {**varied, **searched}
            try:
                if not choose(task, cell, rule, over(file.settings, own)).can_skip:
                    own.pop(LAMBDA, None)
            except UsageError as error:
                raise UsageError(f"{path}: {error}") from None
            # two names of one model are one row
            types = resolve(cell, rule)
            key = (*types, resolve_imputer(cell), label(own))
            shown = types[0].name if is_cell_file(cell) else cell
            name = re.sub(r"[^\w=,.+-]", "_", "-".join(filter(None, [shown, rule, label(own)])))
            if key not in rows and name in (row.name for row in rows.values()):
                raise UsageError(f"{path}: cells: two cells have the name {shown!r}; rename one")
            jobs = (Job(task, kept, rule, seed, over(file.settings, own), out / f"{name}-seed{seed}") for seed in seeds)
            rows.setdefault(key, SweepRow(name, own, tuple(jobs), shown, rule, rivals))
    files = {split_word(kept)[0]: split_word(word)[0] for word, kept in copies.items()}
    contents = {copy: source.read_bytes() for copy, source in files.items() if not copy.is_file()}
    return Sweep(path, task, seeds, tuple(file.vary), tuple(file.search), tuple(rows.values()), contents)


def _copies(cells: Sequence[str], out: Path) -> dict[str, str]:
    """By FILE.py:CLASS the same of the copy in the sweep's folder."""
    copies: dict[str, str] = {}
    sources: dict[str, Path] = {}
    for word in filter(is_cell_file, cells):
        source, name = split_word(word)
        if sources.setdefault(source.name, source) != source:
            raise UsageError(f"cells: {sources[source.name]} and {source} are copied to one folder; rename one")
        copy = out / CELL_FILES / source.name
        copies[word] = f"{copy}:{name}" if name else str(copy)
        if differs(word, copies[word]):
            text = f"{source} is not what the sweep in {out} was begun with, which goes on with {copy}"
            warnings.warn(f"{text}; give another --out for the new one", EdgernnWarning, stacklevel=3)
    return copies
