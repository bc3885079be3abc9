# SPDX-License-Identifier: Apache-2.0
"""Every recipe there is, found by itself: what it says, and that it trains."""

import json

import pytest

from edgernn.errors import EdgernnError, UsageError
from edgernn.training import recipe as recipes
from edgernn.training import train
from edgernn.training.plan import choose
from edgernn.training.recipe import RECIPES, TABLE, load_recipe, load_table, over, table_names
from edgernn.training.report import COLUMNS
from tests.training_helpers import without_pictures

FILES = sorted(RECIPES.glob("*/*.toml"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES if path.name != TABLE]
# what is asked for in print; a table may come beside these
PROMISED = {
    *(
        "pru-char",
        "pru-mnist",
        "pru-memorization",
        "pru-adding",
        "sarnn-1",
        "sarnn-2",
        "sarnn-3",
        "sarnn-4",
        "sarnn-ptb",
    ),
    *("sarnn-ptb", "decay-pmnist", "decay-rows", "decay-l2l", "eins-ptb", "eins-vae", "eins-brits", "eins-rits"),
    *("eins-draw", "eins-l2l", "irc-ptb", "irc-l2l"),
}


def test_every_promised_table_is_there():
    assert set(table_names()) >= PROMISED


@pytest.mark.parametrize("name", table_names())
def test_a_table_has_exactly_the_recipes_beside_it(name):
    table = load_table(name)
    assert sorted(row.name for row in table.rows) == sorted(n for n in NAMES if n.startswith(f"{name}/"))
    assert (RECIPES / name / TABLE).read_text().splitlines()[0] == f"# edgernn reproduce {name}"
    for row in table.rows:
        figures = [v for value in row.reported.values() for v in (value if isinstance(value, dict) else [])]
        columns = figures or [key for key, value in row.reported.items() if not isinstance(value, dict)]
        assert set(columns) <= set(table.columns), row.name


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_begins_with_its_command_and_binds(name):
    assert (RECIPES / f"{name}.toml").read_text().splitlines()[0] == f"# edgernn train --recipe {name}"
    recipe, table = load_recipe(name), load_table(name.split("/")[0])
    assert recipe.stands_for
    for variant in table.variants():
        choose(recipe.task, recipe.cell, recipe.rule, {**recipe.settings, **variant})
    quick = over(recipe.settings, table.quick)
    choice = choose(recipe.task, recipe.cell, recipe.rule, quick)
    assert choice.config.steps
    assert choice.config.steps <= 500
    for key, values in recipe.search.items():
        for value in values:
            choose(recipe.task, recipe.cell, recipe.rule, {**recipe.settings, key: value})
        assert recipe.settings[key] in values, f"{key}: the chosen value is not among those that were tried"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains(name, tmp_path, small_data, monkeypatch):
    """20 steps of the cut-down version on small files of the data set's own format."""
    without_pictures(monkeypatch)
    recipe, table = load_recipe(name), load_table(name.split("/")[0])
    settings = over(recipe.settings, table.quick | {"steps": 20, "eval_every": 20})
    result = train(
        recipe.task, recipe.cell, recipe.rule, settings=settings, data=small_data, out=tmp_path / "run", device="cpu"
    )
    assert result["steps"] == 20
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert result["metric"] in line
    figures = [column for column in table.columns if column not in ("gmean", "flops")]
    assert set(figures) <= result.keys()
    assert {"gmean", "flops"} <= COLUMNS.keys()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    (tmp_path / "t").mkdir()
    (tmp_path / "t/table.toml").write_text(
        'title = "T"\npaper = "P"\nrows = ["a"]\ncolumns = ["mse"]\nseeds = 2\n'
        "[settings]\nT = 10\nlr = 0.1\nepochs = 3\n"
        "[vary]\nhidden_size = [2, 3]\nlayers = [1, 2]\n"
    )
    (tmp_path / "t/a.toml").write_text(
        'stands-for = "A"\ntask = "adding"\ncell = "gru"\n[settings]\nlr = 0.2\nclip = "none"\n'
        '[reported]\nmse = 1.5\n[reported."hidden_size=2,layers=2"]\nmse = 2.5\n'
    )
    return tmp_path / "t"


def test_settings_of_a_row_stand_over_those_of_its_table(folder):
    assert load_recipe("t/a").settings == {"T": 10, "lr": 0.2, "epochs": 3, "clip": None, "hidden_size": 2, "layers": 1}
    assert load_recipe(str(folder / "a.toml")).settings == load_table("t").rows[0].settings


def test_variants_are_all_combinations(folder):
    variants = load_table("t").variants()
    assert [tuple(v.values()) for v in variants] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert [load_recipe("t/a").paper(v, "mse") for v in variants] == [1.5, 2.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("task =", "tusk =", r"a\.toml: expected the key 'task'"),
        ('cell = "gru"', 'cell = "gru"\nrulle = "skip"', r"a\.toml: unknown key 'rulle': did you mean 'rule'"),
        ('stands-for = "A"', "stands-for = 3", r"a\.toml: stands-for: expected str, got 3"),
        ("[reported]", "[search]\nlr = 3\n[reported]", r"a\.toml: search\.lr: expected a list of values, got 3"),
        ("[reported]", "[reported", r"a\.toml: not a TOML file"),
    ],
)
def test_a_mistake_in_a_recipe_is_named(folder, old, new, said):
    text = (folder / "a.toml").read_text()
    assert old in text
    (folder / "a.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(EdgernnError, match=said):
        load_table("t")


def test_unknown_names_suggest_a_near_one(folder):
    with pytest.raises(UsageError, match=r"unknown recipe 't/b'.*did you mean 't/a'"):
        load_recipe("t/b")
    with pytest.raises(UsageError, match=r"unknown table 'tt'.*did you mean 't'"):
        load_table("tt")
    with pytest.raises(UsageError, match=r"no such file: x\.toml"):
        load_recipe("x.toml")
