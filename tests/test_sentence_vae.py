# SPDX-License-Identifier: Apache-2.0
"""The RNN-VAE of sentences: its bound compared with NumPy, its losses, and imputation."""

import math

import numpy as np
import pytest
import torch

from edgernn.config import LayerConfig
from edgernn.errors import UsageError
from edgernn.training.config import TrainConfig
from edgernn.training.loop import train_step
from edgernn.training.papers.networks.pieces import run_to_length
from edgernn.training.papers.networks.sentence_vae import SentenceVAE
from edgernn.training.papers.tasks.sentence_vae import SentenceBatch, SentenceCodes
from tests import oracle_cells
from tests.training_helpers import linear

WORDS, END, UNKNOWN = 11, 0, 1


def layer(cell="lstm", rule=None, **changes):
    return LayerConfig.of(cell, rule, **changes)


def network(cell="lstm", rule=None, **changes):
    torch.manual_seed(0)
    sizes = {"words": WORDS, "end": END, "unknown": UNKNOWN, "embedding": 4, "hidden_size": 5}
    return SentenceVAE(layer(cell, rule), **{**sizes, **changes})


def padded(*lengths, padding=0):
    """Return sentences (T, B) of these lengths, in decreasing order, and their padding."""
    rng = np.random.default_rng(1)
    x = torch.full((max(lengths), len(lengths)), padding)
    for i, length in enumerate(lengths):
        x[:length, i] = torch.from_numpy(rng.integers(2, WORDS, length))
    return x, torch.tensor(lengths)


# recurrent layers


@pytest.mark.parametrize("rule", ["always", "selective", "skip"])
@pytest.mark.parametrize("cell", ["lstm", "t-lstm"])
def test_each_sequence_stops_at_its_own_length(cell, rule):
    torch.manual_seed(0)
    module = LayerConfig.of(cell, rule).make(3, 4)
    lengths = [6, 6, 4, 1]
    x = torch.randn(7, 4, 3)
    last, trace = run_to_length(module, x, module.initial_state(4, x), torch.tensor(lengths))
    decisions, budget = [], 0.0
    for i, length in enumerate(lengths):
        alone = x[:length, i : i + 1]
        _, state, own_trace = module(alone, module.initial_state(1, alone))
        for actual, expected in zip(last, state, strict=True):
            torch.testing.assert_close(actual[i : i + 1], expected)
        budget += own_trace.budget.item() / len(lengths)
        if own_trace.decisions is not None:
            decisions.append(own_trace.decisions.double().flatten())
    assert trace.budget.item() == pytest.approx(budget)
    if rule == "always":
        assert trace.decisions is None
    else:
        assert trace.decisions.double().mean().item() == pytest.approx(torch.cat(decisions).mean().item())


# the network


def states_of_steps(module, kind, x, state):
    weights = {name: value.detach().numpy() for name, value in module.cell.named_parameters()}
    for x_t in x:
        state = kind(weights, x_t, state)
        yield state


def bound(model, sentence, noise, kind, states):
    """Return -log p of a sentence given z, the divergence of z, and the likelihood of each word."""
    e = model.embedding.weight.detach().numpy()
    start = tuple(np.zeros(5) for _ in range(states))
    *_, last = states_of_steps(model.encoder, kind, e[sentence], start)
    mean, log_variance = np.split(linear(model.posterior, last[0]), 2)
    z = mean + np.sqrt(np.exp(log_variance)) * noise
    surprise = 0.0
    for (h,), target in zip(
        states_of_steps(model.decoder, oracle_cells.gru, e[[END, *sentence]], (z,)), [*sentence, END], strict=True
    ):
        logits = linear(model.head, h)
        surprise -= np.log(np.exp(logits[target]) / np.exp(logits).sum())
    return surprise, 0.5 * np.sum(mean**2 + np.exp(log_variance) - log_variance - 1)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("cell", "kind", "states"), [("lstm", oracle_cells.lstm, 2), ("eins", oracle_cells.eins, 2)])
def test_the_bound_is_that_of_the_equations(cell, kind, states):
    model = network(cell)
    x, lengths = padded(5, 5, 3, 1)
    torch.manual_seed(7)
    noise = torch.randn(4, 5).numpy()
    torch.manual_seed(7)
    bounds = model(x, lengths)
    for i, length in enumerate(lengths.tolist()):
        surprise, kl = bound(model, x[:length, i].tolist(), noise[i], kind, states)
        assert bounds.reconstruction[i].item() == pytest.approx(surprise)
        assert bounds.divergence[i].item() == pytest.approx(kl)


@pytest.mark.parametrize("rule", ["always", "selective", "skip"])
def test_what_stands_behind_a_sentence_has_no_effect(rule):
    model = network("lstm", rule, decoder_dropout=0.5, word_dropout=0.3, weight_drop=0.25)
    results = []
    for padding, more in ((0, 0), (7, 3)):
        x, lengths = padded(5, 4, 2, padding=padding)
        x = torch.cat([x, torch.full((more, 3), padding)])
        model.eval()
        torch.manual_seed(1)
        with torch.no_grad():
            bounds = model(x, lengths)
        model.train()
        model.zero_grad()
        # more padding draws more random numbers, so only the encoder's gradient is comparable
        torch.manual_seed(1)
        mean, log_variance = model.encode(x, lengths)
        (mean.square().sum() + log_variance.sum() + model.budget).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((bounds, model.budget, model.update_rate, gradients))
    (one, budget, rate, gradients), (two, *others) = results
    torch.testing.assert_close(one.reconstruction, two.reconstruction)
    torch.testing.assert_close(one.divergence, two.divergence)
    assert torch.equal(budget, others[0])
    assert rate == others[1]
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, others[2][name])


@pytest.mark.parametrize(("cell", "expected"), [("eins", 564_300), ("lstm", 570_368)])
def test_parameters_of_the_papers_encoder(cell, expected):
    with torch.device("meta"):
        model = SentenceVAE(layer(cell), words=10_000, end=0, unknown=1, embedding=300, hidden_size=256)
    assert sum(p.numel() for p in model.encoder.parameters()) == expected
    assert model.recurrent_layers() == [model.encoder]


@pytest.mark.parametrize("cell", ["lstm", "eins", "ihc-lstm", "gru", "sarnn"])
def test_gradients_reach_every_parameter(cell):
    model = network(cell, decoder_dropout=0.1, weight_drop=0.1)
    x, lengths = padded(9, 9, 8, 8)
    bounds = model(x, lengths)
    (bounds.reconstruction.sum() + bounds.divergence.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("rule", ["selective", "skip"])
def test_the_budget_reaches_the_loss(rule):
    losses = []
    x, lengths = padded(6, 5, 5)
    for weight in (0.0, 10.0):
        model = network("gru", rule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        torch.manual_seed(0)
        batch = SentenceBatch(x, lengths, 100)
        losses.append(train_step(model, optimizer, batch, SentenceCodes(), TrainConfig(steps=1, lambda_=weight))[0])
    assert losses[1] - losses[0] == pytest.approx(10 * model.budget.item(), rel=1e-4)
    assert model.budget.item() > 0


def test_the_divergence_is_weighed_step_by_step():
    task, (x, lengths) = SentenceCodes(kl_steps=40), padded(4, 3)
    model = network().eval()
    losses = {}
    for step in (0, 10, 40, 1000):
        torch.manual_seed(0)
        losses[step] = task.loss(model, SentenceBatch(x, lengths, step), None)[0].item()
    torch.manual_seed(0)
    bounds = model(x, lengths)
    reconstruction, kl = bounds.reconstruction.mean().item(), bounds.divergence.mean().item()
    for step, weight in ((0, 0.0), (10, 0.25), (40, 1.0), (1000, 1.0)):
        assert losses[step] == pytest.approx(reconstruction + weight * kl)
    assert SentenceCodes(kl_steps=0).kl_weight(0) == 1


def test_word_dropout_hides_words_from_the_language_model_alone():
    model = network(word_dropout=1.0 - 1e-9).train()
    x, lengths = padded(5, 5)
    torch.manual_seed(0)
    hidden = model(x, lengths)
    unknown = model.embedding.weight[UNKNOWN].expand(6, 2, -1)
    mean, log_variance = model.encode(x, lengths)
    torch.manual_seed(0)
    z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
    h, _, _ = model.decoder(unknown, (z,))
    log_p = torch.log_softmax(model.head(h), -1)
    target = torch.cat([x, torch.full((1, 2), END)])
    torch.testing.assert_close(hidden.reconstruction, -log_p.gather(-1, target[..., None])[..., 0].sum(0))


@pytest.mark.parametrize("changes", [{"decoder_dropout": 1.0}, {"word_dropout": -0.1}, {"weight_drop": 1.5}])
def test_a_bad_rate_is_named(changes):
    ((name, rate),) = changes.items()
    with pytest.raises(UsageError, match=f"{name}: expected at least 0 and below 1, got {rate}"):
        network(**changes)


def test_weights_that_are_not_there_are_not_dropped():
    network("t-lstm", weight_drop=0.25)(*padded(4, 2))
    with pytest.raises(UsageError, match="weight_drop, rank: expected at most one of the two"):
        SentenceVAE(layer(rank=2), words=WORDS, end=END, unknown=UNKNOWN, embedding=4, hidden_size=5, weight_drop=0.25)


@pytest.mark.parametrize("dropped", ["encoder", "decoder"])
def test_recurrent_weights_are_dropped_in_training_alone(dropped):
    model, (x, lengths) = network(weight_drop=0.5), padded(6, 6)
    # dropout of recurrent weights requires recurrent weights in that part
    torch.nn.init.zeros_((model.decoder if dropped == "encoder" else model.encoder).cell.R)

    def surprise(seed):
        torch.manual_seed(seed)
        # noise before and after the weights are drawn: z is the mean
        model.posterior.weight.data[5:] = 0
        model.posterior.bias.data[5:] = -40.0
        return model(x, lengths).reconstruction

    assert not torch.allclose(surprise(0), surprise(1))
    model.eval()
    torch.testing.assert_close(surprise(0), surprise(1))


# imputation


@torch.no_grad()
def test_the_likeliest_words_are_found_one_by_one():
    model = network().eval()
    beginning = torch.tensor([3, 4, 5])
    imputed, same = model.impute(beginning, 2, sample=False, longest=6)
    assert imputed.words == same.words
    # reference: run from the beginning for every word
    mean, _ = model.encode(beginning[:, None], torch.tensor([3]))
    greedy, nll = [], 0.0
    while len(greedy) < 6:
        read = torch.tensor([END, *beginning.tolist(), *greedy])[:, None]
        h, _, _ = model.decoder(model.embedding(read), (mean,))
        log_p = torch.log_softmax(model.head(h[-1, 0]), -1)
        nll -= log_p.max().item()
        if log_p.argmax() == END:
            break
        greedy.append(int(log_p.argmax()))
    assert imputed.words == greedy
    assert imputed.nll == pytest.approx(nll, rel=1e-4)


@torch.no_grad()
def test_samples_follow_the_distribution_of_the_next_word():
    model = network().eval()
    model.posterior.weight.zero_()
    # z has almost no variance, so the distribution of the first word is known
    model.posterior.bias.copy_(torch.tensor([0.5] * 5 + [-40.0] * 5))
    model.head.weight.mul_(4)
    h, _, _ = model.decoder(model.embedding(torch.tensor([[END], [3]])), (torch.full((1, 5), 0.5),))
    p = torch.softmax(model.head(h[-1, 0]), -1)
    torch.manual_seed(0)
    imputed = model.impute(torch.tensor([3]), 20_000, sample=True, longest=1)
    first = torch.tensor([it.words[0] if it.words else END for it in imputed])
    torch.testing.assert_close(first.bincount(minlength=WORDS) / 20_000, p, atol=0.012, rtol=0)
    for it, word in zip(imputed[:50], first.tolist(), strict=False):
        assert it.nll == pytest.approx(-math.log(p[word].item()), rel=1e-4)


@torch.no_grad()
def test_an_imputed_sentence_stops_at_its_end():
    model = network().eval()
    model.head.weight.zero_()
    model.head.bias.fill_(-50.0)
    model.head.bias[END] = 50.0
    (imputed,) = model.impute(torch.tensor([3, 4]), 1, sample=False)
    assert imputed.words == []
    assert imputed.nll == pytest.approx(0.0, abs=1e-6)
    model.head.bias[2] = 100.0
    (imputed,) = model.impute(torch.tensor([3, 4]), 1, sample=False, longest=9)
    assert imputed.words == [2] * 9
