# SPDX-License-Identifier: Apache-2.0
"""The task of sentence codes: its data, metrics and runs."""

import json
import math

import numpy as np
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.training import evaluate
from edgernn.training.loop import train_step
from edgernn.training.papers.tasks.sentence_vae import SentenceCodes
from edgernn.training.plan import make_plan
from tests.task_helpers import opened
from tests.training_helpers import PACK, data_folder, without_pictures, words

SMALL = {"hidden_size": 6, "embedding": 5, "batch_size": 8, "steps": 3, "kl_steps": 2}


def write_ptb(folder, train=60, held_out=15, suffix=""):
    """Write sentences over a few words; one word is missing in the training part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    common = [f"w{i}" for i in range(20)]
    for part, count in (("train", train), ("valid", held_out), ("test", held_out)):
        lines = [" ".join(rng.choice(common, rng.integers(1, 14))) for _ in range(count)]
        if part == "test":
            lines[0] = "w0 never-seen w1"
        text = "".join(f" {line} \n" for line in lines)
        (folder / f"ptb.{part}.txt{suffix}").write_bytes(PACK[suffix](text.encode()))


def test_words_come_from_the_training_part(tmp_path):
    write_ptb(tmp_path)
    task = opened(SentenceCodes(), tmp_path)
    assert set(task.words.words) == {"<eos>", "<unk>"} | {f"w{i}" for i in range(20)}
    assert (len(task.train), len(task.validation), len(task.test)) == (60, 15, 15)
    assert task.test.sentences[0] == task.words.encode(("w0", "<unk>", "w1"))


def test_metrics_are_means_over_sentences_and_words(tmp_path):
    # more than one evaluation batch
    write_ptb(tmp_path, held_out=70)
    settings = {"hidden_size": 6, "embedding": 5}
    plan = make_plan("sentence-vae", "sarnn", None, settings, data=tmp_path)
    model = plan.network()
    metrics = evaluate(model, plan.task, plan.task.test)
    torch.randn(3)
    assert evaluate(model, plan.task, plan.task.test) == metrics
    nll, kl, tokens, updated, steps = 0.0, 0.0, 0, 0.0, 0
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for batch in plan.task.test.chunks():
            bound = model(batch.x, batch.target)
            nll += (bound.reconstruction + bound.divergence).sum().item()
            kl += bound.divergence.sum().item()
            tokens += sum(n + 1 for n in batch.target.tolist())
            for i, n in enumerate(batch.target.tolist()):
                model.encode(batch.x[:n, i : i + 1], torch.tensor([n]))
                updated += n * model.update_rate
                steps += n
    assert metrics["nll"] == pytest.approx(nll / 70, rel=1e-5)
    assert metrics["kl"] == pytest.approx(kl / 70, rel=1e-5)
    assert metrics["reconstruction"] == pytest.approx((nll - kl) / 70, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert metrics["skip_percent"] == pytest.approx(100 * (1 - updated / steps), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kl_steps": -1}, "kl_steps: expected a whole number of at least 0, got -1"),
        ({"removed": 0}, "removed: expected a whole number of at least 1, got 0"),
        ({"bidirectional": True}, "bidirectional: the network of the task sentence-vae has no such setting"),
        ({"imputation": 1.0}, "imputation: the network of the task sentence-vae has no such setting"),
    ],
)
def test_a_bad_setting_is_named(tmp_path, words, message):
    write_ptb(tmp_path)
    with pytest.raises(UsageError, match=message):
        make_plan("sentence-vae", "gru", None, words, data=tmp_path)


def test_a_network_that_is_sure_of_the_wrong_word_has_no_finite_perplexity(tmp_path):
    write_ptb(tmp_path)
    plan = make_plan("sentence-vae", "gru", None, {"hidden_size": 6, "embedding": 5}, data=tmp_path)
    model = plan.network().eval()
    with torch.no_grad():
        model.head.bias[plan.task.words.unknown] = 1e5
        assert plan.task.evaluate(model, plan.task.test, "cpu")["perplexity"] == math.inf
    with pytest.raises(EdgernnError, match="perplexity"):
        evaluate(model, plan.task, plan.task.test)


def test_a_cell_that_is_run_in_parts_must_know_its_length(tmp_path):
    write_ptb(tmp_path)
    with pytest.raises(
        UsageError,
        match="length: expected the number of steps of a whole sequence, as decaynet depends on it",
    ):
        make_plan("sentence-vae", "decaynet", None, {}, data=tmp_path)
    make_plan("sentence-vae", "decaynet", None, {"length": 10}, data=tmp_path)


@pytest.mark.parametrize("cell", ["eins", "sarnn"])
def test_a_run_leaves_imputed_sentences_and_cannot_be_exported(tmp_path, monkeypatch, capsys, cell):
    without_pictures(monkeypatch)
    write_ptb(tmp_path / "data" / "ptb", suffix=".gz")
    run = tmp_path / "run"
    where = ["--out", str(run), "--data", str(tmp_path / "data")]
    assert main(["train", "--task", "sentence-vae", "--cell", cell, *where, *words(SMALL), "removed=2"]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "nll"
    # 22 words, all unknown
    assert result["perplexity"] == pytest.approx(22, rel=0.15)
    task = opened(SentenceCodes(), tmp_path / "data")
    long_enough = [s for s in task.test.sentences if len(s) > 4][:10]
    paragraphs = (run / "samples.txt").read_text().split("\n\n")[1:]
    assert len(paragraphs) == len(long_enough)
    for paragraph, sentence in zip(paragraphs, long_enough, strict=True):
        lines = paragraph.splitlines()
        decoded = task.words.decode(sentence)
        assert lines[0] == " ".join(decoded[:-2]) + " ..."
        assert lines[1] == "  true: " + " ".join(decoded[-2:])
        assert lines[2].startswith("  likeliest (")
        assert [line.split(" (")[0] for line in lines[3:7]] == [f"  sample {i}" for i in (1, 2, 3, 4)]
        assert lines[7].startswith("  of 20 samples ")
    capsys.readouterr()
    assert main(["export", str(run)]) != 0
    assert "network: expected a SequenceModel, got a SentenceVAE" in capsys.readouterr().err


def test_beginnings_are_filled_in_twenty_times(tmp_path):
    write_ptb(tmp_path)
    settings = {"hidden_size": 6, "embedding": 5, "beginnings": "w1 w2 | w3 never-seen w4 w5"}
    plan = make_plan("sentence-vae", "eins", None, settings, data=tmp_path)
    torch.manual_seed(0)
    model = plan.network()
    asked = []
    impute = model.impute

    def spy(beginning, count, *, sample):
        asked.append((plan.task.words.decode(beginning.tolist()), count, sample))
        return impute(beginning, count, sample=sample)

    model.impute = spy
    result = evaluate(model, plan.task, plan.task.test)
    assert asked == [(("w1", "w2"), 20, True), (("w3", "<unk>", "w4", "w5"), 20, True)]
    assert evaluate(model, plan.task, plan.task.test) == result
    series = plan.task.series(model, "cpu")
    assert {name: len(values) for name, values in series.items()} == {
        f"sample_{name}_{k}": 20 for name in ("nll", "words") for k in (1, 2)
    }
    for k in (1, 2):
        for name in ("nll", "words"):
            assert result[f"fill_{name}_{k}"] == pytest.approx(np.mean(series[f"sample_{name}_{k}"]))
        assert 0 <= max(series[f"sample_words_{k}"]) <= 30
        assert result[f"fill_unknown_{k}"] in range(21)
    assert "fill_nll_1" not in evaluate(model, plan.task, plan.task.validation)


def test_a_beginning_has_words():
    with pytest.raises(
        UsageError,
        match=r"beginnings: expected beginnings of sentences separated by \|, each with at least one word, got 'a \| '",
    ):
        SentenceCodes(beginnings="a | ")


def test_training_lowers_the_bound(tmp_path):
    write_ptb(tmp_path)
    settings = {"hidden_size": 16, "embedding": 8, "batch_size": 20, "lr": 0.02, "kl_steps": 0}
    plan = make_plan("sentence-vae", "eins", None, settings, data=tmp_path)
    torch.manual_seed(0)
    model = plan.network()
    before = evaluate(model, plan.task, plan.task.validation)["nll"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(30):
        train_step(model, optimizer, plan.task.train.batch(step, 20), plan.task, plan.config)
    assert evaluate(model, plan.task, plan.task.validation)["nll"] < before - 1


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set")
def test_the_sentences_of_the_penn_treebank():
    task = opened(SentenceCodes())
    assert (len(task.train), len(task.validation), len(task.test)) == (42_068, 3_370, 3_761)
    assert len(task.words) == 10_000
    # the number of words and ends of sentences of the training part in the literature
    assert sum(len(sentence) + 1 for sentence in task.train.sentences) == 929_589
