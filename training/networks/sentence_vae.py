# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder of sentences."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgernn.config import LayerConfig
from edgernn.dropout import Runs, check_rate, check_weights, with_dropped_weights
from edgernn.layer import RecurrentLayer
from edgernn.model import RecurrentModel
from edgernn.training.networks.draw import gaussian_divergence
from edgernn.training.networks.pieces import run_to_length


class Bound(NamedTuple):
    """Of each sentence, (B,) in nats: -log p of its words and its end, given z, and the divergence of z."""

    reconstruction: Tensor
    divergence: Tensor


class SentenceVAE(RecurrentModel):
    """A language model whose first state is the code of the whole sentence w_1..w_n.

    h = the state of the encoder after it has read e(w_1)..e(w_n)
    z ~ N(μ, σ²), μ = W_μ h + b_μ, log σ² = W_σ h + b_σ
    h_0 = z, h_t = GRU(e(w_{t-1}), h_{t-1})                        w_0 = w_{n+1} = the end of a sentence
    p(w_t | w_1..w_{t-1}, z) = softmax(W h_t + b), t = 1..n+1

    The loss is -Σ_t log p(w_t | ...) + KL(N(μ, σ²), N(0, 1)), in expectation an upper bound of -log p(w_1..w_n).

    words: the size of the vocabulary; end, unknown: the numbers of these two. layer: the configuration of the
    encoder; the language model's GRU is not counted among the recurrent layers, whose costs and updates are looked at.
    embedding: of e, which both share. hidden_size: of both states, and so of z: the Gaussian is on the cells of the
    language model. In training: decoder_dropout is the rate at which entries of e are left out before the GRU,
    word_dropout that at which words before it become the unknown one, weight_drop that at which recurrent weights of
    both, if they have any, are left out (`edgernn.dropout`).
    Source: Bowman et al., "Generating Sentences from a Continuous Space", arXiv:1511.06349, section 3; EINS, section
    5.2 and appendix B, which has an embedding dropout of 0.5, here taken to be the first of these, and a recurrent one
    of 0.25.
    Raises UsageError for a rate outside [0, 1), or for weight_drop where the layer's recurrent weights are a product.
    """

    def __init__(
        self,
        layer: LayerConfig,
        *,
        words: int,
        end: int,
        unknown: int,
        embedding: int,
        hidden_size: int,
        decoder_dropout: float = 0.0,
        word_dropout: float = 0.0,
        weight_drop: float = 0.0,
    ) -> None:
        super().__init__()
        rates = {"decoder_dropout": decoder_dropout, "word_dropout": word_dropout, "weight_drop": weight_drop}
        for name, rate in rates.items():
            check_rate(name, rate)
        self.end, self.unknown = end, unknown
        self.decoder_dropout, self.word_dropout, self.weight_drop = decoder_dropout, word_dropout, weight_drop
        self.embedding = nn.Embedding(words, embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.encoder = layer.make(embedding, hidden_size)
        if any(gate.h or gate.c for gate in self.encoder.cell.gates):
            check_weights(self.encoder, weight_drop)
        self.posterior = nn.Linear(hidden_size, 2 * hidden_size)
        self.decoder = LayerConfig.of("gru").make(embedding, hidden_size)
        self.head = nn.Linear(hidden_size, words)

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """The one of the cell that was asked for."""
        return [self.encoder]

    def forward(self, x: Tensor, lengths: Tensor) -> Bound:
        """Of sentences x (T, B) int64, padded with any words, the longest first; lengths (B,) from 1 to T.

        What x is after the end of a sentence has no effect on anything.
        """
        mean, log_variance = self.encode(x, lengths)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        # (T + 1, B): the sentences with an end before and behind
        border = x.new_full((1, x.shape[1]), self.end)
        steps = torch.arange(len(x) + 1, device=x.device)[:, None]
        target = torch.where(steps == lengths, self.end, torch.cat([x, border]))
        h = self._decode(torch.cat([border, x]), z)
        there = steps <= lengths
        surprise = functional.cross_entropy(self.head(h[there]), target[there], reduction="none")
        reconstruction = surprise.new_zeros(target.shape).masked_scatter(there, surprise).sum(0)
        return Bound(reconstruction, gaussian_divergence(mean, log_variance))

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ² (B, H) each, of sentences as forward takes them."""
        embedded = self.embedding(x)
        state, trace = run_to_length(
            self._dropping(self.encoder), embedded, self.encoder.initial_state(x.shape[1], embedded), lengths
        )
        self.traces = [trace]
        mean, log_variance = self.posterior(state[0]).chunk(2, -1)
        return mean, log_variance

    def impute(self, beginning: Tensor, count: int, *, sample: bool, longest: int = 30) -> list["ImputedWords"]:
        """What may follow the beginning (T,) of a sentence, `count` times: words up to the end, at most `longest`.

        The encoder reads the beginning as if it were a sentence; from z the language model reads it once more, and then
        each word that it has itself made. sample: z and the words are drawn from their distributions; else they are μ
        and the likeliest word, and `count` answers are all the same.
        """
        words = beginning[:, None].expand(-1, count)
        mean, log_variance = self.encode(words, torch.full((count,), len(words)))
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean) if sample else mean
        y, state, _ = self.decoder(self.embedding(torch.cat([words.new_full((1, count), self.end), words])), (z,))
        numbers, surprises = [], []
        for _ in range(longest):
            log_p = torch.log_softmax(self.head(y[-1]), -1)
            number = torch.multinomial(log_p.exp(), 1) if sample else log_p.argmax(-1, keepdim=True)
            numbers.append(number[:, 0])
            surprises.append(-log_p.gather(-1, number)[:, 0])
            y, state, _ = self.decoder(self.embedding(number.T), state)
        return [
            _until(self.end, made.tolist(), surprise.tolist())
            for made, surprise in zip(torch.stack(numbers, 1), torch.stack(surprises, 1), strict=True)
        ]

    def _decode(self, words: Tensor, z: Tensor) -> Tensor:
        """H (T, B, H) of the language model that starts from z and reads words (T, B)."""
        if self.training:
            unknown = torch.rand(words.shape, device=words.device) < self.word_dropout
            words = torch.where(unknown, self.unknown, words)
        embedded = functional.dropout(self.embedding(words), self.decoder_dropout, self.training)
        h, _, _ = self._dropping(self.decoder)(embedded, (z,))
        return h

    def _dropping(self, layer: RecurrentLayer) -> Runs:
        return with_dropped_weights(layer, self.weight_drop) if self.training else layer


class ImputedWords(NamedTuple):
    """Words, without the end that followed them, and their surprise -log p in nats, with that of the end."""

    words: list[int]
    nll: float


def _until(end: int, numbers: list[int], surprises: list[float]) -> ImputedWords:
    length = numbers.index(end) if end in numbers else len(numbers)
    return ImputedWords(numbers[:length], sum(surprises[: length + 1]))
