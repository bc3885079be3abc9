# SPDX-License-Identifier: Apache-2.0
"""Detection of spoken words in a stream, from a model's scores (logits) at each step.

    p_t = round(65536 softmax(y_t))              probabilities of the classes, as integers; NaN counts as 0
    s_t = (p_t + ... + p_{t-w+1}) / (65536 w)    mean over the w steps of `smoothing` seconds; p is 0 before the first
    k_t = the class with the largest s_t         the first one of several; not "_unknown_" and "_silence_"

Word k_t is detected at step t if its s_t is at least `threshold` and no word was detected in the `refractory` seconds
before. A duration in seconds becomes the nearest number of steps, the even one of two, and at least 1. Sums of integers
are exact, so all implementations detect the same words: this one, `edgernn_detector.h` in C, and `word_detector.mjs`.
Training measures hits and false alarms with the same functions that `edgernn run --stream` uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import UsageError

# classes that are not detected: any other word, and silence or noise
UNKNOWN, SILENCE = "_unknown_", "_silence_"
NOT_WORDS = (UNKNOWN, SILENCE)
# the integer that stands for the probability 1
ONE = 1 << 16


@dataclass(frozen=True)
class PostProcessing:
    """Settings of word detection.

    Attributes:
        smoothing: Seconds over which probabilities are averaged.
        threshold: Smallest average probability at which a word is detected.
        refractory: Seconds after a detection in which no word is detected, not even the same one.

    Raises:
        UsageError: The threshold is not above 0 and at most 1, or another setting is not from 0 to 60 seconds.
    """

    smoothing: float = 0.3
    threshold: float = 0.5
    refractory: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold: expected above 0 and at most 1, got {self.threshold:g}")
        for name in ("smoothing", "refractory"):
            if not 0 <= (value := getattr(self, name)) <= 60:
                raise UsageError(f"{name}: expected from 0 to 60 seconds, got {value:g}")

    @classmethod
    def stored(cls, info: Mapping[str, Any], **changes: float | None) -> "PostProcessing":
        """Return the settings in a file's description (`read_info`).

        Args:
            info: The description; the defaults replace what it lacks.
            **changes: Settings that replace those of the file unless they are None.

        Returns:
            The settings.
        """
        changed = {name: value for name, value in changes.items() if value is not None}
        return cls(**{**(info.get("detector") or {}), **changed})


@dataclass(frozen=True)
class DetectedWord:
    """A word that was detected in a stream.

    Attributes:
        step: Index of the step in the stream, from 0, at whose end the word is detected.
        label: Index of the word in the names of the classes.
        score: Mean probability of the word over the window that ends at this step.
    """

    step: int
    label: int
    score: float


class Detector:
    """Detects spoken words in a model's scores (logits) for an audio stream; each call may pass any number of steps.

    Args:
        classes: Names of the classes, in the order of the scores.
        seconds: Duration of a step in seconds.
        settings: Settings of the detection.

    Raises:
        UsageError: No class is a word: all are "_unknown_" or "_silence_".
    """

    def __init__(self, classes: Sequence[str], seconds: float, settings: PostProcessing) -> None:
        self.classes, self.seconds = list(classes), seconds
        # indices of the classes that are words
        self.words = np.flatnonzero([name not in NOT_WORDS for name in classes])
        if not len(self.words):
            expected = f"at least one word to detect besides {' and '.join(NOT_WORDS)}"
            got = ", ".join(classes) or "none"
            raise UsageError(f"classes: expected {expected}, got {got}; use a model that was trained on words")
        self.settings = settings
        # steps in an average, and least number of steps from one detection to the next
        self.width = max(1, round(settings.smoothing / seconds))
        self.gap = max(1, round(settings.refractory / seconds))
        # probabilities of the last width - 1 steps, which the next average needs
        self._last: NDArray[np.int64] | None = None
        # number of steps so far, and first step at which the next word may be detected
        self._steps = self._free = 0

    @property
    def least(self) -> int:
        """Least sum over the steps of an average, in units of the probability 1 / ONE, at which a word is detected."""
        total = ONE * self.width
        near = int(self.settings.threshold * total)
        return next(s for s in range(max(0, near - 1), near + 3) if s / total >= self.settings.threshold)

    @property
    def resolution(self) -> float:
        """Difference between two neighbouring average probabilities."""
        return 1 / (ONE * self.width)

    def feed(self, scores: NDArray[np.float32]) -> list[DetectedWord]:
        """Detect words in the next T steps of the stream.

        Args:
            scores: Outputs y (T, classes) of the model at these steps.

        Returns:
            The detections, in order of time.
        """
        begin, self._steps = self._steps, self._steps + len(scores)
        detections = self.find(self.averages(scores), self.settings.threshold, begin, self._free)
        if detections:
            self._free = detections[-1].step + self.gap
        return detections

    def averages(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Compute the average probabilities (T, ..., classes) of the stream's next T steps from their scores.

        `scores` has the shape (T, ..., classes), too. The average of a step is over the last `smoothing` seconds.
        """
        # the integer nearest to a probability, from 0 to ONE
        probabilities = np.floor(np.nan_to_num(softmax(scores)) * ONE + 0.5).astype(np.int64)
        if self._last is None:
            self._last = np.zeros((self.width - 1, *probabilities.shape[1:]), np.int64)
        probabilities = np.concatenate([self._last, probabilities])
        self._last = probabilities[len(probabilities) - self.width + 1 :]
        sums = np.cumsum(np.concatenate([np.zeros_like(probabilities[:1]), probabilities]), 0)
        means: NDArray[np.float64] = (sums[self.width :] - sums[: -self.width]) / (ONE * self.width)
        return means

    def reset(self) -> None:
        """Start a new stream."""
        self._last = None
        self._steps = self._free = 0

    def find(self, average: NDArray[np.float64], threshold: float, begin: int = 0, free: int = 0) -> list[DetectedWord]:
        """Find detected words in average probabilities.

        Args:
            average: Average probabilities (T, classes) of T successive steps of the stream, from `averages`.
            threshold: Smallest average probability at which a word is detected.
            begin: Index of the first of these T steps in the stream.
            free: Index of the step in the stream from which a word may be detected again, after the refractory time of
                the last detection.

        Returns:
            The detections, in order of time.
        """
        spoken = average[:, self.words]
        best, peak = self.words[spoken.argmax(1)], spoken.max(1)
        steps = np.flatnonzero(peak >= threshold)
        detections: list[DetectedWord] = []
        i = int(np.searchsorted(steps, free - begin))
        while i < len(steps):
            t = int(steps[i])
            detections.append(DetectedWord(begin + t, int(best[t]), float(peak[t])))
            i = int(np.searchsorted(steps, t + self.gap))
        return detections


def softmax(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Compute probabilities from scores (logits) by softmax over the last axis; both have the shape (..., classes)."""
    with np.errstate(invalid="ignore"):
        shifted = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    probabilities: NDArray[np.float64] = shifted / shifted.sum(-1, keepdims=True)
    return probabilities
