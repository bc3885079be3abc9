# SPDX-License-Identifier: Apache-2.0
"""Recipes: the settings with which the rows of a paper's table of results are trained.

Each table has a file, `recipes/TABLE.toml`. A recipe describes one of its rows, and has the name TABLE/ROW. The file
has these keys:

title, paper       content of the table, and where it is printed
columns            names of the table's columns in the paper's order: keys of result.json, or computed ones such as
                   "gmean" (see `paper_table.figure`)
seeds              number of trainings per row; default 1
paper-seeds        number of trainings per row in the paper (optional)
note               remarks for a reader of the table (optional)
interval           the meaning of the number after ± or in parentheses that the paper prints (optional)
hours              time of all trainings on one CPU core, in hours (optional)
latency            true if the table shows the latency of its exported models, which
                   `edgernn reproduce TABLE --measure-latency` measures (see `run_latency`) (optional)
needs              requirements that are not met everywhere, such as a GPU or a data set (optional)
task, cell, rule   as in `edgernn train`, for every row without its own (optional); cell may be FILE.py:CLASS of a
                   network, too
[not-comparable]   columns in which our results cannot be compared with the paper's, and the reason (optional)
[[claims]]         sentences of the paper that our runs can test, with the keys text, column, rows, kind, variant, than
                   and size (see `agreement.Claim`) (optional)
series             names of the series, such as "loss", that table.json keeps of each run for plots (see the module
                   `series`) (optional)
[[pictures]]       pictures of the table (see `table_pictures`) (optional)
[settings]         settings of all rows
[vary]             settings and their values: each row is trained with every combination (optional); a recipe that is
                   trained on its own uses the first values
[quick]            settings of the cut-down version, which override all others; this version has one seed
[rows.ROW]         a recipe; the rows have the paper's order. Short: ROW = { ... } under [rows], a line for each row;
                   in the same way the other tables

A row has these keys:

stands-for         the row or part of the paper that this row reproduces, in words
task, cell, rule   override those of the table
settings           override those of the table
reported           the numbers that the paper prints, in the unit of the table and with the printed digits. The key is
                   the column, such as reported.accuracy; in a table with [vary], the combination of values and the
                   column, such as reported."T=10".accuracy. An entry is a number, or {mean, interval, sd} (see
                   `agreement.Reported`)
not-comparable     added to that of the table; for a column in both, the row's reason holds (optional)

`edgernn train --recipe FILE.toml:ROW` reads a user's own file of this form; ROW is optional in a file with one row. The
file needs only rows with a task and a cell. A cell FILE.py:CLASS is executed only with `--allow-code`.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    with_config,
)

from edgernn.cell_files import is_cell_file
from edgernn.errors import CodeError, EdgernnError, UsageError, nearest
from edgernn.files import check_path
from edgernn.settings import FILE, Expected, parse
from edgernn.training.papers.agreement import PARTS, Claim, Reported
from edgernn.training.papers.report_pictures import Picture
from edgernn.training.papers.table_pictures import read_picture
from edgernn.training.tables.toml_settings import Choices, Settings, combinations, label, over, read_toml

RECIPES = Path(__file__).parent / "recipes"
SUFFIX = ".toml"


def _by_variant(reported: object) -> object:
    """Group a paper's printed numbers, the key `reported` of a recipe file, by variant."""
    if not isinstance(reported, dict):
        return reported
    variants = {key: value for key, value in reported.items() if isinstance(value, dict) and not value.keys() <= PARTS}
    return {"": {key: value for key, value in reported.items() if key not in variants}, **variants}


Figures = Annotated[
    dict[str, dict[str, Annotated[Reported, PlainValidator(Reported.read)]]], BeforeValidator(_by_variant)
]


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row [rows.ROW] of a recipe file; its task, cell and rule default to those at the top of the file."""

    stands_for: str = ""
    task: str
    cell: str
    rule: str | None = None
    settings: Settings = field(default_factory=dict)
    reported: Figures = field(default_factory=lambda: {"": {}})
    not_comparable: dict[str, str] = field(default_factory=dict)


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _Table:
    """Keys of a recipe file that describe the paper's table."""

    title: str = ""
    paper: str = ""
    columns: list[str] = field(default_factory=list)
    seeds: Annotated[StrictInt, Field(ge=1)] = 1
    paper_seeds: StrictInt | None = None
    note: str = ""
    interval: str = ""
    hours: StrictFloat | None = None
    latency: StrictBool = False
    needs: str = ""
    claims: list[Claim] = field(default_factory=list)
    series: list[str] = field(default_factory=list)
    pictures: list[Annotated[Picture, PlainValidator(read_picture)]] = field(default_factory=list)
    vary: Choices = field(default_factory=dict)
    quick: Settings = field(default_factory=dict)


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class _TableFile(_Table):
    """Content of a recipe file: keys of the paper's table, keys that all rows share, and the rows as dicts."""

    task: str | None = None
    cell: str | None = None
    rule: str | None = None
    settings: Settings = field(default_factory=dict)
    not_comparable: dict[str, str] = field(default_factory=dict)
    rows: Annotated[dict[str, dict[str, Any]], Field(min_length=1), Expected("tables [rows.NAME]")]


@dataclass(frozen=True, kw_only=True)
class Recipe(_Row):
    """Description of the training of one row of a paper's table; `settings` include those of the whole table."""

    table: str
    row: str

    @property
    def name(self) -> str:
        return f"{self.table}/{self.row}"

    def paper(self, variant: Settings, column: str) -> Reported | None:
        """Return the number that the paper prints for this row, in a column of its table; None if it prints none.

        `variant` has the values of the varied settings, such as {"T": 10}.
        """
        return self.reported.get(label(variant), self.reported[""]).get(column)


@dataclass(frozen=True, kw_only=True)
class Table(_Table):
    """A paper's table of results: its name, its description (`_Table`), and the recipes of its rows in order."""

    name: str
    rows: list[Recipe]

    def variants(self) -> list[Settings]:
        return combinations(self.vary)


def table_names() -> list[str]:
    """List the names of all papers' tables, sorted; the table NAME has the file recipes/NAME.toml."""
    return sorted(path.stem for path in RECIPES.glob(f"*{SUFFIX}"))


def load_table(name: str) -> Table:
    """Load a paper's table from `recipes`; UsageError for an unknown name, EdgernnError for a mistake in it."""
    if name not in table_names():
        raise nearest("table", name, table_names())
    return _read_table(RECIPES / f"{name}{SUFFIX}")


def load_recipe(name: str) -> Recipe:
    """Load a recipe, which describes the training of one row of a paper's table.

    `name` is TABLE/ROW for a table of the folder `recipes`; FILE.toml:ROW for a user's file; or FILE.toml alone if the
    file has a single row. UsageError is raised if there is no such table, row or file, or the row of several is
    missing, and EdgernnError for a mistake in the file.
    """
    path, colon, row = name.rpartition(":")
    if not colon:
        path, row = name, ""
    if path.endswith(SUFFIX):
        check_path(Path(path))
        if not Path(path).is_file():
            raise UsageError(f"recipe: no such file: {path}; expected TABLE/ROW or FILE.toml:ROW")
        table, prefix = _read_table(Path(path)), f"{path}:"
    else:
        folder, _, row = name.partition("/")
        table, prefix = load_table(folder), f"{folder}/"
    by_name = {prefix + recipe.row: recipe for recipe in table.rows}
    if not row and len(by_name) == 1:
        return table.rows[0]
    if prefix + row not in by_name:
        raise nearest("recipe", name, by_name)
    return by_name[prefix + row]


def follow(name: str, options: dict[str, Any], settings: Settings, *, allow_code: bool = False) -> Settings:
    """Merge a recipe into the options and settings of the command `edgernn train`.

    Args:
        name: Name of the recipe as in `load_recipe`.
        options: Dict from the name of an option, such as "task", to its value. The function sets the entries "task",
            "cell" and "rule" to those of the recipe, and "out", if it is None, to runs/TABLE/ROW.
        settings: Settings of the command: a dict from name to value.
        allow_code: True if the Python file of a user-defined cell that the recipe names may be executed.

    Returns:
        The recipe's settings, overridden by `settings`.

    Raises:
        CodeError: The recipe's cell is a Python file, and `allow_code` is False.
        UsageError: The recipe does not exist, or an option "task", "cell" or "rule" is given as well.
        EdgernnError: The recipe's file has a mistake.
    """
    recipe = load_recipe(name)
    if is_cell_file(recipe.cell) and not allow_code:
        raise CodeError(
            f"{name}: cell: {recipe.cell} is Python code, which is not executed; add --allow-code if you trust it"
        )
    for key in ("task", "cell", "rule"):
        if options.get(key) is not None:
            raise UsageError(f"{key}: the recipe {name} sets it; leave out --{key}, or --recipe")
        options[key] = getattr(recipe, key)
    if options.get("out") is None:
        options["out"] = Path("runs") / recipe.name
    return over(recipe.settings, settings)


def _read_table(path: Path) -> Table:
    file = parse(_TableFile, read_toml(path), str(path))
    names = {key: getattr(file, key) for key in ("task", "cell", "rule") if getattr(file, key) is not None}
    settings = {**{key: values[0] for key, values in file.vary.items()}, **file.settings}
    rows = []
    for name, content in file.rows.items():
        # the name is a part of the default of --out
        if Path(name).name != name or name in ("", ".."):
            raise EdgernnError(f"{path}: rows: expected names without slashes, got {name!r}; rename the row")
        row = parse(_Row, {**names, **content}, f"{path}: rows.{name}")
        merged = {
            "settings": over(settings, row.settings),
            "not_comparable": {**file.not_comparable, **row.not_comparable},
        }
        rows.append(Recipe(**{**vars(row), **merged}, table=path.stem, row=name))
    for name in (name for claim in file.claims for name in claim.rows):
        if name not in file.rows:
            raise EdgernnError(
                f"{path}: claims: expected names of rows in this file; {nearest('row', name, file.rows)}"
            )
    return Table(**{each.name: getattr(file, each.name) for each in fields(_Table)}, name=path.stem, rows=rows)
