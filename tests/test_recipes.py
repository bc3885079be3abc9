# SPDX-License-Identifier: Apache-2.0
"""Every recipe in the package: its settings, and that it trains."""

import json

import pytest

from edgernn.errors import EdgernnError, UsageError
from edgernn.training import train
from edgernn.training.papers import recipe as recipes
from edgernn.training.papers.agreement import INCOMPARABLE, Reported, agreement, count_verdicts
from edgernn.training.papers.paper_table import MACHINE_COLUMNS
from edgernn.training.papers.recipe import RECIPES, load_recipe, load_table, table_names
from edgernn.training.plan import choose
from edgernn.training.tables.series import run_series
from edgernn.training.tables.table_text import figure
from edgernn.training.tables.toml_settings import label, over
from tests.source_tree import ROOT
from tests.training_helpers import of_each_kind, without_pictures

# reports of fewer epochs than the recipe has now
OUTDATED = {"eins-rits", "pru-char", "pru-mnist"}
STORED = [path for name in table_names() if (path := ROOT / f"docs/results/{name}.json").exists()]
NAMES = [row.name for table in table_names() for row in load_table(table).rows]
# required recipes; further tables are allowed
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
    *("eins-draw", "eins-l2l", "eins-updates", "irc-ptb", "irc-l2l", "irc-draw", "draw-mnist", "decay-states"),
    *(f"pru-memorization-{part}" for part in ("parameters", "bits", "variance", "size")),
    *("pru-adding-parameters", "pru-adding-variance", "sarnn-lambda-adding", "sarnn-lambda-seizures"),
}


def test_every_promised_table_is_there():
    assert set(table_names()) >= PROMISED


@pytest.mark.parametrize("name", table_names())
def test_a_table_begins_with_its_commands_and_is_complete(name):
    table = load_table(name)
    commands = [f"# edgernn reproduce {name}", f"# edgernn train --recipe {name}/ROW"]
    assert (RECIPES / f"{name}.toml").read_text().splitlines()[:2] == commands
    assert table.title
    assert table.paper
    assert table.columns
    for row in table.rows:
        columns = {column for figures in row.reported.values() for column in figures}
        assert columns | row.not_comparable.keys() <= set(table.columns), row.name
    # a reason without a printed number would have no effect
    printed = {column for row in table.rows for figures in row.reported.values() for column in figures}
    assert {column for row in table.rows for column in row.not_comparable} <= printed
    labels = {label(variant) for variant in table.variants()}
    for claim in table.claims:
        assert claim.column in table.columns
        assert {claim.variant, claim.variant if claim.than is None else claim.than} <= labels
    names = [picture.name for picture in table.pictures]
    assert len(set(names)) == len(names)
    for picture in table.pictures:
        assert picture.text.endswith("."), picture.name
        check_picture(picture, table, labels)


def check_picture(picture, table, labels):
    """Check that the table has every column, row and series that a picture names."""
    panels = getattr(picture, "panels", None)
    groups = [
        *(getattr(picture, "groups", None) or []),
        getattr(picture, "rows", []),
        *([] if isinstance(panels, str) else panels or []),
    ]
    assert {row for group in groups for row in group} <= {row.row for row in table.rows}
    settings = {getattr(picture, "over", None), panels if isinstance(panels, str) else None} - {None}
    assert settings <= table.vary.keys()
    columns = {getattr(picture, key) for key in ("column", "against") if hasattr(picture, key)}
    series = {*([picture.series] if hasattr(picture, "series") else []), *getattr(picture, "baselines", [])}
    assert columns <= {*table.columns, *(["microseconds"] * table.latency)}
    assert series <= set(table.series)
    assert set(getattr(picture, "of", [])) <= {*table.columns, *table.series}
    assert getattr(picture, "variant", "") in labels | {""}
    if picture.kind == "tradeoff":
        assert "lambda" in table.vary
        assert "skip_percent" in table.columns


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_reports_give_the_reasons_of_the_recipes(path):
    recipes = {row.row: row for row in load_table(path.stem).rows}
    for row in json.loads(path.read_text())["rows"]:
        for column, entry in row["columns"].items():
            verdict, _, reason = (entry["agreement"] or "").partition(": ")
            reasons = recipes[row["name"]].not_comparable | MACHINE_COLUMNS
            if column in reasons and verdict:
                assert (verdict, reason) == (INCOMPARABLE, reasons[column]), (row["name"], column)
            elif verdict == INCOMPARABLE and path.stem not in OUTDATED:
                assert reason == "one seed has no interval", (row["name"], column)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_verdicts_follow_from_the_stored_figures(path):
    report, verdicts = json.loads(path.read_text()), []
    for row in report["rows"]:
        for column, entry in row["columns"].items():
            verdict = entry["agreement"]
            verdicts.append(verdict)
            if not (verdict or "").startswith(INCOMPARABLE):
                paper = None if entry["paper"] is None else Reported(**entry["paper"])
                assert verdict == agreement(paper, entry), (row["name"], column)
    assert report["agreement"] == count_verdicts(verdicts)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_binds(name):
    recipe, table = load_recipe(name), load_table(name.split("/")[0])
    assert recipe.stands_for
    for variant in table.variants():
        choose(recipe.task, recipe.cell, recipe.rule, {**recipe.settings, **variant})
    quick = over(recipe.settings, table.quick)
    choice = choose(recipe.task, recipe.cell, recipe.rule, quick)
    assert choice.config.steps
    assert choice.config.steps <= 500


@pytest.mark.slow
@pytest.mark.parametrize("name", of_each_kind(NAMES))
# three steps are too few to reach the share of skipped updates that a recipe asks for
@pytest.mark.filterwarnings("ignore:skip. expected:edgernn.errors.EdgernnWarning")
# the cut-down version hears a fifth of each word
@pytest.mark.filterwarnings("ignore:.*are longer than a clip:edgernn.errors.EdgernnWarning")
def test_a_recipe_trains(name, tmp_path, small_data, monkeypatch):
    """Three steps of the cut-down version on small files in the data set's format."""
    without_pictures(monkeypatch)
    recipe, table = load_recipe(name), load_table(name.split("/")[0])
    settings = over(recipe.settings, table.quick | {"steps": 3, "eval_every": 3})
    result = train(
        recipe.task, recipe.cell, recipe.rule, settings=settings, data=small_data, out=tmp_path / "run", device="cpu"
    )
    assert result["steps"] == 3
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert result["metric"] in line
    values = [figure(result, column) for column in table.columns]
    assert len(values) == len(table.columns)
    assert all(run_series(name, tmp_path / "run") for name in table.series)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A recipe file with one row, "t"."""
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    path = tmp_path / "t.toml"
    path.write_text(
        'title = "T"\npaper = "P"\ncolumns = ["mse"]\nseeds = 2\ntask = "adding"\nrule = "skip"\n'
        "[settings]\nT = 10\nlr = 0.1\nepochs = 3\n"
        "[vary]\nhidden_size = [2, 3]\nlayers = [1, 2]\n"
        '[rows.a]\nstands-for = "A"\ncell = "gru"\nsettings = { lr = 0.2, clip = "none" }\n'
        'reported.mse = 1.50\nreported."hidden_size=2,layers=2".mse = 2.5\n'
    )
    return path


def test_what_a_row_says_stands_over_what_its_table_says(file):
    row = load_recipe("t/a")
    assert row.settings == {"T": 10, "lr": 0.2, "epochs": 3, "clip": None, "hidden_size": 2, "layers": 1}
    assert (row.task, row.cell, row.rule) == ("adding", "gru", "skip")
    file.write_text(file.read_text().replace('cell = "gru"', 'cell = "lstm"\ntask = "char"\nrule = "random"'))
    row = load_recipe("t/a")
    assert (row.task, row.cell, row.rule) == ("char", "lstm", "random")


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "a/b", "/tmp", ""])
def test_the_name_of_a_row_does_not_lead_out_of_the_folder_of_runs(tmp_path, name):
    path = tmp_path / "mine.toml"
    path.write_text(f'[rows."{name}"]\ntask = "adding"\ncell = "gru"\n')
    with pytest.raises(EdgernnError, match="rows: expected names without slashes, got"):
        load_recipe(str(path))


def test_a_file_of_ones_own_needs_only_rows_with_task_and_cell(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[rows.a]\ntask = "adding"\ncell = "gru"\n')
    assert load_recipe(str(path)) == load_recipe(f"{path}:a")
    assert (load_recipe(str(path)).name, load_recipe(str(path)).settings) == ("mine/a", {})
    path.write_text(path.read_text() + '[rows.b]\ntask = "adding"\ncell = "lstm"\nsettings.T = 5\n')
    assert load_recipe(f"{path}:b").settings == {"T": 5}
    with pytest.raises(UsageError, match=rf"unknown recipe '{path}'.*known: {path}:a, {path}:b"):
        load_recipe(str(path))
    with pytest.raises(UsageError, match=rf"unknown recipe '{path}:bb': did you mean '{path}:b'"):
        load_recipe(f"{path}:bb")


def test_figures_keep_the_digits_that_the_paper_prints(file):
    assert load_recipe("t/a").paper({}, "mse").rounding == pytest.approx(0.01)


def test_variants_are_all_combinations(file):
    variants = load_table("t").variants()
    assert [tuple(v.values()) for v in variants] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    printed = [load_recipe("t/a").paper(v, "mse") for v in variants]
    assert [figure.mean for figure in printed] == [1.5, 2.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('task = "adding"', "", r"t\.toml: rows\.a: expected the key 'task', which is missing"),
        ("task =", "tusk =", r"t\.toml: unknown key 'tusk': did you mean 'task'"),
        ("cell =", "sell =", r"t\.toml: rows\.a: expected the key 'cell', which is missing; did you mean 'sell'\?"),
        ("seeds =", "seds =", r"t\.toml: unknown key 'seds': did you mean 'seeds'"),
        ('cell = "gru"', 'cell = "gru"\nrulle = "skip"', r"t\.toml: rows\.a: unknown key 'rulle': did you mean 'rule'"),
        ('stands-for = "A"', "stands-for = 3", r"rows\.a: stands-for: expected a word, got 3"),
        ("hidden_size = [2, 3]", "hidden_size = 3", r"t\.toml: vary\.hidden_size: expected a list of values, got 3"),
        ("[rows.a]", "[rows.a", r"t\.toml: expected valid TOML, got a mistake"),
        (
            "mse = 1.50",
            "mse = '1.5'",
            r"rows\.a: reported\.mse: figure: expected a number, or a table with mean",
        ),
        ("seeds = 2", "seeds = true", r"t\.toml: seeds: expected a whole number of at least 1, got True"),
        (
            "[vary]",
            "[[claims]]\ntext = 'X'\ncolumn = 'mse'\nrows = ['a']\n[vary]",
            r"claims\.0\.rows: expected two rows",
        ),
        (
            "[vary]",
            "[[pictures]]\nkind = 'trends'\n[vary]",
            r"pictures\.0: unknown kind 'trends': did you mean 'trend'",
        ),
        (
            "[vary]",
            "[[pictures]]\nkind = 'trend'\nname = 'n'\ntext = 'X.'\ncolumn = 'mse'\n[vary]",
            r"pictures\.0: trend: expected the key 'over', which is missing",
        ),
        ('title = "T"', 'title = "T"\nclaims = [3]', r"t\.toml: claims\.0: expected a table, got 3"),
        ('columns = ["mse"]', 'columns = "mse"', r"t\.toml: columns: expected a list, got 'mse'"),
        ("[rows.a]", "[rows]", r"t\.toml: rows: expected tables \[rows\.NAME\]"),
    ],
)
def test_a_mistake_in_a_table_is_named(file, old, new, said):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(EdgernnError, match=said):
        load_table("t")


def test_unknown_names_suggest_a_near_one(file):
    with pytest.raises(UsageError, match=r"unknown recipe 't/b'.*did you mean 't/a'"):
        load_recipe("t/b")
    with pytest.raises(UsageError, match=r"unknown table 'tt'.*did you mean 't'"):
        load_table("tt")
    with pytest.raises(UsageError, match=r"no such file: x\.toml"):
        load_recipe("x.toml")
