# SPDX-License-Identifier: Apache-2.0
"""Plan of a sweep from a TOML file: combinations of cell, rule and settings (rows), with one training per row and seed.

task               as in `edgernn train`
cells              as in `edgernn train --cell`, or as in `--network`; the file of FILE.py:CLASS is executed if
                   `--allow-code` is given. It is copied to OUT/cells when the sweep begins, and a resumed sweep uses
                   the copy
rules              as in `edgernn train --rule` (optional; default: the rules that the cells' names imply)
seeds              number of trainings per row, with the seeds 0, 1, ...; or a list of seeds
search-seeds       number of seeds with which [search] is decided; the other seeds are trained only for the rows that
                   were chosen (optional; default: all seeds, for all rows)
[settings]         settings of all trainings (optional)
[vary]             settings and their values: every combination is a row (optional)
[search]           settings and their values: every combination is a row, too, and among rows that differ only in these
                   settings, the one with the best mean on the validation split is chosen (optional)
[[parts]]          further combinations, each with its own cells, rules and [parts.vary], which is combined with [vary]
                   (optional; cells may then be left out above)
[[choices]]        models to recommend, chosen on the validation split alone (optional). A choice has a `name`, a `cost`
                   (work, latency or bytes), the distance `within` from the best validation mean of the candidates in
                   units of the metric, and `rules`, the update rules of the candidates (default: all). It is the
                   cheapest candidate within this distance

The value "none" means None. Settings without effect are ignored: `lambda` for an update rule that never skips an
update, `skip` and `background` for an update rule without a penalty on updates.
"""

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, with_config

from edgernn.cell_files import differs, is_cell_file, is_network, load_network, split_word
from edgernn.errors import CodeError, EdgernnError, EdgernnWarning, UsageError, nearest
from edgernn.files import check_path, read_bytes
from edgernn.names import resolve, resolve_imputer
from edgernn.rules import RULES
from edgernn.settings import FILE, Expected, parse
from edgernn.training.plan import choose
from edgernn.training.tables.jobs import Job
from edgernn.training.tables.table import Row
from edgernn.training.tables.toml_settings import Choices, Settings, combinations, label, over, read_toml

LAMBDA = "lambda"
_OF_A_BUDGET = {"skip", "background"}
# subfolder of the runs' folder with copies of users' cells
CELL_FILES = "cells"


_List = Annotated[list[str], Field(min_length=1)]
_Names = Annotated[_List, Expected("a list of names")]
_Seeds = Annotated[
    Annotated[StrictInt, Field(ge=1)] | Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)],
    Expected("a count of at least 1, or a list of numbers"),
]


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _Part:
    cells: _Names
    rules: _Names | None = None
    vary: Choices = field(default_factory=dict)


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class Choice:
    """A choice among the models of a sweep, which its file declares before anything is trained.

    Attributes:
        name: Name of the choice.
        cost: The cost to minimise: "work", "latency" or "bytes".
        within: Largest distance from the best validation mean of the candidates, in units of the metric.
        rules: Update rules of the candidates, or None for those of all rules.
    """

    name: str
    cost: Literal["work", "latency", "bytes"]
    within: Annotated[float, Field(ge=0)]
    rules: _Names | None = None

    def among(self, records: Sequence[Mapping[str, Any]], sign: int) -> str | None:
        """Choose among the rows of a sweep.

        Args:
            records: Rows that the search chose, as they are in "rows" of table.json.
            sign: 1 if a higher metric is better, else -1.

        Returns:
            The name of the chosen row, or None without a finished candidate whose cost is known.
        """
        candidates = [
            (record[self.cost]["mean"], sign * record["validation"]["mean"], record["name"])
            for record in records
            if record["seeds"] and record[self.cost]["mean"] is not None
            if self.rules is None or record["rule"] in self.rules
        ]
        if not candidates:
            return None
        least = max(worth for _, worth, _ in candidates) - self.within
        return str(min((cost, -worth, name) for cost, worth, name in candidates if worth >= least)[2])


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _SweepFile:
    task: str
    cells: Annotated[_List | None, Expected("a list of names")] = None
    rules: _Names | None = None
    seeds: _Seeds
    search_seeds: Annotated[Annotated[StrictInt, Field(ge=1)] | None, Expected("a count of at least 1")] = None
    settings: Settings = field(default_factory=dict)
    vary: Choices = field(default_factory=dict)
    search: Choices = field(default_factory=dict)
    parts: Annotated[list[dict[str, Any]], Expected("a list of tables")] = field(default_factory=list)
    choices: Annotated[list[dict[str, Any]], Expected("a list of tables")] = field(default_factory=list)


@dataclass(frozen=True)
class SweepRow(Row):
    """One combination of cell, update rule and settings of a sweep, with one training per seed.

    `settings` has the values of the settings in the tables [vary] and [search] of the sweep file. `cell` is the cell's
    name as shown in the table of results. `rule` is the name of the update rule, or None if the cell's name implies it.
    Rows that differ only in settings of [search] are a group, and `rivals` is the index of the row's group. Only the
    row with the best validation metric of a group is a candidate for the Pareto fronts.
    """

    cell: str
    rule: str | None
    rivals: int


@dataclass(frozen=True)
class Sweep:
    """Plan of a sweep, read from its TOML file.

    Attributes:
        path: Path of the TOML file.
        task: Name of the task.
        seeds: Seeds of each row's trainings.
        search_seeds: Number of seeds, at most len(seeds), with which the search compares rows. It compares rows that
            differ only in settings of [search].
        varied: Names of the settings in the file's table [vary].
        searched: Names of the settings in the file's table [search].
        rows: The rows, one for each combination of cell, update rule and settings.
        choices: The choices that the file declares.
        cell_files: Copies of users' cell files that are still to be written: a dict from path to content.
    """

    path: Path
    task: str
    seeds: tuple[int, ...]
    search_seeds: int
    varied: tuple[str, ...]
    searched: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    choices: tuple[Choice, ...]
    cell_files: dict[Path, bytes]

    def chosen(self) -> set[str]:
        """Return the names of the rows that the search chose: one of each group with finished runs.

        Rows of a group differ only in the settings of the file's table [search]. The search chooses the row with the
        best metric on the validation split, a mean over the first `search_seeds` seeds.
        """
        best: dict[int, tuple[float, str]] = {}
        for row in self.rows:
            values = [row.validation[seed] for seed in self.seeds[: self.search_seeds] if seed in row.validation]
            if values:
                worth = row.sign * fmean(values)
                if row.rivals not in best or worth > best[row.rivals][0]:
                    best[row.rivals] = worth, row.name
        return {name for _, name in best.values()}

    def narrowed(self, names: Collection[str]) -> "Sweep":
        """Return the sweep with all seeds of the rows with these names, and `search_seeds` seeds of all others."""
        # a row caches its results, so that each becomes a new one
        rows = (
            replace(row, jobs=row.jobs if row.name in names else row.jobs[: self.search_seeds]) for row in self.rows
        )
        return replace(self, rows=tuple(rows))


def load_sweep(path: Path, out: Path, *, allow_code: bool = False) -> Sweep:
    """Read the TOML file of a sweep, and list its rows: all combinations of cells, update rules and settings.

    Combinations that give the same model are one row. Nothing is trained or written.

    Args:
        path: Path of the TOML file.
        out: Folder of the runs.
        allow_code: True if the Python files of user-defined cells that the file names may be executed.

    Returns:
        The plan of the sweep.

    Raises:
        CodeError: The file names a Python file, and `allow_code` is False.
        UsageError: The file does not exist, has an unknown name or a bad setting, or two different cells have the same
            name.
        EdgernnError: The file has another mistake.
    """
    check_path(path)
    if not path.is_file():
        raise UsageError(f"sweep: no such file: {path}; check the path")
    file = parse(_SweepFile, read_toml(path), str(path))
    task, seeds = file.task, tuple(range(file.seeds) if isinstance(file.seeds, int) else dict.fromkeys(file.seeds))
    groups = _groups(file, path)
    rows: dict[object, SweepRow] = {}
    for word in (word for group in groups for word in group.cells):
        if is_cell_file(word) and not allow_code:
            raise CodeError(
                f"{path}: cells: {word} is Python code, which is not executed; add --allow-code if you trust it"
            )
    copies = _copies([word for group in groups for word in group.cells], out)
    for rivals, (word, rule, varied) in enumerate(
        (word, rule, varied)
        for group in groups
        for word, rule, varied in product(group.cells, _rules(group), combinations(group.vary))
    ):
        copy = copies.get(word, word)
        # before the sweep begins there is no copy yet
        cell = copy if is_cell_file(word) and split_word(copy)[0].is_file() else word
        for searched in combinations(file.search):
            shared, settings = file.settings, {**varied, **searched}
            try:
                if not is_network(cell) and not resolve(cell, rule)[1].steerable():
                    shared, settings = (
                        {name: value for name, value in part.items() if name not in _OF_A_BUDGET}
                        for part in (shared, settings)
                    )
                if not choose(task, cell, rule, over(shared, settings)).can_skip:
                    settings.pop(LAMBDA, None)
            except UsageError as error:
                raise UsageError(f"{path}: {error}") from None
            # a model under several names is one row
            types = (load_network(cell),) if is_network(cell) else resolve(cell, rule)
            key = (*types, resolve_imputer(cell), label(settings))
            shown = getattr(types[0], "name", types[0].__name__) if is_cell_file(cell) else cell
            name = re.sub(r"[^\w=,.+-]", "_", "-".join(filter(None, [shown, rule, label(settings)])))
            if key not in rows and (namesake := next((row for row in rows.values() if row.name == name), None)):
                other = next((key for key in settings if settings[key] != namesake.settings.get(key)), None)
                raise UsageError(
                    f"{path}: cells: two cells have the name {shown!r}; rename one"
                    if other is None
                    else f"{path}: {other}: expected values that differ in letters, digits or ,.+-, got "
                    f"{namesake.settings[other]!r} and {settings[other]!r}; change one"
                )
            merged = over(shared, settings)
            jobs = (Job(task, copy, rule, seed, merged, out / f"{name}-seed{seed}") for seed in seeds)
            rows.setdefault(key, SweepRow(name, settings, tuple(jobs), shown, rule, rivals))
    files = {split_word(copy)[0]: split_word(word)[0] for word, copy in copies.items()}
    contents = {target: read_bytes(source, "a Python file") for target, source in files.items() if not target.is_file()}
    names = tuple(dict.fromkeys(name for group in groups for name in group.vary))
    first = len(seeds) if file.search_seeds is None else file.search_seeds
    if first > len(seeds):
        raise EdgernnError(
            f"{path}: search-seeds: expected at most {len(seeds)}, the number of seeds, got {first}; lower it, or "
            "leave it out"
        )
    if file.search_seeds is not None and not file.search:
        raise EdgernnError(
            f"{path}: search-seeds: expected a table [search], too, got none; add the table, or remove search-seeds"
        )
    choices = tuple(parse(Choice, choice, f"{path}: choices: table {i}") for i, choice in enumerate(file.choices, 1))
    for choice in choices:
        for rule in choice.rules or ():
            if rule not in RULES:
                raise UsageError(f"{path}: choices: {choice.name}: {nearest('rule', rule, RULES)}")
    return Sweep(path, task, seeds, first, names, tuple(file.search), tuple(rows.values()), choices, contents)


def _rules(group: _Part) -> Sequence[str | None]:
    return group.rules or [None]


def _groups(file: _SweepFile, path: Path) -> list[_Part]:
    """List the groups of cells, update rules and varied settings whose combinations are the rows of a sweep."""
    groups = [] if file.cells is None else [_Part(cells=file.cells, rules=file.rules, vary=file.vary)]
    parts = [parse(_Part, part, f"{path}: parts: table {i + 1}") for i, part in enumerate(file.parts)]
    groups += [_Part(cells=part.cells, rules=part.rules, vary=file.vary | part.vary) for part in parts]
    if not groups:
        raise EdgernnError(f"{path}: cells: expected a list of names, got none; add cells, or [[parts]] with cells")
    if file.cells is None and file.rules is not None:
        raise EdgernnError(f"{path}: rules: expected together with cells, got rules alone; move them to [[parts]]")
    varied = [file.vary, *(part.vary for part in parts)]
    for name in dict.fromkeys(name for choices in (*varied, file.search) for name in choices):
        places = (name in file.settings) + (name in file.search) + any(name in choices for choices in varied)
        if places > 1 or any(name in file.vary and name in part.vary for part in parts):
            raise EdgernnError(
                f"{path}: {name}: expected in only one of [settings], [vary] and [search], got it in two; remove one"
            )
    return groups


def _copies(cells: Sequence[str], out: Path) -> dict[str, str]:
    """Return the places where a sweep keeps copies of the users' own cell files."""
    copies: dict[str, str] = {}
    sources: dict[str, Path] = {}
    for word in filter(is_cell_file, cells):
        source, name = split_word(word)
        if sources.setdefault(source.name, source) != source:
            raise UsageError(
                f"cells: expected cell files with different names, got {sources[source.name]} and {source}, which are "
                "copied to one folder; rename one"
            )
        copy = out / CELL_FILES / source.name
        copies[word] = f"{copy}:{name}" if name else str(copy)
        if differs(word, copies[word]):
            text = f"cells: {source} differs from the copy in {out}, {copy}, which the resumed sweep uses"
            warnings.warn(f"{text}; to train the new version, give another --out", EdgernnWarning, stacklevel=3)
    return copies
