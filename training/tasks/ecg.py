# SPDX-License-Identifier: Apache-2.0
"""ECG task: find and classify heart beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.datasets.find import find_either
from edgernn.training.datasets.registry import SETS
from edgernn.training.tasks.base import Objective, Predictor, Tally, Task, class_weights
from edgernn.training.tasks.confusion import masked_cross_entropy
from edgernn.training.tasks.heartbeats import CLASSES, RATE, HeartRecord, count_beats, read_records, step_targets
from edgernn.training.tasks.parts import Array, Folds, standardisation
from edgernn.training.tasks.sources import Batch, Sequences, Split
from edgernn.training.tasks.windows import UNCOUNTED, windows_of

NO_BEAT = "none"
# one in 5 records of DS1 is for validation
_VALIDATION = 5
# with positions=true: seconds of signal before and after a beat
_BEFORE, _AFTER = 0.3, 0.4
# shares of the steps below the thresholds that the baseline tries
_QUANTILES = (0.86, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97)
# number of intervals between beats in the local mean
_INTERVALS = 10


class HeartPart(Sequences):
    """The training, validation or test part of the data: sequences, and the ECG records that they are cut from.

    Args:
        arrays: Inputs (N, T, I) and labels (N,); or inputs, labels (N, T) of each step, and a mask (N, T) that is True
            at steps without a beat.
        records: The ECG records, in the order in which their sequences follow each other in x.
        sizes: Number of sequences of each record.
        seed: Random seed of the order of the training sequences.
    """

    def __init__(
        self, arrays: Sequence[Tensor], records: Sequence[HeartRecord], sizes: Sequence[int], seed: int
    ) -> None:
        x, y, *marks = arrays
        background = marks[0] if marks else None
        origins = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        super().__init__(x, y, seed=seed, per_step=background is not None, background=background, origins=origins)
        self.records = records


class BeatTally(Tally):
    """Sensitivity (recall) and precision of each class of heart beats, and the mean of the classes' F1, over a split.

    The classes are normal (N), supraventricular (S) and ventricular (V).

    Args:
        records: ECG records of the split, in the order of its sequences, if the model detects beats. None if the model
            classifies beats whose positions are given.
        frame: Number of samples per step.
        delay: Seconds from a beat to the middle of the steps that are labelled with it.
    """

    def __init__(self, records: Sequence[HeartRecord] | None, frame: int, delay: float) -> None:
        self._records, self._frame, self._delay = records, frame, delay
        self._scores: list[npt.NDArray[np.float64]] = []
        self._targets: list[Array] = []

    def add(self, y: Tensor, batch: Batch) -> None:
        scores, target = y.double().softmax(-1), batch.target
        if self._records is not None:
            # in the order of the windows
            scores, target = scores.transpose(0, 1), target.T
            scores, target = scores[target != UNCOUNTED], target[target != UNCOUNTED]
        self._scores.append(scores.cpu().numpy())
        self._targets.append(target.cpu().numpy())

    def result(self) -> dict[str, float]:
        return self._figures(np.sum(self._counts(), 0))

    def without_each(self) -> list[dict[str, float]] | None:
        if self._records is None:
            return None
        counts = self._counts()
        return [self._figures(np.sum(counts, 0) - of_record) for of_record in counts]

    def _counts(self) -> list[npt.NDArray[np.int64]]:
        """Count beats by true class (rows) and detected class (columns): a (4, 4) for each record, or one for all."""
        scores, target = np.concatenate(self._scores), np.concatenate(self._targets)
        if self._records is None:
            counts = np.zeros((1 + len(CLASSES), 1 + len(CLASSES)), np.int64)
            np.add.at(counts, (1 + target, 1 + scores.argmax(1)), 1)
            return [counts]
        ends = np.cumsum([len(record.signal) // self._frame for record in self._records])
        parts = zip(self._records, np.split(scores, ends[:-1]), np.split(target, ends[:-1]), strict=True)
        return [count_beats(record, steps, part, self._frame, self._delay) for record, part, steps in parts]

    def _figures(self, counts: npt.NDArray[np.int64]) -> dict[str, float]:
        hits, truth, detected = np.diagonal(counts)[1:], counts[1:].sum(1), counts[:, 1:].sum(0)
        figures = {"macro_f1": float(np.mean(2 * hits / np.maximum(truth + detected, 1)))}
        for i, name in enumerate(CLASSES):
            figures[f"sensitivity_{name}"] = float(hits[i] / max(1, truth[i]))
            figures[f"precision_{name}"] = float(hits[i] / max(1, detected[i]))
        return figures


@dataclass
class Ecg(Folds, Task):
    """Heart beats in an electrocardiogram (ECG): find them, and classify them as N, S or V.

    The classes are those of the AAMI, the Association for the Advancement of Medical Instrumentation: normal (N),
    supraventricular (S) and ventricular (V).

    positions=false: the model must find the beats. x (window, B, frame) is the signal in mV, `frame` samples per step.
    target (window, B) is 0 without a beat, and 1, 2 or 3 (N, S, V) at `width` steps whose middle is `delay` seconds
    after a beat. A detected beat is a run of steps at which the model gives a class a higher probability than no beat,
    where runs at most 0.1 s apart are one beat. Its time is the middle of these steps, less `delay`. A detected beat
    matches an annotated beat if they are at most 150 ms apart; a beat has at most one match. Every window except the
    first of a record begins with `lead` or more steps of the window before it. These repeated steps are left out of
    loss and metrics, so that every step of a record counts once, except in the metrics of the work, such as
    skip_percent. Background steps, at which nothing happens, are those without a beat.

    positions=true: the positions of the beats are known. A sequence has one beat. x (T, B, frame + 4): the signal from
    0.3 s before to 0.4 s after the beat, `frame` samples per step, and at each step the same four numbers: the seconds
    since the beat before, the seconds until the next beat, the mean of the last 10 intervals between beats up to this
    beat, and the first number divided by that mean. target (B,): 0, 1 or 2 (N, S, V). No step is background.

    DS1 and DS2 are the two sets of records of de Chazal et al. Of the records of DS1, the seed or the setting `folds`
    chooses those for validation, a fifth by default; the others are for training. The records of DS2 are for the test.
    No patient is in both sets, except for the patient of records 201 (DS1) and 202 (DS2). Fusion beats, unknown beats
    and ventricular flutter are left out of loss and metrics. Beats that are detected there are not counted either.

    Loss: cross entropy with a weight for each class: its share of the training targets to the power of -balance, scaled
    so that the mean weight of a target is 1. Metrics over all beats of a split: macro_f1, the mean F1 of the three
    classes; and sensitivity and precision of each class, such as sensitivity_V. Missed and additional beats count as
    wrong. The sensitivity of a class without annotated beats is 0, and so is the precision of a class without detected
    beats.

    Settings:

    - `positions`: Give the model the positions of beats, and classify one beat per sequence.
    - `frame`: Number of samples per step; the sample rate is 360 Hz.
    - `window`, `lead`: Number of steps in a window, and number of steps at its start that repeat the window before it.
    - `delay`: Seconds from a beat to the middle of the steps that are labelled with it.
    - `width`: Number of steps that are labelled with a beat.
    - `balance`: Exponent of the class weights, from 0 (each target has weight 1) to 1 (the targets of each class have
      the same total weight).

    File: the folder that PhysioNet's archive unpacks to, or mit-bih-mlii.npz, with these arrays. `first` (records,):
    the value of the first sample of each record. `difference` (records, samples - 1): the differences of successive
    samples. Samples are integers in units of 1/200 mV, and 1024 is 0 mV. `record`: the names of all records. `ds1` and
    `ds2`: the names of the records in each set. `ann_sample` and `ann_symbol`: the index of the sample and the symbol
    of each annotation of the database, record after record. `ann_offset` (records + 1,): the annotations of record i
    have the indices ann_offset[i] to ann_offset[i + 1] - 1.

    Source: de Chazal, O'Dwyer, Reilly, "Automatic Classification of Heartbeats Using ECG Morphology and Heartbeat
    Interval Features", IEEE Transactions on Biomedical Engineering 51, 2004. Data: Moody, Mark, "The Impact of the
    MIT-BIH Arrhythmia Database", IEEE Engineering in Medicine and Biology 20, 2001.
    """

    positions: bool = False
    frame: Annotated[int, Field(ge=1, le=36)] = 6
    window: Annotated[int, Field(ge=2)] = 1200
    lead: Annotated[int, Field(ge=0)] = 200
    delay: Annotated[float, Field(ge=0, le=1)] = 0.1
    width: Annotated[int, Field(ge=1)] = 5
    balance: Annotated[float, Field(ge=0, le=1)] = 0.5

    name = "ecg"
    help = "Find and classify heart beats (needs the MIT-BIH arrhythmia database)."
    limits = (
        "No medical device, and not for diagnosis or treatment: trained and tested on recordings of the MIT-BIH "
        "arrhythmia database alone."
    )
    defaults = {"epochs": 20, "hidden_size": 64, "batch_size": 32, "lr": 3e-3, "clip": 1.0, "lambda": 1e-4}  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.lead >= self.window:
            raise UsageError(f"lead: expected fewer steps than window={self.window}, got {self.lead}; lower lead")
        self.classes = CLASSES if self.positions else (NO_BEAT, *CLASSES)
        self.output = "last" if self.positions else "all"
        self.input_size = self.frame + (4 if self.positions else 0)
        self.output_size = len(self.classes)

    def open(self, source: Path | None, seed: int) -> None:
        (path,) = find_either(self.name, "mit-bih", SETS["mit-bih"].forms, source)
        ds1, ds2 = read_records(path)
        if len(ds1) < 2 or not ds2:
            raise EdgernnError(
                f"{path}: expected 2 or more training records (ds1) and 1 or more test records (ds2), "
                f"got {len(ds1)} and {len(ds2)}; add records"
            )
        training, validation = (
            [ds1[i] for i in sorted(part)] for part in self.split_groups(path, len(ds1), _VALIDATION, seed)
        )
        self.train, self.validation, self.test = (
            self._part(path, records, seed) for records in (training, validation, ds2)
        )
        self.mean, self.std = standardisation(self.train.x)
        labels = self.train.y
        if missing := sorted(set(range(self.output_size)[-len(CLASSES) :]) - set(labels.flatten().tolist())):
            wanted = "beats of each class in the training part"
            got = CLASSES[missing[0] - self.output_size]
            raise EdgernnError(f"{path}: expected {wanted}, got none of {got}; add records")
        weight = class_weights(labels, self.output_size, self.balance)

        def loss(y: Tensor, target: Tensor) -> Tensor:
            return masked_cross_entropy(y, target, weight.to(y))

        self.objective = Objective("macro_f1", True, loss, lambda y, target: {})

    @property
    def marks_background(self) -> bool:
        return not self.positions

    def tally(self, split: Split) -> Tally:
        assert isinstance(split, HeartPart)
        return BeatTally(None if self.positions else split.records, self.frame, self.delay)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Add, unless the positions are known, a threshold on the range of the signal: each step above it is a beat N.

        The range is that of the samples of two successive steps, `delay` seconds before the step that is labelled. The
        threshold is the quantile of the training part's ranges that has the best macro_f1 there.
        """
        if self.positions:
            return super().baselines()
        train = self.train
        assert isinstance(train, Sequences)
        lag = round(self.delay * RATE / self.frame) + 1

        def above(threshold: float) -> Predictor:
            def predict(batch: Batch) -> Tensor:
                beats = (_ranges(batch.x) > threshold)[: max(0, len(batch.x) - lag)]
                return functional.one_hot(functional.pad(beats.long(), (0, 0, lag, 0)), self.output_size).float()

            return predict

        thresholds = np.quantile(_ranges(train.x.transpose(0, 1)), _QUANTILES)
        best = max(thresholds, key=lambda threshold: self.score(above(threshold), train)["macro_f1"])
        return super().baselines() | {"threshold on the range of the signal": self.score(above(best), self.test)}

    def _part(self, path: Path, records: list[HeartRecord], seed: int) -> HeartPart:
        pieces = [self._beats(record) if self.positions else self._windows(path, record) for record in records]
        arrays = [torch.from_numpy(np.concatenate(parts)) for parts in zip(*pieces, strict=True)]
        return HeartPart(arrays, records, [len(piece[0]) for piece in pieces], seed)

    def _windows(self, path: Path, record: HeartRecord) -> tuple[Array, Array, Array]:
        target = step_targets(record, self.frame, self.delay, self.width)
        if len(target) < self.window:
            wanted = f"at least window={self.window} steps of {self.frame} samples"
            raise EdgernnError(
                f"{path}: record {record.name}: expected {wanted}, got {len(target)} steps; lower window"
            )
        x = record.signal[: len(target) * self.frame].reshape(-1, self.frame)
        return windows_of(x, target, target == 0, self.window, self.lead)

    def _beats(self, record: HeartRecord) -> tuple[Array, Array]:
        """Cut a record into one sequence per beat; return the inputs (N, T, frame + 4) and the classes (N,)."""
        before = round(_BEFORE * RATE)
        steps = round((_BEFORE + _AFTER) * RATE) // self.frame
        places = np.arange(len(record.sample))
        fits = (record.sample >= before) & (record.sample - before + steps * self.frame <= len(record.signal))
        # the first and the last beat have no interval on one side
        chosen = places[fits & (places > 0) & (places < len(places) - 1) & (record.label >= 0)]
        starts = record.sample[chosen, None] - before + np.arange(steps * self.frame)
        signal = record.signal[starts].reshape(len(chosen), steps, self.frame)
        seconds = np.diff(record.sample) / RATE
        sums = np.concatenate([[0.0], np.cumsum(seconds)])
        first = np.maximum(0, chosen - _INTERVALS)
        mean = (sums[chosen] - sums[first]) / (chosen - first)
        since = seconds[chosen - 1]
        numbers = np.stack([since, seconds[chosen], mean, since / np.maximum(mean, 1 / RATE)], 1)
        constant = np.repeat(numbers[:, None].astype(np.float32), steps, 1)
        return np.concatenate([signal, constant], 2), record.label[chosen]


def _ranges(x: Tensor) -> Tensor:
    """Return the range of the samples of each step of x (T, B, frame) and the step after it, (T - 1, B)."""
    pairs = torch.cat([x[:-1], x[1:]], -1)
    return pairs.amax(-1) - pairs.amin(-1)
