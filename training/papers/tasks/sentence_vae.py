# SPDX-License-Identifier: Apache-2.0
"""Sentence autoencoding task: encode a sentence as a vector and complete beginnings of sentences."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.files import write_text
from edgernn.model import RecurrentModel
from edgernn.training.datasets.find import find_either
from edgernn.training.papers.networks.pieces import NOT_OF_A_LAYER, check_in_parts, without_imputer
from edgernn.training.papers.networks.sentence_vae import Bound, ImputedWords, SentenceVAE
from edgernn.training.papers.tasks.ptb import FORMS
from edgernn.training.papers.text import UNKNOWN, Vocabulary, read_sentences
from edgernn.training.tasks.base import Means, Score, Task, work
from edgernn.training.tasks.sources import Batch, Source, Split
from edgernn.training.tasks.trivial import log_counts

IMPUTED = "samples.txt"
# number of sentences evaluated at once; few, because of the logits over the vocabulary
_EVALUATION_BATCH = 50
_SHUFFLE = 1
# samples.txt has _SENTENCES sentences; each is completed _SAMPLES times, and the first _PRINTED samples are printed
_SENTENCES, _SAMPLES, _PRINTED = 10, 20, 4


@dataclass(frozen=True)
class SentenceBatch(Batch):
    """A batch of sentences of different lengths.

    `x` (T, B) int64 has the word indices, longest sentence first and padded with 0. `target` (B,) has the lengths.
    `step` is the training step, on which the weight of the KL divergence in the loss depends; 0 in an evaluation.
    """

    step: int = 0


class Sentences(Source, Split):
    """Stored sentences of different lengths, as word indices.

    Each training batch has sentences of nearly equal length. In each epoch, the sentences are sorted by length, those
    of equal length in random order, and cut into batches. The batches are then shuffled. An evaluation (`chunks`) reads
    the sentences sorted by length.
    """

    varies_steps = True

    def __init__(self, sentences: Sequence[Sequence[int]], seed: int = 0) -> None:
        self.sentences, self.seed = sentences, seed
        self._lengths = np.array([len(sentence) for sentence in sentences])
        self._epoch, self._batches = -1, list[np.ndarray[Any, Any]]()

    def __len__(self) -> int:
        return len(self.sentences)

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int) -> SentenceBatch:
        epoch, i = divmod(step, self.steps_per_epoch(batch_size))
        if epoch != self._epoch:
            self._epoch = epoch
            rng = np.random.default_rng([_SHUFFLE, self.seed, epoch])
            order = np.lexsort((rng.random(len(self)), self._lengths))
            batches = np.split(order, range(batch_size, len(self), batch_size))
            self._batches = [batches[j] for j in rng.permutation(len(batches))]
        return self._batch(self._batches[i], step)

    def chunks(self, size: int = _EVALUATION_BATCH) -> Iterator[SentenceBatch]:
        order = np.argsort(self._lengths, kind="stable")
        for begin in range(0, len(self), size):
            yield self._batch(order[begin : begin + size])

    def _batch(self, chosen: np.ndarray[Any, Any], step: int = 0) -> SentenceBatch:
        sentences = [self.sentences[i] for i in chosen[::-1]]
        x = torch.zeros(len(sentences[0]), len(sentences), dtype=torch.int64)
        for i, sentence in enumerate(sentences):
            x[: len(sentence), i] = torch.tensor(sentence)
        return SentenceBatch(x, torch.tensor([len(sentence) for sentence in sentences]), step)


@dataclass
class SentenceCodes(Task):
    """Sentence autoencoding task: train a variational autoencoder whose encoder may be any cell.

    x (T, B): word indices in the vocabulary of the training part, padded with 0. target (B,): the number of words of
    each sentence. Each line of the files is a sentence. The files are those of the task `ptb`: the Penn Treebank, or
    your own text.
    Metrics, in nats and as means over sentences, with one sample of the latent vector z per sentence: reconstruction,
    -log p(sentence | z); kl, the KL divergence of the distribution of z from N(0, 1); nll, their sum, an upper bound of
    -log p(sentence). A further metric is the perplexity per word, e^(Σ nll / Σ (n + 1)), where the sums are over
    sentences and n + 1 is the number of words of a sentence, with its end counted as a word.
    The encoder's last state gives the distribution of z, from which the decoder, a GRU with the initial state z,
    predicts the sentence word by word. Reported costs and updates do not count the decoder. The file samples.txt of a
    run shows test sentences with their last words removed and completed again by the network. The model's setting
    weight_drop is the dropout rate of the recurrent weights of encoder and decoder.

    Settings:

    - `embedding`: Size of the word embedding.
    - `decoder_dropout`: Dropout rate of the word embeddings that the decoder reads, in training.
    - `word_dropout`: Rate at which words that the decoder reads are replaced by the unknown word, in training.
    - `kl_steps`: Number of training steps in which the weight of the KL divergence in the loss rises linearly from 0
      to 1; 0: the weight is always 1. Bowman et al. tune this number, and the EINS paper does not state it.
    - `removed`: Number of words that are removed from the end of each sentence in samples.txt.
    - `beginnings`: Beginnings of sentences, separated by |. The test completes each of them 20 times. For the k-th one,
      counted from 1, the metrics fill_nll_k and fill_words_k are the mean -log p(completion) in nats and the mean
      number of words of the completions; fill_unknown_k is the number of completions with an unknown word. The lists
      sample_nll_k and sample_words_k in series.json have the values of each completion.

    Source: Anonymous authors, "EINS: Long Short-Term Memory with Extrapolated Input Network Simplification", section
    5.2 and appendix B (hidden_size 256, embedding 300, Adam at 1e-3 for 10 epochs); Bowman et al., "Generating
    Sentences from a Continuous Space", arXiv:1511.06349.
    """

    embedding: Annotated[int, Field(ge=1)] = 300
    decoder_dropout: Annotated[float, Field(ge=0)] = 0.5
    word_dropout: Annotated[float, Field(ge=0)] = 0.0
    kl_steps: Annotated[int, Field(ge=0)] = 2500
    removed: Annotated[int, Field(ge=1)] = 4
    beginnings: str = ""

    name = "sentence-vae"
    help = "Autoencode and complete sentences of the Penn Treebank, or of your own text."
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 10,
        "hidden_size": 256,
        "batch_size": 32,
        "lr": 1e-3,
        "weight_drop": 0.25,
    }
    network = SentenceVAE
    without = NOT_OF_A_LAYER - {"weight_drop"}
    # the encoder runs once for each length of the sentences in a batch
    repeats_layers = True
    objective = Score("nll", False)

    def __post_init__(self) -> None:
        self._to_complete = [part.split() for part in self.beginnings.split("|")] if self.beginnings else []
        if not all(self._to_complete):
            raise UsageError(
                "beginnings: expected beginnings of sentences separated by |, each with at least one word, got "
                f"{self.beginnings!r}"
            )

    def open(self, source: Path | None, seed: int) -> None:
        parts = [read_sentences(path) for path in find_either(self.name, "ptb", FORMS, source)]
        self.fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()
        self.words = Vocabulary(parts[0])
        self.input_size, self.output_size = self.embedding, len(self.words)
        encoded = [[self.words.encode(sentence) for sentence in part] for part in parts]
        self.train = Sentences(encoded[0], seed)
        self.validation, self.test = Sentences(encoded[1]), Sentences(encoded[2])

    def adapted(self, model: ModelConfig) -> ModelConfig:
        check_in_parts(model.layer)
        return without_imputer(model)

    def build_network(self, model: ModelConfig) -> SentenceVAE:
        return SentenceVAE(
            model.layer,
            words=len(self.words),
            end=self.words.end,
            unknown=self.words.unknown,
            embedding=self.embedding,
            hidden_size=model.hidden_size,
            decoder_dropout=self.decoder_dropout,
            word_dropout=self.word_dropout,
            weight_drop=model.dropout.weight,
        )

    def kl_weight(self, step: int) -> float:
        """Return the weight, from 0 to 1, of the KL divergence in the loss of training step `step`, counted from 0."""
        return min(1.0, step / self.kl_steps) if self.kl_steps else 1.0

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        assert isinstance(batch, SentenceBatch)
        bound: Bound = model(batch.x, batch.target)
        return (bound.reconstruction + self.kl_weight(batch.step) * bound.divergence).mean(), None

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the frequencies of the words and ends of sentences in the training part, without a latent vector."""
        assert isinstance(self.train, Sentences)
        assert isinstance(self.test, Sentences)
        train, test = (
            torch.tensor([word for sentence in part.sentences for word in (*sentence, self.words.end)])
            for part in (self.train, self.test)
        )
        log_p = log_counts(train, self.output_size).log_softmax(0)[test]
        nll = -float(log_p.sum()) / len(self.test)
        metrics = {"nll": nll, "reconstruction": nll, "kl": 0.0, "perplexity": float((-log_p.mean()).exp())}
        return {"frequencies of words": metrics}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        sentences, words = Means(), Means()
        tokens = 0
        for batch in split.chunks():
            bound: Bound = model(batch.x.to(device), batch.target.to(device))
            reconstruction, kl = bound.reconstruction.double().mean(), bound.divergence.double().mean()
            sentences.add(len(batch.target), {"nll": reconstruction + kl, "reconstruction": reconstruction, "kl": kl})
            words.add(int(batch.target.sum()), work(model))
            tokens += int((batch.target + 1).sum())
        metrics = sentences.result()
        # the perplexity of an untrained network may overflow
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(metrics["nll"] * len(split) / tokens))
        filled = self._complete_all(model, device) if split is self.test else {}
        return {**metrics, "perplexity": perplexity, **words.result(), **filled}

    def _complete_all(self, model: RecurrentModel, device: str) -> dict[str, float]:
        """Complete each of the `beginnings` 20 times, and store the values that the method `series` returns."""
        assert isinstance(model, SentenceVAE)
        figures: dict[str, float] = {}
        self._samples: dict[str, list[float]] = {}
        for k, beginning in enumerate(self._to_complete, 1):
            encoded = torch.tensor(self.words.encode(beginning), device=device)
            samples = model.impute(encoded, _SAMPLES, sample=True)
            for name, values in (
                ("nll", [sample.nll for sample in samples]),
                ("words", [float(len(sample.words)) for sample in samples]),
            ):
                self._samples[f"sample_{name}_{k}"] = values
                figures[f"fill_{name}_{k}"] = sum(values) / len(values)
            figures[f"fill_unknown_{k}"] = sum(self.words.unknown in sample.words for sample in samples)
        return figures

    def series(self, model: RecurrentModel, device: str) -> dict[str, list[float]]:
        """Return the values of each completion of the `beginnings` in the last evaluation of the test part.

        For the k-th beginning, counted from 1, the dict has two lists with one number per completion: sample_nll_k,
        -log p(completion) in nats, and sample_words_k, the number of words.
        """
        return self._samples

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        """Write samples.txt into `folder`: test sentences without their last words, and the network's completions."""
        assert isinstance(model, SentenceVAE)
        assert isinstance(self.test, Sentences)
        long_enough = [sentence for sentence in self.test.sentences if len(sentence) > 2 * self.removed]
        lines = [f"Test sentences without their last {self.removed} words; -log p of the completion, in nats.\n"]
        with torch.no_grad():
            for sentence in long_enough[:_SENTENCES]:
                beginning = torch.tensor(sentence[: -self.removed], device=device)
                lines += self._paragraph(
                    sentence,
                    model.impute(beginning, 1, sample=False)[0],
                    model.impute(beginning, _SAMPLES, sample=True),
                )
        write_text(folder / IMPUTED, "\n".join(lines))

    def _paragraph(self, sentence: Sequence[int], likeliest: ImputedWords, samples: list[ImputedWords]) -> list[str]:
        """Return the lines of samples.txt for one sentence and the completions of its beginning."""

        def text(numbers: Sequence[int]) -> str:
            return " ".join(self.words.decode(numbers))

        printed = {"likeliest": likeliest, **{f"sample {i + 1}": samples[i] for i in range(_PRINTED)}}
        unknown = sum(self.words.unknown in sample.words for sample in samples)
        length = sum(len(sample.words) for sample in samples) / len(samples)
        return [
            f"{text(sentence[: -self.removed])} ...",
            f"  true: {text(sentence[-self.removed :])}",
            *(f"  {name} ({it.nll:.2f}): {text(it.words)}" for name, it in printed.items()),
            f"  of {len(samples)} samples {unknown} have {UNKNOWN}; {length:.1f} words on average\n",
        ]
