# SPDX-License-Identifier: Apache-2.0
"""A model that hears: audio samples go in as they come, detected words come out."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.info import frontend, step_samples
from edgernn.runtime.session import Session
from edgernn.runtime.wav import FULL_SCALE
from edgernn.runtime.word_detection import DetectedWord, Detector, PostProcessing


class Listener:
    """Runs a model of words step by step on one stream of audio, and counts its work.

    Attributes:
        session: The open model.
        classes: Names of the classes.
        rate: Sample rate in Hz of the audio.
        hop: Number of samples of a step.
        detector: Detector of the words, with the settings of the file, or with those that replace them.
        steps: Number of steps so far.
    """

    session: Session
    classes: list[str]
    rate: int
    hop: int
    detector: Detector
    steps: int

    def __init__(
        self,
        model: Path,
        changes: Mapping[str, float | None] = MappingProxyType({}),
        *,
        backend: Literal["auto", "native", "portable"] = "auto",
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        """Open a model.

        Args:
            model: The exported file of a model that reads audio samples and has names of its classes.
            changes: Settings of the word detection (`PostProcessing`) that replace those in the file unless they are
                None.
            backend: As for `Session`.
            threads: As for `Session`.
            device: As for `Session`.

        Raises:
            UsageError: The model does not read audio or has no names of classes, or a setting is out of range.
            EdgernnError: The file cannot be read, or the backend or the device is not available.
        """
        self.session = Session(model, backend=backend, threads=threads, device=device)
        if self.session.onnx is None:
            raise UsageError(
                f"{model}: expected a file that `edgernn export` wrote, got a packed model or that of another tool; "
                "name the file that it was packed from"
            )
        audio = frontend(self.session.info)
        if audio is None:
            raise UsageError(
                f"{model}: expected a model that reads audio, got one without a front end; train it with "
                "frontend=logmel"
            )
        classes = self.session.info.get("classes")
        if type(classes) is not list or not all(type(name) is str for name in classes):
            raise UsageError(
                f"{model}: expected the names of its classes in the file, got none; export the model from its run "
                "directory"
            )
        self._model, self.classes = model, classes
        self.hop, self.rate = step_samples(audio), int(audio["sample_rate"])
        settings = PostProcessing.stored(self.session.info, **changes)
        self.detector = Detector(classes, self.hop / self.rate, settings)
        self.steps = self._updates = self._macs = 0
        self._rest = np.empty(0, np.int16)

    def feed(self, samples: NDArray[np.int16]) -> list[DetectedWord]:
        """Run the steps that the next samples (S,) complete; samples of an incomplete step are kept for the next call.

        Args:
            samples: The next samples of the stream, from -32768 to 32767.

        Returns:
            The words that are detected at these steps, in order of time.

        Raises:
            EdgernnError: The model's output does not have one score for each class.
        """
        samples = np.concatenate([self._rest, samples])
        count = len(samples) // self.hop
        self._rest = samples[count * self.hop :]
        steps = samples[: count * self.hop].reshape(count, self.hop).astype(np.float32) / np.float32(FULL_SCALE)
        scores = np.empty((count, len(self.classes)), np.float32)
        session, info = self.session, self.session.info
        for t, step in enumerate(steps):
            y = session.step(step)
            if y.shape != scores[t].shape:
                raise EdgernnError(
                    f"{self._model}: expected y with a score for each of its {len(self.classes)} classes, got {len(y)} "
                    "numbers; export the model from its run directory again"
                )
            scores[t] = y
            self._updates += session.neurons if session.updates is None else int(session.updates.sum())
            self._macs += info["macs"] if session.macs is None else int(session.macs.sum())
        self.steps += count
        return self.detector.feed(scores)

    @property
    def seconds(self) -> float:
        """Length of the steps so far."""
        return self.steps * self.hop / self.rate

    def describe(self, word: DetectedWord) -> dict[str, Any]:
        """Return a dict with the keys seconds (from the start to the end of the step), word and score."""
        seconds = (word.step + 1) * self.hop / self.rate
        return {"seconds": seconds, "word": self.classes[word.label], "score": word.score}

    def work(self) -> dict[str, float]:
        """Return skip_percent and the counts a second, see `run_stream`, of the steps so far; there must be one."""
        seconds, cost = self.seconds, self.session.info["cost"]
        return {
            "skip_percent": 100 * (1 - self._updates / (self.steps * self.session.neurons)),
            "updates_a_second": self._updates / seconds,
            "macs_a_second": self._macs / seconds,
            # files of earlier versions lack both
            **{
                f"{part}_macs_a_second": cost.get(f"{part}_macs", 0) * self.rate / self.hop
                for part in ("frontend", "block")
            },
        }
