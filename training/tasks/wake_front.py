# SPDX-License-Identifier: Apache-2.0
"""Front of wake words: a model of many words, from whose lower layers a model of one's own phrase is trained."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, counted
from edgernn.model import RecurrentModel
from edgernn.runtime.word_detection import UNKNOWN
from edgernn.training.tasks.base import Score, Task, cross_entropy, work
from edgernn.training.tasks.mel_bank import MelBank, generated_noise, load_bank, split_groups
from edgernn.training.tasks.mel_streams import Composer, step_labels
from edgernn.training.tasks.recordings import PARTS, noise_parts
from edgernn.training.tasks.sources import Batch, Source, Split
from edgernn.training.tasks.wakewords import CARRIED, SECONDS, UNSURE, WINDOW, Sounds, WakeWord, hear

# sizes of a front, and settings of a training that begins with its weights
SIZES = {"layers": 2, "hidden_size": 72, "last_size": 40}
FROM_FRONT = {"steps": 1500}
# shares of the speakers for validation and test
_HELD_OUT = (0.1, 0.1)
# number of streams of 3 s that are heard at once in an evaluation, and number of such batches
_ROWS, _BATCHES = 64, 20
# random keys: contents and scene of a stream
_CONTENT, _SCENE = 86, 87


class _Talk(Source):
    """Streams of 3 s of words, each of which continues that of the batch before."""

    def __init__(self, composer: Composer, labels: npt.NDArray[np.int64], other: int, stack: int, seed: int) -> None:
        self._composer, self._labels, self._other, self._stack, self._seed = composer, labels, other, stack, seed
        self._steps = round(composer.frames(SECONDS) / stack)
        self._window = composer.frames(WINDOW[0]), composer.frames(WINDOW[1])

    @property
    def fingerprint(self) -> str | None:
        return hashlib.sha256(self._composer.speech.frames.tobytes() + self._labels.tobytes()).hexdigest()

    def steps_per_epoch(self, batch_size: int) -> int:
        # an epoch has no meaning for streams that are composed anew
        return 100

    def continues(self, step: int, batch_size: int) -> bool:
        return step % CARRIED != 0

    def batch(self, step: int, batch_size: int) -> Batch:
        streams, targets = [], []
        for b in range(batch_size):
            rng = np.random.default_rng([_CONTENT, self._seed, step, b])
            scene = self._composer.scene(np.random.default_rng([_SCENE, self._seed, step // CARRIED, b]))
            energies, spoken = self._composer.talk(rng, scene, self._steps * self._stack)
            target = np.full(self._steps, self._other)
            for recording, begin, end in spoken:
                at = step_labels((begin, end), self._steps, self._stack, self._window, UNSURE)
                target = np.where(at == 1, self._labels[recording], np.where(at == -1, -1, target))
            streams.append(energies.reshape(self._steps, -1))
            targets.append(target)
        x, labels = torch.from_numpy(np.stack(streams, 1)), torch.from_numpy(np.stack(targets, 1))
        return Batch(x, labels, per_step=True, energies=True)


def _noise(hop: int, samples: int, rate: int) -> Sounds:
    """Make clips of noise of two seconds, as examples of a model's input."""
    clips = np.concatenate([s for sounds in noise_parts(None, hop, rate).values() for s in sounds])
    steps = 2 * rate // samples
    return Sounds(clips[: len(clips) // (steps * samples) * steps * samples].reshape(-1, steps, samples), 0)


@dataclass
class WakeFront(Task):
    """Front of wake words: hear many words in dense speech and noise.

    x (T, B, stack * hop): audio samples from -1 to 1, with the front end of the task wakeword. y (T, B, words + 1):
    scores of the words, and of all else, at each step. The lower layers of the trained model are the front of models of
    single phrases: `edgernn wakeword train --front FRONT`.

    Streams are composed as for the task wakeword, of all recordings of a bank. A word is a folder with recordings of at
    least three speakers, whose name does not begin with _. The steps from 0.1 s before the end of a word to 0.16 s
    after it should have its class, and all others the class _unknown_, by cross entropy. A tenth of the speakers each
    is for validation and test.

    Metrics: accuracy, the share of the steps at ends of words that have the right class.

    Settings:

    - `bank`: Bank of words, other speech and noise, which `edgernn wakeword bank` makes. The path begins in the folder
      of data sets, if one is given.
    """

    bank: str = "bank.npz"

    name = "wake-front"
    help = "Hear many words, as a start for models of wake words (needs a bank)."
    defaults: ClassVar[Mapping[str, Any]] = {
        **WakeWord.defaults,
        "steps": 4000,
        "eval_every": 1000,
        **SIZES,
    }
    objective = Score("accuracy", True)
    output = "all"

    def adapted(self, model: ModelConfig) -> ModelConfig:
        # a task of the same input
        wake_word = WakeWord()
        model = wake_word.adapted(model)
        self._frontend, self.input_size = model.frontend, wake_word.input_size
        return model

    def check_network(self, network: RecurrentModel) -> None:
        WakeWord().check_network(network)

    def open(self, source: Path | None, seed: int) -> None:
        config = self._frontend
        bank = load_bank((source or Path()) / self.bank, config)
        words = words_of(bank)
        classes = sorted(set(words) - {""})
        if len(classes) < 2:
            raise EdgernnError(
                f"{self.bank}: expected folders of at least 2 words, with recordings of 3 or more speakers each, got "
                f"{len(classes)}; make a bank of files such as hello/anna_1.wav with --split-by '{{}}_*'"
            )
        self.classes = (*classes, UNKNOWN)
        self.output_size = len(self.classes)
        labels = np.array([classes.index(word) if word else len(classes) for word in words])
        parts = split_groups(bank.group, seed, _HELD_OUT)
        numbers = np.array([parts[group] for group in bank.group])
        self._talks = []
        for number in range(len(PARTS)):
            members = (numbers == number) & ~bank.is_noise
            noise = bank.chosen((numbers == number) & bank.is_noise)
            noise = noise if len(noise) else generated_noise(config, number)
            composer = Composer(bank.chosen(np.zeros(0, np.int64)), bank.chosen(members), noise, augments=number == 0)
            self._talks.append(_Talk(composer, labels[members], len(classes), config.stack, seed))
        self.train = self._talks[0]
        self.validation, self.test = (_noise(config.hop, config.samples, config.sample_rate) for _ in range(2))
        speech = bank.chosen(~bank.is_noise)
        self.summary = [
            f"{self.bank}: {counted(len(classes), 'word')}, {speech.minutes():.1f} min of distinct speech of "
            f"{counted(len(set(speech.group)), 'speaker')}"
        ]

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        y, state = hear(model, batch.x, carry)
        return cross_entropy(y, batch.target), tuple(tensor.detach() for tensor in state)

    def baselines(self) -> dict[str, dict[str, float]]:
        return {}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        talk, carry, right, total = self._talks[1 if split is self.validation else 2], None, 0, 0
        for step in range(_BATCHES):
            batch = talk.batch(step, _ROWS).to(device)
            y, carry = hear(model, batch.x, carry if talk.continues(step, _ROWS) else None)
            at_word = (batch.target >= 0) & (batch.target < self.output_size - 1)
            right += int((y.argmax(-1) == batch.target)[at_word].sum())
            total += int(at_word.sum())
        return {"accuracy": right / max(1, total)} | work(model)


def words_of(bank: MelBank) -> list[str]:
    """Return the word of each recording of a bank: its folder, or "" if few speakers have recordings in it."""
    folders = [Path(name).parent.as_posix() for name in bank.name]
    keys = list(zip(bank.source.tolist(), folders, strict=True))
    speakers = dict[tuple[str, str], set[str]]()
    for key, group in zip(keys, bank.group.tolist(), strict=True):
        speakers.setdefault(key, set()).add(group)
    is_word = [len(speakers[key]) >= len(PARTS) and not key[1].startswith((".", "_")) for key in keys]
    names = ["/".join(key) if word else "" for key, word in zip(keys, is_word, strict=True)]
    return [name if not noise else "" for name, noise in zip(names, bank.is_noise, strict=True)]
