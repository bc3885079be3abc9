# SPDX-License-Identifier: Apache-2.0
"""Folders of recorded words: wav files by class and by part, and recordings of noise."""

import csv
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, counted
from edgernn.runtime.wav import FULL_SCALE, clip_of, conversion, read_wav
from edgernn.training.formats import read_text
from edgernn.training.tasks.parts import HELD_OUT, Folds, check_apart, groups_of, split_each, visible

Audio = npt.NDArray[np.float32]
WAV = ".wav"
# suffixes of sound files that are not read
OTHER_SOUNDS = (".aac", ".aif", ".aiff", ".amr", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wma")
PARTS = ("train", "validation", "test")
BACKGROUND = "_background_noise_"
# lists of the validation and test files in the layout of Speech Commands
LISTS = ("validation_list.txt", "testing_list.txt")
# folder of the words, and lists of each part's files, in the layout of the Arabic set
DATASET, TABLES = "dataset", ("train.csv", "val.csv", "test.csv")
# separates the speaker from the rest of a file name in Speech Commands
_SPEAKER = "_nohash_"
# least number of files of a class: one for each of training, validation and test
_LEAST = 3
# sounds of so many times the length of a clip are named in a warning: they are hardly a word with silence around it
_LONGER = 1.5
# seconds of each generated noise
_GENERATED_SECONDS = 60
# random key of the generated noise
_NOISE = 51


@dataclass(frozen=True)
class WordFile:
    """A wav file of one word: its path, the word, which is the name of its folder, and maybe the speaker."""

    path: Path
    word: str
    speaker: str | None = None

    @property
    def name(self) -> str:
        return f"{self.word}/{self.path.name}"


def wav_files(folder: Path, rate: int) -> list[Path]:
    """List the wav files in a folder, by name.

    Args:
        folder: The folder, whose subfolders are left out, and files whose names begin with a dot.
        rate: Samples per second of the model, for the error.

    Returns:
        The paths of the files whose names end in .wav or .WAV.

    Raises:
        EdgernnError: The folder has a sound file of another format, and no wav file of the same name beside it.
    """
    files = sorted(visible(folder, "*"))
    converted = {path.stem for path in files if path.suffix.lower() == WAV}
    if others := [path for path in files if path.suffix.lower() in OTHER_SOUNDS and path.stem not in converted]:
        raise EdgernnError(f"{others[0]}: expected wav files alone, got {others[0].suffix}; {conversion(rate)}")
    return [path for path in files if path.suffix.lower() == WAV]


def labelled_files(root: Path, rate: int) -> list[WordFile]:
    """List the wav files in the subfolders of a folder, which are named after their words, as `wav_files` does."""
    return [WordFile(path, folder.name) for folder in _word_folders(root) for path in wav_files(folder, rate)]


def word_files(
    root: Path, seed: int, rate: int, folds: Folds | None = None, pattern: str | None = None
) -> dict[str, list[WordFile]]:
    """List the wav files of a folder with one subfolder per word, split into training, validation and test.

    The publisher's split is used if the folder has the publisher's lists: validation_list.txt and testing_list.txt as
    in Speech Commands, or train.csv, val.csv and test.csv beside a folder named dataset as in the Arabic set. Otherwise
    the split is random. If file names contain a speaker (the text before _nohash_, or that of `pattern`), a tenth of
    the speakers is for validation and a tenth for the test. If not, a tenth of the files of each word, at least one, is
    for validation, and as many for the test.

    Args:
        root: The folder. Subfolders with a name that begins with a dot, and _background_noise_, are left out.
        seed: Random seed of the split.
        rate: Samples per second of the model, for errors.
        folds: Setting of the folds, one of which is the test part in place of a tenth.
        pattern: Pattern of the files' paths, with {} for the speaker (`groups_of`).

    Returns:
        A dict from "train", "validation" and "test" to the files of this part, with speakers if these are split.

    Raises:
        EdgernnError: A sound file has another format, there are fewer than 2 words, a list names a missing file, or a
            class has no file in some part.
    """
    words = root / DATASET if _has_tables(root) else root
    files = labelled_files(words, rate)
    with_words = {file.path.parent for file in files}
    if empty := [folder for folder in _word_folders(words) if folder not in with_words and not visible(folder)]:
        raise EdgernnError(
            f"{empty[0]}: expected wav files of the class {empty[0].name!r}, got none; add files, or remove the folder"
        )
    names = sorted({file.word for file in files})
    if len(names) < 2:
        got = f"only {names[0]!r}" if names else "none"
        remedy = "add another class"
        if loose := sum(path.suffix.lower() == ".wav" for path in words.iterdir()):
            got, remedy = (
                f"{got}, and {loose} wav files in the folder itself",
                "move each file to a subfolder named after its class",
            )
        raise EdgernnError(
            f"{words}: expected a subfolder with wav files for each of at least 2 classes, got {got}; {remedy}"
        )
    by_name = {file.name: file for file in files}
    folds = folds or Folds()
    has_lists = any((root / name).is_file() for name in LISTS)
    if (_has_tables(root) or has_lists) and (pattern or folds.folds):
        raise UsageError(f"split_by, folds: expected neither, as {root} has lists of its parts; leave them out")
    if _has_tables(root):
        parts = _split_by_tables(root, by_name)
    elif has_lists:
        parts = _split_by_lists(root, by_name)
    elif pattern is not None or any(_SPEAKER in file.path.name for file in files):
        parts = _split_by_speakers(words, files, seed, folds, pattern)
    else:
        parts = _split_classes(words, files, seed, folds)
    for part, members in parts.items():
        if missing := sorted(set(names) - {file.word for file in members}):
            raise EdgernnError(
                f"{words / missing[0]}: expected wav files of the class {missing[0]!r} in the {part} part of the data, "
                "got none; add files" + " or lower folds" * (folds.folds is not None)
            )
    return parts


def unread_files(root: Path) -> set[Path]:
    """Return the files that `word_files` and `noise_parts` leave out, such as notes, or recordings in a wrong place."""
    folders = {*_word_folders(root / DATASET if _has_tables(root) else root), root / BACKGROUND}
    sounds = (WAV, *OTHER_SOUNDS)
    files = {path for path in visible(root) if path.suffix.lower() not in sounds or path.parent not in folders}
    return {path for path in files if path.parent != root or path.name not in (*LISTS, *TABLES)}


def _has_tables(root: Path) -> bool:
    return (root / DATASET).is_dir() and all((root / name).is_file() for name in TABLES)


def _word_folders(root: Path) -> list[Path]:
    folders = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(path for path in folders if path.name != BACKGROUND)


def _split_by_tables(root: Path, by_name: dict[str, WordFile]) -> dict[str, list[WordFile]]:
    listed = {}
    for name in TABLES:
        rows = [row for row in csv.reader(io.StringIO(read_text(root / name))) if row]
        # a header names no file
        rows = rows[bool(rows) and not rows[0][0].lower().endswith(WAV) :]
        listed[name] = [row[0].removeprefix(f"{DATASET}/") for row in rows]
    return dict(zip(PARTS, _listed(root, listed, by_name), strict=True))


def _split_by_lists(root: Path, by_name: dict[str, WordFile]) -> dict[str, list[WordFile]]:
    listed = _listed(root, {name: read_text(root / name).split("\n") for name in LISTS}, by_name)
    held_out = dict(zip(PARTS[1:], listed, strict=True))
    others = {file for members in held_out.values() for file in members}
    return {"train": [file for file in by_name.values() if file not in others], **held_out}


def _listed(root: Path, lists: Mapping[str, Iterable[str]], by_name: dict[str, WordFile]) -> Iterator[list[WordFile]]:
    """Find the recordings that lists name; an unknown name, or one that is listed twice, raises EdgernnError."""
    stripped = {str(root / name): [line.strip() for line in lines if line.strip()] for name, lines in lists.items()}
    check_apart("file", stripped, "remove one of the two lines")
    for table, names in stripped.items():
        if unknown := [name for name in names if name not in by_name]:
            raise EdgernnError(
                f"{table}: expected a list of files that exist, got {unknown[0]!r} ({len(unknown)} missing); unpack "
                "the data set again"
            )
        yield [by_name[name] for name in names]


def _split_by_speakers(
    root: Path, files: Sequence[WordFile], seed: int, folds: Folds, pattern: str | None
) -> dict[str, list[WordFile]]:
    """Split files at random so that no speaker is in two parts."""
    if pattern is None:
        speakers = [file.path.stem.partition(_SPEAKER)[0] for file in files]
    else:
        speakers = groups_of(pattern, [file.name for file in files])
    files = [replace(file, speaker=speaker) for file, speaker in zip(files, speakers, strict=True)]
    numbers = {word: i for i, word in enumerate(sorted({file.word for file in files}))}
    words: dict[str, set[int]] = {name: set() for name in sorted({file.speaker or "" for file in files})}
    if len(words) < _LEAST:
        place = f"the text before {_SPEAKER}" if pattern is None else f"{{}} in {pattern}"
        raise EdgernnError(
            f"{root}: expected at least {_LEAST} speakers (in file names, {place}), got {len(words)}; record more "
            "speakers or rename the files"
        )
    for file in files:
        words[file.speaker or ""].add(numbers[file.word])
    drawn = {part: set(names) for part, names in folds.draw(root, list(words), PARTS[1:], seed, words).items()}
    return {part: [file for file in files if file.speaker in drawn[part]] for part in PARTS}


def _split_classes(root: Path, files: Sequence[WordFile], seed: int, folds: Folds) -> dict[str, list[WordFile]]:
    names = sorted({file.word for file in files})
    held_out: set[WordFile] = set()
    if folds.folds is not None:
        kinds = [[names.index(file.word)] for file in files]
        held_out = {files[i] for i in folds.split_groups(root, len(files), HELD_OUT, seed, kinds)[1]}
    classes = [[file for file in files if file.word == word and file not in held_out] for word in names]
    for members, word in zip(classes, names, strict=True):
        if len(members) < _LEAST - bool(held_out):
            raise EdgernnError(
                f"{root / word}: expected at least {_LEAST} wav files of the class {word!r}, got {len(members)}; "
                "record more"
            )
    parts = split_each(classes, [HELD_OUT] * (1 if held_out else 2), seed)
    return dict(zip(PARTS, [*parts, [file for file in files if file in held_out]][: len(PARTS)], strict=True))


def read_clips(files: Sequence[WordFile], length: int, rate: int) -> npt.NDArray[np.int16]:
    """Read wav files as clips that all have the same length.

    Zeros are appended to a shorter file. A longer file is cut to the stretch that has the most energy (`clip_of`).

    Args:
        files: The N files.
        length: Number of samples of a clip.
        rate: Samples per second, to which files of another rate are resampled.

    Returns:
        The samples (N, length), 16-bit integers. A warning says how many files are much longer.

    Raises:
        EdgernnError: A file is no wav file, or damaged.
    """
    clips = np.zeros((len(files), length), np.int16)
    longer = []
    for clip, file in zip(clips, files, strict=True):
        samples = read_wav(file.path, rate)
        clip[:] = clip_of(samples, length)
        if len(samples) > _LONGER * length:
            longer.append(f"{file.name} with {len(samples) / rate:.3g} s")
    if longer:
        text = f"{len(longer)} of {counted(len(files), 'sound')} are longer than a clip, such as {longer[0]}"
        text += f": only their loudest {length / rate:.3g} s are read; to read more, raise seconds"
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    return clips


def noise_parts(folder: Path | None, length: int, rate: int) -> dict[str, list[Audio]]:
    """Read or generate noise to mix with words, split into parts that share no noise samples.

    With three recordings or more, every third one in the order of their names is for the test. The others are cut: the
    first four fifths are for training, the last fifth for validation. With one or two recordings, the first three
    fifths of each are for training, the fourth fifth is for validation and the last fifth for the test. Without a
    folder the noise is generated: white, pink and brown.

    Args:
        folder: Folder of wav files, or None to generate noise.
        length: Number of samples of a clip; each piece of a recording must have at least as many.
        rate: Samples per second.

    Returns:
        A dict from "train", "validation" and "test" to a list of noises, each an array of float samples from -1 to 1.

    Raises:
        EdgernnError: A file is invalid, too short, or missing.
    """
    if folder is None:
        return {part: _generated(i, rate) for i, part in enumerate(PARTS)}
    paths = wav_files(folder, rate) if folder.is_dir() else []
    if not paths:
        raise EdgernnError(
            f"noise_folder: expected a folder with wav files of noise, got none in {folder}; set another folder"
        )
    parts: dict[str, list[Audio]] = {part: [] for part in PARTS}
    for i, path in enumerate(paths):
        samples = read_wav(path, rate).astype(np.float32) / np.float32(FULL_SCALE)
        whole, fifth = len(samples), len(samples) // 5
        if len(paths) < _LEAST:
            cuts = {"train": (0, 3 * fifth), "validation": (3 * fifth, 4 * fifth), "test": (4 * fifth, whole)}
        elif i % _LEAST == _LEAST - 1:
            cuts = {"test": (0, whole)}
        else:
            cuts = {"train": (0, 4 * fifth), "validation": (4 * fifth, whole)}
        for part, (begin, end) in cuts.items():
            if end - begin < length:
                raise EdgernnError(
                    f"{path}: expected at least {5 * length / rate:g} s of noise, got {whole / rate:g} s; record more "
                    "noise"
                )
            parts[part].append(samples[begin:end])
    return parts


def _generated(part: int, rate: int) -> list[Audio]:
    rng = np.random.default_rng([_NOISE, part, 0])
    noises: list[Audio] = []
    for exponent in (0, 1, 2):
        spectrum = np.fft.rfft(rng.standard_normal(_GENERATED_SECONDS * rate))
        # constant below 20 Hz
        frequency = np.maximum(np.arange(len(spectrum)) / _GENERATED_SECONDS, 20.0)
        noise = np.fft.irfft(spectrum * frequency ** (-exponent / 2))
        noises.append((0.1 * noise / noise.std()).astype(np.float32))
    return noises
