# SPDX-License-Identifier: Apache-2.0
"""Classification of 28 x 28 images, read row by row or pixel by pixel."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.byte_source import read_all
from edgernn.errors import EdgernnError
from edgernn.training.datasets import SETS
from edgernn.training.datasets.find import find_files
from edgernn.training.formats import read_idx
from edgernn.training.tasks.base import CLASSIFICATION, Task
from edgernn.training.tasks.sources import Sequences, random_split

SIDE = 28
WHITE = 255.0
_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
# one in 12 of the training images is for validation: 5,000 of 60,000
_HELD_OUT = 12


@dataclass
class LabelledImages(Task):
    """Base class of image classification into ten classes.

    x has pixel values 0 to 255, as in the file. The model standardises them to (x / 255 - pixel_mean) / pixel_std.
    target (B,): the class, 0 to 9. The seed splits the publisher's 60,000 training images into 55,000 for training and
    5,000 for validation. The publisher's 10,000 test images are for the test.

    Settings:

    - `pixel_mean`, `pixel_std`: Mean and standard deviation by which pixel values, scaled to [0, 1], are standardised.
      0 and 1 leave them in [0, 1].
    """

    pixel_mean: float = 0.0
    pixel_std: Annotated[float, Field(gt=0)] = 1.0

    # folder of the data set in the data folder
    folder: ClassVar[str]
    defaults = {"epochs": 5, "hidden_size": 128, "batch_size": 100, "lr": 1e-3}  # noqa: RUF012
    objective = CLASSIFICATION
    input_size, output_size = SIDE, 10

    def open(self, source: Path | None, seed: int) -> None:
        files = find_files(self.name, self.folder, SETS[self.folder].forms[0], source)
        self._check_data_set(files[1])
        images, labels = self._read(files[0], files[1])
        if len(images) < _HELD_OUT:
            raise EdgernnError(
                f"{files[0]}: expected at least {_HELD_OUT} images, got {len(images)}; download it again"
            )
        train, held_out = random_split(len(images), [len(images) // _HELD_OUT], seed)
        self.train = Sequences(images[train], labels[train], seed=seed)
        self.validation = Sequences(images[held_out], labels[held_out])
        self.test = Sequences(*self._read(files[2], files[3]))
        self.mean = (WHITE * self.pixel_mean,) * self.input_size
        self.std = (WHITE * self.pixel_std,) * self.input_size

    def _check_data_set(self, labels_file: Path) -> None:
        """Refuse labels of Fashion-MNIST for MNIST, or vice versa, as the files of both have the same names."""
        digest = hashlib.sha256(read_all(labels_file)).hexdigest()
        for key, other in SETS.items():
            if key != self.folder and digest in {file.sha256 for file in other.files.values()}:
                hint = (
                    f"put the right files into {self.folder}/ of the data folder, or run "
                    f"`edgernn data fetch {self.folder}`"
                )
                raise EdgernnError(
                    f"{labels_file}: {self.name} needs {SETS[self.folder].title}, but this is {other.title}; {hint}"
                )

    def steps(self, images: Tensor) -> Tensor:
        """Convert images (N, 28, 28) to sequences (N, T, I); in the base class, a step is a row of an image."""
        return images

    def _read(self, images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
        images = read_idx(images_file, (None, SIDE, SIDE))
        labels = read_idx(labels_file, (None,))
        if not len(images):
            raise EdgernnError(f"{images_file}: expected at least one image, got none; download it again")
        if len(images) != len(labels):
            raise EdgernnError(
                f"{labels_file}: expected {len(images)} labels, one per image, got {len(labels)}; download it again"
            )
        if wrong := np.flatnonzero(labels >= self.output_size).tolist():
            raise EdgernnError(
                f"{labels_file}: expected labels 0 to 9, got {labels[wrong[0]]} at index {wrong[0]}; download it again"
            )
        return self.steps(torch.from_numpy(images.copy())), torch.from_numpy(labels.astype(np.int64))


@dataclass
class MnistRows(LabelledImages):
    """Classification of images of digits, one row of pixels per step: x (28, B, 28).

    Source: LeCun, Cortes, Burges, the MNIST database.
    """

    name = "mnist-rows"
    help = "Classify digits from 28 rows of 28 pixels (needs the MNIST files)."
    folder = "mnist"
    classes = _DIGITS


@dataclass
class FashionRows(LabelledImages):
    """Classification of images of clothing, one row of pixels per step: x (28, B, 28).

    The default pixel_mean and pixel_std are 1/2 each, as in appendix C of "DecayNet: A Study on the Cell States of
    Long-Short Term Memories" (anonymous authors).

    Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    arXiv:1708.07747.
    """

    pixel_mean: float = 0.5
    pixel_std: Annotated[float, Field(gt=0)] = 0.5

    name = "fashion-rows"
    help = "Classify clothing from 28 rows of 28 pixels (needs the Fashion-MNIST files)."
    folder = "fashion-mnist"
    classes = _CLOTHES


@dataclass
class MnistPermuted(LabelledImages):
    """Classification of images of digits, one pixel per step in a fixed random order: x (784, B, 1).

    Step t is pixel p_t of the flattened image. The permutation p is the same for every image, and it does not depend on
    the seed of the run.

    Settings:

    - `permutation`: Seed of p, which is numpy's default_rng(permutation).permutation(784).

    Source: Le, Jaitly, Hinton, "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units",
    arXiv:1504.00941. The default hidden size, 100, is from "DecayNet: A Study on the Cell States of Long-Short Term
    Memories" (anonymous authors), section 6.1.
    """

    permutation: Annotated[int, Field(ge=0)] = 0

    name = "mnist-permuted"
    help = "Classify digits from 784 pixels in a fixed random order (needs the MNIST files)."
    defaults = {**LabelledImages.defaults, "hidden_size": 100}  # noqa: RUF012
    folder = "mnist"
    classes = _DIGITS
    input_size = 1

    def steps(self, images: Tensor) -> Tensor:
        order = np.random.default_rng(self.permutation).permutation(SIDE * SIDE)
        return images.flatten(1)[:, torch.from_numpy(order)][..., None]
