# SPDX-License-Identifier: Apache-2.0
"""A user's own arrays."""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.tasks.base import CLASSIFICATION, REGRESSION, Task
from edgernn.training.tasks.sources import Sequences, random_split

Array = npt.NDArray[Any]
# more classes than this, and than there are labels, are numbers and not labels
_MANY_CLASSES = 1000
_MAX_LABEL = 2**31 - 1


@dataclass
class Arrays(Task):
    """The arrays x and y of an npz file.

    x (N, T, I): numbers. y decides the task:
    whole numbers (N,): one label a sequence; (N, T): one a step; counted from 0. Cross entropy, accuracy.
    other numbers (N,) or (N, O): O targets a sequence; (N, T, O): O a step. Mean squared error.
    x_val and y_val, x_test and y_test may be given; for each pair that is not, a tenth of x is held out by the seed.
    The input is standardised by mean and standard deviation of the training part, channel by channel.
    """

    name = "npz"
    help = "arrays x (N, T, I) and y of your own file"
    defaults = {"epochs": 20, "hidden_size": 64, "batch_size": 32, "lr": 1e-3}  # noqa: RUF012

    def open(self, source: Path | None, seed: int) -> None:
        if source is None:
            raise UsageError("task: expected the path of an npz file")
        arrays = read_npz(source)
        x = {part: _inputs(source, name, arrays) for part, name in _present("x", arrays)}
        y = {part: _targets(source, name, arrays, x.get(part)) for part, name in _present("y", arrays)}
        _check_pairs(source, x, y)
        classes = not y["train"].is_floating_point()
        self.fingerprint = hashlib.sha256(source.read_bytes()).hexdigest()
        self.objective = CLASSIFICATION if classes else REGRESSION
        self.output = "all" if y["train"].ndim == (2 if classes else 3) else "last"
        self.input_size = x["train"].shape[2]
        if classes:
            self.output_size = max(int(part.max()) for part in y.values()) + 1
            if self.output_size > max(_MANY_CLASSES, y["train"].numel()):
                hint = "store y as float to predict numbers"
                raise EdgernnError(f"{source}: y: expected labels from 0, got up to {self.output_size - 1}; {hint}")
        else:
            self.output_size = y["train"].shape[-1]
        missing = [part for part in ("validation", "test") if part not in x]
        count = len(x["train"])
        held_out = max(1, count // 10)
        if count <= held_out * len(missing):
            raise EdgernnError(f"{source}: x: expected at least {len(missing) + 1} sequences, got {count}")
        indices = random_split(count, [held_out] * len(missing), seed)
        for part, chosen in zip([*missing, "train"], [*indices[1:], indices[0]], strict=True):
            x[part], y[part] = x["train"][chosen], y["train"][chosen]
        std, mean = torch.std_mean(x["train"].double(), (0, 1), correction=0)
        self.mean = mean.float().tolist()
        # a channel that never changes is only centred
        self.std = torch.where(std > 1e-12 * mean.abs().clamp(min=1e-20), std, 1.0).float().tolist()
        per_step = self.output == "all"
        self.train = Sequences(x["train"], y["train"], seed=seed, per_step=per_step)
        self.validation = Sequences(x["validation"], y["validation"], per_step=per_step)
        self.test = Sequences(x["test"], y["test"], per_step=per_step)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an npz file. Raises EdgernnError where it is missing, corrupt, or holds Python objects."""
    if not path.is_file():
        raise EdgernnError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise EdgernnError(f"{path}: expected an npz archive, got a cut one or another kind of file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, KeyError) as error:
        raise EdgernnError(f"{path}: expected an npz archive, got a corrupt or cut one ({error})") from None
    except ValueError as error:
        what = "arrays of Python objects, which are never read" if "Object arrays" in str(error) else f"({error})"
        raise EdgernnError(f"{path}: expected an npz archive of numbers, got {what}") from None


_SUFFIXES = {"train": "", "validation": "_val", "test": "_test"}


def _present(letter: str, arrays: dict[str, Array]) -> list[tuple[str, str]]:
    return [(part, letter + suffix) for part, suffix in _SUFFIXES.items() if letter + suffix in arrays]


def _check_pairs(path: Path, x: dict[str, Tensor], y: dict[str, Tensor]) -> None:
    for part, suffix in _SUFFIXES.items():
        if (part in x) != (part in y) or (part == "train" and part not in x):
            missing = " and ".join(name for name, given in ((f"x{suffix}", x), (f"y{suffix}", y)) if part not in given)
            raise EdgernnError(f"{path}: expected arrays x{suffix} and y{suffix}, got no {missing}")
    for part, suffix in _SUFFIXES.items():
        if part not in x:
            continue
        if x[part].shape[2] != x["train"].shape[2]:
            raise EdgernnError(f"{path}: x{suffix}: expected {x['train'].shape[2]} channels, got {x[part].shape[2]}")
        mine, first = y[part], y["train"]
        width = first.is_floating_point() and mine.shape[-1] != first.shape[-1]
        if mine.dtype != first.dtype or mine.ndim != first.ndim or width:
            wanted = f"{first.dtype} {tuple(first.shape[1:])} a sequence as in y"
            raise EdgernnError(f"{path}: y{suffix}: expected {wanted}, got {mine.dtype} {tuple(mine.shape[1:])}")


def _inputs(path: Path, name: str, arrays: dict[str, Array]) -> Tensor:
    array = arrays[name]
    if array.ndim != 3:
        hint = f"; one channel is {name}[:, :, None]" if array.ndim == 2 else ""
        raise EdgernnError(f"{path}: {name}: expected shape (N, T, I), got {array.shape}{hint}")
    if 0 in array.shape:
        raise EdgernnError(f"{path}: {name}: expected no size of 0, got shape {array.shape}")
    return _finite(path, name, array)


def _targets(path: Path, name: str, arrays: dict[str, Array], x: Tensor | None) -> Tensor:
    array = arrays[name]
    N, T = (x.shape[0], x.shape[1]) if x is not None else (len(array) if array.ndim else 0, 0)
    if array.dtype.kind in "iub":
        shapes = "(N,) or (N, T) of whole numbers"
        good = array.shape in ((N,), (N, T))
    else:
        shapes = "(N,), (N, O) or (N, T, O)"
        good = array.ndim in (1, 2, 3) and len(array) == N and (array.ndim < 3 or array.shape[1] == T)
    if x is not None and (not good or 0 in array.shape):
        raise EdgernnError(f"{path}: {name}: expected shape {shapes} with N={N}, T={T}, got {array.shape}")
    if array.dtype.kind in "iub":
        if array.size and int(array.min()) < 0:
            index = _first(array < 0)
            raise EdgernnError(f"{path}: {name}: expected labels from 0, got {array[index]} at index {index}")
        if array.size and int(array.max()) > _MAX_LABEL:
            raise EdgernnError(f"{path}: {name}: expected labels up to {_MAX_LABEL}, got {int(array.max())}")
        return torch.from_numpy(array.astype(np.int64))
    target = _finite(path, name, array)
    return target[:, None] if target.ndim == 1 else target


def _finite(path: Path, name: str, array: Array) -> Tensor:
    if array.dtype.kind not in "iubf":
        raise EdgernnError(f"{path}: {name}: expected numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        index = _first(~np.isfinite(values))
        raise EdgernnError(f"{path}: {name}: expected finite numbers (float32), got {array[index]} at index {index}")
    return torch.from_numpy(values)


def _first(where: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(where.argmax()), where.shape))
