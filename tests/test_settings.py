# SPDX-License-Identifier: Apache-2.0
"""Settings: words and Python values become settings of their owners, and bad ones are named."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgernn.config import ModelConfig, RuleConfig
from edgernn.errors import EdgernnError, UsageError, some
from edgernn.model import SequenceModel
from edgernn.runtime.csv_table import channel_values, parse_csv
from edgernn.settings import Setting, bind, fields_of, load, options_of, record, split_words
from edgernn.training import train
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.plan import first_difference, make_plan
from edgernn.training.tasks.adding import Adding
from tests.training_helpers import SMALL

OWNERS = {"train": fields_of(TrainConfig), "model": fields_of(ModelConfig)}


def test_a_name_that_two_owners_have_is_written_with_its_owner():
    owners = {"cell": {"length": Setting("length", ("length",), int, 1)}, "task": fields_of(Adding)}
    owners["rule"] = owners["cell"]
    with pytest.raises(
        UsageError,
        match=r"length: several settings have this name; write the full name of one: cell\.length or rule\.length",
    ):
        bind({"length": 3}, **owners)
    assert bind({"cell.length": 3, "task.T": 7}, **owners) == {
        "cell": {("length",): 3},
        "task": {("T",): 7},
        "rule": {},
    }
    with pytest.raises(UsageError, match=r"lr: expected one value, got two, by its short and by its dotted name"):
        bind({"optimizer.lr": 1.0, "lr": 2.0}, **OWNERS)


def test_words_become_values():
    words = split_words(["lambda=1e-4", "steps=1_000", "bidirectional=yes", "clip=none", "dropout.input=0.1"])
    bound = bind(words, **OWNERS)
    assert bound["train"] == {("lambda_",): 1e-4, ("steps",): 1000, ("optimizer", "clip"): None}
    assert bound["model"] == {("bidirectional",): True, ("dropout", "input"): 0.1}


@pytest.mark.parametrize("word", ["steps", "=3", ""])
def test_a_word_is_key_and_value(word):
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        split_words([word])


def test_spaces_around_the_equals_sign_are_named():
    with pytest.raises(UsageError, match="got 'epochs'; write no spaces around ="):
        split_words(["epochs", "=", "3"])


def test_a_key_is_given_once():
    with pytest.raises(UsageError, match="steps: expected one value, got two: '1' and '2'"):
        split_words(["steps=1", "steps=2"])


BAD_VALUES = {
    "hidden_size=x": "hidden_size: expected a whole number of at least 1, got 'x'",
    "hidden_size=0": "hidden_size: expected a whole number of at least 1, got '0'",
    "hidden_size=1.5": "hidden_size: expected a whole number",
    "steps=0": "steps: expected a whole number of at least 1 or none, got '0'",
    "hidden_size=99999999999999999999": "hidden_size: expected a whole number below 2^31, got 99999999999999999999",
    "lr=0": "lr: expected a number above 0, got '0'",
    "lr=nan": "lr: expected a number",
    "lr=inf": "lr: expected a number",
    "lambda=-1": "lambda: expected a number of at least 0, got '-1'",
    "bidirectional=perhaps": "bidirectional: expected true or false, got 'perhaps'",
}


@pytest.mark.parametrize("word", BAD_VALUES)
def test_a_bad_value_names_key_type_and_value(word):
    with pytest.raises(UsageError) as caught:
        bind(split_words([word]), **OWNERS)
    assert BAD_VALUES[word] in str(caught.value)


@pytest.mark.parametrize("value", [True, 1.5, None, [1]])
def test_python_values_are_checked_too(value):
    with pytest.raises(UsageError, match="hidden_size: expected a whole number"):
        bind({"hidden_size": value}, **OWNERS)


def test_an_unknown_key_suggests_one_of_any_owner():
    for key, near in (("hiden_size", "hidden_size"), ("epoch_step", "epoch_steps"), ("budgets", "budget")):
        with pytest.raises(UsageError, match=f"unknown setting '{key}': did you mean '{near}'"):
            make_plan("adding", "sarnn", None, {key: "1"})


def test_long_lists_of_names_are_cut_and_begin_with_those_that_differ():
    names = [f"c{i}" for i in range(30)]
    assert some(names[:12]) == ", ".join(names[:12])
    assert some(names) == "c0, c1, c2, c3, c4, c5, c6, c7 and 22 more"
    header = ",".join([*names[:20], "speed", *names[21:]]) + "\n" + ",".join(["1"] * 30) + "\n"
    table = parse_csv(Path("a.csv"), header)
    with pytest.raises(EdgernnError, match=r"columns c20, c0, .* and 22 more of the .* once, got speed, c0, .* more;"):
        channel_values(table, channels=names)


def test_options_of_the_rule_reach_the_model():
    plan = make_plan("adding", "sarnn", None, {"budget": "likelihoods"})
    assert SequenceModel(plan.model).recurrent_layers()[0].rule.counts_likelihoods


def test_options_keep_their_underscores_in_a_record():
    """Options of a user's cell or rule are arguments of its constructor; fields of configurations lose the last _."""
    rule = {"name": "selective", "options": {"lambda_": 0.5}, "layers": [{"in_": 1}]}
    config = ModelConfig.of(cell_options={"lambda_": 2.0, "in": 1}, rule_options=rule["options"])
    config = replace(config, layer=replace(config.layer, rule=RuleConfig(**rule)))
    fields = record(config)
    assert fields["layer"]["cell"] == {"name": "gru", "options": {"lambda_": 2.0, "in": 1}}
    assert fields["layer"]["rule"] == rule
    assert load(ModelConfig, fields, "config.json") == config
    recorded = record(TrainConfig(lambda_=0.25))
    assert recorded["lambda"] == 0.25
    assert not any(name.endswith("_") for name in recorded)


def test_only_plain_types_are_settings():
    class Odd:
        def __init__(self, input_size: int, sizes: list[int], scale: float = 1.0) -> None: ...

    assert list(options_of(Odd)) == ["scale"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": [0, 0]}, "mean: expected one number, or 3, one for each feature, got 2; pass as many"),
        ({"std": [1.0] * 4}, "std: expected one number, or 3, one for each feature, got 4"),
        ({"mean": []}, "mean: expected one number, or 3, one for each feature, got 0"),
        ({"std": [1, 0, 1]}, "std: expected numbers above 0, got 0; pass 1 for a feature that never changes"),
        ({"std": -2.0}, "std: expected numbers above 0, got -2"),
        ({"mean": float("nan")}, "mean: Input should be a finite number"),
        ({"input_size": 160, "frontend": "logmel", "mean": [0.0] * 160}, "mean: expected one number, or 40, one for"),
    ],
)
def test_means_and_deviations_fit_the_features(settings, message):
    with pytest.raises(UsageError, match=message):
        SequenceModel("gru", **({"input_size": 3, "hidden_size": 4} | settings))
    model = SequenceModel("gru", 3, 4, mean=[1, 2, 3], std=[0.5, 1, 2])
    assert model.input_std.tolist() == [0.5, 1, 2]


def test_steps_and_epochs_exclude_each_other():
    with pytest.raises(UsageError, match="steps, epochs: expected one of the two, got steps=3 epochs=2"):
        resolve_config({}, {("steps",): 3, ("epochs",): 2})
    assert resolve_config({("steps",): 9}, {("epochs",): 2}).steps is None
    assert resolve_config({("epochs",): 9}, {("steps",): 2}).epochs is None
    assert resolve_config({}, {}).epochs == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "ading"}, "did you mean 'adding'"),
        ({"cell": "gruu"}, "unknown cell 'gruu'"),
        ({"rule": "selectiv"}, "unknown rule 'selectiv': did you mean 'selective'"),
        ({"seed": -1}, r"seed: expected a whole number from 0 to 2\^63 - 1, got -1"),
        ({"seed": 2**63}, r"seed: expected a whole number from 0 to 2\^63 - 1, got 9223372036854775808"),
        ({"device": "tpu"}, "device: expected auto, cpu or cuda, got 'tpu'"),
        ({"settings": {"budget": "x", **SMALL}, "cell": "sarnn"}, "budget: expected 'decisions' or 'likelihoods'"),
    ],
)
def test_a_bad_argument_leaves_no_directory(tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        train(**{"task": "adding", "cell": "gru", **arguments}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device():
    with pytest.raises(UsageError, match="device: expected a GPU for cuda, but torch finds none"):
        make_plan("adding", "gru", None, {}, device="cuda")


def test_differences_are_found_by_name():
    assert first_difference({"train": {"lr": 1}, "torch": "a"}, {"train": {"lr": 1}, "torch": "b"}) is None
    assert first_difference({"train": {"lr": 1}, "seed": 0}, {"train": {"lr": 2}, "seed": 0}) == ("lr", 1, 2)
    assert first_difference({"seed": 0}, {"seed": 0, "task": 1}) == ("task", None, 1)
