# SPDX-License-Identifier: Apache-2.0
"""Reader of small colour images: SVHN (format 2) and CIFAR-10."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import LIMIT, read_all
from edgernn.errors import EdgernnError
from edgernn.npz import read_npz
from edgernn.training.papers.formats.mat import read_mat

CLASSES = 10
_SHAPE = (32, 32, 3)
_CIFAR_RECORD = 1 + 32 * 32 * 3


class Images(NamedTuple):
    """Images x (N, 32, 32, 3) uint8, with the axes image, row, column and RGB, and labels y (N,) uint8, 0 to 9."""

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.uint8]


def read_svhn(path: Path, limit: int = LIMIT) -> Images:
    """Read a file of Street View House Numbers in format 2.

    The file has the images as an array X (32, 32, 3, N), and the labels as an array y (N, 1). The label 10 in the
    file, which stands for the digit 0, becomes 0.
    Source: Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", 2011.

    Args:
        path: train_32x32.mat or test_32x32.mat, plain, .gz or .xz.
        limit: Maximal size of an array in bytes.

    Returns:
        Images and labels.

    Raises:
        EdgernnError: The file is invalid.
    """
    arrays = read_mat(path, ("X", "y"), limit)
    x, y = arrays["X"], arrays["y"]
    if x.ndim == 3:
        # MATLAB files drop a last dimension of 1
        x = x[..., None]
    if x.dtype != np.uint8 or x.shape[:-1] != _SHAPE:
        raise EdgernnError(f"{path}: X: expected uint8 (32, 32, 3, N), got {x.dtype} {x.shape}; download it again")
    if y.shape != (x.shape[-1], 1):
        raise EdgernnError(f"{path}: y: expected shape ({x.shape[-1]}, 1), got {y.shape}; download it again")
    y = y[:, 0]
    if len(wrong := np.flatnonzero((y < 1) | (y > CLASSES) | (y != np.floor(y)))):
        raise EdgernnError(
            f"{path}: y: expected labels 1 to 10, got {y[wrong[0]]} at index {wrong[0]}; download it again"
        )
    return Images(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (y % CLASSES).astype(np.uint8))


def read_cifar10(files: Sequence[Path]) -> tuple[Images, Images]:
    """Read the training and test images of CIFAR-10.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

    Args:
        files: Two or more batch files of the binary version (plain, .gz or .xz), of which the last has the test images;
            or one npz archive with the arrays x_train, y_train, x_test and y_test.

    Returns:
        Training images and test images, both with labels.

    Raises:
        EdgernnError: A file is invalid.
    """
    if len(files) == 1:
        return _cifar_archive(files[0])
    batches = [_cifar_batch(path) for path in files]
    x, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    return Images(x, y), batches[-1]


def _cifar_batch(path: Path) -> Images:
    """Read records of a label and of the red, green and blue planes of 32 x 32 bytes."""
    content = read_all(path)
    if not content or len(content) % _CIFAR_RECORD:
        raise EdgernnError(
            f"{path}: expected one or more records of {_CIFAR_RECORD} bytes each, got {len(content)} bytes in all; "
            "download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    x = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(x), _labels(str(path), records[:, 0]))


def _cifar_archive(path: Path) -> tuple[Images, Images]:
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    train, test = (_pair(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    return train, test


def _pair(path: Path, part: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Images:
    if x.dtype != np.uint8 or x.shape[1:] != _SHAPE or not len(x):
        raise EdgernnError(
            f"{path}: x_{part}: expected uint8 (N, 32, 32, 3), got {x.dtype} {x.shape}; download it again"
        )
    if y.dtype != np.uint8 or y.shape != (len(x),):
        raise EdgernnError(
            f"{path}: y_{part}: expected uint8 ({len(x)},), a label for each image, got {y.dtype} {y.shape}; "
            "download it again"
        )
    return Images(x, _labels(f"{path}: y_{part}", y))


def _labels(where: str, y: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if len(wrong := np.flatnonzero(y >= CLASSES)):
        raise EdgernnError(f"{where}: expected labels 0 to 9, got {y[wrong[0]]} at index {wrong[0]}; download it again")
    return y.copy()
