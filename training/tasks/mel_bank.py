# SPDX-License-Identifier: Apache-2.0
"""A bank of recordings as mel energies of 8 bits, from which a model of a wake word learns what is not its phrase."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from edgernn.errors import EdgernnError
from edgernn.files import write_arrays
from edgernn.frontends import FrontendConfig, LogMel
from edgernn.npz import read_npz
from edgernn.runtime.takes import LONGEST, spoken
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.training.tasks.mixing import frame_power
from edgernn.training.tasks.parts import groups_of, visible
from edgernn.training.tasks.recordings import PARTS, WAV, Audio, noise_parts

Energies = npt.NDArray[np.float32]
# frames (n, bands), level in dB, and number of loud frames
_Recording = tuple[npt.NDArray[np.uint8], float, int]
# energy in dB of the byte 1, and difference between two bytes; the byte 0 is digital silence
_LOWEST, _STEP = -100.0, 0.5
# energy of each byte
ENERGIES = np.concatenate([[0.0], 10 ** ((_LOWEST + _STEP * np.arange(255)) / 10)]).astype(np.float32)
# a frame of a long recording is loud if its power is more than this share of that of the loudest frame (-30 dB)
_LOUD, _SILENT = 1e-3, 1e-10
# a longer recording is cut into pieces, so that each part of the data gets some
_CUT_SECONDS, _PIECES = 60.0, 10
# settings of a front end that define its mel energies
_DEFINITION = ("sample_rate", "window_size", "hop", "bands", "low_frequency", "high_frequency")
_SPEAKER = "_nohash_"
# random key of the split into parts
_SPLIT = 81
_ARRAYS = ("frames", "begin", "level", "loud", "source", "group", "name", "is_noise", "definition")


@dataclass(frozen=True)
class MelBank:
    """N recordings as mel energies: one frame (bands,) for each hop, without the silence around short recordings.

    Attributes:
        frames: Energies of all frames (F, bands) uint8, 0.5 dB each; `ENERGIES` converts them.
        begin: Index of the first frame of each recording, and F (N + 1,).
        level: Mean power of the loud frames of each recording in dB of full scale (N,).
        loud: Number of loud frames of each recording (N,): those less than 30 dB below the loudest one.
        source: Name of the folder from which each recording was read (N,).
        group: Speaker of each recording (N,), or its path.
        name: Path of each recording (N,).
        is_noise: True for recordings of noise without speech (N,).
        definition: Settings of the front end that define the energies, as an array of numbers.
    """

    frames: npt.NDArray[np.uint8]
    begin: npt.NDArray[np.int64]
    level: npt.NDArray[np.float32]
    loud: npt.NDArray[np.int64]
    source: npt.NDArray[np.str_]
    group: npt.NDArray[np.str_]
    name: npt.NDArray[np.str_]
    is_noise: npt.NDArray[np.bool_]
    definition: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.level)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of frames of each recording (N,)."""
        return np.diff(self.begin)

    @property
    def frame_seconds(self) -> float:
        return float(self.definition[2] / self.definition[0])

    def minutes(self) -> float:
        """Return the minutes of sound: those of loud frames."""
        return float(self.loud.sum()) * self.frame_seconds / 60

    def recording(self, i: int) -> npt.NDArray[np.uint8]:
        """Return the frames (n, bands) of the recording with the index i."""
        return self.frames[self.begin[i] : self.begin[i + 1]]

    def chosen(self, members: npt.NDArray[Any]) -> Self:
        """Return a bank of the recordings with these indices, or of those that a mask (N,) marks."""
        members = np.flatnonzero(members) if members.dtype == bool else members
        parts = [self.recording(int(i)) for i in members]
        begin = np.concatenate([[0], np.cumsum(self.lengths[members])]).astype(np.int64)
        kept: dict[str, Any] = {name: getattr(self, name)[members] for name in _ARRAYS[2:-1]}
        return replace(self, frames=np.concatenate([self.frames[:0], *parts]), begin=begin, **kept)

    def joined(self, other: Self) -> Self:
        """Return a bank of the recordings of both."""
        begin = np.concatenate([self.begin, self.begin[-1] + other.begin[1:]])
        names = ("frames", *_ARRAYS[2:-1])
        arrays: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return replace(self, begin=begin, **arrays)

    def save(self, path: Path) -> None:
        """Write the bank as an npz file."""
        write_arrays(path, {name: getattr(self, name) for name in _ARRAYS})


def definition_of(config: FrontendConfig) -> npt.NDArray[np.float64]:
    """Return the settings of a front end that define its mel energies, as an array of numbers."""
    high = config.high_frequency or config.sample_rate / 2
    values: Mapping[str, Any] = {name: getattr(config, name) for name in _DEFINITION} | {"high_frequency": high}
    return np.array([values[name] for name in _DEFINITION], np.float64)


def load_bank(path: Path, config: FrontendConfig) -> MelBank:
    """Read a bank from its npz file.

    Args:
        path: The file.
        config: Settings of the model's front end.

    Returns:
        The bank.

    Raises:
        EdgernnError: The file is no bank, or its energies are those of another front end.
    """
    arrays = read_npz(path, _ARRAYS)
    bank = MelBank(**{name: arrays[name] for name in _ARRAYS})
    if not _is_whole(bank):
        raise EdgernnError(
            f"{path}: expected a bank of recordings, got other arrays; make it with edgernn wakeword bank"
        )
    expected = definition_of(config)
    if not np.array_equal(bank.definition, expected):
        raise EdgernnError(
            f"{path}: expected mel energies of the model's front end, {_in_words(expected)}, got those of "
            f"{_in_words(bank.definition)}; set those of the bank, or make it again"
        )
    return bank


def _is_whole(bank: MelBank) -> bool:
    """True if the arrays that were read from a file are those of a bank."""
    kinds = "".join(getattr(bank, name).dtype.kind for name in _ARRAYS)
    if kinds != "uifiUUUbf" or bank.frames.dtype != np.uint8 or bank.level.ndim != 1:
        return False
    count, frames = len(bank), bank.frames
    shapes = {getattr(bank, name).shape for name in _ARRAYS[2:-1]} == {(count,)}
    places = bank.begin.shape == (count + 1,) and frames.ndim == 2 and bank.definition.shape == (len(_DEFINITION),)
    if not shapes or not places or frames.shape[1] != bank.definition[3] or not np.isfinite(bank.level).all():
        return False
    return [*bank.begin[[0, -1]]] == [0, len(frames)] and bool((bank.lengths >= 1).all() and (bank.loud >= 0).all())


def _in_words(definition: npt.NDArray[np.float64]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in zip(_DEFINITION, definition, strict=False))


def read_recordings(
    folder: Path,
    config: FrontendConfig,
    *,
    pattern: str | None = None,
    is_noise: bool = False,
    on_file: Callable[[int, int], object] = lambda done, total: None,
) -> MelBank:
    """Read all wav files below a folder as a bank.

    The first and last frames of a recording of up to 5 s are left out if nobody speaks in them (`spoken`). Silent
    recordings are left out.

    Args:
        folder: The folder, which may have subfolders.
        config: Settings of the front end.
        pattern: Pattern of the files' paths, with {} for the speaker (`groups_of`). Default: the text before _nohash_
            of a file's name, or else its subfolder, the outermost one; of a file in the folder itself, its own name.
        is_noise: True for recordings of noise without speech.
        on_file: Function that gets the number of files that are read, and that of all files.

    Returns:
        The bank.

    Raises:
        EdgernnError: The folder has no wav file with sound, or a file cannot be read.
        UsageError: A path does not fit the pattern.
    """
    paths = sorted(path for path in visible(folder) if path.suffix.lower() == WAV) if folder.is_dir() else []
    if not paths:
        raise EdgernnError(f"{folder}: expected a folder with wav files, got none; name another one, or record some")
    names = [str(path.relative_to(folder)) for path in paths]
    groups = [_speaker(path, folder) for path in paths] if pattern is None else groups_of(pattern, names)
    front, parts, kept = LogMel(config), list[_Recording](), list[int]()
    for i, path in enumerate(paths):
        on_file(i, len(paths))
        part = _read(path, front)
        if part is not None:
            parts.append(part)
            kept.append(i)
    if not parts:
        raise EdgernnError(f"{folder}: expected recordings with sound, got silent ones alone; check the microphone")
    return _assembled(parts, folder.resolve().name, [(groups[i], names[i]) for i in kept], config, is_noise=is_noise)


def generated_noise(config: FrontendConfig, part: int) -> MelBank:
    """Return a bank of generated noise, white, pink and brown, that differs in each part of the data."""
    front = LogMel(config)
    sounds = list(noise_parts(None, config.hop, config.sample_rate).values())[part]
    parts = [frames for sound in sounds if (frames := _frames(sound, front)) is not None]
    labels = [("generated", f"generated {i}") for i in range(len(parts))]
    return _assembled(parts, "generated", labels, config, is_noise=True)


def _assembled(
    parts: Sequence[_Recording],
    source: str,
    labels: Sequence[tuple[str, str]],
    config: FrontendConfig,
    *,
    is_noise: bool,
) -> MelBank:
    """Return a bank of recordings; `labels` has the group and the name of each.

    Noise and recordings of more than a minute are cut into ten pieces. The pieces of noise have groups of their own,
    and so have those of speech if there are fewer groups than parts of the data.
    """
    are_few = len({group for group, _ in labels}) < len(PARTS)
    frames, levels, counts, groups, names = [], [], [], [], []
    for (energies, level, loud), (group, name) in zip(parts, labels, strict=True):
        is_long = is_noise or len(energies) * config.hop > _CUT_SECONDS * config.sample_rate
        pieces = np.array_split(energies, _PIECES) if is_long and len(energies) >= _PIECES else [energies]
        for k, piece in enumerate(pieces):
            frames.append(piece)
            levels.append(level)
            counts.append(loud // len(pieces))
            groups.append(f"{group} {name} {k}" if len(pieces) > 1 and (is_noise or are_few) else group)
            names.append(name)
    return MelBank(
        np.concatenate(frames),
        np.concatenate([[0], np.cumsum([len(part) for part in frames])]).astype(np.int64),
        np.array(levels, np.float32),
        np.array(counts, np.int64),
        np.array([source] * len(frames)),
        np.array(groups),
        np.array(names),
        np.full(len(frames), is_noise),
        definition_of(config),
    )


def _speaker(path: Path, folder: Path) -> str:
    if _SPEAKER in path.name:
        return path.name.partition(_SPEAKER)[0]
    return path.relative_to(folder).parts[0] if path.parent != folder else path.stem


def _read(path: Path, front: LogMel) -> _Recording | None:
    """Return the frames, level and number of loud frames of a wav file; None if it is silent or shorter than a hop."""
    return _frames(read_wav(path, front.config.sample_rate).astype(np.float32) / np.float32(FULL_SCALE), front)


def _frames(samples: Audio, front: LogMel) -> _Recording | None:
    config = front.config
    samples = samples[: len(samples) // config.hop * config.hop]
    if not samples.any():
        return None
    power = frame_power(samples[None], config.hop)[0]
    # the pauses of a longer recording belong to it
    is_short = len(power) * config.hop <= LONGEST * config.sample_rate
    loud = spoken(10 * np.log10(np.maximum(power, _SILENT))) if is_short else power > _LOUD * power.max()
    before = np.zeros(config.window_size - config.hop, np.float32)
    with torch.no_grad():
        signal = torch.from_numpy(np.concatenate([before, samples]))[None]
        energies = front.energies(signal)[:, 0].numpy()
    if is_short:
        first, last = np.flatnonzero(loud)[[0, -1]]
        energies = energies[max(0, first - 1) : last + 3]
    decibels = 10 * np.log10(np.maximum(energies, 1e-30))
    frames = np.clip(np.rint((decibels - _LOWEST) / _STEP) + 1, 0, 255).astype(np.uint8)
    return frames, 10 * float(np.log10(power[loud].mean())), int(loud.sum())


def split_groups(groups: Iterable[str], seed: int, shares: Sequence[float], fold: int | None = None) -> dict[str, int]:
    """Split groups, such as speakers, at random into parts.

    Args:
        groups: Names of the groups, which may repeat.
        seed: Random seed.
        shares: Share of the groups of each part but the first; each part has at least one group if there are enough.
        fold: Number of a fold: the parts of later folds begin later in an order that does not depend on the seed, by
            the last share of the groups each time.

    Returns:
        Dict from the name of each group to the number of its part.
    """
    names = sorted(set(groups))
    order = np.random.default_rng([_SPLIT, seed if fold is None else 0, 0]).permutation(len(names))
    if fold is not None:
        order = np.roll(order, -round(fold * shares[-1] * len(names)))
    parts, at = dict.fromkeys(names, 0), 0
    for part, share in enumerate(shares, 1):
        count = max(1, round(share * len(names)))
        for i in order[at : at + count]:
            parts[names[i]] = part
        at += count
    return parts
