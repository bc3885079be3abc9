# SPDX-License-Identifier: Apache-2.0
"""Readers of file formats that tasks of the papers alone use, as careful as those of `edgernn.training.formats`."""

from edgernn.training.papers.formats.colour_images import Images, read_cifar10, read_svhn
from edgernn.training.papers.formats.physionet import Stays, read_physionet

__all__ = ["Images", "Stays", "read_cifar10", "read_physionet", "read_svhn"]
