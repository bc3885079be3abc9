# SPDX-License-Identifier: Apache-2.0
"""Sessions of packed models, and of the files of other tools, which a session packs: what it knows and runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import UsageError
from edgernn.runtime.describe import describe_packed
from edgernn.runtime.open_model import is_foreign
from edgernn.runtime.packed import pack
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.weights import PACKED_MAGIC

Array = NDArray[Any]
Counts = NDArray[np.int64]


def packed_content(content: bytes, path: Path) -> bytes:
    """Return the packed model of a packed file or of the file of another tool, empty for a file that edgernn exported.

    Args:
        content: Content of the file.
        path: Path of the file, for error messages.

    Returns:
        The content of the packed model.

    Raises:
        EdgernnError: The content is neither that of an ONNX file nor that of a packed model.
        UsageError: No packed model computes a step of the file of another tool. The message names the command that
            helps.
    """
    if content.startswith(PACKED_MAGIC):
        return content
    if not is_foreign(content, path):
        return b""
    try:
        return pack(content, path)
    except UsageError as error:
        raise UsageError(f"{error}; a session opens the file that edgernn stream or edgernn pack writes") from None


def packed_info(packed: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """Return what a packed model says of itself, in the form of the metadata of a network of one's own.

    Args:
        packed: The packed model.
        path: Path of its file.

    Returns:
        The description, and the number of floats of state of a sequence.

    Raises:
        EdgernnError: The packed model cannot be read, or the native library is missing.
    """
    described, sizes = describe_packed(packed, path), Stepper(packed, 1).sizes
    info = {
        "network": path.name,
        "neurons": [sizes.neurons],
        "model": {
            "input": {**described["input"], "mean": [0.0], "std": [1.0]},
            "head": {**described["output"], "output": "all"},
        },
        "streaming": True,
        "classes": described["classes"],
        "channels": described["channels"],
    }
    return info, sizes.state


def run_steps(packed: bytes, x: Array, is_step: NDArray[np.bool_]) -> tuple[Array, Counts | None, Counts | None]:
    """Run a packed model on sequences, from the initial state.

    Args:
        packed: The packed model.
        x: Inputs (T, B, I), or words (T, B).
        is_step: False at padded steps (T, B), whose outputs and work are zero.

    Returns:
        The outputs (T, B, O), and the numbers of updated neurons (T, B) and of multiply-adds (B,). The numbers are None
        for a model that runs all of its work at every step.

    Raises:
        UsageError: An input is refused.
    """
    stepper = Stepper(packed, x.shape[1])
    y = np.zeros((*x.shape[:2], stepper.y.shape[1]), np.float32)
    updates, macs = list[Counts | None](), list[Counts | None]()
    for t, row in enumerate(x):
        stepper.x[...] = row
        if not stepper.step():
            raise UsageError(f"{stepper.refusal()}, at step {t}")
        y[t] = stepper.y
        updates.append(stepper.updates)
        macs.append(stepper.macs)
    y[~is_step] = 0
    work = _without_padding(macs, is_step)
    return y, _without_padding(updates, is_step), None if work is None else work.sum(0)


def _without_padding(counts: Sequence[Counts | None], is_step: NDArray[np.bool_]) -> Counts | None:
    known = [count for count in counts if count is not None]
    return np.where(is_step, known, 0) if known else None
