# SPDX-License-Identifier: Apache-2.0
"""Artificial recordings of words in noise or silence, with class, first and last sample of each word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.training.tasks.clips import Clips
from edgernn.training.tasks.mixing import faded, noise_clips, word_power
from edgernn.training.tasks.recordings import Audio

# lowest and highest level of a scene's words in dB of full scale: mean power of the frames that are not quiet
_LEVELS = (-50.0, -15.0)
# approximate length of a recording of a room, and of a scene, in seconds
_RECORDING, _SCENE = 300.0, 60.0
# seconds over which the noise of a scene of a room rises at its start and falls at its end
_FADE = 1.0
# least seconds from the end of a word to the end of its slot, if the slot is long enough
_PAUSE = 0.3
# random keys: recordings of a room, and order of its words
_ROOM, _WORDS = 64, 65


@dataclass(frozen=True)
class Spoken:
    """A word in a recording: its class, and where it begins and ends.

    Attributes:
        label: Class of the word.
        begin: Index of its first sample.
        end: Index of the sample after its last one.
    """

    label: int
    begin: int
    end: int


@dataclass(frozen=True)
class Recording:
    """A recording: its samples (S,) from -1 to 1, and its words in order of time."""

    samples: Audio
    words: list[Spoken]


@dataclass(frozen=True)
class Acoustics:
    """Settings by which words are mixed with noise.

    Attributes:
        noise: Recordings of noise, samples (S,) each.
        noisy: Probability that a scene (a stretch of a recording) has noise between and under its words; otherwise it
            has zeros.
        low: Lowest signal-to-noise ratio in dB; the ratio of a scene is uniform between low and high.
        high: Highest signal-to-noise ratio in dB.
        hop: Number of samples in a frame; the power of a word is measured frame by frame.
        rate: Samples per second.
    """

    noise: Sequence[Audio]
    noisy: float
    low: float
    high: float
    hop: int
    rate: int

    def scene(
        self, rng: np.random.Generator, words: Sequence[tuple[int, Audio] | None], length: int, fade: float = 0.0
    ) -> Recording:
        """Generate a scene: a stretch of noise, or of zeros, into which words are mixed.

        All words of a scene are scaled to the same level, drawn uniformly from -50 to -15 dB of full scale. The level
        is the mean power of the frames of a word that are not quiet (`word_power`). The noise is scaled to a random
        signal-to-noise ratio, the level of the words in dB minus that of the noise. The scene is divided into slots of
        the same length, and each word begins at a random sample of its slot.

        Args:
            rng: Random generator.
            words: Class and samples of the word of each slot; None for a slot without a word.
            length: Number of samples of the scene.
            fade: Seconds over which the noise rises at the start and falls at the end.

        Returns:
            The scene; its samples are clipped to [-1, 1].
        """
        level = 10 ** (rng.uniform(*_LEVELS) / 20)
        samples = np.zeros(length, np.float32)
        if rng.random() < self.noisy:
            ratio = 10 ** (rng.uniform(self.low, self.high) / 20)
            noise = faded(noise_clips(self.noise, rng, 1, length)[0], round(fade * self.rate))
            samples += noise * np.float32(level / ratio)
        places = []
        slot, pause = length // max(1, len(words)), round(_PAUSE * self.rate)
        for i, word in enumerate(words):
            if word is None:
                continue
            label, clip = word
            begin = i * slot + int(rng.integers(max(1, slot - len(clip) - pause + 1)))
            end = min(length, begin + len(clip))
            power = word_power(clip[None], self.hop)[0]
            samples[begin:end] += clip[: end - begin] * np.float32(level / np.sqrt(power))
            places.append(Spoken(label, begin, end))
        return Recording(np.clip(samples, -1, 1), places)


@dataclass(frozen=True)
class Room:
    """Long artificial recordings in which words are rare, to test the detection of words.

    A recording lasts about 5 minutes. It consists of scenes of about a minute, each with noise from start to end or
    without noise. The words come from repeated passes over `clips`, each in a new random order. A pass has only a
    random choice of the clips of the class `_unknown_`, which would otherwise be too frequent, and every clip of the
    other words. The recordings do not depend on the seed of the training run.

    Attributes:
        clips: Clips with the words.
        acoustics: Settings by which words are mixed with noise.
        hours: Length of all recordings together, in hours.
        talk: Share of the time in which a word is spoken, from 0 to 1.
    """

    clips: Clips
    acoustics: Acoustics
    hours: float
    talk: float

    def recordings(self) -> Iterator[Recording]:
        """Build the recordings one by one; all have the same number of samples, a multiple of `acoustics.hop`."""
        rate, hop = self.acoustics.rate, self.acoustics.hop
        words = self._words(np.random.default_rng([_WORDS, 0, 0]))
        count = max(1, round(3600 * self.hours / _RECORDING))
        seconds = 3600 * self.hours / count
        scenes = max(1, round(seconds / _SCENE))
        length = max(1, round(seconds * rate / scenes / hop)) * hop
        # number of samples by which the words of the scenes so far fall short of `talk`; negative if they exceed it
        lacking = 0.0
        for number in range(count):
            rng = np.random.default_rng([_ROOM, 0, number])
            samples, places = [], list[Spoken]()
            for i in range(scenes):
                lacking += self.talk * length
                chosen = []
                while lacking > 0:
                    chosen.append(next(words))
                    lacking -= len(chosen[-1][1])
                part = self.acoustics.scene(rng, chosen, length, _FADE)
                samples.append(part.samples)
                places += [Spoken(word.label, word.begin + i * length, word.end + i * length) for word in part.words]
            yield Recording(np.concatenate(samples), places)

    def _words(self, rng: np.random.Generator) -> Iterator[tuple[int, Audio]]:
        """Yield the class and the samples (S,) of one word after another, in endless random passes over the clips."""
        audible = True
        while audible:
            audible = False
            for i in rng.permutation(self.clips.spoken(rng)):
                if (word := self.clips.word(i)) is not None:
                    audible = True
                    yield word
        raise EdgernnError(
            "room: expected audible words in the test files, got only silent clips; record the words of the test again"
        )
