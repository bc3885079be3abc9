# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits, read row by row."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgernn.errors import EdgernnError
from edgernn.training.data import find_files, read_idx
from edgernn.training.tasks.base import CLASSIFICATION, Task
from edgernn.training.tasks.sources import Sequences, random_split

FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
CLASSES = 10
# one in 12 of the training images is for validation: 5,000 of 60,000
_HELD_OUT = 12


@dataclass
class MnistRows(Task):
    """Which digit an image shows, from its 28 rows of 28 pixels.

    x (28, B, 28): pixel values 0 to 255, as they are in the file; the model divides by 255. target (B,): 0 to 9.
    55,000 images to train, 5,000 to validate, chosen by the seed; 10,000 to test.
    Source: LeCun, Cortes, Burges, the MNIST database.
    """

    name = "mnist-rows"
    help = "name the digit in 28 rows of 28 pixels (needs the MNIST files)"
    defaults = {"epochs": 5, "hidden_size": 128, "batch_size": 100, "lr": 1e-3}  # noqa: RUF012
    objective = CLASSIFICATION
    input_size, output_size = 28, CLASSES
    mean, std = (0.0,) * 28, (255.0,) * 28

    def open(self, source: Path | None, seed: int) -> None:
        files = find_files(self.name, "mnist", FILES, source)
        images, labels = _read_set(files[0], files[1])
        if len(images) < _HELD_OUT:
            raise EdgernnError(f"{files[0]}: expected at least {_HELD_OUT} images, got {len(images)}")
        train, held_out = random_split(len(images), [len(images) // _HELD_OUT], seed)
        self.train = Sequences(images[train], labels[train], seed=seed)
        self.validation = Sequences(images[held_out], labels[held_out])
        self.test = Sequences(*_read_set(files[2], files[3]))


def _read_set(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    images = read_idx(images_file, (None, 28, 28))
    labels = read_idx(labels_file, (None,))
    if not len(images):
        raise EdgernnError(f"{images_file}: expected at least one image, got none")
    if len(images) != len(labels):
        raise EdgernnError(f"{labels_file}: expected {len(images)} labels, one an image, got {len(labels)}")
    if wrong := np.flatnonzero(labels >= CLASSES).tolist():
        raise EdgernnError(f"{labels_file}: expected labels 0 to 9, got {labels[wrong[0]]} at index {wrong[0]}")
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))
