# SPDX-License-Identifier: Apache-2.0
"""Wake words: hear one phrase in any other speech and noise, from recordings of the phrase and a bank of others."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, counted
from edgernn.frontends import FrontendConfig
from edgernn.layer_trace import Trace
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.runtime.event_rate import poisson_interval
from edgernn.runtime.takes import check_take
from edgernn.runtime.wav import FULL_SCALE, clip_of, read_wav
from edgernn.runtime.word_detection import NOT_WORDS, SILENCE, Detector, PostProcessing
from edgernn.training.frozen import divided, frozen_layers
from edgernn.training.tasks.base import DETECTIONS, SCORES, Score, Task, work
from edgernn.training.tasks.confusion import interval
from edgernn.training.tasks.mel_bank import (
    ENERGIES,
    Energies,
    MelBank,
    generated_noise,
    load_bank,
    read_recordings,
    split_groups,
)
from edgernn.training.tasks.mel_streams import Composer, step_labels
from edgernn.training.tasks.recordings import PARTS
from edgernn.training.tasks.sources import Batch, Source, Split
from edgernn.training.tasks.spotting import LATE, THRESHOLDS, det_curve, score_picture

# front end by default: a step of 40 ms has four windows of 16 ms, one each 10 ms
_FRONTEND = {"frontend": "logmel", "hop": 160, "window_size": 256, "stack": 4, "normalise": "pcen"}
# seconds of a training stream, and number of streams after which the state begins anew
SECONDS, CARRIED = 3.0, 10
# seconds from the end of the phrase to the first and the last step that should hear it, and steps beside them without
# a target
WINDOW, UNSURE = (-0.1, 0.16), 2
# share of the training streams that have the phrase, and steps of each other stream whose loss counts once more
_PHRASED, _WORST = 0.5, 3
# mining: how often, one in how many streams is kept, and share of the kept ones in later batches
_MINED, _KEPT, _HARD = 4, 6, 0.3
# share of the pieces of other speech that are alarms of an earlier model
_MORE = 0.2
# seconds of a test stream with the phrase, and smallest number of such streams in the validation and in the test
_TRIAL, _TRIALS = 6.0, 240
# number of streams that are heard at once, and of those of training whose features are computed at once
_ROWS, _FEATURED = 32, 64
# shares of the speakers for validation and test
_HELD_OUT = (0.2, 0.2)
# smallest probability in the loss
_TINY = 1e-6
# fewest minutes of other speech in each part
_LEAST_SPEECH = 0.1
# number of streams with the phrase in the picture of probabilities
_SHOWN = 10
# lowest average probability at which a recording of the bank is suspected of having the phrase
_SURE = 0.9
# name of the source without speech
_NOISE = "noise"
# random keys: contents and scene of a training stream, mined streams, and streams of validation and test
_CONTENT, _SCENE, _MINING, _TESTED, _PICK = 82, 83, 84, 85, 88


class _Streams(Source):
    """Training batches: streams of 3 s, each of which continues that of the batch before.

    Args:
        composer: Composes the streams.
        more: Composes streams with alarms of an earlier model as other speech, or None.
        stack: Frames of a step.
        seed: Random seed.

    Attributes:
        hard: Numbers of the mined streams (n,), from which other streams are taken.
        period: Number of the features that are kept, or None before `keep_features`.
    """

    hard: npt.NDArray[np.int64]
    period: int | None

    def __init__(self, composer: Composer, more: Composer | None, stack: int, seed: int) -> None:
        self._composer, self._more, self._stack, self._seed = composer, more, stack, seed
        self.steps = round(composer.frames(SECONDS) / stack)
        self._window = composer.frames(WINDOW[0]), composer.frames(WINDOW[1])
        self.hard = np.zeros(0, np.int64)
        self._features, self._targets = torch.empty(0), torch.empty(0)
        self.period: int | None = None

    @property
    def fingerprint(self) -> str | None:
        digest = hashlib.sha256()
        more = () if self._more is None else (self._more.speech,)
        for bank in (self._composer.takes, self._composer.speech, self._composer.noise, *more):
            digest.update(bank.frames.tobytes())
        return digest.hexdigest()

    def steps_per_epoch(self, batch_size: int) -> int:
        # an epoch has no meaning for streams that are composed anew
        return 100

    def continues(self, step: int, batch_size: int) -> bool:
        return step % CARRIED != 0

    def keep_features(self, lower: SequenceModel, period: int, count: int, device: str) -> None:
        """Compute the features of `count` new streams by a model of their energies, for later batches."""
        rows = min(count, _FEATURED)
        groups = -(-count // rows)
        features, targets = [], []
        with torch.no_grad():
            for group in range(groups * period, groups * (period + 1)):
                state, parts = None, []
                for k in range(CARRIED):
                    batch = self._composed(group * CARRIED + k, rows)
                    y, state = hear(lower, batch.x.to(device), state)
                    parts.append((y.half(), batch.target))
                features.append(torch.stack([y for y, _ in parts]))
                targets.append(torch.stack([target for _, target in parts]))
        # (parts of 3 s, steps, streams, ...)
        self._features, self._targets, self.period = torch.cat(features, 2), torch.cat(targets, 2), period

    def batch(self, step: int, batch_size: int) -> Batch:
        if self.period is None:
            return self._composed(step, batch_size)
        rng, count = np.random.default_rng([_PICK, self._seed, step // CARRIED]), self._features.shape[2]
        rows = torch.from_numpy(rng.choice(count, batch_size, replace=batch_size > count))
        part = step % CARRIED
        x = self._features[part][:, rows.to(self._features.device)].float()
        return Batch(x, self._targets[part][:, rows], per_step=True)

    def _composed(self, step: int, batch_size: int) -> Batch:
        streams, targets = [], []
        for b in range(batch_size):
            rng = np.random.default_rng([_CONTENT, self._seed, step, b])
            hears = rng.random() < _PHRASED
            if not hears and len(self.hard) and rng.random() < _HARD / (1 - _PHRASED):
                energies, place = self.mined(int(rng.choice(self.hard))), None
            else:
                scene = self._composer.scene(np.random.default_rng([_SCENE, self._seed, step // CARRIED, b]))
                phrase = int(rng.integers(len(self._composer.takes))) if hears else None
                composer = self._composer if self._more is None or rng.random() >= _MORE else self._more
                length, after = self.steps * self._stack, self._window[1] + self._stack
                energies, place = composer.stream(rng, scene, length, phrase, after)
            streams.append(energies.reshape(self.steps, -1))
            targets.append(step_labels(place, self.steps, self._stack, self._window, UNSURE))
        x, target = torch.from_numpy(np.stack(streams, 1)), torch.from_numpy(np.stack(targets, 1))
        return Batch(x, target, per_step=True, energies=True)

    def mined(self, number: int) -> npt.NDArray[np.float32]:
        """Return the energies of the mined stream with this number, which has no phrase."""
        rng = np.random.default_rng([_MINING, self._seed, number])
        composer = self._composer if self._more is None or rng.random() >= _MORE else self._more
        return composer.stream(rng, composer.scene(rng), self.steps * self._stack)[0]


class Sounds(Split):
    """Sounds (N, T, samples of a step), with the same label at each step, for examples of a model's input."""

    def __init__(self, sounds: npt.NDArray[np.float32], label: int) -> None:
        self._x, self._label = torch.from_numpy(sounds), label

    def __len__(self) -> int:
        return len(self._x)

    def chunks(self, size: int = 250) -> Iterator[Batch]:
        for sounds in torch.split(self._x, size):
            x = sounds.transpose(0, 1).contiguous()
            yield Batch(x, torch.full(x.shape[:2], self._label), per_step=True)


def _takes(files: Sequence[Path], samples: int, rate: int) -> Sounds:
    sounds = [read_wav(file, rate) for file in files]
    length = -(-max(map(len, sounds)) // samples) * samples
    clips = np.stack([clip_of(sound, length) for sound in sounds]).astype(np.float32) / np.float32(FULL_SCALE)
    return Sounds(clips.reshape(len(clips), -1, samples), 1)


@dataclass
class _Part:
    """Sound of the validation or of the test: streams with the phrase, and other speech and noise.

    Attributes:
        composer: Composes the streams with the phrase.
        speakers: Speaker of each take, or the take's name.
        sources: Composer of the streams without the phrase, by the name of their source.
    """

    composer: Composer
    speakers: Sequence[str]
    sources: Mapping[str, Composer]


@dataclass
class WakeWord(Task):
    """Wake word: hear one phrase at any time in other speech and noise.

    x (T, B, stack * hop): audio samples from -1 to 1. The model computes features from them itself, by default four
    frames each 40 ms with per-channel energy normalisation. y (T, B, 2): scores of the phrase and of all else, at each
    step.

    Training streams of 3 s are composed from mel energies: takes of the phrase, other speech of a bank, and noise, with
    gaps up to 0.3 s, levels of -50 to -12 dB, signal-to-noise ratios of 3 to 30 dB, random tempo, pitch and colour, and
    masks. Half of them have the phrase. A stream continues the one of the step before, and its state, for 30 s. The
    loss is that of the probabilities that the detector averages: of the phrase, the best step from 0.1 s before its
    end to 0.16 s after it; of all other steps, their mean and the mean of the three worst ones of a stream. Four times
    in the training, the model hears `mined` streams without the phrase, and 30 % of the streams in later batches are
    from those with the highest scores.

    With start_frozen, the first layers are those of a front (task wake-front). Their outputs are computed for
    `composed` streams at a time, and only the upper layers run in the training steps.

    The speakers of the takes are split at random: 60 % for training, 20 % for validation and 20 % for the test. With
    fewer than three speakers, the takes are split instead. The bank is split by its speakers; those of the takes stay
    in their part. Pieces of recordings of more than a minute, and of noise, are split one by one. The threshold is the
    highest one with the wanted share of hits in the validation part, or 0.1 if none has it.

    Metrics: hits, the share of the phrases that are detected from their start to 0.5 s after their end, with its
    Wilson interval, in which phrases of one speaker depend on each other, hits_low and hits_high;
    false_alarms_an_hour, in the other speech of the bank; and those of each folder of the bank, in `hours` each, which
    are composed of the recordings of this part alone. series.json has them for each threshold, with validation_hits.

    Settings:

    - `takes`: Folder with wav files of the phrase. Subfolders are the names of speakers. This path and the next two
      begin in the folder of data sets, if one is given.
    - `bank`: Bank of other speech and of noise, which `edgernn wakeword bank` makes.
    - `more`: Folder with wav files of false alarms, such as `edgernn wakeword listen` keeps.
    - `phrase`: Name of the phrase. Default: the name of the folder `takes`.
    - `split_by`: Pattern of the takes' paths, with {} for the speaker. Default: subfolders, or the text before
      _nohash_ of a file's name.
    - `wanted_hits`: Share of the phrases of the validation part that must be detected.
    - `mined`: Number of streams that the model hears each time to find the worst ones, a sixth of them.
    - `composed`: With start_frozen, number of streams of 30 s that are composed for each fifth of the training. The
      outputs of the frozen layers are computed once for these streams.
    - `hours`: Hours of other speech in the validation and in the test, for each folder of the bank.
    - `fold`: Number of the fifth of the speakers that is the test part, 0 to 4; the fifth before it is the validation
      part. Default: both are drawn by the seed.
    - `smoothing`, `refractory`: Settings of word detection in seconds (`PostProcessing`).
    """

    takes: str = "takes"
    bank: str = "bank.npz"
    more: str | None = None
    phrase: str | None = None
    split_by: str | None = None
    wanted_hits: Annotated[float, Field(gt=0, le=1)] = 0.95
    mined: Annotated[int, Field(ge=6, le=10**6)] = 3072
    composed: Annotated[int, Field(ge=1, le=10**5)] = 512
    hours: Annotated[float, Field(gt=0, le=100)] = 1.0
    fold: Annotated[int | None, Field(ge=0, le=4)] = None
    smoothing: Annotated[float, Field(ge=0, le=60)] = 0.12
    refractory: Annotated[float, Field(ge=0, le=60)] = 1.0

    name = "wakeword"
    help = "Hear a phrase of your own in other speech (needs takes of it and a bank)."
    defaults: ClassVar[Mapping[str, Any]] = {
        "steps": 2000,
        "eval_every": 500,
        "hidden_size": 96,
        "batch_size": 64,
        "lr": 4e-3,
        "lr_cosine": True,
        "clip": 1.0,
        **_FRONTEND,
    }
    objective = Score("false_alarms_an_hour", False)
    output = "all"
    output_size = 2

    def __post_init__(self) -> None:
        self.detector = asdict(PostProcessing(self.smoothing, 0.5, self.refractory))
        # a model that hears nothing has no false alarms
        self.objective = Score("false_alarms_an_hour", False, least=("hits", self.wanted_hits))

    def adapted(self, model: ModelConfig) -> ModelConfig:
        if model.frontend.name is None:
            raise UsageError(
                "frontend: expected logmel, as the recordings are raw audio, got none; set frontend=logmel"
            )
        self._frontend: FrontendConfig = model.frontend
        self.input_size = model.frontend.samples
        return model

    def check_network(self, network: RecurrentModel) -> None:
        if not isinstance(network, SequenceModel) or not network.streaming:
            raise UsageError("bidirectional: expected a model that runs step by step, got another; leave it out")

    def open(self, source: Path | None, seed: int) -> None:
        config, root = self._frontend, source or Path()
        folder = root / self.takes
        takes = _good_takes(folder, read_recordings(folder, config, pattern=self.split_by), config)
        bank = load_bank(root / self.bank, config)
        if (bank.source[~bank.is_noise] == _NOISE).any():
            raise EdgernnError(
                f"{self.bank}: expected speech from folders of other names than {_NOISE}, got {_NOISE} as speech; make "
                "the bank again with --noise for noise, or rename the folder of speech"
            )
        name = self.phrase or folder.resolve().name
        if name in NOT_WORDS:
            raise UsageError(f"phrase: expected another name than {name}, which means no word; give --phrase another")
        self.classes = (name, SILENCE)
        speakers = takes.group if len(set(takes.group)) >= len(PARTS) else takes.name
        # a take without the name of a speaker has its own name as the group
        are_named = any(Path(name).stem != group for name, group in zip(takes.name, takes.group, strict=True))
        parts = speaker_parts(speakers, bank.group, seed, self.fold)
        takes_parts, bank_parts = (np.array([parts[name] for name in names]) for names in (speakers, bank.group))
        self._parts, self._minutes = [], dict[str, float]()
        for number, part in enumerate(PARTS):
            speech, noise = (
                bank.chosen((bank_parts == number) & (bank.is_noise == is_noise)) for is_noise in (False, True)
            )
            noise = noise if len(noise) else generated_noise(config, number)
            if speech.minutes() < _LEAST_SPEECH:
                raise EdgernnError(
                    f"{self.bank}: expected at least {_LEAST_SPEECH} min of speech for the {part} part, got "
                    f"{speech.minutes():.1f}; make a bank from more recordings of speech, of at least 3 speakers"
                )
            composer = Composer(takes.chosen(takes_parts == number), speech, noise, augments=number == 0)
            sources = {
                str(name): Composer(composer.takes, speech.chosen(speech.source == name), noise, augments=False)
                for name in np.unique(speech.source)
            }
            silent = {_NOISE: Composer(composer.takes, speech.chosen(np.zeros(0, np.int64)), noise, augments=False)}
            self._parts.append(_Part(composer, speakers[takes_parts == number].tolist(), sources | silent))
            if number == 2:
                self._minutes = {name: c.speech.minutes() for name, c in sources.items()} | {_NOISE: noise.minutes()}
        composer = self._parts[0].composer
        more = None
        if self.more is not None:
            alarms = read_recordings(root / self.more, config)
            more = Composer(composer.takes, alarms, composer.noise, augments=True)
        self.train = self._streams = _Streams(composer, more, config.stack, seed)
        files = [[folder / takes.name[i] for i in np.flatnonzero(takes_parts == number)[:16]] for number in (1, 2)]
        self.validation, self.test = (_takes(names, config.samples, config.sample_rate) for names in files)
        self.division = {"by": "speaker" if are_named and speakers is takes.group else "take"} | {
            part: sorted({name for name in speakers if PARTS[parts[name]] == part}) for part in PARTS
        }
        self._speech = speech = bank.chosen(~bank.is_noise)
        self.summary = [
            f"{folder}: {counted(len(takes), 'take')} of "
            f"{counted(len(set(takes.group)), 'speaker') if are_named else 'unnamed speakers'}, "
            f"{takes.minutes():.1f} min",
            f"{self.bank}: {speech.minutes():.1f} min of distinct speech of "
            f"{counted(len(set(speech.group)), 'speaker')}, {bank.chosen(bank.is_noise).minutes():.1f} min of noise",
        ]

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        if batch.energies:
            y, state = hear(model, batch.x, carry)
        else:
            y, state = self._upper(batch.x, carry)
            frozen = [Trace(None, y.new_zeros(()))] * (len(model.recurrent_layers()) - len(self._upper.traces))
            model.traces = [*frozen, *self._upper.traces]
        # as the detector averages them
        width = self._new_detector().width
        before = functional.pad(y.softmax(-1)[..., 0], (0, 0, width - 1, 0))
        average = before.unfold(0, width, 1).mean(-1).clamp(_TINY, 1 - _TINY)
        window, elsewhere = batch.target == 1, batch.target == 0
        has = window.any(0)
        miss = -average.masked_fill(~window, _TINY).amax(0).log() * has
        alarm = -(1 - average).log() * elsewhere
        worst = alarm.topk(min(_WORST, len(alarm)), 0).values.mean(0)
        loss = miss + alarm.sum(0) / elsewhere.sum(0).clamp(min=1) + worst
        return loss.mean(), tuple(tensor.detach() for tensor in state)

    def before_step(self, model: RecurrentModel, step: int, total: int, device: str) -> None:
        assert isinstance(model, SequenceModel)
        count = frozen_layers(model)
        # kept features change where the streams begin anew
        unit = CARRIED if count else 1
        times = [total * (i + 1) // (_MINED + 1) // unit * unit for i in range(_MINED)]
        if step in times and step:
            numbers = self.mined * times.index(step) + np.arange(self.mined)
            highest = []
            training = model.training
            model.eval()
            with torch.no_grad():
                for part in np.array_split(numbers, -(-self.mined // 256)):
                    x = np.stack([self._streams.mined(int(n)).reshape(self._streams.steps, -1) for n in part], 1)
                    y, _ = hear(model, torch.from_numpy(x).to(device), None)
                    highest.append(self._new_detector().averages(y.cpu().numpy())[..., 0].max(0))
            model.train(training)
            order = np.argsort(-np.concatenate(highest), kind="stable")
            self._streams.hard = np.sort(numbers[order[: self.mined // _KEPT]])
        period = sum(time <= step for time in times)
        if count and self._streams.period != period:
            lower, self._upper = divided(model, count)
            self._streams.keep_features(lower, period, self.composed, device)

    def state_dict(self) -> dict[str, Tensor]:
        return {"hard": torch.from_numpy(self._streams.hard)} if len(self._streams.hard) else {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        if "hard" in tensors:
            self._streams.hard = tensors["hard"].numpy()

    def baselines(self) -> dict[str, dict[str, float]]:
        return {}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        validation = self._hear(model, 1, device)
        threshold = validation.threshold(self.wanted_hits)
        outcome = validation if split is self.validation else self._hear(model, 2, device)
        if split is self.test:
            self._tested, self._validated = outcome, validation
            self.detector = asdict(PostProcessing(self.smoothing, threshold, self.refractory))
            self._warn_of_phrases(model, max(threshold, _SURE), device)
        figures = outcome.figures(threshold) | work(model)
        if split is self.test:
            figures |= {f"{name}_minutes": minutes for name, minutes in self._minutes.items()}
            figures["validation_hits"] = validation.hits(threshold)
        return figures

    def series(self, model: RecurrentModel, device: str) -> Mapping[str, Sequence[float]]:
        points = self._tested.points
        series = {"threshold": THRESHOLDS} | {name: [point[name] for point in points] for name in points[0]}
        return series | {"validation_hits": [self._validated.hits(threshold) for threshold in THRESHOLDS]}

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        points = self._tested.points
        alarms = [point["false_alarms_an_hour"] for point in points]
        curve = {"missed": [1 - point["hits"] for point in points], "false_alarms_an_hour": alarms}
        det_curve(folder / DETECTIONS, curve, points[0]["hours"])
        assert self.detector is not None
        heard, threshold = self._tested, self.detector["threshold"]
        score_picture(folder / SCORES, heard.excerpt(_SHOWN), heard.spans(_SHOWN), heard.seconds, threshold)

    def _new_detector(self) -> Detector:
        seconds = self.input_size / self._frontend.sample_rate
        return Detector(self.classes or (), seconds, PostProcessing(self.smoothing, 0.5, self.refractory))

    def _hear(self, model: RecurrentModel, number: int, device: str) -> "_Heard":
        """Run the model on the streams of the validation (1) or of the test (2)."""
        part, stack = self._parts[number], self._frontend.stack
        count = -(-_TRIALS // len(part.composer.takes)) * len(part.composer.takes)
        length, after = round(part.composer.frames(_TRIAL) / stack) * stack, part.composer.frames(LATE)
        streams, places = [], []
        for i in range(count):
            rng = np.random.default_rng([_TESTED, number, 0, i])
            scene = part.composer.scene(rng)
            energies, place = part.composer.stream(rng, scene, length, i % len(part.composer.takes), after + stack)
            assert place is not None
            streams.append(energies)
            places.append((place[0] / stack, (place[1] + after) / stack))
        phrases = self._averages(model, [np.stack(streams, 1)], device)
        speakers = [part.speakers[i % len(part.speakers)] for i in range(count)]
        others = {
            name: self._averages(model, self._others(composer, [_TESTED, number, kind]), device)
            for kind, (name, composer) in enumerate(part.sources.items(), 1)
        }
        seconds = self.input_size / self._frontend.sample_rate
        return _Heard(self._new_detector(), seconds, phrases, places, speakers, others)

    def _warn_of_phrases(self, model: RecurrentModel, threshold: float, device: str) -> None:
        """Warn of long recordings of the bank in which the model hears the phrase: it may be spoken there."""
        speech = self._speech
        counts = Counter(zip(speech.source.tolist(), speech.name.tolist(), strict=True))
        for source, name in (recording for recording, count in counts.items() if count > 1):
            pieces = np.flatnonzero((speech.source == source) & (speech.name == name))
            length = speech.lengths[pieces].min() // self._frontend.stack * self._frontend.stack
            if not length or not speech.loud[pieces].any():
                continue
            rows = np.stack([ENERGIES[speech.recording(int(i))[:length]] for i in pieces], 1)
            averages, detector = self._averages(model, [rows], device), self._new_detector()
            step = self.input_size / self._frontend.sample_rate
            begins = np.cumsum([0, *speech.lengths[pieces]]) * speech.frame_seconds
            seconds = [
                begins[row] + (word.step + 1) * step
                for row in range(len(pieces))
                for word in detector.find(averages[:, row], threshold)
            ]
            if seconds:
                more = f" and at {counted(len(seconds) - 1, 'other place')}" if len(seconds) > 1 else ""
                text = (
                    f"{self.bank}: {name} sounds like the phrase at {seconds[0]:.1f} s{more}; listen there, and if the "
                    "phrase is spoken, make the bank without this recording and train again"
                )
                warnings.warn(text, EdgernnWarning, stacklevel=4)

    def _others(self, composer: Composer, key: list[int]) -> Iterator[Energies]:
        """Yield `hours` of streams without the phrase, one scene (frames, rows, bands) after the other."""
        total = max(1, round(3600 * self.hours / (SECONDS * CARRIED)))
        scenes = -(-total // _ROWS)
        for i in range(0, scenes * CARRIED, CARRIED):
            rows = []
            for row in range(-(-total // scenes)):
                generators = [np.random.default_rng([*key, row, i + k]) for k in range(CARRIED)]
                scene = composer.scene(generators[0])
                length = self._streams.steps * self._frontend.stack
                rows.append(np.concatenate([composer.stream(rng, scene, length)[0] for rng in generators]))
            yield np.stack(rows, 1)

    def _averages(self, model: RecurrentModel, parts: Iterable[Energies], device: str) -> npt.NDArray[np.float64]:
        """Return the average probabilities (steps, B, 2) of streams, whose parts are energies (frames, B, bands)."""
        stack, state, averages, detector = self._frontend.stack, None, [], self._new_detector()
        for energies in parts:
            frames, rows, bands = energies.shape
            steps = energies.reshape(-1, stack, rows, bands).swapaxes(1, 2).reshape(frames // stack, rows, -1)
            y, state = hear(model, torch.from_numpy(steps).to(device), state)
            averages.append(detector.averages(y.cpu().numpy()))
        return np.concatenate(averages)


@dataclass
class _Heard:
    """Average probabilities of streams: those with one phrase each, and those with none, by their source.

    Attributes:
        detector: Detector with the settings of smoothing and pause.
        seconds: Seconds of a step.
        phrases: Average probabilities (T, N, 2) of N streams with the phrase.
        places: First and last step at which a detection counts for the phrase (N,).
        speakers: Speaker of each phrase (N,).
        others: Average probabilities (T, M, 2) of streams without the phrase, by the name of their source.
    """

    detector: Detector
    seconds: float
    phrases: npt.NDArray[np.float64]
    places: list[tuple[float, float]]
    speakers: list[str]
    others: dict[str, npt.NDArray[np.float64]]

    def excerpt(self, count: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return the averages of `count` streams with the phrase, joined, and those of each source, by a title."""
        joined = self.phrases[:, :count, 0].T.reshape(-1)
        rows = {f"{count} trials of the test part, the phrase at the grey times": joined}
        for name, averages in self.others.items():
            rows[f"{name}, without the phrase"] = averages[..., 0].T.reshape(-1)[: len(joined)]
        return rows

    def spans(self, count: int) -> list[tuple[float, float]]:
        """Return begin and end in seconds of the phrases in the first row of `excerpt`."""
        steps = len(self.phrases)
        return [
            (self.seconds * (i * steps + begin), self.seconds * (i * steps + end))
            for i, (begin, end) in enumerate(self.places[:count])
        ]

    def hits(self, threshold: float) -> float:
        return sum(self._are_heard(threshold)) / len(self.places)

    def _are_heard(self, threshold: float) -> list[bool]:
        return [
            any(first <= word.step + 1 <= last for word in self.detector.find(self.phrases[:, i], threshold))
            for i, (first, last) in enumerate(self.places)
        ]

    def threshold(self, wanted: float) -> float:
        """Return the highest threshold with at least this share of hits, or the lowest one if none has it."""
        return float(max((t for t in THRESHOLDS if self.hits(t) >= wanted), default=THRESHOLDS[0]))

    @cached_property
    def points(self) -> list[dict[str, float]]:
        return [self.figures(threshold) for threshold in THRESHOLDS]

    def figures(self, threshold: float) -> dict[str, float]:
        """Return hits and false alarms at a threshold: over all sources of speech, and of each source."""
        are_heard, speakers = np.array(self._are_heard(threshold)), np.unique(self.speakers, return_inverse=True)[1]
        hits, cases = np.bincount(speakers, are_heard), np.bincount(speakers)
        low, high = interval(hits.astype(np.float64), cases.astype(np.float64))
        figures = {"hits": float(are_heard.mean()), "hits_low": low, "hits_high": high, "phrases": len(self.places)}
        counts, hours = dict[str, int](), dict[str, float]()
        for name, averages in self.others.items():
            rows = (averages[:, i] for i in range(averages.shape[1]))
            counts[name] = sum(len(self.detector.find(row, threshold)) for row in rows)
            hours[name] = averages.shape[0] * averages.shape[1] * self.seconds / 3600
        spoken = [name for name in counts if name != _NOISE]
        for prefix, names in {"": spoken, **{f"{name}_": [name] for name in counts}}.items():
            alarms, time = sum(counts[name] for name in names), sum(hours[name] for name in names)
            low, high = poisson_interval(alarms)
            figures |= {
                f"{prefix}false_alarms": alarms,
                f"{prefix}hours": time,
                f"{prefix}false_alarms_an_hour": alarms / time,
                f"{prefix}false_alarms_an_hour_low": low / time,
                f"{prefix}false_alarms_an_hour_high": high / time,
            }
        return figures


def speaker_parts(speakers: Iterable[str], others: Iterable[str], seed: int, fold: int | None = None) -> dict[str, int]:
    """Return the number of the part of each speaker: of the takes, and of the bank, where those of the takes stay."""
    parts = split_groups(speakers, seed, _HELD_OUT, fold)
    return split_groups({*others} - parts.keys(), seed, _HELD_OUT, fold) | parts


def hear(model: RecurrentModel, energies: Tensor, state: State | None) -> tuple[Tensor, State]:
    """Run a model on mel energies (T, B, stack * bands)."""
    assert isinstance(model, SequenceModel)
    assert model.frontend is not None
    with model.frontend.on_energies():
        y, last = model(energies, state)
    return y, last


def _good_takes(folder: Path, takes: MelBank, config: FrontendConfig) -> MelBank:
    """Return the takes that can be used; warn of those left out and of a short phrase, and refuse long ones."""
    refused, advice = dict[str, str](), dict[str, str]()
    for name in takes.name.tolist():
        try:
            sentence = check_take(read_wav(folder / name, config.sample_rate), config.sample_rate)
        except EdgernnError as error:
            refused[name] = str(error)
        else:
            advice |= {} if sentence is None else {name: sentence}
    seen = dict[bytes, str]()
    for i, name in enumerate(takes.name.tolist()):
        if name not in refused and (same := seen.setdefault(takes.recording(i).tobytes(), name)) != name:
            refused[name] = f"expected a recording of its own, got that of {same}; remove one"
    takes = takes.chosen(np.array([name not in refused for name in takes.name]))
    first = next((f"{folder / name}: {sentence}" for name, sentence in refused.items()), None)
    if len(takes) < len(PARTS):
        why = "" if first is None else f" that can be used ({first})"
        raise EdgernnError(
            f"{folder}: expected at least {len(PARTS)} takes of the phrase, got {len(takes)}{why}; record 25 or more"
        )
    if first is not None:
        warnings.warn(f"{counted(len(refused), 'take')} left out: {first}", EdgernnWarning, stacklevel=3)
    if 2 * len(advice) > len(takes):
        name, sentence = next(iter(advice.items()))
        warnings.warn(f"{folder / name}: {sentence}", EdgernnWarning, stacklevel=3)
    return takes
