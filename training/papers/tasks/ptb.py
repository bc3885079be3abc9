# SPDX-License-Identifier: Apache-2.0
"""Word language model task: predict each next word."""

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
from edgernn.training.datasets.find import find_either
from edgernn.training.papers.networks.pieces import check_in_parts
from edgernn.training.papers.text import Vocabulary, read_sentences
from edgernn.training.tasks.base import Means, Score, Task, work
from edgernn.training.tasks.sources import Batch, Source, Split
from edgernn.training.tasks.trivial import log_counts

FORMS = (
    ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
    ("train.txt", "valid.txt", "test.txt"),
)
# target of padding, at the end of columns that are shorter than the others; the loss ignores it
NOTHING = -1
_WINDOWS, _ORDER = 1, 2


class WordStream(Source, Split):
    """Stream of the words of a text, for a language model: the target at each step is the next word.

    The text is cut into equally long columns, which are the B sequences of a batch. They are read in parallel, a window
    of successive steps at a time: a batch is one window of all columns. Every word is a target. Its input is the word
    before it, or `end` for the first word.

    Args:
        words: The text: the index of each word in the vocabulary.
        end: Index of <eos>, the end of a sentence, in the vocabulary.
        bptt: Number of steps in a window (the length of truncated backpropagation through time).
        vary_bptt: True: the number of steps in each training window is drawn from a normal distribution with standard
            deviation 5 and mean bptt, or bptt / 2 for 5 % of the windows, but is at least 5. The learning rate is
            scaled by steps / bptt (Merity et al. 2017, section 4.1). All epochs have the same window lengths in
            different orders.
        columns: Number of columns in an evaluation (method `windows`); training uses batch_size columns.
        seed: Random seed of the window lengths and their order.
    """

    def __init__(
        self, words: Sequence[int], end: int, bptt: int, *, vary_bptt: bool = False, columns: int = 1, seed: int = 0
    ) -> None:
        self.words = torch.tensor(words)
        self.end, self.bptt, self.vary_bptt, self.columns, self.seed = end, bptt, vary_bptt, columns, seed
        self.varies_steps = vary_bptt
        # caches with the number of columns as key: x and target, window lengths
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}
        self._lengths: dict[int, list[int]] = {}
        # cache of `_window_starts`: epoch, columns, starts
        self._starts: tuple[int, int, list[int]] = (-1, 0, [])

    def __len__(self) -> int:
        """Number of sequences in all batches of `chunks`: the number of whole windows of bptt words, but at least 1."""
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
        """Cut the whole text into `self.columns` columns, and iterate over them once, in windows of bptt steps.

        The sequences of a batch continue those of the previous batch. Steps after the end of the text have the target
        NOTHING (-1), which the loss ignores.
        """
        steps = -(-len(self.words) // self.columns)
        missing = steps * self.columns - len(self.words)
        x = functional.pad(self._inputs(), (0, missing), value=self.end).view(self.columns, steps)
        target = functional.pad(self.words, (0, missing), value=NOTHING).view(self.columns, steps)
        for part in zip(torch.split(x.T, self.bptt), torch.split(target.T, self.bptt), strict=True):
            yield Batch(*part)

    def chunks(self, size: int = 16) -> Iterator[Batch]:
        """Iterate over windows of bptt words that do not overlap, as independent sequences, `size` per batch.

        Words after the last whole window are dropped.
        """
        width = min(self.bptt, len(self.words))
        whole = len(self) * width
        x, target = self._inputs()[:whole].view(-1, width), self.words[:whole].view(-1, width)
        for part in zip(torch.split(x, size), torch.split(target, size), strict=True):
            yield Batch(part[0].T, part[1].T)

    def _inputs(self) -> Tensor:
        return torch.cat([self.words.new_tensor([self.end]), self.words[:-1]])

    def _steps(self, columns: int) -> int:
        """Return the number of words in each of `columns` columns; the words left over are dropped."""
        if columns > len(self.words):
            raise UsageError(
                f"batch_size: expected at most {len(self.words)}, the number of words in the text, got {columns}; "
                "lower batch_size"
            )
        return len(self.words) // columns

    def _columns(self, columns: int) -> tuple[Tensor, Tensor]:
        """Cut the text into `columns` columns; return inputs and targets, word indices (steps, columns) each."""
        if columns not in self._cut:
            steps = self._steps(columns)
            parts = (part[: steps * columns].view(columns, steps) for part in (self._inputs(), self.words))
            x, target = (part.T.contiguous() for part in parts)
            self._cut[columns] = x, target
        return self._cut[columns]

    def _window_lengths(self, columns: int) -> list[int]:
        """Return the number of steps of each window of an epoch, before windows are shuffled."""
        if columns not in self._lengths:
            rng = np.random.default_rng([_WINDOWS, self.seed, 0])
            left, lengths = self._steps(columns), list[int]()
            while left > 0:
                lengths.append(min(left, self._draw_length(rng) if self.vary_bptt else self.bptt))
                left -= lengths[-1]
            self._lengths[columns] = lengths
        return self._lengths[columns]

    def _draw_length(self, rng: np.random.Generator) -> int:
        mean = self.bptt if rng.random() < 0.95 else self.bptt / 2
        return max(5, int(rng.normal(mean, 5)))

    def _window_starts(self, epoch: int, columns: int) -> list[int]:
        """Return the steps at which the windows of an epoch start, followed by the step at which the last one ends."""
        if self._starts[:2] != (epoch, columns):
            lengths = self._window_lengths(columns)
            if self.vary_bptt:
                order = np.random.default_rng([_ORDER, self.seed, epoch]).permutation(len(lengths))
                lengths = [lengths[i] for i in order]
            self._starts = epoch, columns, [0, *np.cumsum(lengths).tolist()]
        return self._starts[2]


@dataclass
class NextWord(Task):
    """Word language model task: predict each next word of the Penn Treebank as Mikolov prepared it, or your own text.

    x (T, B): word indices in the vocabulary of the training part. target (T, B): the numbers of the next words. Each
    line of a file is a sentence of words separated by spaces and is followed by <eos>. A word that the training part
    does not have becomes <unk>. Training cuts the text into batch_size equally long columns and reads them in parallel,
    bptt steps at a time. Each batch starts from the final states of the previous one, detached from the graph.
    Metrics: cross_entropy in nats per word, over all words and sentence ends of a part; perplexity, its exponential, is
    the main metric.

    Settings:

    - `embedding`: Size I of the word embedding.
    - `bptt`: Number of steps of a batch (truncated backpropagation through time).
    - `vary_bptt`: Draw the number of steps of each training batch from a normal distribution with standard deviation 5
      and mean bptt, or bptt / 2 for 5 % of the batches, but at least 5. The learning rate is scaled by steps / bptt.
      Merity et al. 2017, section 4.1.
    - `ar`, `tar`: Weights of activation regularisation (mean square of the last layer's output, after dropout) and of
      temporal activation regularisation (mean square of its change from step to step). Merity et al. 2017,
      section 4.6.
    - `eval_batch`, `test_batch`: Number of columns into which an evaluation cuts the text of the validation and of the
      test part; the state is carried through a whole column.

    Files: ptb.train.txt, ptb.valid.txt and ptb.test.txt, or train.txt, valid.txt and test.txt, plain, .gz or .xz, in
    the data folder or in its folder ptb.

    Source: the SA-RNN paper (Hartvigsen et al., CIKM 2020), section 4.4, for the defaults: one layer of 256 neurons on
    an embedding of size 256, Adam; it does not give batch size and bptt. The papers of the cells eins (appendix A) and
    irc (section V-A) start from AWD-LSTM (Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language Models",
    2017, https://arxiv.org/abs/1708.02182).
    """

    embedding: Annotated[int, Field(ge=1)] = 256
    bptt: Annotated[int, Field(ge=1)] = 35
    vary_bptt: bool = False
    ar: Annotated[float, Field(ge=0)] = 0.0
    tar: Annotated[float, Field(ge=0)] = 0.0
    eval_batch: Annotated[int, Field(ge=1)] = 10
    test_batch: Annotated[int, Field(ge=1)] = 1

    name = "ptb"
    help = "Predict the next word of the Penn Treebank, or of your own text."
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 10,
        "hidden_size": 256,
        "batch_size": 20,
        "lr": 1e-3,
        "keep": "best",
        "checkpoint_every": 500,
    }
    # future words are targets, and no input is missing
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
        raw, state = model.recur(batch.x, carry)
        read = model.drop_output(raw)
        loss = functional.cross_entropy(model.decode(read).flatten(0, 1), batch.target.flatten())
        if self.ar:
            loss = loss + self.ar * read.square().mean()
        if self.tar and len(raw) > 1:
            loss = loss + self.tar * (raw[1:] - raw[:-1]).square().mean()
        return loss, tuple(s.detach() for s in state)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the frequencies of the words and of <eos> in the training part, whatever the words before."""
        assert isinstance(self.train, WordStream)
        assert isinstance(self.test, WordStream)
        entropy = -float(log_counts(self.train.words, self.output_size).log_softmax(0)[self.test.words].mean())
        return {"frequencies of words": {"perplexity": float(np.exp(entropy)), "cross_entropy": entropy}}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        assert isinstance(split, WordStream)
        means, state = Means(), None
        for batch in split.windows():
            moved = batch.to(device)
            y, state = model(moved.x, state)
            entropy = functional.cross_entropy(y.flatten(0, 1), moved.target.flatten(), ignore_index=NOTHING)
            words = int((batch.target != NOTHING).sum())
            means.add(words, {"cross_entropy": entropy, **work(model)})
        metrics = means.result()
        return {"perplexity": float(np.exp(metrics["cross_entropy"])), **metrics}
