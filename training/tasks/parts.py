# SPDX-License-Identifier: Apache-2.0
"""Checks of stored arrays, their split into training, validation and test parts, and their standardisation."""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, some
from edgernn.training.tasks.sources import random_split

Array = npt.NDArray[Any]
T = TypeVar("T")
U = TypeVar("U", bound=Hashable)
# one in 10 sequences is for validation, one in 10 for the test
HELD_OUT = 10
# equal sequences of at most so many different numbers are not taken for copies
_FEW = 8


def check_apart(kind: str, lists: Mapping[str, Sequence[Hashable]], remedy: str) -> None:
    """Raise EdgernnError if an entry, such as a user, is in two of the lists, or twice in one.

    Args:
        kind: What the entries are, such as "user", for the error.
        lists: Dict from the name of each list, as errors show it, to its entries.
        remedy: What to do, for the error.
    """
    seen: dict[Hashable, str] = {}
    for name, entries in lists.items():
        for entry in entries:
            if entry in seen:
                where = "twice" if seen[entry] == name else f"in {seen[entry]}, too"
                wanted = f"expected each {kind} once, in one part of the data"
                raise EdgernnError(f"{name}: {wanted}, got {kind} {entry} {where}; {remedy}")
            seen[entry] = name


def visible(folder: Path, pattern: str = "**/*") -> list[Path]:
    """List the files in a folder, by default with its subfolders, except those with a dot before a part of the name.

    Raise EdgernnError if one is a link to a missing file, a pipe or a device, or if its name is no text.
    """
    paths = folder.glob(pattern)
    shown = [path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts)]
    for path in shown:
        if not path.is_file() and not path.is_dir():
            got = "a link to a file that is missing" if path.is_symlink() else "a pipe or a device"
            raise EdgernnError(f"{path}: expected a file or a folder, got {got}; get the data first, or remove it")
        if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name := path.relative_to(folder).as_posix()):
            raise EdgernnError(f"{folder}: expected names in UTF-8 without control characters, got {name!r}; rename it")
    return [path for path in shown if path.is_file()]


def warn_of_left_out(folder: Path, paths: Collection[Path], suffix: str) -> None:
    """Warn that files in a folder of a user's own data, such as notes.txt, are not read; `suffix` is that of others."""
    if paths:
        names = sorted(path.relative_to(folder).as_posix() for path in paths)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        text = f"{folder}: not read: {', '.join(names[:3])}{more}; only {suffix} files in the right place are"
        warnings.warn(text, EdgernnWarning, stacklevel=2)


def warn_of_copies(
    source: Path, noun: str, arrays: Iterable[Array], groups: Sequence[Hashable], names: Sequence[str]
) -> None:
    """Warn of equal arrays in different groups, such as the training and the test part.

    Arrays whose rows are all equal, such as digital silence, are left out, and those of few different numbers, such as
    bits or one-hot words, which may be equal by chance.

    Args:
        source: File or folder of the data.
        noun: Name for the content of an array, such as sound.
        arrays: The N arrays.
        groups: The group of each array.
        names: The name of each array, or of its group.
    """
    indices: dict[int, int] = {}
    pairs: Counter[tuple[str, str]] = Counter()
    for i, array in enumerate(arrays):
        original = indices.setdefault(hash((array.shape, array.tobytes())), i)
        if groups[original] != groups[i] and (array != array[:1]).any() and len(np.unique(array)) > _FEW:
            pairs[names[original], names[i]] += 1
    if pairs:
        named = some([f"{a} and {b}" + f" ({count} times)" * (count > 1) for (a, b), count in pairs.items()])
        text = f"{source}: the same {noun} in {named}; remove copies, from which a model knows the answers"
        warnings.warn(text, EdgernnWarning, stacklevel=2)


def finite(name: str, array: Array) -> Tensor:
    """Convert an array of finite numbers to a float32 tensor.

    Args:
        name: Name of the array, for errors.
        array: Numbers or booleans of any type and shape.

    Returns:
        The tensor, with the shape of the array.

    Raises:
        EdgernnError: A value is not a number, or not finite in float32.
    """
    if array.dtype.kind not in "iubf":
        raise EdgernnError(f"{name}: expected numbers, got the type {array.dtype}; convert the array")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        index = first(~np.isfinite(values))
        raise EdgernnError(
            f"{name}: expected finite numbers in the range of float32, got {array[index]} at index {index}, counted "
            "from 0; replace it"
        )
    return torch.from_numpy(values)


def checked_array(path: Path, arrays: dict[str, Array], name: str, kinds: str, rank: int) -> Array:
    """Return an array of an npz file after a check of its type and rank.

    Args:
        path: The file, for errors.
        arrays: The arrays of the file, as a dict from name to array.
        name: Name of the array to return.
        kinds: The accepted values of `dtype.kind`: "iu" (integers), "iuf" (numbers) or "U" (text).
        rank: The number of axes that the array must have.

    Returns:
        The array.

    Raises:
        EdgernnError: The array has another type or rank, or words with characters that do not exist.
    """
    array = arrays[name]
    if array.dtype.kind not in kinds or array.ndim != rank:
        wanted = {"iu": "whole numbers", "iuf": "numbers", "U": "words"}[kinds]
        raise EdgernnError(
            f"{path}: {name}: expected {wanted} with {rank} axes, got {array.dtype} {array.shape}; get the file again"
        )
    if array.dtype.kind == "U" and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        # Unicode ends there, and a surrogate is half of a character
        if ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
            raise EdgernnError(f"{path}: {name}: expected words, got characters that do not exist; get the file again")
    return array


def check_offsets(path: Path, name: str, offset: Array, count: int, total: int) -> None:
    """Check an array of offsets, which splits the rows of a file into successive blocks, such as recordings.

    Args:
        path: The file, for errors.
        name: Name of the array, for errors.
        offset: The array (count + 1,): the index of the first row of each block, and then `total`. It must begin with
            0 and never decrease.
        count: Number of blocks, at least 1.
        total: Number of rows.

    Raises:
        EdgernnError: The array has another length or other numbers.
    """
    if len(offset) != count + 1 or not count or offset[0] or offset[-1] != total or (np.diff(offset) < 0).any():
        raise EdgernnError(
            f"{path}: {name}: expected {count + 1} row numbers in ascending order, the first 0 and the last {total}, "
            "got other numbers; get the file again"
        )


def first(where: Array) -> tuple[int, ...]:
    """Return the index of the first true element of a boolean array in row-major order, one number per axis.

    The array must have a true element.
    """
    return tuple(int(i) for i in np.unravel_index(int(where.argmax()), where.shape))


def standardisation(x: Tensor) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation of each channel of x (N, T, I), over all values that are not NaN.

    A constant channel gets a standard deviation of 1, one without values a mean of 0, too.
    """
    rows = x.double().flatten(0, 1)
    if rows.isnan().any():
        mean = rows.nanmean(0).nan_to_num(nan=0.0)
        std = (rows - mean).square().nanmean(0).sqrt()
    else:
        std, mean = torch.std_mean(rows, 0, correction=0)
    changes = std > 1e-12 * mean.abs().clamp(min=1e-20)
    return mean.float().tolist(), torch.where(changes, std, 1.0).float().tolist()


@dataclass
class Folds:
    """Split of a task's groups, such as users, into a training and a held-out part; a base of tasks.

    Settings:

    - `folds`: Number of folds into which the groups are dealt, alike for every seed. A training with the seed s holds
      out fold s modulo `folds`, so that as many seeds hold out every group once: as the test part, or as the validation
      part of data with a test part of their own. Default: none, and the seed draws the parts.
    """

    folds: Annotated[int | None, Field(ge=2)] = None

    def split_groups(
        self, path: Path, count: int, one_in: int, seed: int, kinds: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], list[int]]:
        """Choose the groups of the training and of the held-out part.

        Args:
            path: The file of the data, for errors.
            count: Number of groups.
            one_in: Without folds, one in so many groups is held out, and at least one.
            seed: Random seed of the training.
            kinds: Classes of each group, of which each fold gets about equally many. Default: the groups are alike.

        Returns:
            The indices of the training groups and of the groups that are held out.

        Raises:
            EdgernnError: There are fewer groups than folds.
        """
        if self.folds is None:
            training, held_out = random_split(count, [max(1, count // one_in)], seed)
            return training.tolist(), held_out.tolist()
        if self.folds > count:
            raise EdgernnError(
                f"{path}: folds: expected at most {count}, one for each training group, got {self.folds}; lower it"
            )
        order = random_split(count, [], 0)[0].tolist()
        if kinds is not None:
            order.sort(key=lambda group: list(kinds[group]))
        fold = seed % self.folds
        return [group for i, group in enumerate(order) if i % self.folds != fold], order[fold :: self.folds]

    def draw(
        self, path: Path, units: Sequence[U], missing: Sequence[str], seed: int, classes: Mapping[U, Collection[int]]
    ) -> dict[str, list[U]]:
        """Draw parts of the data from units, such as persons: a fold or a tenth of them each, and at least one.

        Args:
            path: The user's file or folder, for errors.
            units: Different names or numbers.
            missing: Parts to draw, of "validation" and "test" in this order. The last one is the fold, if there are.
            seed: Random seed of the training.
            classes: Dict from unit to the classes of its sequences, which may be none.

        Returns:
            Dict from "train" and the missing parts to their units.

        Raises:
            EdgernnError: There are too few units.
        """
        sizes, parts = [max(1, len(units) // HELD_OUT)] * len(missing), {}
        remaining = list(units)
        if self.folds is not None and missing:
            kinds = [sorted(classes[unit]) for unit in units]
            training, held_out = self.split_groups(path, len(units), HELD_OUT, seed, kinds)
            parts[missing[-1]] = [units[i] for i in held_out]
            remaining, missing, sizes = [units[i] for i in training], missing[:-1], sizes[1:]
        if len(remaining) <= sum(sizes):
            raise EdgernnError(
                f"{path}: expected more than {sum(sizes)} groups for train and {' and '.join(missing)}, got "
                f"{len(remaining)}; add some, or lower folds"
            )
        remaining, *drawn = split_units(remaining, sizes, seed, classes)
        return {"train": remaining, **dict(zip(missing, drawn, strict=True)), **parts}


def split_units(
    units: Sequence[U], sizes: Sequence[int], seed: int, classes: Mapping[U, Collection[int]]
) -> list[list[U]]:
    """Split units, such as persons, at random into parts, with units of all classes in each if possible.

    A class that a part lacks comes from a part with several units of it, if that part loses no other class. In
    exchange it gets a unit without which the part still has all its classes, if there is one.

    Args:
        units: Different names or numbers.
        sizes: Numbers of units of all parts but the first.
        seed: Random seed.
        classes: Dict from unit to the classes of its sequences, which may be none.

    Returns:
        The units of each part.
    """
    parts = [[units[i] for i in chosen.tolist()] for chosen in random_split(len(units), list(sizes), seed)]
    totals = Counter(number for unit in units for number in classes[unit])

    def spare(part: list[U]) -> list[U]:
        counts = Counter(number for unit in part for number in classes[unit])
        return [unit for unit in part if all(counts[number] > 1 for number in classes[unit])]

    for part in parts:
        present = {number for unit in part for number in classes[unit]}
        for number in sorted(number for number in totals if number not in present and totals[number] > 1):
            if any(number in classes[unit] for unit in part):
                continue
            givers = ((other, unit) for other in parts for unit in spare(other) if number in classes[unit])
            if (found := next(givers, None)) is not None:
                giver, unit = found
                giver.remove(unit)
                given = spare(part)[:1]
                part[:] = [*(kept for kept in part if kept not in given), unit]
                giver += given
    return parts


def groups_of(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return the name of a group, such as a person, in the path of each file; warn if each file has another one.

    Args:
        pattern: Pattern of the end of the path, with {} for the name and * for other text, such as "{}_*" for the begin
            of the file's name or "{}/*" for its folder. Both stand for as few characters as possible, none of them /.
        paths: The paths, with /.

    Returns:
        The names.

    Raises:
        UsageError: The pattern has not one {}, or a path does not fit it.
    """
    pieces = re.split(r"(\{\}|\*)", pattern)
    if pieces.count("{}") != 1:
        raise UsageError(f"split_by: expected a pattern with one {{}}, got {pattern!r}; write it as in '{{}}_*'")
    regex = re.compile("".join({"{}": "([^/]+?)", "*": "[^/]*?"}.get(piece, re.escape(piece)) for piece in pieces))
    matches = [regex.fullmatch("/".join(path.split("/")[-pattern.count("/") - 1 :])) for path in paths]
    if None in matches:
        path = paths[matches.index(None)]
        raise UsageError(f"split_by: expected files that fit {pattern!r}, got {path}; correct it, or rename the file")
    names = [match[1] for match in matches if match is not None]
    if len(set(names)) == len(names) > 1:
        text = (
            f"split_by: {pattern!r} finds another name in each of the {len(names)} files, so they are split one by one"
        )
        warnings.warn(
            f"{text}; write {{}} for a person or device that several files share", EdgernnWarning, stacklevel=2
        )
    return names


def split_each(classes: Iterable[Sequence[T]], held_out: Sequence[int], seed: int) -> list[list[T]]:
    """Split the members of each class at random into parts.

    Args:
        classes: The members of each class.
        held_out: For each part but the first, n: one in n members of each class, at least one, is in this part.
        seed: Random seed.

    Returns:
        The members of each part.
    """
    parts: list[list[T]] = [[] for _ in range(len(held_out) + 1)]
    for members in classes:
        sizes = [max(1, len(members) // one_in) for one_in in held_out]
        for part, chosen in zip(parts, random_split(len(members), sizes, seed), strict=True):
            part += [members[i] for i in chosen.tolist()]
    return parts


def balanced_parts(label: Array, groups: Array, seed: int) -> list[Tensor]:
    """Split sequences into training, validation and test parts, each with equally many sequences of two classes.

    Groups of sequences, such as those of one recording, are never divided between parts. A tenth of the groups of each
    class, at least one, is for validation, and as many are for the test. Each part then keeps all sequences of its
    smaller class and equally many sequences, chosen at random, of its larger class.

    Args:
        label: 0 or 1 for each sequence (N,).
        groups: Group number of each sequence (N,). Sequences of a group have the same label.
        seed: Random seed of the split and of the choice.

    Returns:
        The indices of the sequences of the training, validation and test parts, in this order.
    """
    parts: list[list[Tensor]] = [[], [], []]
    for value in (0, 1):
        class_groups = np.unique(groups[label == value])
        held_out = max(1, len(class_groups) // HELD_OUT)
        for part, chosen in zip(parts, random_split(len(class_groups), [held_out, held_out], seed), strict=True):
            members = torch.from_numpy(np.flatnonzero(np.isin(groups, class_groups[chosen.numpy()])))
            part.append(members[random_split(len(members), [], seed)[0]])
    return [torch.cat([members[: min(map(len, part))] for members in part]) for part in parts]
