# SPDX-License-Identifier: Apache-2.0
"""Keyword spotting tasks: classify recordings of single words."""

import math
from abc import ABC
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError, counted, some
from edgernn.files import write_text
from edgernn.frontends import FrontendConfig
from edgernn.model import RecurrentModel
from edgernn.runtime.wav import write_wav
from edgernn.runtime.word_detection import NOT_WORDS, SILENCE, UNKNOWN, Detector, PostProcessing
from edgernn.training.datasets.find import find_either
from edgernn.training.datasets.registry import SETS
from edgernn.training.tasks.base import CLASSIFICATION, DETECTIONS, ROOM, ROOM_WORDS, Tally, Task
from edgernn.training.tasks.clips import Changes, Clips
from edgernn.training.tasks.confusion import LABELLED_STEPS, Confusion, save_confusion
from edgernn.training.tasks.parts import Folds, warn_of_copies, warn_of_left_out
from edgernn.training.tasks.recordings import (
    BACKGROUND,
    PARTS,
    WAV,
    Audio,
    WordFile,
    labelled_files,
    noise_parts,
    read_clips,
    unread_files,
    word_files,
)
from edgernn.training.tasks.rooms import Acoustics, Room
from edgernn.training.tasks.sources import Batch, Split
from edgernn.training.tasks.spotting import Heard, det_curve, listen
from edgernn.training.tasks.streams import HOLD, Streams

# data sets that the setting corpus chooses from
CORPORA = [name for name, data in SETS.items() if data.setting == "corpus"]
# front end by default: steps of 20 ms, windows of 32 ms
_FRONTEND = FrontendConfig(name="logmel", hop=320, window_size=512)


class _WordFigures(Confusion):
    """Metrics of keyword spotting over a split: accuracy, cross_entropy and accuracy_words, see `Keywords`."""

    def __init__(self, classes: Sequence[str], scores: Callable[[Tensor], Tensor]) -> None:
        super().__init__(classes)
        self._scores = scores

    def add(self, y: Tensor, batch: Batch) -> None:
        super().add(self._scores(y), batch)

    def result(self) -> dict[str, float]:
        figures = super().result()
        words = [i for i, name in enumerate(self.classes) if name not in NOT_WORDS]
        total = max(1, int(self.counts[words].sum()))
        right = int(self.counts.diagonal()[words].sum())
        return {**{name: figures[name] for name in ("accuracy", "cross_entropy")}, "accuracy_words": right / total}


@dataclass
class Words(Task, ABC):
    """Base class of keyword spotting on a folder of wav files. The class `Keywords` describes data and metrics.

    Settings:

    - `words`: The words to tell apart, separated by commas; all others are unknown. Default: the names of all folders.
    - `seconds`: Length of a clip. A shorter file is padded with zeros; a longer one is cut to its loudest stretch.
    - `silence`: Number of clips of silence, as a share of the clips of words; 0: none are added.
    - `unknown`: Number of clips of unknown words in an epoch, as a share of the clips of words.
    - `noise_folder`: Folder with wav files of noise. Default: `_background_noise_` of the data set, or generated noise.
    - `noisy`: Probability that a training clip is mixed with noise.
    - `snr_low`, `snr_high`: Lowest and highest signal-to-noise ratio in dB; the ratio is uniform between them.
    - `shift`: Largest shift of a training clip in time, in seconds, earlier or later.
    - `stream`: Train on streams of this many seconds instead of clips; 0: train on clips.
    - `room`: With stream, total length in hours of the long recordings in the test.
    - `talk`: With stream, share of the time of these recordings in which a word is spoken.
    - `threshold`, `smoothing`, `refractory`: With stream, the settings of word detection (`PostProcessing`), with which
      metrics are computed. They are stored in the exported file.
    """

    words: str | None = None
    seconds: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    silence: Annotated[float, Field(ge=0, le=1)] = 0.1
    unknown: Annotated[float, Field(ge=0, le=1)] = 0.1
    noise_folder: str | None = None
    noisy: Annotated[float, Field(ge=0, le=1)] = 0.8
    snr_low: Annotated[float, Field(ge=-20, le=100)] = 5.0
    snr_high: Annotated[float, Field(ge=-20, le=100)] = 30.0
    shift: Annotated[float, Field(ge=0, le=1)] = 0.1
    stream: Annotated[float, Field(ge=0, le=60)] = 0.0
    room: Annotated[float, Field(gt=0, le=24)] = 1.0
    talk: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    threshold: Annotated[float, Field(gt=0, le=1)] = PostProcessing.threshold
    smoothing: Annotated[float, Field(ge=0, le=60)] = PostProcessing.smoothing
    refractory: Annotated[float, Field(ge=0, le=60)] = PostProcessing.refractory

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
            raise UsageError(f"snr_low: expected at most snr_high={self.snr_high:g}, got {self.snr_low:g}; lower it")
        if self.stream and self.silence == 0:
            raise UsageError(
                "silence: expected a share above 0 with stream, because steps between words have the class _silence_, "
                "got 0; leave the setting silence out, for its default"
            )
        if 0 < self.stream < self.seconds:
            raise UsageError(
                f"stream: expected 0, or at least seconds={self.seconds:g}, the length of a clip, got {self.stream:g}; "
                "raise stream"
            )
        if self.stream:
            self.output, self.objective = "all", LABELLED_STEPS
            self.detector = asdict(self._post_processing)
        self._heard: Heard | None = None
        self._rooms: dict[str, Room] = {}

    def adapted(self, model: ModelConfig) -> ModelConfig:
        if model.frontend.name is None:
            raise UsageError(
                "frontend: expected logmel, as the recordings are raw audio, got a model without a front end; set "
                "frontend=logmel"
            )
        self._hear(model.frontend)
        return model

    def check_network(self, network: RecurrentModel) -> None:
        if self.stream and not network.streaming:
            raise UsageError(
                "stream: expected a model that runs step by step, got one that needs the whole sequence; leave out "
                "bidirectional, or use another cell"
            )

    def _hear(self, frontend: FrontendConfig) -> None:
        """Take the number of samples per step and the sample rate from the settings of the model's audio front end."""
        self.input_size, self._rate = frontend.hop, frontend.sample_rate

    @property
    def marks_background(self) -> bool:
        return True

    def test_parts(self) -> Mapping[str, Split]:
        assert isinstance(self.test, Clips)
        return {"words": self.test.of_words()}

    def tally(self, split: Split) -> Tally:
        return _WordFigures(self.classes or (), self._scores)

    def _scores(self, y: Tensor) -> Tensor:
        """Convert a model's outputs y to scores (B, classes) of whole clips.

        Without the setting `stream`, y (B, classes) is returned unchanged. With `stream`, y is (T, B, classes). At each
        step, the probabilities of the last steps are then averaged (`Detector.averages`). The score of a word is the
        logarithm of its largest average in the clip. The score of silence is the logarithm of the setting `threshold`,
        so that a clip in which no word reaches the threshold is classified as silence.
        """
        if not self.stream:
            return y
        detector = self._detector()
        peaks = torch.from_numpy(detector.averages(y.double().cpu().numpy()).max(0))
        peaks[:, (self.classes or ()).index(SILENCE)] = self.threshold
        return peaks.clamp(min=detector.resolution / 2).log().to(y)

    @property
    def _post_processing(self) -> PostProcessing:
        return PostProcessing(self.smoothing, self.threshold, self.refractory)

    def _detector(self) -> Detector:
        return Detector(self.classes or (), self.input_size / self._rate, self._post_processing)

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        figures = super().evaluate(model, split, device)
        if not self.stream or split is not self.test:
            return figures
        self._heard = listen(model, self._room, self._detector, device)
        return figures | {f"room_{name}": value for name, value in self._heard.figures(model).items()}

    def test_on_validation(self) -> None:
        super().test_on_validation()
        if self.stream:
            self._room = self._rooms["validation"]

    def series(self, model: RecurrentModel, device: str) -> Mapping[str, Sequence[float]]:
        figures = _WordFigures(self.classes or (), self._scores)
        for batch in self.test.chunks():
            y, _ = model(batch.x.to(device))
            figures.add(y, batch.to(device))
        curve = {} if self._heard is None else self._heard.curve()
        return {
            "recall": figures.recall(),
            "precision": figures.precision(),
            **{f"room_{name}": values for name, values in curve.items()},
        }

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        if self._heard is None:
            return
        det_curve(folder / DETECTIONS, self._heard.curve(), self._heard.hours)
        recording = next(self._room.recordings())
        end = min(len(recording.samples), 60 * self._rate)
        write_wav(folder / ROOM, recording.samples[:end], self._rate)
        rows = [
            f"{word.begin / self._rate:.2f},{word.end / self._rate:.2f},{(self.classes or ())[word.label]}"
            for word in recording.words
            if word.end <= end
        ]
        write_text(folder / ROOM_WORDS, "\n".join(["begin,end,word", *rows]) + "\n")

    def _load(self, root: Path, seed: int, parts: dict[str, list[WordFile]]) -> npt.NDArray[np.int16]:
        """Read clips and noise, set parts and classes, and return the clips (N, S) of all parts, in their order."""
        recorded = sorted({file.word for file in parts["train"]})
        names = self._chosen_words(root, recorded)
        others = set(recorded) - set(names) - {SILENCE}
        silent = self.silence > 0 or SILENCE in recorded
        self.classes = (*names, *([UNKNOWN] if others else []), *([SILENCE] if silent else []))
        self.output_size = len(self.classes)
        hop, rate = self.input_size, self._rate
        length, noise = self._noise(root)
        # a model of streams hears no clips
        self.reading = None if self.stream else {"samples": length}
        changes = Changes(round(self.shift * rate), self.noisy, self.snr_low, self.snr_high)
        samples = read_clips([file for part in PARTS for file in parts[part]], length, rate)
        ends = np.cumsum([len(parts[part]) for part in PARTS])
        clips = {
            part: self._clips(parts[part], recorded, noise[part], seed, changes if part == "train" else None)
            for part, recorded in zip(PARTS, np.split(samples, ends[:-1]), strict=True)
        }
        self.train, self.validation, self.test = clips.values()
        if self.stream:
            steps, slots = round(self.stream * rate / hop), int(self.stream / self.seconds)
            self.train = Streams(clips["train"], self._acoustics(noise["train"]), steps, slots)
            for part in ("validation", "test"):
                self._rooms[part] = Room(clips[part], self._acoustics(noise[part]), self.room, self.talk)
            self._room = self._rooms["test"]
        return samples

    def _noise(self, root: Path) -> tuple[int, dict[str, list[Audio]]]:
        """Return the number of samples of a clip, and the noise of each part; `root` is the folder of the data."""
        noise_folder = root / BACKGROUND if (root / BACKGROUND).is_dir() else None
        if self.noise_folder is not None:
            noise_folder = Path(self.noise_folder)
        length = max(1, round(self.seconds * self._rate / self.input_size)) * self.input_size
        return length, noise_parts(noise_folder, length, self._rate)

    def _chosen_words(self, root: Path, recorded: Sequence[str]) -> list[str]:
        """Return the words that are classes of their own: those of the setting `words`, or all recorded words."""
        folders = [name for name in recorded if name not in NOT_WORDS]
        if self.words is None:
            return folders
        chosen = [word.strip() for word in self.words.split(",")]
        if missing := [word for word in chosen if word not in folders]:
            raise UsageError(
                f"words: expected names of folders in {root}, got {missing[0]!r}; the folders are {some(folders)}"
            )
        if len(set(chosen)) < len(chosen):
            raise UsageError(f"words: expected each word once, got {self.words!r}; remove the repeated word")
        return chosen

    def _clips(
        self,
        files: Sequence[WordFile],
        samples: npt.NDArray[np.int16],
        noise: list[Audio],
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
        pool = np.flatnonzero(is_unknown)
        # a word that ends with its clip is detected after it
        after = math.ceil(HOLD * self._rate / self.input_size) if self.stream else 0
        return Clips(samples, self.input_size, label, pool, unknown, drawn, silence, noise, after, seed, changes)

    def _acoustics(self, noise: list[Audio]) -> Acoustics:
        return Acoustics(noise, self.noisy, self.snr_low, self.snr_high, self.input_size, self._rate)


@dataclass
class Keywords(Words):
    """Keyword spotting: classify recordings of single words, one word per wav file, whose folder's name is its class.

    x (T, B, hop): audio samples from -1 to 1, `hop` samples per step. The model computes features from them itself
    (`frontend=logmel`), by default 50 times a second from windows of 32 ms. target (B,): the class, which the output of
    the last step predicts. Files are wav of any rate; they are mixed down to one channel and resampled to the
    model setting `sample_rate`, 16 kHz by default.

    Two classes are not words. `_unknown_` has the words that the setting `words` leaves out, and the files of a folder
    of this name; it exists only if there are such files. `_silence_` has clips of noise at -70 to -10 dB of full scale,
    a tenth of them digital silence, and the files of a folder of this name. Training clips are shifted in time and
    mixed with noise, and parts of their features are masked (`mask_steps`, `mask_channels`). Validation and test clips
    are unchanged. The noise of the test is in no other part: it is
    every third recording; if there are only one or two, the last fifth of each.

    Background steps, at which no word is heard, are all steps of clips of silence. In a clip of a word, they are the
    steps with at most 1/1000 of the power of its loudest step, before noise is mixed in. The metric
    skip_percent_foreground is the percentage of skipped neuron updates at all other steps.

    Metrics: accuracy, over all clips, including those of `_unknown_` and `_silence_`; accuracy_words, over all other
    clips; cross_entropy. The settings `silence` and `unknown` fix how many clips have no known word: accuracy,
    skip_percent and macs_executed depend on them, accuracy_words does not. So compare accuracy_words between settings
    and with published figures. series.json has recall and precision of each class in the order of `classes`.

    The data folder has one of three sets. `arabic-speech-commands` has 40 words: a folder `dataset`, train.csv, val.csv
    and test.csv. `speech-commands` is version 1 or 2 of Google's set, with `_background_noise_`, validation_list.txt
    and testing_list.txt; the usual benchmark of twelve classes is words=yes,no,up,down,left,right,on,off,stop,go. The
    split of these two is the publisher's, by speaker. `speech-commands-test`, the test set of this benchmark, has none:
    edgernn splits it by speaker, with a tenth of the speakers for the test, so that metrics are not comparable with
    published ones.

    Settings:

    - `corpus`: arabic-speech-commands, speech-commands or speech-commands-test.

    With the setting `stream`, the model is trained on streams, and tested on clips and on long recordings. A stream has
    several words, cut from their clips and mixed at a random level into one stretch of noise or of digital silence.
    `shift` has no effect. target (T, B) is the class at each step: a word from its middle to 0.2 s after its end, no
    class (and no loss) in the 0.1 s that follow, and silence elsewhere. To classify a clip, the model's probabilities
    are averaged over the last steps. The clip has the class with the largest average at any step, or silence if no word
    reaches `threshold`. Validation and test clips are followed by 0.2 s of digital silence.

    The long recordings have words of the test clips in the noise of the test. Their metrics begin with room_. hits,
    wrong and missed are the shares of the words, without those of the class `_unknown_`, that are detected as the right
    word, as another word, and not at all. The first detection from the start of a word until 0.5 s after its end counts
    for the word. All other detections are false alarms (false_alarms_an_hour). hours is the length of the recordings,
    and words is the number of spoken words, without those of the class `_unknown_`. skip_percent_background is the
    percentage of skipped neuron updates between words. updates_a_second and macs_a_second are neuron updates and
    multiply-adds per second of audio. series.json has the points of the detection error tradeoff (DET) curve as
    room_threshold, room_hits and so on; detections.png shows the curve. room.wav is the first minute of the recordings,
    and room.csv lists the words in it.

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
            raise UsageError(f"corpus: expected one of {', '.join(CORPORA)}, got {self.corpus!r}")

    def open(self, source: Path | None, seed: int) -> None:
        paths = find_either(self.name, self.corpus, SETS[self.corpus].forms, source)
        roots = {path.parent for path in paths}
        if len(roots) > 1:
            raise EdgernnError(
                f"{self.name}: expected the files {', '.join(SETS[self.corpus].forms[0])} in one folder, got them in "
                f"{' and '.join(sorted(map(str, roots)))}; unpack the data set into one folder"
            )
        root = paths[0].parent
        self._load(root, seed, word_files(root, seed, self._rate))


@dataclass
class OwnWords(Folds, Words):
    """Keyword spotting on a user's own wav files in a folder, with one subfolder per word.

    Metrics, streams and long recordings are those of the task keywords. The subfolder `_background_noise_` may have
    noise. A tenth of the files of each word, at least one, is for validation, and as many for the test. If there are
    lists (validation_list.txt, testing_list.txt) or speakers in file names (before _nohash_, or `split_by`), these
    decide the split.

    Settings:

    - `split_by`: Pattern of the files' paths, with {} for the name of a person or device, which the split does not
      divide: "{}_*" for yes/anna_3.wav. Default: files are split one by one.
    """

    split_by: str | None = None

    name = "wav"
    help = "Train on the wav files of your own folder, one per word."

    def __post_init__(self) -> None:
        super().__post_init__()
        # the threshold of detections is one of scores as they are
        self.calibrates = not self.stream

    def open(self, source: Path | None, seed: int) -> None:
        if source is None:
            raise UsageError(f"task {self.name}: expected the path of your own data, got none; pass it as --task PATH")
        files = word_files(source, seed, self._rate, self, self.split_by)
        samples = self._load(source, seed, files)
        members = [(part, file) for part in PARTS for file in files[part]]
        words = [(part, file.word) for part, file in members]
        warn_of_copies(source, "sound", samples, words, [f"{file.name} ({part})" for part, file in members])
        names = {
            part: list(dict.fromkeys(file.speaker or file.name for file in members)) for part, members in files.items()
        }
        for part, clips in (("validation", self.validation), ("test", self.test)):
            if speakers := [file.speaker for file in files[part] if file.speaker]:
                assert isinstance(clips, Clips)
                clips.set_origins(speakers)
        by = self.split_by or ("speaker" if files["train"][0].speaker else "file")
        self.division = {"by": by, **names}
        counts = Counter(file.word for members in files.values() for file in members)
        self.summary = [
            f"{source}: {counted(counts.total(), 'wav file')}; words: "
            + some([f"{word} ({count})" for word, count in sorted(counts.items())]),
            f"split by {by}: " + "; ".join(f"{part} {some(names[part])}" for part in PARTS),
        ]
        warn_of_left_out(source, unread_files(source), WAV)

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        super().pictures(model, folder, device)
        save_confusion(model, self, folder, device, self._scores)

    def open_test(self, source: Path, output_size: int) -> None:
        classes, files = self.classes or (), labelled_files(source, self._rate)
        unknown = sorted({file.word for file in files}.difference(classes)) if UNKNOWN not in classes else []
        if unknown or not files:
            raise EdgernnError(
                f"{source}: expected subfolders with wav files, named after the classes {some(classes)} of the "
                f"training, got {some(unknown) or 'none'}; correct the names"
            )
        self.output_size = output_size
        length, noise = self._noise(source)
        self.test = self._clips(files, read_clips(files, length, self._rate), noise["test"], 0, None)
        if self.stream:
            self._room = Room(self.test, self._acoustics(noise["test"]), self.room, self.talk)
        warn_of_left_out(source, unread_files(source), WAV)
