# SPDX-License-Identifier: Apache-2.0
"""Checks of a model's input: dtype, shape and values."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, some
from edgernn.runtime.info import feature_size, frontend

Array = NDArray[Any]
# rounding error of a channel, as a share of its standard deviation, from which a warning is given
_LOST = 0.01
# action of a step if x has a NaN or an infinite number
OnNonfinite = Literal["error", "hold", "reset"]
# the values of the C enum EdgernnNonfinite
ACTIONS: dict[OnNonfinite, int] = {"error": 0, "hold": 1, "reset": 2}


def warn_of_rounding(source: str, x: Array, names: Sequence[str] | None = None) -> None:
    """Warn of channels with an offset so large that rounding to float32 loses more than 1 % of what is left of them.

    Args:
        source: The file or array, for the warning.
        x: Numbers of any type (..., I).
        names: Names of the I channels. Default: their indices.
    """
    if x.dtype.kind not in "fiu" or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return
    lost = []
    for i in range(x.shape[-1]):
        column = x[..., i].astype(np.float64)
        if not np.isfinite(column).all():
            continue
        spread, offset = column.std(), abs(column.mean())
        with np.errstate(over="ignore"):
            error = np.sqrt(np.square(column.astype(np.float32) - column).mean())
        if spread > 1e-12 * offset and error > _LOST * spread:
            lost.append(f"{names[i] if names else f'x[..., {i}]'} (spread {spread:.2g} at {column.mean():.9g})")
    if lost:
        text = f"{source}: float32 cannot tell apart the values of {some(lost)}; subtract the offset beforehand"
        warnings.warn(text, EdgernnWarning, stacklevel=3)


def as_array(name: str, value: ArrayLike) -> Array:
    """Convert an argument to an array; raise UsageError, which names it, if it has masked entries or is none."""
    if _has_masked_entries(value):
        raise UsageError(f"{name}: expected no masked entries, got a masked array; fill them: array.filled(VALUE)")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        # torch raises the last two for tensors that need gradients, are sparse or have a type that numpy lacks
        raise UsageError(f"{name}: expected an array, got {type(value).__name__} ({error}); pass an array") from None


def is_frame(values: object) -> bool:
    """True if the values are a DataFrame of polars or pandas, or another table with named columns."""
    return hasattr(type(values), "columns")


def in_order(name: str, values: Any, channels: Sequence[str]) -> Any:
    """Return the columns of a DataFrame, or of each one in a list, in the order of the channels of a model.

    UsageError is raised if a DataFrame lacks a channel, or has one twice. Other values are returned as they are.
    """
    if isinstance(values, list | tuple):
        return [in_order(name, value, channels) for value in values]
    if not is_frame(values):
        return values
    columns = {channel: [column for column in values.columns if str(column) == channel] for channel in channels}
    if wrong := [channel for channel in channels if len(columns[channel]) != 1]:
        wanted, got = some(channels), some(map(str, values.columns))
        raise UsageError(f"{name}: expected each of the columns {wanted} once, got {got}; add or rename {wrong[0]!r}")
    return np.stack([as_array(name, values[columns[channel][0]]) for channel in channels], -1)


def _has_masked_entries(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_masked_entries, value))
    return isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)


class InputCheck:
    """Checks of a model's input x: its dtype, its shape and its values.

    `words` is True for a model that reads word indices. `channels` is the shape of x at one step of one sequence:
    (I,), or () for word indices. `expected` describes the valid values in error messages.

    A `Session` can replace a NaN or infinite number in x by the last finite number of the same channel. The array
    `start` (I,) has the replacements before the first finite number: the mean that the model subtracts from x, or zeros
    if it subtracts none.
    """

    def __init__(self, info: Mapping[str, Any], path: Path) -> None:
        """Read the expected dtype, shape and values of x from the metadata of an exported file.

        Args:
            info: The file's metadata, a dict that `read_info` returned.
            path: Path of the file, for error messages.

        Raises:
            EdgernnError: The mean or the standard deviation of x in the metadata has the wrong length.
        """
        model = info["model"]
        size, self._vocabulary = model["input"]["size"], model["input"]["vocabulary"]
        self.channels: tuple[int, ...] = (size,) if self._vocabulary is None else ()
        self.words = self._vocabulary is not None
        self._names: list[str] | None = info.get("channels")
        self.expected = f"word indices from 0 to {self._vocabulary - 1}" if self.words else "finite numbers"
        # F of a model with an imputer, whose x holds values, masks and times
        self._features = 0 if model.get("layer", {}).get("imputer") is None else size // 3
        # mean and std are those of the features if the model has a front end
        width = feature_size(info)
        for name in ("mean", "std"):
            if (count := len(model["input"][name])) not in (1, width):
                raise EdgernnError(
                    f"{path}: model.input.{name} in its edgernn metadata: expected one number or {width} of them, got "
                    f"{count}; export the model again"
                )
        numbers = [model["input"]["mean"], model["input"]["std"]] if frontend(info) is None else [[0.0], [1.0]]
        self.start, self._std = (np.broadcast_to(np.array(values, np.float32), size) for values in numbers)

    def bad(self, x: Array) -> NDArray[np.bool_]:
        """Return a mask of the shape of x that is True at invalid values: unknown words, NaN and infinite numbers.

        A model with an imputer, which fills in missing values, reads x (..., 3 F): F values, F masks (1 for an observed
        value), and F times since the last observation. A value may be NaN where its mask says that it is missing.
        """
        if self.words:
            return np.asarray((x < 0) | (x >= self._vocabulary))
        bad = np.asarray(~np.isfinite(x))
        if self._features > 0 and bad.any():
            values, masks = slice(0, self._features), slice(self._features, 2 * self._features)
            with np.errstate(all="ignore"):
                observed = (x[..., masks] - self.start[masks]) / self._std[masks] > 0
            bad[..., values] &= observed | ~np.isnan(x[..., values])
        return bad

    def shape(self, *leading: str) -> str:
        """Return the shape of x as text, such as "(T, B, 2)"; `leading` names the axes before I, such as "T", "B"."""
        return f"({', '.join([*leading, *map(str, self.channels)])}{',' * (len(leading) + len(self.channels) == 1)})"

    def checked(self, x: ArrayLike, leading: tuple[str, ...], values: bool = True) -> Array:
        """Check the dtype, shape and values of a model's input x, and convert it to the model's dtype and axes.

        Args:
            x: The input, with or without the axis B.
            leading: Names of the axes before I: ("T", "B") for sequences, or ("B",) for one step.
            values: False to accept NaN and infinite numbers. Word indices are always checked.

        Returns:
            x as float32 (T, B, I), or int64 (T, B) for words. An axis T or B that x lacks gets length 1.

        Raises:
            UsageError: The dtype, the shape or a value is wrong.
        """
        return self.converted(self.shaped(x, leading), leading, values)

    def shaped(self, x: ArrayLike, leading: tuple[str, ...]) -> Array:
        """Check the dtype and the shape of x, but not its values, and return x as an array of its own dtype.

        `leading` names the axes before I: ("T", "B") for sequences, or ("B",) for one step. The axis B may be missing.
        A wrong dtype or shape raises UsageError.
        """
        array = as_array("x", x if self._names is None else in_order("x", x, self._names))
        expected, full = self.shape(*leading), len(leading) + len(self.channels)
        kind, kinds = ("whole numbers", "iu") if self.words else ("numbers", "fiub")
        if array.dtype.kind not in kinds:
            raise UsageError(f"x: expected {kind} of shape {expected}, got dtype {array.dtype}; convert x")
        if array.ndim not in (full - 1, full) or array.shape[array.ndim - len(self.channels) :] != self.channels:
            raise UsageError(f"x: expected shape {expected}, or without B, got {array.shape}; reshape x")
        if 0 in array.shape:
            raise UsageError(
                f"x: expected shape {expected} with no empty axis, got {array.shape}; pass one step or more"
            )
        return array

    def converted(self, array: Array, leading: tuple[str, ...], values: bool = True) -> Array:
        """Check the values of x and convert it to float32 (T, B, I), or int64 (T, B) for word indices.

        `array` is an array that `shaped` returned, and `leading` has the names of the axes before I, as for `shaped`. A
        missing axis T or B gets length 1. UsageError is raised for a NaN, an infinite number or an unknown word; if
        `values` is False, only for an unknown word.
        """
        without_batch, original = array.ndim < len(leading) + len(self.channels), array
        if not self.words:
            with np.errstate(over="ignore"):
                array = np.ascontiguousarray(array, np.float32)
        if (values or self.words) and (bad := self.bad(array)).any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            limit = "" if self.words or not np.isfinite(original[where]) else " in the range of float32"
            got = f"{original[where]} at index {where}"
            raise UsageError(f"x: expected {self.expected}{limit}, got {got}; correct the data")
        if self.words:
            array = array.astype(np.int64)
        array = array.reshape((1,) * (leading == ("B",)) + array.shape)
        return array.reshape(array.shape[:1] + (1,) * without_batch + array.shape[1:])
