# SPDX-License-Identifier: Apache-2.0
"""The recipes that train in the native kernels, and those that train in the loop, with the reason."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from edgernn.kernels import attach, why_loop
from edgernn.layer import RecurrentLayer
from edgernn.training.api import train
from edgernn.training.papers.recipe import load_recipe, load_table, table_names
from edgernn.training.plan import make_plan
from edgernn.training.tables.toml_settings import over
from tests.training_helpers import of_each_kind, without_pictures

pytestmark = pytest.mark.usefixtures("training_library")

# tables that train only recurrent layers, on data that the tests have
TABLES = [name for name in table_names() if name.startswith(("pru-", "sarnn-", "decay-"))]
NAMES = [row.name for table in TABLES for row in load_table(table).rows]
DEEP = [name for name in NAMES if name.startswith(("pru-mnist/", "pru-char/"))]


def expected(name: str) -> str | None:
    """Return why a recipe trains in the loop, or None if it trains in the kernels."""
    recipe = load_recipe(name)
    if recipe.settings.get("norm") == "layer":
        return f"there is no kernel for {recipe.cell}+layer: kernels support no normalisation but norm=recurrent-batch"
    if recipe.rule == "variable" or recipe.cell == "vcrnn":
        return "there is no kernel for the rule variable: it does not define its decisions by a method score()"
    return None


# whether kernels run depends on the layer alone
@pytest.mark.parametrize(
    "name",
    of_each_kind(
        NAMES, lambda recipe: (recipe.cell, recipe.rule, recipe.settings.get("norm"), "rank" in recipe.settings)
    ),
)
def test_recipes_train_in_the_kernels_or_say_why_not(name: str, small_data: Path) -> None:
    recipe = load_recipe(name)
    plan = make_plan(recipe.task, recipe.cell, recipe.rule, recipe.settings, device="cpu", data=small_data)
    model = plan.network()
    reasons = {why_loop(layer, "cpu") for layer in model.recurrent_layers()}
    assert reasons == {expected(name)}
    assert attach(model, plan.config.backend, "cpu") == ("torch" if expected(name) else "fused")


@pytest.mark.parametrize("name", DEEP)
def test_no_step_of_two_layers_is_left_to_the_loop(
    name: str, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both training and evaluation use the kernels."""

    def step(*_: Any) -> NoReturn:
        raise AssertionError("the loop has run")

    without_pictures(monkeypatch)
    monkeypatch.setattr(RecurrentLayer, "step", step)
    recipe, table = load_recipe(name), load_table(name.split("/", maxsplit=1)[0])
    assert recipe.settings["layers"] == 2
    settings = over(recipe.settings, table.quick | {"steps": 2, "eval_every": 2})
    arguments: dict[str, Any] = {"settings": settings, "data": small_data, "out": tmp_path / "run", "device": "cpu"}
    assert train(recipe.task, recipe.cell, recipe.rule, **arguments)["backend"] == "fused"
    arguments |= {"out": tmp_path / "loop", "settings": settings | {"backend": "torch"}}
    with pytest.raises(AssertionError, match="the loop has run"):
        train(recipe.task, recipe.cell, recipe.rule, **arguments)
