# SPDX-License-Identifier: Apache-2.0
"""Reader of the idx format of MNIST."""

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import LIMIT, opened, take
from edgernn.errors import EdgernnError

_UBYTE = 8


def read_idx(path: Path, shape: tuple[int | None, ...]) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes.

    Args:
        path: The file, plain, .gz or .xz.
        shape: Expected shape, with None for an axis of any length.

    Returns:
        The array.

    Raises:
        EdgernnError: The file is invalid, or has another shape.
    """
    head = 4 + 4 * len(shape)
    with opened(path) as file:
        header = take(file, head)
        if len(header) < head:
            raise EdgernnError(
                f"{path}: expected an idx file with a header of {head} bytes, got {len(header)} bytes; download it "
                "again"
            )
        zeros, kind, rank, *sizes = struct.unpack(f">HBB{len(shape)}I", header)
        if (zeros, kind, rank) != (0, _UBYTE, len(shape)):
            expected = f"0x0000{_UBYTE:02x}{len(shape):02x} (unsigned bytes of rank {len(shape)})"
            raise EdgernnError(
                f"{path}: expected the magic number {expected}, got 0x{header[:4].hex()}; download this "
                "file of the data set again"
            )
        if any(want is not None and want != got for want, got in zip(shape, sizes, strict=True)):
            wanted = ", ".join("N" if size is None else str(size) for size in shape)
            raise EdgernnError(
                f"{path}: expected shape ({wanted}), got {tuple(sizes)}; download this file of the data set again"
            )
        count = math.prod(sizes)
        # one more byte detects trailing data, and makes the unpacker verify its checksum
        body = take(file, min(count, LIMIT) + 1)
    if len(body) != count:
        got = f"{len(body)} bytes" if len(body) < count else "more"
        raise EdgernnError(
            f"{path}: expected {count} bytes after the header for shape {tuple(sizes)}, got {got}; download it again"
        )
    return np.frombuffer(body, np.uint8).reshape(sizes)
