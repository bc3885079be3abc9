# SPDX-License-Identifier: Apache-2.0
"""Training batches of artificial audio streams: words mixed into noise, with a label at each step."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from edgernn.training.tasks.clips import DRAWN, Clips
from edgernn.training.tasks.parts import Array
from edgernn.training.tasks.rooms import Acoustics, Spoken
from edgernn.training.tasks.sources import Batch, EpochOrder, Source
from edgernn.training.tasks.windows import UNCOUNTED

# a word stays the target for HOLD seconds after its end; the _RELEASE seconds that follow carry no loss
HOLD, _RELEASE = 0.2, 0.1
# random keys: order of an epoch, and contents of a batch
_ORDER, _SCENES = 66, 67


def step_targets(
    words: list[Spoken], steps: int, silence: int, hop: int, rate: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Compute the target of each step of a recording, and mark the background: the steps without a word.

    The target is the class of a word from its middle to 0.2 s after its end, UNCOUNTED (-2) in the 0.1 s that follow,
    and the class silence elsewhere. UNCOUNTED steps carry no loss, so that a model may end its detection a little late.
    Background steps are all except those from the start of a word to 0.2 s after its end.

    Args:
        words: The words of the recording, in order of time.
        steps: Number of steps.
        silence: Index of the class silence.
        hop: Number of samples per step.
        rate: Samples per second.

    Returns:
        The targets (steps,), and a mask (steps,) that is True at background steps.
    """
    target, background = np.full(steps, silence), np.ones(steps, bool)
    hold, release = (max(1, round(seconds * rate / hop)) for seconds in (HOLD, _RELEASE))
    for word in words:
        begin, middle, end = word.begin // hop, (word.begin + word.end) // 2 // hop, -(-word.end // hop)
        target[middle : end + hold] = word.label
        target[end + hold : end + hold + release] = UNCOUNTED
        background[begin : end + hold] = False
    return target, background


@dataclass
class Streams(Source):
    """Training batches of audio streams: artificial recordings that mix the words of several clips with noise.

    An epoch uses each of its clips in one stream. The clips that share a stream, and the noise, differ by epoch.

    Attributes:
        clips: Clips with the words; a clip of silence makes a gap between words.
        acoustics: Settings by which words are mixed with noise.
        steps: Number of steps of a stream.
        slots: Number of clips in a stream, which is divided into as many slots of equal length, one for each clip.
    """

    clips: Clips
    acoustics: Acoustics
    steps: int
    slots: int

    def __post_init__(self) -> None:
        clips = self.clips
        self._order = EpochOrder(len(clips), (_ORDER, clips.seed), lambda rng: rng.permutation(clips.members(rng)))

    @property
    def fingerprint(self) -> str | None:
        return self.clips.fingerprint

    def steps_per_epoch(self, batch_size: int) -> int:
        return self._order.steps(batch_size * self.slots)

    def batch(self, step: int, batch_size: int) -> Batch:
        members = self._order.chosen(step, batch_size * self.slots)
        rng = np.random.default_rng([_SCENES, self.clips.seed, step])
        hop, rate, silence = self.acoustics.hop, self.acoustics.rate, self.clips.silence
        samples, targets, backgrounds = [], [], []
        for chosen in np.split(members, range(self.slots, len(members), self.slots)):
            gaps = (chosen == DRAWN) | (self.clips.label[chosen] == silence)
            words = [None if gap else self.clips.word(i) for i, gap in zip(chosen, gaps, strict=True)]
            stream = self.acoustics.scene(rng, words, self.steps * hop)
            stream_target, stream_background = step_targets(stream.words, self.steps, silence, hop, rate)
            samples.append(stream.samples.reshape(self.steps, hop))
            targets.append(stream_target)
            backgrounds.append(stream_background)
        arrays: tuple[list[Array], ...] = samples, targets, backgrounds
        x, target, background = (torch.from_numpy(np.stack(parts, 1)) for parts in arrays)
        return Batch(x, target, per_step=True, background=background)
