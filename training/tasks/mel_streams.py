# SPDX-License-Identifier: Apache-2.0
"""Streams of a phrase, of other speech and of noise, composed as mel energies: no sample and no FFT is computed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgernn.training.tasks.mel_bank import ENERGIES, Energies, MelBank

# lowest and highest level of the speech, and signal-to-noise ratio, in dB
_LEVELS, _RATIOS = (-50.0, -12.0), (3.0, 30.0)
# a recording differs from the level of its stream by up to so many dB
_JITTER = 3.0
# longest gap between recordings, and shortest and longest stretch of a long recording, in seconds
_GAP, _STRETCH = 0.3, (0.5, 1.5)
_TEMPOS = (0.9, 1.0, 1.1)
_WARPS = (0.9, 0.95, 1.0, 1.05, 1.1)
# largest tilt and ripple of a microphone's colour in dB
_TILT, _RIPPLE = 6.0, 3.0
# probability of a mask, its largest number of bands, and its largest duration in seconds
_MASKED, _MASK_BANDS, _MASK_SECONDS = 0.3, 6, 0.1
# probabilities of a stream without speech, of one without noise, and of a part of the phrase among other speech
_WORDLESS, _NOISELESS, _CUT = 0.1, 0.05, 0.1
# the mean power of noise and that of speech are compared by these levels
_QUIETEST = -80.0


@dataclass(frozen=True)
class Scene:
    """Scene of a stream for a while: level of the speech in dB, noise, its ratio, and colour (bands,)."""

    level: float
    ratio: float
    noise: int
    colour: Energies


@dataclass(frozen=True)
class Composer:
    """Composes streams from recordings.

    Attributes:
        takes: Recordings of the phrase.
        speech: Recordings of other speech.
        noise: Recordings of noise.
        augments: True to change tempo, pitch and colour of the recordings, and to mask parts of a stream.
    """

    takes: MelBank
    speech: MelBank
    noise: MelBank
    augments: bool

    @property
    def bands(self) -> int:
        return int(self.noise.frames.shape[1])

    def frames(self, seconds: float) -> int:
        return round(seconds / self.noise.frame_seconds)

    def scene(self, rng: np.random.Generator) -> Scene:
        """Draw a scene."""
        place = np.linspace(-1, 1, self.bands)
        tilt, ripple, phase = rng.uniform(-_TILT, _TILT), rng.uniform(0, _RIPPLE), rng.uniform(0, 2 * np.pi)
        colour = tilt * place + ripple * np.cos(rng.uniform(1, 6) * place + phase)
        gains = 10 ** (colour / 10 if self.augments else np.zeros(self.bands))
        ratio = np.inf if rng.random() < _NOISELESS else rng.uniform(*_RATIOS)
        return Scene(rng.uniform(*_LEVELS), ratio, int(rng.integers(len(self.noise))), gains.astype(np.float32))

    def stream(
        self, rng: np.random.Generator, scene: Scene, length: int, phrase: int | None = None, after: int = 0
    ) -> tuple[Energies, tuple[int, int] | None]:
        """Compose a stream of other speech and noise, and maybe one take of the phrase.

        Args:
            rng: Random generator.
            scene: Levels, noise and colour.
            length: Number of frames.
            phrase: Index of the take, which is put at a random place. Default: none.
            after: Least number of frames from the end of the phrase to that of the stream.

        Returns:
            The energies (length, bands), and the first frame of the phrase and the one after it, or None.
        """
        energies = np.zeros((length, self.bands), np.float32)
        place = None
        if phrase is not None:
            take = self._piece(rng, self.takes, phrase, scene.level)[: length - after]
            begin = int(rng.integers(length - after - len(take) + 1))
            place = begin, begin + len(take)
            energies[slice(*place)] = take
        if phrase is not None or rng.random() >= _WORDLESS:
            for first, last in ((0, length),) if place is None else ((0, place[0]), (place[1], length)):
                self._fill(rng, energies[first:last], scene.level)
        self._finish(rng, scene, energies)
        return energies, place

    def talk(self, rng: np.random.Generator, scene: Scene, length: int) -> tuple[Energies, list[tuple[int, int, int]]]:
        """Compose a stream of other speech and noise.

        Args:
            rng: Random generator.
            scene: Levels, noise and colour.
            length: Number of frames.

        Returns:
            The energies (length, bands), and for each whole recording in it its index in `speech`, its first frame and
            the one after it.
        """
        energies = np.zeros((length, self.bands), np.float32)
        spoken = self._fill(rng, energies, scene.level)
        self._finish(rng, scene, energies)
        return energies, spoken

    def _finish(self, rng: np.random.Generator, scene: Scene, energies: Energies) -> None:
        """Add noise to energies (n, bands) of speech, and colour and mask them."""
        if np.isfinite(scene.ratio):
            noise = self.noise.recording(scene.noise)
            first = int(rng.integers(len(noise)))
            gain = 10 ** ((scene.level - scene.ratio - max(_QUIETEST, self.noise.level[scene.noise])) / 10)
            energies += ENERGIES[noise[np.arange(first, first + len(energies)) % len(noise)]] * np.float32(gain)
        energies *= scene.colour
        if self.augments:
            self._mask(rng, energies)

    def _fill(self, rng: np.random.Generator, energies: Energies, level: float) -> list[tuple[int, int, int]]:
        """Write other speech into energies (n, bands), which are zeros, with gaps; return the whole recordings."""
        at, longest, spoken = 0, self.frames(_GAP), list[tuple[int, int, int]]()
        while len(self.speech):
            at += int(rng.integers(longest + 1))
            if at >= len(energies):
                break
            if self.augments and len(self.takes) and rng.random() < _CUT:
                piece = self._piece(rng, self.takes, int(rng.integers(len(self.takes))), level)
                half = max(1, round(len(piece) * rng.uniform(0.4, 0.5)))
                piece = piece[:half] if rng.random() < 0.5 else piece[-half:]
            else:
                # as often as it is long, so that an hour of a room is heard beside thousands of words
                frame = rng.integers(len(self.speech.frames))
                recording = int(np.searchsorted(self.speech.begin, frame, "right")) - 1
                piece = self._piece(rng, self.speech, recording, level)
                if at + len(piece) <= len(energies):
                    spoken.append((recording, at, at + len(piece)))
            piece = piece[: len(energies) - at]
            energies[at : at + len(piece)] = piece
            at += len(piece)
        return spoken

    def _piece(self, rng: np.random.Generator, bank: MelBank, i: int, level: float) -> Energies:
        """Return the energies (n, bands) of a recording at a level, or those of a stretch of a long one."""
        frames = bank.recording(i)
        shortest, longest = map(self.frames, _STRETCH)
        if bank is not self.takes and len(frames) > longest:
            length = int(rng.integers(shortest, longest + 1))
            first = int(rng.integers(len(frames) - length + 1))
            frames = frames[first : first + length]
        tempo, warp = (int(rng.integers(len(kinds))) for kinds in (_TEMPOS, _WARPS))
        gain = np.float32(10 ** ((level + rng.uniform(-_JITTER, _JITTER) - bank.level[i]) / 10))
        if not self.augments:
            return ENERGIES[frames] * gain
        speed = _TEMPOS[tempo]
        frames = frames[(np.arange(max(1, int(len(frames) / speed))) * speed).astype(np.int64)]
        source = np.clip(np.arange(self.bands) * _WARPS[warp], 0, self.bands - 1)
        below = source.astype(np.int64)
        share = (source - below).astype(np.float32)
        energies = ENERGIES[frames] * gain
        warped: Energies = energies[:, below] * (1 - share) + energies[:, np.minimum(below + 1, self.bands - 1)] * share
        return warped

    def _mask(self, rng: np.random.Generator, energies: Energies) -> None:
        if rng.random() < _MASKED:
            first = rng.integers(self.bands)
            energies[:, first : first + rng.integers(1, _MASK_BANDS + 1)] = 0
        if rng.random() < _MASKED:
            first = rng.integers(len(energies))
            energies[first : first + rng.integers(1, self.frames(_MASK_SECONDS) + 1)] = 0


def step_labels(
    place: tuple[int, int] | None, steps: int, stack: int, window: tuple[int, int], unsure: int
) -> npt.NDArray[np.int64]:
    """Return the target of each step of a stream (steps,).

    Args:
        place: First frame of the phrase and the one after it, or None.
        steps: Number of steps.
        stack: Number of frames of a step.
        window: Frames from the end of the phrase to the first and the last frame whose steps should hear it.
        unsure: Number of steps before and after these whose target is ignored.

    Returns:
        1 at the steps that should hear the phrase, -1 beside them, and 0 elsewhere.
    """
    target = np.zeros(steps, np.int64)
    if place is not None:
        first, last = ((place[1] + offset) // stack for offset in window)
        target[max(0, first - unsure) : last + 1 + unsure] = -1
        target[max(0, first) : last + 1] = 1
    return target
