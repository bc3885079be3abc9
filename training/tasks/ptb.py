# SPDX-License-Identifier: Apache-2.0
"""The next word of a text."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.data import find_either
from edgernn.training.networks.pieces import check_in_parts
from edgernn.training.tasks.base import Means, Score, Task
from edgernn.training.tasks.sources import Batch, Source, Split
from edgernn.training.text import Vocabulary, read_sentences

FORMS = (
    ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
    ("train.txt", "valid.txt", "test.txt"),
)
# stands for no word, where the last column of a split is shorter than the others
NOTHING = -1
_WINDOWS, _ORDER = 1, 2


class WordStream(Source, Split):
    """A text as one row of words, cut into columns that are read side by side, some steps at a time.

    words (N,): their numbers; every one is a target, and the input is the word before it, `end` before the first.
    bptt: the steps of a batch. vary_bptt: that number is drawn from a normal distribution of deviation 5, around bptt
    for 95 % of the windows and bptt / 2 for the others, and is at least 5; the learning rate is multiplied by its share
    of bptt (Merity et al. 2017, section 4.1). The lengths of all epochs are the same but for their order, which is
    drawn from seed and epoch, so that all have as many steps. columns: to evaluate with.
    """

    def __init__(
        self, words: Sequence[int], end: int, bptt: int, *, vary_bptt: bool = False, columns: int = 1, seed: int = 0
    ) -> None:
        self.words = torch.tensor(words)
        self.end, self.bptt, self.vary_bptt, self.columns, self.seed = end, bptt, vary_bptt, columns, seed
        # by the number of columns
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}
        self._lengths: dict[int, list[int]] = {}
        # the windows of the last epoch that was asked for, and of so many columns
        self._starts: tuple[int, int, list[int]] = (-1, 0, [])

    def __len__(self) -> int:
        """Whole windows."""
        return max(1, len(self.words) // self.bptt)

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._window_lengths(batch_size))

    def batch(self, step: int, batch_size: int) -> Batch:
        epoch, i = divmod(step, self.steps_per_epoch(batch_size))
        starts = self._window_starts(epoch, batch_size)
        x, target = self._columns(batch_size)
        steps = slice(starts[i], starts[i + 1])
        return Batch(x[steps], target[steps], per_step=True)

    def continues(self, step: int, batch_size: int) -> bool:
        return step % self.steps_per_epoch(batch_size) > 0

    def lr_scale(self, step: int, batch_size: int) -> float:
        if not self.vary_bptt:
            return 1.0
        epoch, i = divmod(step, self.steps_per_epoch(batch_size))
        starts = self._window_starts(epoch, batch_size)
        return (starts[i + 1] - starts[i]) / self.bptt

    def windows(self) -> Iterator[Batch]:
        """The whole text once, in `columns`; each batch goes on where the one before ended.

        What the last columns have too few words for is NOTHING as a target.
        """
        steps = -(-len(self.words) // self.columns)
        missing = steps * self.columns - len(self.words)
        x = functional.pad(self._inputs(), (0, missing), value=self.end).view(self.columns, steps)
        target = functional.pad(self.words, (0, missing), value=NOTHING).view(self.columns, steps)
        for part in zip(torch.split(x.T, self.bptt), torch.split(target.T, self.bptt), strict=True):
            yield Batch(*part)

    def chunks(self, size: int = 16) -> Iterator[Batch]:
        """Windows of bptt words that do not overlap, as sequences of their own, so many at a time."""
        width = min(self.bptt, len(self.words))
        whole = len(self) * width
        x, target = self._inputs()[:whole].view(-1, width), self.words[:whole].view(-1, width)
        for part in zip(torch.split(x, size), torch.split(target, size), strict=True):
            yield Batch(part[0].T, part[1].T)

    def _inputs(self) -> Tensor:
        return torch.cat([self.words.new_tensor([self.end]), self.words[:-1]])

    def _steps(self, columns: int) -> int:
        """Of an epoch; the few words that do not fill a row of the columns are left out."""
        if columns > len(self.words):
            raise UsageError(f"batch_size: expected at most {len(self.words)}, the words of the text, got {columns}")
        return len(self.words) // columns

    def _columns(self, columns: int) -> tuple[Tensor, Tensor]:
        """X and target, (steps, columns) each."""
        if columns not in self._cut:
            steps = self._steps(columns)
            parts = (part[: steps * columns].view(columns, steps) for part in (self._inputs(), self.words))
            x, target = (part.T.contiguous() for part in parts)
            self._cut[columns] = x, target
        return self._cut[columns]

    def _window_lengths(self, columns: int) -> list[int]:
        """Of the windows that make up an epoch; the last one is cut."""
        if columns not in self._lengths:
            rng = np.random.default_rng([_WINDOWS, self.seed, 0])
            left, lengths = self._steps(columns), list[int]()
            while left > 0:
                lengths.append(min(left, self._drawn(rng) if self.vary_bptt else self.bptt))
                left -= lengths[-1]
            self._lengths[columns] = lengths
        return self._lengths[columns]

    def _drawn(self, rng: np.random.Generator) -> int:
        mean = self.bptt if rng.random() < 0.95 else self.bptt / 2
        return max(5, int(rng.normal(mean, 5)))

    def _window_starts(self, epoch: int, columns: int) -> list[int]:
        """Where each window of an epoch begins, and the end of the last."""
        if self._starts[:2] != (epoch, columns):
            lengths = self._window_lengths(columns)
            if self.vary_bptt:
                order = np.random.default_rng([_ORDER, self.seed, epoch]).permutation(len(lengths))
                lengths = [lengths[i] for i in order]
            self._starts = epoch, columns, [0, *np.cumsum(lengths).tolist()]
        return self._starts[2]


@dataclass
class NextWord(Task):
    """Predict each next word of a text: the Penn Treebank as Mikolov prepared it, or your own.

    x (T, B): the numbers of words, `Vocabulary.words` of the training part, `classes`. target (T, B): those of the
    words that follow. Each line is a sentence, with its words apart by spaces, and <eos> is put behind it; a word that
    the training part does not have counts as <unk>. Trained on as batch_size columns of continuous text, bptt steps at
    a time; each batch goes on from the states that the one before left, through which no gradient flows.
    Files: ptb.train.txt, ptb.valid.txt and ptb.test.txt, or train.txt, valid.txt and test.txt, plain, .gz or .xz, in
    the folder ptb of the data folder or in that itself.

    embedding: I, the size of what stands for a word. bptt, vary_bptt: see WordStream. ar weighs the mean square of the
    last layer's output as the head reads it, tar that of its change from step to step, in the loss (Merity et al. 2017,
    section 4.6). eval_batch, test_batch: columns in which the two parts are read; the state goes on from the first
    word of a column to its last.
    Metrics: cross_entropy in nats a word, over all words of a part and the ends of its sentences, each once;
    perplexity, e to the power of it, is the main one.
    Raises EdgernnError where a file is missing or has no word.
    Source: SA-RNN, section 4.4, whose setting is the default: one layer of 256 on an embedding of 256, Adam; it does
    not say batch and bptt. AWD-LSTM (Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language Models", 2017,
    https://arxiv.org/abs/1708.02182) is what EINS, appendix A, and IRC, section V-A, start from.
    """

    embedding: Annotated[int, Field(ge=1)] = 256
    bptt: Annotated[int, Field(ge=1)] = 35
    vary_bptt: bool = False
    ar: Annotated[float, Field(ge=0)] = 0.0
    tar: Annotated[float, Field(ge=0)] = 0.0
    eval_batch: Annotated[int, Field(ge=1)] = 10
    test_batch: Annotated[int, Field(ge=1)] = 1

    name = "ptb"
    help = "predict the next word of the Penn Treebank, or of your own text"
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 10,
        "hidden_size": 256,
        "batch_size": 20,
        "lr": 1e-3,
        "keep": "best",
        "checkpoint_every": 500,
    }
    # the words after a word are its targets, and none is missing
    without = frozenset({"bidirectional", "imputer", "imputation"})
    objective = Score("perplexity", False)
    output = "all"

    def open(self, source: Path | None, seed: int) -> None:
        parts = [read_sentences(path) for path in find_either(self.name, "ptb", FORMS, source)]
        vocabulary = Vocabulary(parts[0])
        self.classes = vocabulary.words
        self.input_size = self.embedding
        self.output_size = self.vocabulary = len(vocabulary)
        text = "\n\n".join("\n".join(map(" ".join, part)) for part in parts)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

        def stream(part: int, columns: int = 1) -> WordStream:
            words = [n for sentence in parts[part] for n in (*vocabulary.encode(sentence), vocabulary.end)]
            return WordStream(words, vocabulary.end, self.bptt, vary_bptt=self.vary_bptt, columns=columns, seed=seed)

        self.train, self.validation, self.test = stream(0), stream(1, self.eval_batch), stream(2, self.test_batch)

    def adapted(self, model: ModelConfig) -> ModelConfig:
        check_in_parts(model.layer)
        return model

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        assert isinstance(model, SequenceModel)
        assert model.head is not None
        raw, state = model.recur(batch.x, carry)
        read = model.drop_output(raw)
        loss = functional.cross_entropy(model.head(read).flatten(0, 1), batch.target.flatten())
        if self.ar:
            loss = loss + self.ar * read.square().mean()
        if self.tar and len(raw) > 1:
            loss = loss + self.tar * (raw[1:] - raw[:-1]).square().mean()
        return loss, tuple(s.detach() for s in state)

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        assert isinstance(split, WordStream)
        means, state = Means(), None
        for batch in split.windows():
            moved = batch.to(device)
            y, state = model(moved.x, state)
            entropy = functional.cross_entropy(y.flatten(0, 1), moved.target.flatten(), ignore_index=NOTHING)
            words = int((batch.target != NOTHING).sum())
            means.add(words, {"cross_entropy": entropy, "skip_percent": 100 * (1 - model.update_rate)})
        found = means.result()
        return {"perplexity": float(np.exp(found["cross_entropy"])), **found}
