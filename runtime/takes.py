# SPDX-License-Identifier: Apache-2.0
"""Recordings of a phrase, one take in each file, checked for level, clipping and length: `edgernn wakeword record`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.microphone import microphone
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.runtime.wav_folder import write_numbered

# seconds of a frame whose level is measured
_FRAME = 0.02
# levels in dB of full scale: of the loudest frame of a phrase at least, and of a frame that is all silence
_QUIET, _SILENT = -50.0, -100.0
# dB below the loudest frame down to which a frame belongs to the phrase, and at which the phrase is taken for cut off
_SPOKEN, _CUT = 30.0, 8.0
# noise has an even level: so many dB at most lie between the two percentiles; frames of the phrase are so much louder
_EVEN, _FLOOR, _ABOVE = 3.0, (10, 30), 6.0
# dB of the loudest frame above the noise between words
_CLEAR = 15.0
# successive samples at full scale that are called clipped
_CLIPPED = 3
# seconds of a phrase below which it is warned of, and at most, and of a whole take at most
_SHORT, LONGEST_PHRASE, LONGEST = 0.45, 2.5, 5.0


def spoken(levels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the frames of a short recording in which somebody speaks.

    They are less than 30 dB below the loudest frame and, in even noise, at least 6 dB above it.

    Args:
        levels: Level of each frame in dB (N,), N >= 1.

    Returns:
        True for these frames (N,).
    """
    low, high = np.percentile(levels, _FLOOR)
    loudest = levels.max()
    bound = loudest - _SPOKEN
    if high - low <= _EVEN and high + _ABOVE < loudest:
        bound = max(bound, high + _ABOVE)
    return np.asarray(levels >= bound)


def check_take(samples: NDArray[np.int16], rate: int, *, cut: bool = False) -> str | None:
    """Check one take of a phrase.

    Args:
        samples: The samples (S,), from -32768 to 32767.
        rate: Sample rate in Hz.
        cut: True for a take that should have a pause before and after the phrase, as one of a microphone has. Then a
            phrase that may be cut off is refused, and noise in the pauses is measured.

    Returns:
        A sentence of advice on a take that can be used, or None.

    Raises:
        EdgernnError: The take cannot be used: it is silent, too quiet, clipped, too short, too long or cut off.
    """
    frame = round(_FRAME * rate)
    if not frame <= len(samples) <= LONGEST * rate:
        raise EdgernnError(
            f"expected a take of {_FRAME:g} to {LONGEST:g} s, got {len(samples) / rate:.2f} s; cut it to one phrase"
        )
    if not samples.any():
        raise EdgernnError(
            "expected sound, got digital silence; check that the microphone is neither muted nor refused"
        )
    frames = samples[: len(samples) // frame * frame].astype(np.float64).reshape(-1, frame)
    levels = 10 * np.log10(np.maximum((frames**2).mean(1) / FULL_SCALE**2, 10 ** (_SILENT / 10)))
    loudest = float(levels.max())
    if loudest < _QUIET:
        raise EdgernnError(
            f"expected a phrase louder than {_QUIET:g} dB of full scale, got {loudest:.0f} dB; come closer to the "
            "microphone, or raise its level"
        )
    if (count := _clipped(samples)) > 0:
        raise EdgernnError(
            f"expected no clipping, got {count} samples at full scale; go farther from the microphone, or lower its "
            "level"
        )
    if cut and max(levels[0], levels[-1]) >= loudest - _CUT:
        end = "start" if levels[0] >= loudest - _CUT else "end"
        raise EdgernnError(
            f"expected a pause before and after the phrase, got speech at the {end}; leave a pause there"
        )
    frames_spoken = np.flatnonzero(spoken(levels))
    length = (frames_spoken[-1] - frames_spoken[0] + 1) * _FRAME
    if length > LONGEST_PHRASE:
        raise EdgernnError(
            f"expected a phrase of at most {LONGEST_PHRASE:g} s, got {length:.1f} s; cut the take to one phrase, or "
            "choose a shorter one"
        )
    if length < _SHORT:
        return (
            f"the phrase takes {length:.2f} s: one short word is in much of what people say, and gives many false "
            "alarms; choose a phrase of two words"
        )
    noise = float(np.percentile(levels, _FLOOR[0]))
    if cut and noise > _QUIET - 10 and loudest - noise < _CLEAR:
        return (
            f"the phrase is {loudest - noise:.0f} dB louder than the noise; record in a quieter place, or come closer"
        )
    return None


def _clipped(samples: NDArray[np.int16]) -> int:
    """Return the number of samples at full scale in runs of _CLIPPED and more."""
    full = np.abs(samples.astype(np.int32)) >= FULL_SCALE - 1
    edges = np.flatnonzero(np.diff(np.concatenate([[0], full, [0]])))
    runs = edges[1::2] - edges[::2]
    return int(runs[runs >= _CLIPPED].sum())


@dataclass
class Takes:
    """Takes of one speaker, which are checked and written to a folder under the next free numbers.

    Attributes:
        folder: The folder.
        speaker: Name of the speaker, which begins the names of files, or None.
        rate: Sample rate of the files in Hz.
        files: The files written so far.
        advice: Sentences on takes that can be used, by file.
        refused: Sentences on takes that were not written, by name of the take.
    """

    folder: Path
    speaker: str | None = None
    rate: int = 16000
    files: list[Path] = field(default_factory=list)
    advice: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.speaker is not None and not (self.speaker.replace("-", "").isalnum()):
            raise UsageError(f"speaker: expected a name of letters, digits and -, got {self.speaker!r:.40}; change it")

    def add(self, samples: NDArray[np.int16], name: str, *, cut: bool = False) -> str | None:
        """Check a take and write it.

        Args:
            samples: The samples (S,), from -32768 to 32767.
            name: Name of the take, for the report.
            cut: As for `check_take`.

        Returns:
            A sentence of advice, or on why the take was refused; None for a good take.
        """
        try:
            advice = check_take(samples, self.rate, cut=cut)
        except EdgernnError as error:
            self.refused[name] = str(error)
            return str(error)
        # training tells speakers apart by the text before _nohash_
        pattern = "take_{}.wav" if self.speaker is None else f"{self.speaker}_nohash_{{}}.wav"
        self.files.append(write_numbered(self.folder, pattern, samples, self.rate))
        if advice is not None:
            self.advice[str(self.files[-1])] = advice
        return advice

    def read(self, sources: Iterable[Path], on_take: Callable[[str, str | None], None]) -> None:
        """Add wav files of any rate.

        Args:
            sources: The files, and folders of such files.
            on_take: Function that gets the path of each file, and what `add` returns.

        Raises:
            UsageError: A folder has no wav files, or is the one that takes are written to.
        """
        for source in _wav_files(sources, self.folder):
            try:
                samples = read_wav(source, self.rate)
            except EdgernnError as error:
                self.refused[str(source)] = message = str(error).removeprefix(f"{source}: ")
                on_take(str(source), message)
                continue
            on_take(str(source), self.add(samples, str(source)))

    def record(
        self,
        count: int,
        seconds: float,
        before: Callable[[int], bool],
        on_start: Callable[[], None],
        on_take: Callable[[str, str | None], None],
    ) -> None:
        """Record takes through the microphone until `count` of them are good.

        Args:
            count: Number of takes.
            seconds: Length of a take.
            before: Function that waits for the speaker. It gets the number of the take, and returns False to stop.
            on_start: Function that is called when the microphone hears.
            on_take: Function that gets the name of each take, and what `add` returns.

        Raises:
            EdgernnError: There is no microphone, or its use is refused.
        """
        total = attempts = 0
        while total < count and before(total + 1):
            attempts += 1
            with microphone(self.rate) as read:
                # the first block may have what was heard before
                read()
                on_start()
                blocks: list[NDArray[np.int16]] = []
                while sum(map(len, blocks)) < seconds * self.rate:
                    blocks.append(read())
            name, files = f"take {total + 1}, attempt {attempts}", len(self.files)
            on_take(name, self.add(np.concatenate(blocks), name, cut=True))
            total += len(self.files) - files

    def report(self) -> dict[str, Any]:
        """Return a dict with the keys folder, rate, files (paths), advice and refused (dicts to sentences)."""
        return {
            "folder": str(self.folder),
            "rate": self.rate,
            "files": list(map(str, self.files)),
            "advice": self.advice,
            "refused": self.refused,
        }


def _wav_files(sources: Iterable[Path], folder: Path) -> Iterator[Path]:
    for source in sources:
        if not source.is_dir():
            yield source
            continue
        if folder.exists() and source.samefile(folder):
            raise UsageError(f"--input: expected a folder other than that of the takes, got {source}; name another one")
        files = sorted(path for path in source.rglob("*") if path.suffix.lower() == ".wav" and path.is_file())
        # the takes themselves
        files = [path for path in files if folder.resolve() not in path.resolve().parents]
        if not files:
            raise UsageError(f"{source}: expected wav files, got none; name a folder with recordings")
        yield from files
