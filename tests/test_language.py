# SPDX-License-Identifier: Apache-2.0
"""Language models: words as input, dropout, states carried across batches, weight averaging, perplexity."""

import json
import lzma
import math
from collections import Counter

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.costs import model_cost
from edgernn.errors import EdgernnError, UsageError
from edgernn.store import load_model, read_tensors
from edgernn.training.papers.tasks.ptb import NOTHING, NextWord, WordStream
from edgernn.training.pictures import update_pattern
from tests.language import AWD, run, write_text
from tests.task_helpers import opened
from tests.training_helpers import Stop, data_folder, snapshot
from tests.training_helpers import words as as_words

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


def read(folder, part):
    """Read the words of a part with <eos>, as the paper counts them."""
    path = folder / f"ptb/ptb.{part}.txt"
    text = path.read_text() if path.exists() else lzma.decompress(path.with_suffix(".txt.xz").read_bytes()).decode()
    return text.replace("\n", "<eos>").split()


# words as input


def numpy_gru(model, tokens):
    """Return log p (T, V) of a one-layer gru after each of tokens (T,), with the reset gate after the product."""
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    E, W, R, b = (weights[n] for n in ("embedding.weight", "layers.0.cell.W", "layers.0.cell.R", "layers.0.cell.b"))
    b_r, b_z, b_n, b_k = np.split(b, 4)
    h, log_likelihoods = np.zeros(R.shape[1]), []
    for token in tokens:
        (r, z, n), (hr, hz, k) = np.split(W @ E[token], 3), np.split(R @ h, 3)
        r, z = 1 / (1 + np.exp(-(r + hr + b_r))), 1 / (1 + np.exp(-(z + hz + b_z)))
        h = (1 - z) * np.tanh(n + b_n + r * (k + b_k)) + z * h
        y = weights["head.weight"] @ h + weights["head.bias"]
        log_likelihoods.append(y - np.log(np.exp(y).sum()))
    return np.array(log_likelihoods)


def test_perplexity_is_that_of_all_words_in_numpy(tmp_path, folder):
    result = run(tmp_path / "run", folder, steps=6, eval_every=6)
    model, config = load_model(tmp_path / "run")
    names = config["task"]["classes"]
    number = {name: i for i, name in enumerate(names)}
    assert len(names) == len(set(read(folder, "train"))) == model.vocabulary
    expected = {}
    for part, columns in (("test", 1), ("valid", 3)):
        tokens = [number.get(word, number["<unk>"]) for word in read(folder, part)]
        inputs = [number["<eos>"], *tokens[:-1]]
        steps = math.ceil(len(tokens) / columns)
        losses = []
        for begin in range(0, len(tokens), steps):
            log_p = numpy_gru(model, inputs[begin : begin + steps])
            losses += [-row[token] for row, token in zip(log_p, tokens[begin : begin + steps], strict=True)]
        assert len(losses) == len(read(folder, part))
        expected[part] = np.mean(losses)
    assert result["cross_entropy"] == pytest.approx(expected["test"], rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(expected["test"]), rel=1e-5)
    assert result["best_validation"] == pytest.approx(math.exp(expected["valid"]), rel=1e-5)


def test_words_read_their_rows():
    model = edgernn.SequenceModel("gru", 4, 5, 7, vocabulary=7, output="all")
    plain = edgernn.SequenceModel("gru", 4, 5, 7, output="all")
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if n != "embedding.weight"})
    x = torch.randint(7, (6, 2))
    y, state = model(x)
    expected, expected_state = plain(model.embedding.weight[x])
    assert torch.equal(y, expected)
    assert all(map(torch.equal, state, expected_state))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.zeros(3, 2),
            r"x: expected word indices \(integers\) of shape \(T >= 1, B >= 1\), got torch.float32 \(3, 2\)",
        ),
        (torch.zeros(3, 2, 1, dtype=torch.int64), r"got torch.int64 \(3, 2, 1\)"),
        (torch.tensor([[1, 7]]), "x: expected word indices from 0 to 6, got numbers from 1 to 7"),
        (torch.tensor([[-1, 2]]), "got numbers from -1 to 2"),
    ],
)
def test_what_is_no_word_is_refused(x, message):
    with pytest.raises(UsageError, match=message):
        edgernn.SequenceModel("gru", 4, 5, 7, vocabulary=7)(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": 0}, "vocabulary: expected a whole number of at least 1 or none, got 0"),
        ({"vocabulary": 9, "mean": 1.0}, "mean, std: expected 0 and 1 with a vocabulary"),
        ({"vocabulary": 9, "cell": "rits", "input_size": 6}, "expected no vocabulary"),
        (
            {"cell": "rits", "input_size": 6, "dropout_input": 0.5},
            "expected no vocabulary, dropout_input, mask_steps or",
        ),
        ({"tied": True}, "tied: expected a vocabulary"),
        ({"tied": True, "vocabulary": 9, "output_size": 8}, "tied: expected output_size=9, the size of"),
        (
            {"tied": True, "vocabulary": 9, "output_size": 9},
            "expected a last layer with 4 outputs, the width of the embedding, got 5 outputs; set hidden_size or",
        ),
        ({"last_size": 3}, "last_size: expected at least two layers"),
        ({"last_size": 0, "layers": 2}, "last_size: expected a whole number of at least 1 or none, got 0"),
        ({"dropout_embedding": 0.1}, "dropout_embedding: expected a vocabulary"),
        ({"dropout_hidden": 1.0}, "dropout_hidden: expected a number of at least 0 and below 1, got 1.0"),
        ({"weight_drop_input": -0.1}, "weight_drop_input: expected a number of at least 0 and below 1, got -0.1"),
        ({"weight_drop": 0.5, "cell": "sru"}, "weight_drop: sru has no recurrent weights; use weight_drop_input"),
        ({"weight_drop": 0.5, "rank": 2}, "weight_drop, rank: expected at most one of the two"),
    ],
    ids=str,
)
def test_arguments_that_do_not_go_together(arguments, message):
    with pytest.raises(UsageError, match=message):
        edgernn.SequenceModel(**{"cell": "gru", "input_size": 4, "hidden_size": 5, **arguments})


def test_a_tied_head_is_the_embedding():
    model = edgernn.SequenceModel("lstm", 4, 5, 9, layers=2, last_size=4, vocabulary=9, tied=True, output="all")
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()
    assert sum(name.endswith("embedding.weight") for name, _ in model.named_parameters()) == 1
    cells = sum(p.numel() for layer in model.layers for p in layer.parameters())
    assert model_cost(model).parameters == cells + 9 * 4 + 9
    x = torch.randint(9, (6, 2))
    top, _ = model.recur(x)
    torch.testing.assert_close(model(x)[0], top @ model.embedding.weight.T + model.head.bias)
    assert "head.weight" not in model.state_dict()


def test_the_awd_lstm_has_the_papers_size():
    """The released code has 24,221,600 parameters; its three LSTMs have a second bias of 2 · 4600 + 1600 numbers."""
    with torch.device("meta"):
        model = edgernn.SequenceModel("lstm", 400, 1150, 10000, layers=3, last_size=400, vocabulary=10000, tied=True)
    assert sum(p.numel() for p in model.parameters()) == 24_221_600 - 10_800


def test_update_rate_is_that_of_all_neurons():
    model = edgernn.SequenceModel("sarnn", 3, 30, layers=2, last_size=2).eval()
    with torch.no_grad():
        for layer, sign in zip(model.recurrent_layers(), (1, -1), strict=True):
            layer.rule.rule_b.fill_(sign * 100)
    model(torch.randn(4, 2, 3))
    assert model.update_rate == pytest.approx(30 / 32)


def test_activation_regularisation(folder):
    torch.manual_seed(0)
    task = opened(NextWord(embedding=6, bptt=5, ar=2.0, tar=1.0), folder)
    model = edgernn.SequenceModel("gru", 6, 7, task.output_size, vocabulary=task.output_size, output="all")
    batch = task.train.batch(0, 4)
    loss, _ = task.loss(model, batch, None)
    with torch.no_grad():
        h = model.recur(batch.x)[0].double().numpy()
        y = model(batch.x)[0].double().numpy()
    y -= np.log(np.exp(y).sum(-1, keepdims=True))
    entropy = -np.take_along_axis(y, batch.target[..., None].numpy(), -1).mean()
    expected = entropy + 2 * (h**2).mean() + ((h[1:] - h[:-1]) ** 2).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


# the text as batches


@pytest.mark.parametrize("vary", [False, True])
def test_batches_are_continuous_columns_of_the_text(vary):
    text = np.arange(1, 404)
    stream = WordStream(text.tolist(), 0, 12, vary_bptt=vary, seed=3)
    steps = stream.steps_per_epoch(4)
    seen = []
    for epoch in range(2):
        batches = [stream.batch(epoch * steps + i, 4) for i in range(steps)]
        x, target = (torch.cat([getattr(b, name) for b in batches]).T.flatten() for name in ("x", "target"))
        assert target.tolist() == list(range(1, 401))
        assert x.tolist() == list(range(400))
        assert [stream.continues(epoch * steps + i, 4) for i in range(steps)] == [False] + [True] * (steps - 1)
        lengths = [len(b.x) for b in batches]
        assert [stream.lr_scale(epoch * steps + i, 4) for i in range(steps)] == [n / 12 if vary else 1 for n in lengths]
        seen.append(lengths)
    assert (seen[0] != seen[1]) == vary


def test_lengths_of_windows_are_as_in_the_paper():
    stream = WordStream([1] * 400_000, 0, 70, vary_bptt=True)
    lengths = np.array([len(stream.batch(i, 1).x) for i in range(stream.steps_per_epoch(1))])[:-1]
    # normal around 70 with deviation 5; one in twenty around 35
    short = lengths < 52.5
    assert short.mean() == pytest.approx(0.05, abs=0.01)
    assert lengths[~short].mean() == pytest.approx(69.5, abs=0.3)
    assert lengths[~short].std() == pytest.approx(5, abs=0.3)
    assert lengths[short].mean() == pytest.approx(34.5, abs=1)


def test_carried_state_equals_one_long_sequence(folder):
    task = opened(NextWord(embedding=6, bptt=5), folder)
    model = edgernn.SequenceModel("sarnn", 6, 7, task.output_size, vocabulary=task.output_size, output="all")
    carry, losses, batches = None, [], [task.train.batch(i, 4) for i in range(6)]
    for batch in batches:
        loss, carry = task.loss(model, batch, carry)
        losses.append(loss.item())
        assert not any(state.requires_grad for state in carry)
    x, target = (torch.cat([getattr(b, name) for b in batches]) for name in ("x", "target"))
    y, state = model(x)
    whole = torch.nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())
    assert np.mean(losses) == pytest.approx(whole.item(), rel=1e-6)
    for got, expected in zip(carry, state, strict=True):
        torch.testing.assert_close(got, expected)


def test_windows_of_a_split_have_each_word_once():
    batches = list(WordStream(list(range(1, 24)), 0, 4, columns=5).windows())
    target, x = (torch.cat([getattr(b, name) for b in batches]).T.flatten() for name in ("target", "x"))
    assert target.tolist() == [*range(1, 24), NOTHING, NOTHING]
    assert x[:23].tolist() == list(range(23))


def test_a_users_own_text(tmp_path):
    for part, text in (("train", "a b a\nb a\n"), ("valid", "b c\n"), ("test", "a\n\na\n")):
        (tmp_path / f"{part}.txt").write_text(text)
    task = opened(NextWord(), tmp_path)
    assert list(task.classes) == ["<eos>", "<unk>", "a", "b"]
    assert task.train.words.tolist() == [2, 3, 2, 0, 3, 2, 0]
    assert task.validation.words.tolist() == [3, 1, 0]
    assert task.test.words.tolist() == [2, 0, 2, 0]
    with pytest.raises(UsageError, match="batch_size: expected at most 7, the number of words in the text, got 8"):
        task.train.steps_per_epoch(8)


def test_missing_text_is_named(tmp_path):
    (tmp_path / "train.txt").write_text("a\n")
    with pytest.raises(EdgernnError, match=r"ptb: no ptb\.train\.txt, .* or train\.txt, valid\.txt, test\.txt"):
        opened(NextWord(), tmp_path)


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set")
def test_penn_treebank_is_as_published():
    task = opened(NextWord(), data_folder())
    assert task.output_size == len(task.classes) == 10_000
    assert [len(part.words) for part in (task.train, task.validation, task.test)] == [929_589, 73_760, 82_430]
    common = Counter(task.train.words.tolist()).most_common(2)
    assert [task.classes[number] for number, _ in common] == ["the", "<unk>"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "ntasgd"}, "ntasgd expects average_from, nonmono or both"),
        ({"nonmono": 5}, "nonmono: optimizer=adam does not average the weights; leave out nonmono"),
        ({"bidirectional": True}, "bidirectional: the network of the task ptb has no such setting"),
        (
            {"cell": "decaynet"},
            "length: expected the number of steps of a whole sequence, as decaynet depends on it",
        ),
        ({"dropout_output": 1}, "dropout_output: expected a number of at least 0 and below 1"),
    ],
)
def test_bad_settings(tmp_path, folder, settings, message):
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "run", folder, steps=1, **settings)
    assert not (tmp_path / "run").exists()


# runs


# an epoch has 12 or 13 steps; both triggers of averaging occur
RESUMED = {
    "carried": {"steps": 20, "eval_every": 5},
    "ntasgd": {
        **AWD,
        "optimizer": "ntasgd",
        "lr": 3,
        "average_from": 1,
        "weight_drop": 0.5,
        "steps": 26,
        "eval_every": 5,
        "keep": "last",
    },
    "non-monotone": {"optimizer": "ntasgd", "lr": 25, "nonmono": 1, "steps": 20, "eval_every": 2},
}


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed_equals_whole(tmp_path, folder, name):
    settings = {**RESUMED[name], "checkpoint_every": 4}
    cell = "sarnn" if name == "carried" else "lstm"
    run(tmp_path / "whole", folder, cell, **settings)
    for at in (3, 11, 19):
        with pytest.raises(RuntimeError, match="stopped by the test"):
            run(tmp_path / "run", folder, cell, resume=True, progress=Stop(at), **settings)
    run(tmp_path / "run", folder, cell, resume=True, **settings)
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


def test_final_weights_are_the_averages(tmp_path, folder):
    settings = {"optimizer": "ntasgd", "lr": 2, "average_from": 0, "steps": 9, "eval_every": 9, "keep": "last"}
    result = run(tmp_path / "run", folder, **settings)
    saved = read_tensors(tmp_path / "run/state.safetensors")
    names = [name for name, _ in load_model(tmp_path / "run")[0].named_parameters()]
    for i, name in enumerate(names):
        weight = read_tensors(tmp_path / "run/model.safetensors")[name]
        assert torch.equal(weight, saved[f"optimizer.{i}.average"])
        assert not torch.equal(weight, saved[f"model.{name}"])
    assert int(saved["optimizer.0.step"]) == 9
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert line["perplexity"] == result["best_validation"]


@pytest.mark.parametrize(
    ("cell", "extra"),
    [
        ("lstm", {"weight_drop": 0.1, **AWD, "ar": 0.1}),
        ("eins", {"weight_drop_input": 0.1, **AWD, "ar": 0.1}),
        ("sarnn", {"lambda": 0.001}),
        ("irc-gru", {}),
    ],
)
def test_trains(tmp_path, folder, cell, extra):
    rates = {name: 0.05 for name in extra if name.startswith(("dropout", "weight_drop"))}
    sizes = {"hidden_size": 24, "embedding": 24} | ({"last_size": 24} if "last_size" in extra else {})
    settings = {**extra, **rates, **sizes, "steps": 120, "eval_every": 40, "lr": 0.03, "clip": 1.0}
    result = run(tmp_path / "run", folder, cell, **settings)
    # the 12 words and the end of a sentence are about equally frequent, so a unigram model has a perplexity of 13
    assert result["perplexity"] < 10
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_update_pattern_of_words_is_drawn(tmp_path):
    model = edgernn.SequenceModel("sarnn", 4, 5, layers=2, last_size=3, vocabulary=9).eval()
    update_pattern(tmp_path / "pattern.png", model, torch.randint(9, (12, 1)))
    assert (tmp_path / "pattern.png").stat().st_size > 1000


def test_settings_are_words_of_the_command_line(tmp_path, folder):
    settings = {**AWD, "optimizer": "ntasgd", "lr": 30, "average_from": 30, "steps": 2, "weight_drop": 0.5}
    arguments = ["--task", "ptb", "--cell", "lstm", "--data", str(folder), "--out", str(tmp_path / "run")]
    assert main(["train", *arguments, *as_words(settings)]) == 0
    model, _ = load_model(tmp_path / "run")
    dropout = model.config.dropout
    assert (dropout.weight, dropout.output, model.last_size) == (0.5, 0.4, 6)
