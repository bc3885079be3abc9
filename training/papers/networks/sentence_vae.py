# SPDX-License-Identifier: Apache-2.0
"""Variational autoencoder of sentences."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgernn.config import LayerConfig
from edgernn.dropout import Runs, check_weights, with_dropped_weights
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer
from edgernn.model import RecurrentModel
from edgernn.training.papers.networks.draw import gaussian_divergence
from edgernn.training.papers.networks.pieces import run_to_length


class Bound(NamedTuple):
    """Upper bound of -log p of each sentence, as the sum of two terms, (B,) each, in nats.

    reconstruction is -log p of a sentence's words and end, given its code z (`SentenceVAE`). divergence is the KL
    divergence of the distribution of z from N(0, 1).
    """

    reconstruction: Tensor
    divergence: Tensor


class SentenceVAE(RecurrentModel):
    """Language model whose initial state z is a latent code of the whole sentence w_1..w_n.

    h = the state of the encoder after e(w_1)..e(w_n)
    z ~ N(μ, σ²), μ = W_μ h + b_μ, log σ² = W_σ h + b_σ
    h_0 = z, h_t = GRU(e(w_{t-1}), h_{t-1})                        w_0 = w_{n+1} = the end of a sentence
    p(w_t | w_1..w_{t-1}, z) = softmax(W h_t + b), t = 1..n+1

    e is the embedding; the matrices W and vectors b are learned. The loss is
    -Σ_t log p(w_t | ...) + KL(N(μ, σ²), N(0, 1)), in expectation an upper bound of -log p(w_1..w_n).

    Args:
        layer: Configuration of the encoder. The language model is always a GRU. Reported costs and updates do not
            count this GRU, only the encoder.
        words: Size of the vocabulary.
        end: Word number of the end of a sentence.
        unknown: Word number of unknown words.
        embedding: Size of the embedding e, which encoder and language model share.
        hidden_size: Size of z and of the states of encoder and GRU.
        decoder_dropout: Dropout rate of the embeddings before the GRU, in training.
        word_dropout: Rate at which the GRU's input words are replaced by the unknown word, in training.
        weight_drop: Dropout rate of the recurrent weights of encoder and GRU, in training (`edgernn.dropout`).

    Raises:
        UsageError: A rate is outside [0, 1), or weight_drop is set and the recurrent weights are a low-rank product.

    Source: Bowman et al., "Generating Sentences from a Continuous Space", arXiv:1511.06349, section 3; EINS
    paper (see `edgernn.training.papers.tasks.l2l`), section 5.2 and appendix B. We take the embedding
    dropout of 0.5 in the EINS paper to be decoder_dropout, and its recurrent dropout of 0.25 to be weight_drop.
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
            if not 0 <= rate < 1:
                raise UsageError(f"{name}: expected at least 0 and below 1, got {rate}; pass such a rate")
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
        """Return the layers that have the configured cell: the encoder alone."""
        return [self.encoder]

    def forward(self, x: Tensor, lengths: Tensor) -> Bound:
        """Compute the upper bound of -log p of sentences, which is the loss.

        Args:
            x: Word numbers (T, B) int64, longest sentence first, padded with any words.
            lengths: Lengths (B,) from 1 to T.

        Returns:
            The two terms of the bound for each sentence, (B,) each, in nats. The padding does not affect them.
        """
        mean, log_variance = self.encode(x, lengths)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        # inputs and targets are (T + 1, B): the end of a sentence precedes the inputs and follows the targets
        border = x.new_full((1, x.shape[1]), self.end)
        steps = torch.arange(len(x) + 1, device=x.device)[:, None]
        target = torch.where(steps == lengths, self.end, torch.cat([x, border]))
        h = self._decode(torch.cat([border, x]), z)
        valid = steps <= lengths
        entropy = functional.cross_entropy(self.head(h[valid]), target[valid], reduction="none")
        reconstruction = entropy.new_zeros(target.shape).masked_scatter(valid, entropy).sum(0)
        return Bound(reconstruction, gaussian_divergence(mean, log_variance))

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode sentences as the distribution N(μ, σ²) of their latent codes z.

        Args:
            x: Word numbers (T, B) int64, longest sentence first, padded with any words.
            lengths: Lengths (B,) from 1 to T.

        Returns:
            μ and log σ², (B, H) each.
        """
        embedded = self.embedding(x)
        state, trace = run_to_length(
            self._with_weight_drop(self.encoder), embedded, self.encoder.initial_state(x.shape[1], embedded), lengths
        )
        self.traces = [trace]
        mean, log_variance = self.posterior(state[0]).chunk(2, -1)
        return mean, log_variance

    def impute(self, beginning: Tensor, count: int, *, sample: bool, longest: int = 30) -> list["ImputedWords"]:
        """Complete the beginning of a sentence by words of the language model.

        The encoder reads the beginning as if it were a sentence, which gives z. The language model starts from z and
        reads the beginning; then each word that it predicts is its next input.

        Args:
            beginning: Word numbers (T,).
            count: Number of completions.
            sample: Draw z and the words from their distributions. Otherwise z is μ and each word the likeliest one, so
                that all completions are equal.
            longest: Largest number of words of a completion.

        Returns:
            The completions, without the beginning. Each goes up to the end of the sentence, or has `longest` words.
        """
        words = beginning[:, None].expand(-1, count)
        mean, log_variance = self.encode(words, torch.full((count,), len(words)))
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean) if sample else mean
        y, state, _ = self.decoder(self.embedding(torch.cat([words.new_full((1, count), self.end), words])), (z,))
        numbers, entropies = [], []
        for _ in range(longest):
            log_p = torch.log_softmax(self.head(y[-1]), -1)
            number = torch.multinomial(log_p.exp(), 1) if sample else log_p.argmax(-1, keepdim=True)
            numbers.append(number[:, 0])
            entropies.append(-log_p.gather(-1, number)[:, 0])
            y, state, _ = self.decoder(self.embedding(number.T), state)
        return [
            _cut_at_end(self.end, completion.tolist(), entropy.tolist())
            for completion, entropy in zip(torch.stack(numbers, 1), torch.stack(entropies, 1), strict=True)
        ]

    def _decode(self, words: Tensor, z: Tensor) -> Tensor:
        """Run the language model on words (T, B) from the initial state z; return its outputs (T, B, H)."""
        if self.training:
            unknown = torch.rand(words.shape, device=words.device) < self.word_dropout
            words = torch.where(unknown, self.unknown, words)
        embedded = functional.dropout(self.embedding(words), self.decoder_dropout, self.training)
        h, _, _ = self._with_weight_drop(self.decoder)(embedded, (z,))
        return h

    def _with_weight_drop(self, layer: RecurrentLayer) -> Runs:
        return with_dropped_weights(layer, self.weight_drop) if self.training else layer


class ImputedWords(NamedTuple):
    """A completion of the beginning of a sentence: `words`, the word indices of the added words, and their `nll`.

    The word that marks the end of a sentence is not in `words`. `nll` is -log p of the added words in nats, including
    the end of the sentence if it was reached.
    """

    words: list[int]
    nll: float


def _cut_at_end(end: int, numbers: list[int], entropies: list[float]) -> ImputedWords:
    length = numbers.index(end) if end in numbers else len(numbers)
    return ImputedWords(numbers[:length], sum(entropies[: length + 1]))
