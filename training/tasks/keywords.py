# SPDX-License-Identifier: Apache-2.0
"""Keyword spotting tasks: classify recordings of single words."""

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.frontends import FrontendConfig
from edgernn.model import RecurrentModel
from edgernn.training.data import find_either
from edgernn.training.tasks.base import CLASSIFICATION, Tally, Task
from edgernn.training.tasks.clips import Changes, Clips, MarkedBatch
from edgernn.training.tasks.confusion import Confusion
from edgernn.training.tasks.recordings import (
    BACKGROUND,
    DATASET,
    LISTS,
    PARTS,
    TABLES,
    WordFile,
    noise_parts,
    read_clips,
    word_files,
)
from edgernn.training.tasks.sources import Batch, Split

UNKNOWN, SILENCE = "_unknown_", "_silence_"
# folder of each corpus in the data folder, and the names that mark its layout
CORPORA: dict[str, Sequence[str]] = {
    "arabic-speech-commands": (f"{DATASET}/", *TABLES),
    "speech-commands": (f"{BACKGROUND}/", *LISTS),
}
# front end by default: steps of 20 ms, windows of 32 ms
_FRONTEND = FrontendConfig(name="logmel", hop=320, window_size=512)


class _WordFigures(Confusion):
    """Accuracy over all clips, and over those of words alone; `series` has the figures per class."""

    def result(self) -> dict[str, float]:
        figures = super().result()
        words = [i for i, name in enumerate(self.classes) if name not in (UNKNOWN, SILENCE)]
        total = max(1, int(self.counts[words].sum()))
        right = int(self.counts.diagonal()[words].sum())
        return {**{name: figures[name] for name in ("accuracy", "cross_entropy")}, "accuracy_words": right / total}


@dataclass
class Words(Task, ABC):
    """Base class of keyword spotting on a folder of wav files, see `Keywords`."""

    words: str | None = None
    seconds: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    silence: Annotated[float, Field(ge=0, le=1)] = 0.1
    unknown: Annotated[float, Field(ge=0, le=1)] = 0.1
    noise_folder: str | None = None
    noisy: Annotated[float, Field(ge=0, le=1)] = 0.8
    snr_low: Annotated[float, Field(ge=-20, le=100)] = 5.0
    snr_high: Annotated[float, Field(ge=-20, le=100)] = 30.0
    shift: Annotated[float, Field(ge=0, le=1)] = 0.1

    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 30,
        "hidden_size": 96,
        "batch_size": 64,
        "lr": 2e-3,
        "clip": 1.0,
        "lambda": 1e-2,
        "frontend": _FRONTEND.name,
        "hop": _FRONTEND.hop,
        "window_size": _FRONTEND.window_size,
        "mask_steps": 10,
        "mask_channels": 5,
    }
    objective = CLASSIFICATION

    def __post_init__(self) -> None:
        self._hear(_FRONTEND)
        if self.snr_low > self.snr_high:
            raise UsageError(f"snr_low: expected at most snr_high={self.snr_high:g}, got {self.snr_low:g}")

    def adapted(self, model: ModelConfig) -> ModelConfig:
        if model.frontend.name is None:
            raise UsageError("frontend: expected one, as the recordings are raw audio, got none; leave frontend out")
        self._hear(model.frontend)
        return model

    def _hear(self, frontend: FrontendConfig) -> None:
        """Set the size of a step and the sample rate to those of the model's front end."""
        self.input_size, self._rate = frontend.hop, frontend.sample_rate

    @property
    def marks_background(self) -> bool:
        return True

    def background(self, batch: Batch) -> Tensor | None:
        assert isinstance(batch, MarkedBatch)
        return batch.background

    def tally(self, split: Split) -> Tally:
        return _WordFigures(self.classes or ())

    def series(self, model: RecurrentModel, device: str) -> Mapping[str, Sequence[float]]:
        confusion = Confusion(self.classes or ())
        for batch in self.test.chunks():
            y, _ = model(batch.x.to(device))
            confusion.add(y, batch.to(device))
        return {"recall": confusion.recall(), "precision": confusion.precision()}

    def _load(self, root: Path, seed: int) -> None:
        """Read the wav files and the noise below a folder."""
        parts = word_files(root, seed)
        recorded = sorted({file.word for file in parts["train"]})
        names = self._chosen_words(root, recorded)
        others = set(recorded) - set(names) - {SILENCE}
        silent = self.silence > 0 or SILENCE in recorded
        self.classes = (*names, *([UNKNOWN] if others else []), *([SILENCE] if silent else []))
        self.output_size = len(self.classes)
        noise_folder = root / BACKGROUND if (root / BACKGROUND).is_dir() else None
        if self.noise_folder is not None:
            noise_folder = Path(self.noise_folder)
        hop, rate = self.input_size, self._rate
        length = max(1, round(self.seconds * rate / hop)) * hop
        noise = noise_parts(noise_folder, length, rate)
        changes = Changes(round(self.shift * rate), self.noisy, self.snr_low, self.snr_high)
        self.train, self.validation, self.test = (
            self._clips(parts[part], length, noise[part], seed, changes if part == "train" else None) for part in PARTS
        )

    def _chosen_words(self, root: Path, recorded: Sequence[str]) -> list[str]:
        """Return the words that are classes of their own, of the names of the folders."""
        folders = [name for name in recorded if name not in (UNKNOWN, SILENCE)]
        if self.words is None:
            return folders
        chosen = [word.strip() for word in self.words.split(",")]
        if missing := [word for word in chosen if word not in folders]:
            raise UsageError(f"words: expected folders of {root}, got {missing[0]!r}; there are {', '.join(folders)}")
        if len(set(chosen)) < len(chosen):
            raise UsageError(f"words: expected each word once, got {self.words!r}")
        return chosen

    def _clips(
        self,
        files: Sequence[WordFile],
        length: int,
        noise: list[npt.NDArray[np.float32]],
        seed: int,
        changes: Changes | None,
    ) -> Clips:
        number = {name: i for i, name in enumerate(self.classes or ())}
        label = np.array([number.get(file.word, number.get(UNKNOWN, 0)) for file in files], np.int64)
        is_unknown = label == number.get(UNKNOWN, -1)
        silence = number.get(SILENCE, -1)
        count = int((~is_unknown & (label != silence)).sum())
        unknown = min(int(is_unknown.sum()), math.ceil(self.unknown * count))
        drawn = max(0, math.ceil(self.silence * count) - int((label == silence).sum()))
        samples, pool = read_clips(files, length, self._rate), np.flatnonzero(is_unknown)
        return Clips(samples, self.input_size, label, pool, unknown, drawn, silence, noise, seed, changes)


@dataclass
class Keywords(Words):
    """Keyword spotting: classify recordings of single words; a wav file has one word, and its folder is its class.

    x (T, B, hop): samples from -1 to 1, of which the model computes features itself (`frontend=logmel`), by default 50
    times a second from windows of 32 ms. target (B,): the class. The label belongs to the last step. Files are wav: 16
    bits, one channel, with the model's `sample_rate`, 16 kHz unless set.

    Two further classes: `_unknown_` are other words, if `words` is set or a folder has this name. `_silence_` are clips
    of noise at -70 to -10 dB of full scale, a tenth of them digital silence, and the files of a folder of this name.
    Training clips are shifted and mixed with noise, and their features are masked (`mask_steps`, `mask_channels`).
    Validation and test clips are unchanged. No noise of the test is in the other parts, see `noise_parts`.

    Background steps are all frames of silence, and the frames of a word with less than 1/1000 of the power of its
    loudest frame before noise is mixed in.

    Metrics: accuracy over all clips, which includes the unknown and silent ones; accuracy_words over the clips of words
    alone; cross_entropy. series.json has recall and precision of the test by class, in the order of `classes`.

    The split is the publisher's, and by speaker. The folder `arabic-speech-commands` has 40 words: a folder `dataset`,
    train.csv, val.csv and test.csv. The folder `speech-commands` is version 1 or 2 of Google's set, with
    `_background_noise_`, validation_list.txt and testing_list.txt. Its twelve classes of the literature are those of
    words=yes,no,up,down,left,right,on,off,stop,go.

    Settings:

    - `corpus`: arabic-speech-commands or speech-commands.
    - `words`: The words to tell apart, separated by commas; all others are unknown. Default: all folders.
    - `seconds`: Length of a clip. A shorter file is followed by zeros; of a longer one, the loudest stretch is kept.
    - `silence`: Number of clips of silence, as a share of the clips of words; 0: no such class.
    - `unknown`: Number of clips of unknown words in an epoch, as a share of the clips of words.
    - `noise_folder`: Folder with wav files of noise. Default: `_background_noise_`, else noise that is generated.
    - `noisy`: Probability that a training clip is mixed with noise.
    - `snr_low`, `snr_high`: Signal-to-noise ratio in dB, uniform between both.
    - `shift`: Largest shift of a training clip, in seconds, either way.

    Source: Ghandoura, Hjabo, Al Dakkak, "Building and Benchmarking an Arabic Speech Commands Dataset for
    Small-Footprint Keyword Spotting", Engineering Applications of Artificial Intelligence, 2021. Warden, "Speech
    Commands: A Dataset for Limited-Vocabulary Speech Recognition", arXiv:1804.03209.
    """

    corpus: str = "arabic-speech-commands"

    name = "keywords"
    help = "Classify recorded words (needs a set of speech commands)."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus not in CORPORA:
            raise UsageError(f"corpus: expected {' or '.join(CORPORA)}, got {self.corpus!r}")

    def open(self, source: Path | None, seed: int) -> None:
        paths = find_either(self.name, self.corpus, [CORPORA[self.corpus]], source)
        roots = {path.parent for path in paths}
        if len(roots) > 1:
            raise EdgernnError(
                f"{self.name}: expected {', '.join(CORPORA[self.corpus])} in one folder, got them in "
                f"{' and '.join(sorted(map(str, roots)))}; unpack the set into one"
            )
        self._load(paths[0].parent, seed)


@dataclass
class OwnWords(Words):
    """Keyword spotting on a user's own wav files in a folder, with one subfolder per word, see `Keywords`.

    The subfolder `_background_noise_` may have recordings of noise. A tenth of each class, at least one file, is for
    validation, and as many for the test; see `word_files` for folders with lists or speakers.
    """

    name = "wav"
    help = "Train on the wav files of your own folder, one per word."

    def open(self, source: Path | None, seed: int) -> None:
        if source is None:
            raise UsageError(f"task: expected the path of your own data ({self.name}), got none; give it with --task")
        self._load(source, seed)
