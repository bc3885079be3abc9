# SPDX-License-Identifier: Apache-2.0
"""Checks of the values of a model's input, and what stands in for numbers that are not finite."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError

Array = NDArray[Any]
# action of a step on numbers of x that are not finite
OnNonfinite = Literal["error", "hold", "reset"]
# the values of the C enum EdgernnNonfinite
ACTIONS: dict[OnNonfinite, int] = {"error": 0, "hold": 1, "reset": 2}


class InputCheck:
    """The values of x that a model accepts.

    `expected` names them in errors, and `words` is True for a model of words. `start` (I,) stands in for a number that
    is not finite before the first finite one: the mean that the model subtracts, else zeros.
    """

    def __init__(self, info: Mapping[str, Any], path: Path) -> None:
        """Read a file's description.

        Args:
            info: The description (`read_info`).
            path: The file, for the error.

        Raises:
            EdgernnError: The mean or the standard deviation has the wrong length.
        """
        model = info["model"]
        size, self._vocabulary = model["input"]["size"], model["input"]["vocabulary"]
        self.words = self._vocabulary is not None
        self.expected = f"words from 0 to {self._vocabulary - 1}" if self.words else "finite numbers"
        # F of a model with an imputer, whose x holds values, masks and times
        self._features = 0 if model["layer"].get("imputer") is None else size // 3
        for name in ("mean", "std"):
            if (count := len(model["input"][name])) not in (1, size):
                got = f"expected {size} numbers, or one, got {count}"
                raise EdgernnError(f"{path}: model.input.{name} in its edgernn metadata: {got}; export it again")
        self.start, self._std = (
            np.broadcast_to(np.array(model["input"][name], np.float32), size) for name in ("mean", "std")
        )

    def bad(self, x: Array) -> NDArray[np.bool_]:
        """Return which values of x are bad: unknown words, or numbers that are not finite.

        A NaN is not bad where the mask of a model with an imputer says that the value is missing.
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
