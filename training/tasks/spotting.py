# SPDX-License-Identifier: Apache-2.0
"""Metrics of word detection in long recordings: hits, misses, wrong words, false alarms, and skipped neuron updates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from edgernn.costs import executed_macs, model_cost
from edgernn.model import RecurrentModel
from edgernn.runtime.word_detection import DetectedWord, Detector
from edgernn.training.pictures import save
from edgernn.training.tasks.parts import Array
from edgernn.training.tasks.rooms import Recording, Room, Spoken
from edgernn.training.tasks.streams import step_targets

# seconds after the end of a word in which a detection still counts for the word
LATE = 0.5
# thresholds of a DET curve, denser towards 1
THRESHOLDS = (*np.arange(0.1, 0.9, 0.05).round(2).tolist(), 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
# number of recordings in a batch, and number of steps that are run at once
_BATCH, _PART = 12, 2000


@dataclass
class Spotted:
    """Counts of spoken and detected words in recordings.

    Attributes:
        hits: Number of spoken words that were detected as the right word.
        wrong: Number of spoken words that were detected as another word.
        missed: Number of spoken words that were not detected.
        false_alarms: Number of all other detections: while no word was spoken, or a second time for the same word.
        hours: Length of the recordings in hours.
    """

    hits: int = 0
    wrong: int = 0
    missed: int = 0
    false_alarms: int = 0
    hours: float = 0.0

    @property
    def words(self) -> int:
        return self.hits + self.wrong + self.missed

    def add(self, words: Sequence[Spoken], times: Sequence[tuple[float, int]], late: float) -> None:
        """Compare the detections in a recording with its words, and add the outcome to the counts.

        The first detection between the start of a word and `late` samples after its end counts for this word: as a hit
        if it has the class of the word, else as wrong. A word without such a detection is missed. All other detections
        are false alarms.

        Args:
            words: The spoken words, in order of time.
            times: A pair (time in samples, class) for each detection, in order of time.
            late: Number of samples after the end of a word in which a detection still counts for this word.
        """
        i = 0
        for word in words:
            while i < len(times) and times[i][0] < word.begin:
                self.false_alarms += 1
                i += 1
            if i == len(times) or times[i][0] > word.end + late:
                self.missed += 1
                continue
            if times[i][1] == word.label:
                self.hits += 1
            else:
                self.wrong += 1
            i += 1
        self.false_alarms += len(times) - i

    def figures(self) -> dict[str, float]:
        """Return a dict with false_alarms_an_hour, and with hits, wrong and missed as shares of the words (0 to 1)."""
        count = max(1, self.words)
        return {
            "hits": self.hits / count,
            "wrong": self.wrong / count,
            "missed": self.missed / count,
            "false_alarms_an_hour": self.false_alarms / self.hours,
        }


@dataclass
class Heard:
    """Outputs of a model on long test recordings; its methods count hits and false alarms for any threshold.

    Attributes:
        detector: Detector with the settings for smoothing, threshold and pause after a word.
        averages: Class probabilities (T, classes) of each recording, averaged over time by `Detector.averages`.
        words: Spoken words of each recording, in order of time.
        hop: Number of samples per step.
        rate: Samples per second.
        update_rate: Mean share of the neurons that were updated at a step, from 0 to 1.
        background_rate: The same mean share, but only over the steps at which no word is spoken.
        macs: Mean multiply-adds of the recurrent layers at a step, without skipped work.
    """

    detector: Detector
    averages: list[Array]
    words: list[list[Spoken]]
    hop: int
    rate: int
    update_rate: float
    background_rate: float
    macs: float

    @property
    def hours(self) -> float:
        """Length of all recordings in hours."""
        return sum(map(len, self.averages)) * self.hop / self.rate / 3600

    def outcome(self, threshold: float) -> Spotted:
        """Count hits, wrong and missed words and false alarms in all recordings at a detection threshold.

        A spoken word of the class `_unknown_` should not be detected: a detection there is a false alarm.
        """
        outcome = Spotted(hours=self.hours)
        for average, words in zip(self.averages, self.words, strict=True):
            detections = self.detector.find(average, threshold)
            outcome.add(
                [word for word in words if word.label in self.detector.words],
                [(self._time(detection), detection.label) for detection in detections],
                LATE * self.rate,
            )
        return outcome

    def _time(self, detection: DetectedWord) -> float:
        return float((detection.step + 1) * self.hop)

    def curve(self) -> dict[str, list[float]]:
        """Return the points of the DET (detection error tradeoff) curve, as a dict from name to one value per point.

        The names are threshold, the detection threshold of each point; hits, wrong and missed, shares of the words from
        0 to 1; and false_alarms_an_hour.
        """
        points = [{"threshold": threshold} | self.outcome(threshold).figures() for threshold in THRESHOLDS]
        return {name: [point[name] for point in points] for name in points[0]}

    def figures(self, model: RecurrentModel) -> dict[str, float]:
        """Compute metrics of the detections at the detector's threshold, and of the model's updates and multiply-adds.

        Args:
            model: The model that computed these outputs.

        Returns:
            Dict from the name of each metric to its value. hits, wrong and missed are shares of the words, from 0 to 1.
            The other metrics are: false alarms per hour; hours of audio and number of words; the percentage of neurons
            that a step skips, over all steps and over those without a word; and neuron updates and multiply-adds per
            second of audio.
        """
        outcome = self.outcome(self.detector.settings.threshold)
        cost, second = model_cost(model), self.rate / self.hop
        neurons = sum(layer.cell.hidden_size for layer in model.recurrent_layers())
        return outcome.figures() | {
            "hours": outcome.hours,
            "words": outcome.words,
            "skip_percent": 100 * (1 - self.update_rate),
            "skip_percent_background": 100 * (1 - self.background_rate),
            "updates_a_second": neurons * self.update_rate * second,
            "macs_a_second": self.macs * second,
            "macs_a_second_dense": cost.macs * second,
            "frontend_macs_a_second": cost.frontend_macs * second,
            "block_macs_a_second": cost.block_macs * second,
        }


def listen(model: RecurrentModel, room: Room, new_detector: Callable[[], Detector], device: str) -> Heard:
    """Run a model on long test recordings, in which words are rare, and collect its outputs.

    Args:
        model: The model, with an output at every step.
        room: Object that builds the recordings.
        new_detector: Function that creates a detector in its initial state; it is called for each recording.
        device: The torch device of the model, such as cuda.

    Returns:
        The outputs of the model on these recordings.
    """
    hop, rate = room.acoustics.hop, room.acoustics.rate
    averages, words = list[Array](), list[list[Spoken]]()
    # numbers of steps, and of updates in units of one neuron: all, and those at background steps
    steps, updates, macs = np.zeros(2), np.zeros(2), 0.0
    for recordings in _batches(room.recordings()):
        x = torch.from_numpy(np.stack([r.samples for r in recordings])).view(len(recordings), -1, hop).transpose(0, 1)
        marks = [step_targets(r.words, len(x), room.clips.silence, hop, rate)[1] for r in recordings]
        background = torch.from_numpy(np.stack(marks, 1))
        state, scores = None, []
        for part, quiet in zip(torch.split(x, _PART), torch.split(background, _PART), strict=True):
            with model.marked(quiet.to(device)):
                y, state = model(part.to(device).contiguous(), state)
            scores.append(y.cpu())
            count, loud = quiet.numel(), quiet.numel() - int(quiet.sum())
            total, foreground = count * model.update_rate, loud * model.foreground_rate if loud else 0.0
            steps += count, count - loud
            updates += total, total - foreground
            macs += count * executed_macs(model)
        for i, recording in enumerate(recordings):
            averages.append(new_detector().averages(torch.cat([y[:, i] for y in scores]).numpy()))
            words.append(recording.words)
    rates = updates / np.maximum(steps, 1)
    return Heard(
        new_detector(), averages, words, hop, rate, float(rates[0]), float(rates[1]), macs / max(1.0, float(steps[0]))
    )


def _batches(recordings: Iterator[Recording]) -> Iterator[list[Recording]]:
    while batch := list(islice(recordings, _BATCH)):
        yield batch


def det_curve(path: Path, curve: dict[str, list[float]], hours: float) -> None:
    """Draw the DET (detection error tradeoff) curves: shares of missed and wrong words against false alarms per hour.

    Args:
        path: The image file to write.
        curve: Dict with the lists missed, maybe wrong (shares of the words, from 0 to 1) and false_alarms_an_hour,
            which have one value per detection threshold, as `Heard.curve` returns it.
        hours: Length of the recordings in hours. The axis of false alarms is linear below 1 / hours, else logarithmic.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = figure.subplots()
    alarms = curve["false_alarms_an_hour"]
    for name, style in (("missed", "-"), ("wrong", "--")):
        if name not in curve:
            continue
        ax.plot(alarms, [100 * share for share in curve[name]], style, color="black", linewidth=1.2, label=name)
    # less than one false alarm in the whole room cannot be told from none
    ax.set_xscale("symlog", linthresh=max(1 / hours, 1e-3))
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"false alarms an hour, in {hours:.3g} h of audio")
    ax.set_ylabel("words, %")
    ax.legend(frameon=False, fontsize="small")
    save(figure, path)


def score_picture(
    path: Path, rows: Mapping[str, Array], spans: Sequence[tuple[float, float]], step: float, threshold: float
) -> None:
    """Draw the average probability of a word over time.

    Args:
        path: The image file to write.
        rows: Dict from a title to the averages (T,) that are drawn under it.
        spans: Begin and end in seconds of each time at which the word should be detected, in the first row.
        step: Seconds of a step.
        threshold: Threshold of the detection.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.7 * len(rows)), layout="constrained")
    for i, (title, averages) in enumerate(rows.items()):
        ax = figure.add_subplot(len(rows), 1, i + 1)
        for begin, end in () if i else spans:
            ax.axvspan(begin, end, color="0.85", linewidth=0)
        ax.plot(step * np.arange(1, len(averages) + 1), averages, color="black", linewidth=0.8)
        ax.axhline(threshold, color="0.5", linestyle="--", linewidth=0.8)
        ax.set_xlim(0, step * len(averages))
        ax.set_ylim(0, 1.02)
        ax.set_title(title, fontsize="small", loc="left")
        ax.set_ylabel("probability")
    ax.set_xlabel("s")
    save(figure, path)
