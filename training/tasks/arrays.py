# SPDX-License-Identifier: Apache-2.0
"""Task on a user's own data: arrays in an npz file."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, some
from edgernn.files import write_arrays
from edgernn.runtime.answers import IGNORED
from edgernn.runtime.csv_table import rises
from edgernn.runtime.input_check import as_array, is_frame, warn_of_rounding
from edgernn.runtime.timeline import padded
from edgernn.training.formats import read_npz
from edgernn.training.tasks.folders import sorted_names
from edgernn.training.tasks.own import MANY_CLASSES, NEXT, OwnData
from edgernn.training.tasks.parts import Array, finite, first, warn_of_copies
from edgernn.training.tasks.sources import fingerprint, is_counted

_MAX_LABEL = 2**31 - 1
# floats that are whole numbers are probably class labels if each stands for this many sequences on average
_MANY_SEQUENCES = 8
_SUFFIXES = {"train": "", "validation": "_val", "test": "_test"}


@dataclass
class Arrays(OwnData):
    """Task on a user's own arrays x and y in an npz file.

    x (N, T, I): numbers, for N sequences of T steps with I channels. The type and shape of y decide the task:

    - Integers are class labels, counted from 0: one per sequence (N,) or one per step (N, T). The loss is the cross
      entropy, the main metric is the accuracy.
    - Floats are target numbers. y has shape (N,) for one number per sequence, (N, O) for O numbers per sequence, or
      (N, T, O) for O numbers per step. The loss and the main metric are the mean squared error.

    Sequences of unequal lengths are padded to T steps: an array `lengths` (N,), and lengths_val and lengths_test, has
    the number of steps of each, and anything may stand in the padding of x and of a y per step. Steps with the label -1
    (N, T) or the target number NaN (N, T, O) are ignored in the loss and in metrics.

    With predict=next y is not needed: the target is the next step of x. The validation part x_val and y_val and the
    test part x_test and y_test are optional. For a part that the file lacks, the seed chooses a tenth of x. An array
    `classes` of texts (C,) names the C labels, in their order.
    """

    name = "npz"
    help = "Train on the arrays x (N, T, I) and y of your own npz file."

    def _hold_out(self, source: Path, x: dict[str, Tensor], y: dict[str, Tensor], seed: int) -> None:
        super()._hold_out(source, x, y, seed)
        parts = [part for part, values in x.items() for _ in values]
        warn_of_copies(source, "numbers", (row.numpy() for values in x.values() for row in values), parts, parts)

    def _read(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        arrays = read_npz(source)
        self.older_fingerprint = hashlib.sha256(source.read_bytes()).hexdigest()
        letters = "x" if self.predict == NEXT else "xy"
        x: dict[str, Tensor] = {}
        y: dict[str, Tensor] = {}
        for part, suffix in _SUFFIXES.items():
            names = [letter + suffix for letter in letters]
            missing = [name for name in names if name not in arrays]
            if missing == names and part != "train":
                continue
            if missing:
                hint = "to predict the next step without y, set predict=next" if missing == ["y"] else "add the arrays"
                wanted = f"arrays {' and '.join(names)}"
                raise EdgernnError(f"{source}: expected {wanted}, got no {' and '.join(missing)}; {hint}")
            array = _shaped(source, names[0], arrays[names[0]])
            padding = None
            if (name := f"lengths{suffix}") in arrays:
                lengths = _lengths(source, name, arrays[name], array)
                padding = np.arange(array.shape[1]) >= lengths[:, None]
                array = np.where(padding[:, :, None], np.zeros(1, array.dtype), array)
                if padding.any():
                    self._lengths[part] = torch.from_numpy(lengths)
            x[part] = finite(f"{source}: {names[0]}", array)
            if part == "train":
                warn_of_rounding(f"{source}: x", array)
                _warn_of_time(source, array, padding)
            if self.predict != NEXT:
                y[part] = _targets(source, names[1], arrays[names[1]], x[part], padding)
        _check_parts(source, x, y)
        known = {"classes", *(name + suffix for name in ("x", "y", "lengths") for suffix in _SUFFIXES.values())}
        if unread := [name for name in arrays if name not in known]:
            text = f"{source}: not read: {some(unread)}; the arrays that are have the names {some(sorted(known))}"
            warnings.warn(text, EdgernnWarning, stacklevel=2)
        if "classes" in arrays:
            self.classes = _names(source, arrays["classes"], y, self.classes)
        parts = ((part, x[part], y.get(part), self._lengths.get(part)) for part in x)
        self.fingerprint = fingerprint(chain((self.classes,), *parts))
        return x, y


def _names(path: Path, array: Array, y: dict[str, Tensor], trained: Sequence[str] | None) -> list[str]:
    """Return the names of the labels in y from the array `classes` (C,)."""
    names = [str(name) for name in array.ravel()]
    labels = [part for part in y.values() if not part.is_floating_point()]
    if array.ndim != 1 or array.dtype.kind != "U" or len({*names}) != len(names) or "" in names:
        got = f"{array.dtype} of shape {array.shape}" if array.ndim != 1 or array.dtype.kind != "U" else some(names)
        raise EdgernnError(f"{path}: classes: expected different texts of shape (C,), got {got}; correct classes")
    if not labels:
        raise EdgernnError(f"{path}: classes: expected labels in y for them, got none; leave classes out")
    if (largest := max(int(part.max()) for part in labels)) >= len(names):
        raise EdgernnError(
            f"{path}: y: expected labels from 0 to {len(names) - 1}, one for each of the classes, got {largest}; "
            "correct y or classes"
        )
    if trained is not None and list(trained) != names:
        raise EdgernnError(
            f"{path}: expected the classes {some(trained)} of the training, got {some(names)}; correct classes"
        )
    return names


def _warn_of_time(path: Path, x: Array, padding: Array | None) -> None:
    """Warn of channels of x (N, T, I) that rise from step to step in all sequences, as a time does."""
    ends = np.full(len(x), x.shape[1]) if padding is None else (~padding).sum(1)
    sequences = [sequence[:end] for sequence, end in zip(x, ends, strict=True) if end > 1]
    rising = [i for i in range(x.shape[2]) if all(rises(rows[:, i].astype(np.float64)) for rows in sequences)]
    if sequences and rising:
        channels = ", ".join(f"x[..., {i}]" for i in rising)
        text = f"{path}: rises from step to step in all sequences, as a time does: {channels}; leave a time out"
        warnings.warn(text, EdgernnWarning, stacklevel=2)


def _check_parts(path: Path, x: dict[str, Tensor], y: dict[str, Tensor]) -> None:
    """Check the training, validation and test arrays against each other, and warn of targets that are likely wrong."""
    I = x["train"].shape[2]
    for part, suffix in _SUFFIXES.items():
        if part in x and x[part].shape[2] != I:
            raise EdgernnError(
                f"{path}: x{suffix}: expected {I} channels as in x, got {x[part].shape[2]}; correct x or x{suffix}"
            )
    if y and (likely := _likely_labels(y["train"])):
        form, remedy = likely
        text = f"y: {form} of a floating-point type are predicted as numbers; for class labels, store {remedy}"
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    steps = x["train"].shape[1]
    if y and y["train"].is_floating_point() and y["train"].shape[1:] == (steps,) and steps > 1:
        text = (
            f"y: {steps} numbers for each sequence, as many as its steps; for one number per step, store y[..., None]"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    for part, target in y.items():
        reference = y["train"]
        other_width = reference.is_floating_point() and target.shape[-1] != reference.shape[-1]
        if target.dtype != reference.dtype or target.ndim != reference.ndim or other_width:
            name = f"y{_SUFFIXES[part]}"
            raise EdgernnError(
                f"{path}: {name}: expected {reference.dtype} of shape {tuple(reference.shape[1:])} per sequence as in "
                f"y, got {target.dtype} of shape {tuple(target.shape[1:])}; correct y or {name}"
            )
    labels = [part for part in y.values() if not part.is_floating_point()]
    largest = max((int(part.max()) for part in labels), default=0)
    if labels and largest >= max(MANY_CLASSES, y["train"].numel()):
        hint = "number the classes 0, 1, 2 and so on, or store y as float to predict numbers"
        raise EdgernnError(f"{path}: y: expected class labels numbered from 0, got labels up to {largest}; {hint}")
    counted = y["train"][is_counted(y["train"])] if labels else torch.empty(0)
    if len(counted) > 2 and int(counted.max()) == int(counted.min()):
        text = f"y: every label is {int(counted.max())}, so there is nothing to tell apart"
        warnings.warn(text, EdgernnWarning, stacklevel=2)


def _likely_labels(targets: Tensor) -> tuple[str, str] | None:
    """Return the form of float targets that are probably class labels, and how to store these; else None."""
    if not targets.is_floating_point():
        return None
    if targets.shape[-1] > 1:
        one_hot = ((targets == 0) | (targets == 1)).all() and (targets.sum(-1) == 1).all()
        return ("rows with a single 1", "y.argmax(-1)") if one_hot else None
    if targets.ndim != 2:
        return None
    distinct = np.unique(targets.numpy())
    whole = (distinct % 1 == 0).all() and 1 < len(distinct) <= len(targets) // _MANY_SEQUENCES
    return ("whole numbers", "y.astype(int)") if whole else None


def _shape_hint(name: str, array: Array, N: int, T: int) -> str:
    """Suggest how to correct targets whose shape does not fit sequences x (N, T, I)."""
    if array.ndim == 2 and len(array) == N and array.shape[1] == 1:
        return f"; use {name}[:, 0]"
    if array.ndim == 2 and len(array) == N and (array.sum(1) == 1).all():
        return f"; use {name}.argmax(1)"
    if array.shape[:1] == (T,):
        return "; if x is (T, N, I), use x.transpose(1, 0, 2)"
    return ""


def _shaped(path: Path, name: str, array: Array) -> Array:
    if array.ndim != 3:
        hint = f"for one channel, store {name}[:, :, None]" if array.ndim == 2 else "reshape it"
        raise EdgernnError(
            f"{path}: {name}: expected shape (N, T, I) (sequences, steps, channels), got {array.shape}; {hint}"
        )
    if 0 in array.shape:
        raise EdgernnError(
            f"{path}: {name}: expected at least one sequence, step and channel, got shape {array.shape}; add data"
        )
    return array


def _lengths(path: Path, name: str, array: Array, x: Array) -> npt.NDArray[np.int64]:
    """Return the numbers of steps (N,) of sequences x (N, T, I), or raise EdgernnError."""
    N, T, _ = x.shape
    if array.dtype.kind not in "iu" or array.shape != (N,):
        raise EdgernnError(
            f"{path}: {name}: expected whole numbers of shape ({N},), one for each sequence of x, got {array.dtype} of "
            f"shape {array.shape}; correct {name}"
        )
    wrong = (array < 1) | (array > T)
    if wrong.any():
        index = first(wrong)
        raise EdgernnError(
            f"{path}: {name}: expected numbers of steps from 1 to {T}, those of x, got {array[index]} at index "
            f"{index}; correct {name}"
        )
    return array.astype(np.int64)


def _targets(path: Path, name: str, array: Array, x: Tensor, padding: Array | None) -> Tensor:
    N, T, _ = x.shape
    labels = array.dtype.kind in "iub"
    if labels:
        shapes = "(N,) or (N, T) of whole numbers"
        fits = array.shape in ((N,), (N, T))
    else:
        shapes = "(N,), (N, O) or (N, T, O)"
        fits = array.ndim in (1, 2, 3) and len(array) == N and (array.ndim < 3 or array.shape[1] == T)
    if not fits or 0 in array.shape:
        text = f"{path}: {name}: expected shape {shapes} with N={N}, T={T}, got {array.shape}"
        raise EdgernnError(text + _shape_hint(name, array, N, T))
    if array.dtype.kind in "US":
        hint = f"number the classes: np.unique({name}, return_inverse=True)[1]"
        raise EdgernnError(f"{path}: {name}: expected numbers, got text; {hint}")
    per_step = array.ndim == (2 if labels else 3)
    if padding is not None and per_step:
        array = array.astype(np.int64) if labels else array.copy()
        array[padding] = IGNORED if labels else np.nan
    if not labels:
        ignored = np.isnan(array) if per_step and array.dtype.kind == "f" else np.zeros(array.shape, bool)
        target = finite(f"{path}: {name}", np.where(ignored, np.zeros(1, array.dtype), array))
        target[torch.from_numpy(ignored)] = np.nan
        return target[:, None] if target.ndim == 1 else target
    least = IGNORED if per_step else 0
    if int(array.min()) < least:
        index = first(array < least)
        wanted = f"labels of at least 0, or {IGNORED} at steps to ignore" if per_step else "labels of at least 0"
        raise EdgernnError(
            f"{path}: {name}: expected {wanted}, got {array[index]} at index {index}; number classes from 0"
        )
    if int(array.max()) > _MAX_LABEL:
        raise EdgernnError(
            f"{path}: {name}: expected labels of at most {_MAX_LABEL}, got {int(array.max())}; number classes from 0"
        )
    return torch.from_numpy(array.astype(np.int64))


def save_data(data: Any, folder: Path) -> Path:
    """Write data in memory to a file that a task on a user's own data reads.

    Args:
        data: A pair (x, y) of arrays, tensors, or lists of N arrays of unequal lengths, (T, I) in x, with numbers,
            names of classes or None as y; a torch Dataset of such pairs (x, y) of a sequence; a dict of arrays as an
            npz file has them (`Arrays`); or a polars or pandas DataFrame, whose rows are time steps.
        folder: Folder of the file.

    Returns:
        The path of the file: data.parquet for a DataFrame, else data.npz.

    Raises:
        UsageError: The data are of another type, or the arrays of a list do not fit each other.
    """
    if is_frame(data):
        _as_polars(data).write_parquet(path := folder / "data.parquet")
        return path
    if isinstance(data, Mapping):
        arrays = _named(data)
    else:
        if isinstance(data, Dataset):
            data = _pairs(data)
        if not isinstance(data, tuple) or len(data) != 2:
            kinds = "a pair (x, y), a dict of arrays, a torch Dataset of pairs or a DataFrame"
            raise UsageError(f"task: expected the name of a task, a path, {kinds}, got {type(data).__name__}")
        arrays = _pair(*data)
    write_arrays(path := folder / "data.npz", arrays)
    return path


def _named(data: Mapping[Any, Any]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    counts: dict[str, npt.NDArray[np.int64] | None] = {}
    for name, values in data.items():
        if not isinstance(name, str):
            raise UsageError(f"task: expected arrays with names such as x and y, got the name {name!r}; correct it")
        if name.partition("_")[0] in ("x", "y"):
            arrays[name], counts[name] = stacked(name, values)
        else:
            arrays[name] = _array(name, values)
    for suffix in _SUFFIXES.values():
        if (steps := counts.get(f"x{suffix}")) is not None:
            lengths = arrays.setdefault(f"lengths{suffix}", steps)
            if not np.array_equal(lengths, steps):
                raise UsageError(
                    f"lengths{suffix}: expected those of the sequences in x{suffix}, which differ, got others; leave "
                    f"lengths{suffix} out"
                )
        if f"x{suffix}" in arrays:
            _check_steps(f"y{suffix}", counts.get(f"y{suffix}"), arrays[f"x{suffix}"], arrays.get(f"lengths{suffix}"))
        if f"y{suffix}" in arrays:
            arrays[f"y{suffix}"] = _per_step(arrays[f"y{suffix}"], counts[f"y{suffix}"])
    return arrays


def _check_steps(name: str, steps: npt.NDArray[np.int64] | None, x: Array, lengths: Array | None) -> None:
    """Refuse targets of unequal lengths `steps` (N,) that are not those of the sequences x (N, T, I), or `lengths`."""
    if steps is None or x.ndim < 2 or len(steps) != len(x):
        return
    expected = np.full(len(x), x.shape[1]) if lengths is None else lengths
    if expected.shape == steps.shape and (wrong := steps != expected).any():
        i = int(wrong.argmax())
        raise UsageError(
            f"{name}: expected a target for each of the {expected[i]} steps of sequence {i}, got {steps[i]}; correct "
            f"{name}"
        )


def _pairs(data: Dataset[Any]) -> tuple[Any, ...]:
    """Return the pairs (x, y) of a Dataset as a pair of sequences."""
    if not isinstance(data, Iterable) and not hasattr(data, "__len__"):
        raise UsageError(f"task: expected a Dataset with a length, got {type(data).__name__}; add the method __len__")
    pairs = list(data if isinstance(data, Iterable) else (data[i] for i in range(len(data))))
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            got = f"{type(pair).__name__} of {len(pair)}" if isinstance(pair, tuple | list) else type(pair).__name__
            raise UsageError(f"task: expected pairs (x, y) in the Dataset, got {got} at index {i}; return pairs")
    if not pairs:
        raise UsageError("task: expected pairs (x, y) in the Dataset, got none; add some")
    return tuple(zip(*pairs, strict=True))


def _as_polars(frame: Any) -> Any:
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, pl.DataFrame):
        frame = _from_pandas(frame)
    for name, dtype in frame.schema.items():
        if dtype == pl.Object:
            kind = next((type(cell).__name__ for cell in frame[name] if cell is not None), "None")
            raise UsageError(f"task: column {name}: expected numbers, text or times, got {kind}; convert the column")
    return frame


def _from_pandas(frame: Any) -> Any:
    import polars as pl

    # an index of pandas may be a time; one without a name that counts or names rows is left after a selection
    if frame.index.names != [None] or frame.index.dtype.kind not in "iuO":
        frame = frame.reset_index()
    names = list(frame.columns)
    if levels := [name for name in names if isinstance(name, tuple)]:
        raise UsageError(f"task: expected one name for each column, got {levels[0]!r}; join the names of its levels")
    words = [str(name) for name in names]
    if repeated := [name for name in words if words.count(name) > 1]:
        raise UsageError(f"task: expected columns of different names, got {repeated[0]!r} twice; rename one")
    columns = {str(name): zip(frame[name].tolist(), frame[name].isna().tolist(), strict=True) for name in names}
    return pl.DataFrame({name: [None if gone else cell for cell, gone in cells] for name, cells in columns.items()})


def _per_step(target: Array, steps: npt.NDArray[np.int64] | None) -> Array:
    """Return target numbers (N, T, 1) for one number per step, as those of sequences of unequal lengths `steps` are."""
    return target[..., None] if steps is not None and target.ndim == 2 and target.dtype.kind == "f" else target


def _pair(x: Any, y: Any) -> dict[str, Array]:
    arrays = {}
    arrays["x"], lengths = stacked("x", x)
    if lengths is not None:
        arrays["lengths"] = lengths
    if y is None:
        return arrays
    target, steps = stacked("y", y)
    _check_steps("y", steps, arrays["x"], lengths)
    target = _per_step(target, steps)
    if target.dtype.kind == "U":
        if target.ndim == 1 and "" in target:
            at = target.tolist().index("")
            raise UsageError(f"y: expected a class for each sequence, got '' at index {at}; leave that sequence out")
        names = sorted_names({*target.ravel().tolist()} - {""})
        number = {name: i for i, name in enumerate(names)}
        labels = [number.get(name, IGNORED) for name in target.ravel().tolist()]
        arrays["classes"], target = np.array(names), np.array(labels).reshape(target.shape)
    return {**arrays, "y": target}


def stacked(name: str, values: Any) -> tuple[Array, npt.NDArray[np.int64] | None]:
    """Stack arrays (T, ...) of one or several lengths T.

    Args:
        name: What they are, for the error.
        values: An array, which is returned, or a sequence of arrays.

    Returns:
        An array (N, T, ...), with zeros after the end of shorter ones, and the lengths (N,) if they differ, else None.

    Raises:
        UsageError: The arrays differ in another axis, or a value is None.
    """
    if isinstance(values, Tensor) and values.is_nested:
        values = values.unbind()
    # an array of objects may hold arrays of unequal lengths
    is_objects = isinstance(values, np.ndarray) and values.dtype.kind == "O"
    if (hasattr(values, "shape") and not is_objects) or not isinstance(values, Iterable):
        return _array(name, values), None
    values = list(values)
    if not values:
        raise UsageError(f"{name}: expected at least one sequence, got none; add some")
    columns = [list(value.columns) for value in values if is_frame(value)]
    if others := [names for names in columns if names != columns[0]]:
        raise UsageError(
            f"{name}: expected the columns {some(map(str, columns[0]))} in this order in each table, got "
            f"{some(map(str, others[0]))}; select them in one order"
        )
    arrays = [_array(name, value) for value in values]
    if any(array.dtype.kind == "U" for array in arrays):
        _check_texts(name, (array.flat[0].item() for array in arrays if array.size))
    if len({array.shape[1:] for array in arrays}) > 1 or len({array.ndim for array in arrays}) > 1:
        raise UsageError(
            f"{name}: expected arrays that differ in their number of steps alone, got the shapes "
            f"{some(dict.fromkeys(str(array.shape) for array in arrays))}; correct {name}"
        )
    return padded(arrays)


def _check_texts(name: str, cells: Iterable[Any]) -> None:
    if others := [cell for cell in cells if not isinstance(cell, str)]:
        raise UsageError(
            f"{name}: expected texts alone, or numbers alone, got {others[0]!r:.40} among texts; leave out sequences "
            "without a class"
        )


def _array(name: str, values: Any) -> Array:
    if values is None:
        raise UsageError(f"{name}: expected an array, got None; leave it out")
    if isinstance(values, Tensor):
        try:
            dense: Tensor = values.detach().cpu().to_dense()
            return (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
        except (RuntimeError, TypeError) as error:
            # a tensor on the device meta has no data, and numpy no quantised numbers
            raise UsageError(f"{name}: expected a tensor of numbers, got another ({error}); convert it") from None
    array = as_array(name, values)
    if array.dtype.kind in "OT":
        array = as_array(name, array.tolist())
    if array.dtype.kind == "U":
        # numpy makes the text nan of a missing class
        _check_texts(name, np.asarray(values, object).flat)
    if array.dtype.kind in "OSV":
        kind = type(array.flat[0]).__name__ if array.size else array.dtype
        raise UsageError(f"{name}: expected numbers or texts (str), got {kind}; convert {name}")
    return array
