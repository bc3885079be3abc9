# SPDX-License-Identifier: Apache-2.0
"""Reader of the external data of an ONNX file: numbers of tensors in another file, as torch.onnx.export may write them.

The file is not trusted. It may name only regular files in its own folder, by their plain names, and all its tensors
together may take no more bytes than these files have.
"""

import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from onnx import TensorProto

# bytes of an element of each type, by its number in TensorProto; types with parts of bytes or with text are not read
_SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}
# largest size of a message of protobuf, in which all numbers must fit
_MOST = 2**31 - 1


def read_external(tensors: "Sequence[TensorProto]", path: Path, *, copy: bool) -> int:
    """Check the references of tensors to external data, and copy the numbers into the tensors.

    Args:
        tensors: The tensors, changed in place.
        path: Path of the ONNX file that has them. The other files must lie in its folder.
        copy: Copy the numbers into the tensors, which then refer to no file.

    Returns:
        Size in bytes of the other files together.

    Raises:
        ValueError: A reference is not safe or does not fit its tensor; the message says why.
        OSError: A file is missing or cannot be opened.
    """
    sizes: dict[str, int] = {}
    total = 0
    for tensor in tensors:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        # protobuf returns invalid UTF-8 as bytes
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise ValueError("expected text in UTF-8, got other bytes")
        name, length = entries.get("location", ""), _length(tensor)
        offset = _number(entries, "offset", 0)
        if (stated := _number(entries, "length", length)) != length:
            raise ValueError(f"expected {length:,} bytes for its shape, got {stated:,}")
        total += length
        if total > _MOST:
            raise ValueError("expected at most 2 GB in all, got more")
        with _opened(path, name) as file:
            sizes[name] = os.fstat(file.fileno()).st_size
            if offset + length > sizes[name]:
                raise ValueError(f"expected {length:,} bytes at {offset:,}, got a file of {sizes[name]:,}")
            if total > sum(sizes.values()):
                raise ValueError("expected numbers of its own, got some that other tensors refer to as well")
            if copy:
                _copy(file, offset, length, tensor)
    return sum(sizes.values())


def _copy(file: BinaryIO, offset: int, length: int, tensor: "TensorProto") -> None:
    file.seek(offset)
    tensor.raw_data = file.read(length)
    if len(tensor.raw_data) != length:
        raise ValueError("expected a file that stays as it is, got one that became shorter")
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _length(tensor: "TensorProto") -> int:
    if tensor.data_type not in _SIZES or any(size < 0 for size in tensor.dims):
        raise ValueError(f"expected a type with whole bytes, got type {tensor.data_type} and shape {list(tensor.dims)}")
    count: int = math.prod(tensor.dims)
    return count * _SIZES[tensor.data_type]


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(f"expected a whole number as {key}, got {text!r:.30}")
    return int(text)


def _opened(path: Path, name: str) -> BinaryIO:
    """Open the regular file of this name in the folder of `path` to read its bytes."""
    if not name or Path(name).name != name or "\\" in name or "\0" in name or ":" in name:
        raise ValueError(f"expected the name of a file in the folder of the model, got {name!r:.50}")
    # neither follow a link, nor wait for a FIFO
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    beside = path.parent / name
    if beside.is_symlink():
        raise ValueError(f"expected a regular file, got a link: {name!r:.50}")
    number = os.open(beside, flags)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError(f"expected a regular file, got another kind: {name!r:.50}")
    return os.fdopen(number, "rb")
