# SPDX-License-Identifier: Apache-2.0
"""Recipes: what to train, and how, for one row of a paper's table; and the tables that they make up.

A table is a folder in `recipes`. Its table.toml has

title, paper       what the table shows, and where it is printed
rows               the recipes, in the order of the paper's rows
columns            figures of a run's result.json, and "gmean", "flops" (see `report`), in the order of the paper's
seeds              how many trainings a row gets here; paper-seeds: in the paper, where it says
note               what a reader of the table should know (optional)
[settings]         of all rows
[vary]             settings and their values: each row is trained for every combination (optional); a row that is
                   trained alone takes the first ones
[quick]            settings of the cut-down version, over all others; it has one seed

and every other file is a recipe, a row:

stands-for         the row of the paper
task, cell, rule   as in `edgernn train`; the rule is optional
[settings]         of this row, over those of the table
[search]           settings and the values that `edgernn reproduce TABLE --search` tries on the validation split; the
                   chosen ones stand in [settings] (optional)
[reported]         the paper's figures by column, in the unit of the table; or by variant, as [reported."T=10"]
"""

import difflib
import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError, nearest

RECIPES = Path(__file__).parent / "recipes"
TABLE = "table.toml"
Settings = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One row. `settings` are those of the table and its own together."""

    name: str
    path: Path
    stands_for: str
    task: str
    cell: str
    rule: str | None
    settings: Settings
    search: dict[str, list[Any]]
    reported: dict[str, Any]

    def paper(self, variant: Settings, column: str) -> float | None:
        """The paper's figure, if it prints one."""
        value = self.reported.get(label(variant), self.reported).get(column)
        return None if value is None else float(value)


@dataclass(frozen=True)
class Table:
    """A table of a paper, and the recipes of its rows."""

    name: str
    title: str
    paper: str
    rows: list[Recipe]
    columns: list[str]
    seeds: int
    paper_seeds: int | None
    note: str
    vary: dict[str, list[Any]]
    quick: Settings

    def variants(self) -> list[Settings]:
        return combinations(self.vary)


def combinations(choices: Mapping[str, list[Any]]) -> list[Settings]:
    """Every way to choose one value a setting."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def label(settings: Settings) -> str:
    """Settings in a few letters that a file name may have: T=10,hidden_size=3."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def table_names() -> list[str]:
    return sorted(path.parent.name for path in RECIPES.glob(f"*/{TABLE}"))


def load_table(name: str) -> Table:
    """The table of a name. Raises UsageError for an unknown one, EdgernnError for a file with a mistake."""
    if name not in table_names():
        raise nearest("table", name, table_names())
    path = RECIPES / name / TABLE
    content = Content(path)
    vary = content.choices("vary")
    shared = _shared(content)
    rows = [_read_recipe(path.parent / f"{row}.toml", shared) for row in content.take("rows", list)]
    table = Table(
        name=name,
        title=content.take("title", str),
        paper=content.take("paper", str),
        rows=rows,
        columns=content.take("columns", list),
        seeds=content.take("seeds", int),
        paper_seeds=content.take("paper-seeds", int, None),
        note=content.take("note", str, ""),
        vary=vary,
        quick=content.settings("quick"),
    )
    content.finish()
    return table


def load_recipe(name: str) -> Recipe:
    """The recipe of a name TABLE/ROW, or of a file's path.

    Raises UsageError for an unknown name, EdgernnError for a file with a mistake.
    """
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file() or path.name == TABLE:
        if name.endswith(".toml"):
            raise UsageError(f"recipe: no such file: {name}")
        folder = name.partition("/")[0]
        if folder not in table_names():
            raise nearest("table", folder, table_names())
        known = [f"{folder}/{p.stem}" for p in (RECIPES / folder).glob("*.toml") if p.name != TABLE]
        raise nearest("recipe", name, known)
    table = path.parent / TABLE
    return _read_recipe(path, _shared(Content(table)) if table.is_file() else {})


def follow(name: str | None, options: dict[str, Any], settings: Settings) -> Settings:
    """Put a recipe's task, cell, rule and directory into the options of `edgernn train`; the settings of both together.

    Raises UsageError where options name these too, or neither does.
    """
    if name is None:
        for key in ("task", "cell"):
            if options.get(key) is None:
                raise UsageError(f"Missing option '--{key}'; give it, or a --recipe")
        return settings
    recipe = load_recipe(name)
    for key in ("task", "cell", "rule"):
        if options.get(key) is not None:
            raise UsageError(f"{key}: the recipe {name} says it; give key=value settings, or no recipe")
        options[key] = getattr(recipe, key)
    if options.get("out") is None:
        options["out"] = Path("runs") / recipe.name
    return over(recipe.settings, settings)


def over(settings: Settings, others: Settings) -> Settings:
    """`others` stand over `settings`; of steps and epochs only one may be given, so either stands over both."""
    if others.keys() & _LENGTHS:
        settings = {key: value for key, value in settings.items() if key not in _LENGTHS}
    return {**settings, **others}


_LENGTHS = {"steps", "epochs"}


def _shared(table: "Content") -> Settings:
    """What a table sets for its rows; of what varies, the first value."""
    first = {name: values[0] for name, values in table.choices("vary").items()}
    return {**first, **table.settings("settings")}


def _read_recipe(path: Path, shared: Settings) -> Recipe:
    content = Content(path)
    recipe = Recipe(
        name=f"{path.parent.name}/{path.stem}",
        path=path,
        stands_for=content.take("stands-for", str),
        task=content.take("task", str),
        cell=content.take("cell", str),
        rule=content.take("rule", str, None),
        settings=over(shared, content.settings("settings")),
        search=content.choices("search"),
        reported=content.take("reported", dict, {}),
    )
    content.finish()
    return recipe


_NEEDED = object()


class Content:
    """What a TOML file says; every key must be taken, and be of its type."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise EdgernnError(f"{path}: no such file") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise EdgernnError(f"{path}: not a TOML file ({error})") from None
        self.known: list[str] = []

    def take(self, key: str, kind: type, default: Any = _NEEDED) -> Any:
        self.known.append(key)
        if key not in self.values:
            if default is _NEEDED:
                near = difflib.get_close_matches(key, self.values.keys() - set(self.known), 1)
                instead = f"; did you mean it by {near[0]!r}?" if near else ""
                raise EdgernnError(f"{self.path}: expected the key {key!r}, which is missing{instead}")
            return default
        value = self.values[key]
        if not isinstance(value, kind):
            raise EdgernnError(f"{self.path}: {key}: expected {kind.__name__}, got {value!r}")
        return value

    def settings(self, key: str) -> Settings:
        found: Settings = self.take(key, dict, {})
        # TOML has no null
        return {name: None if value == "none" else value for name, value in found.items()}

    def choices(self, key: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = self.take(key, dict, {})
        for name, values in found.items():
            if not isinstance(values, list) or not values:
                raise EdgernnError(f"{self.path}: {key}.{name}: expected a list of values, got {values!r}")
        return found

    def finish(self) -> None:
        for key in self.values.keys() - set(self.known):
            raise EdgernnError(f"{self.path}: {nearest('key', key, self.known)}")
