# SPDX-License-Identifier: Apache-2.0
"""Readers of the files that data sets come in, one module a format.

A file may be corrupt, cut or made to harm: no reader asks for more memory than the bytes that are there can fill, what
unpacks to more than a limit is refused, nothing is ever executed, and no pickle is read. Whatever is wrong is one
EdgernnError that names the file, what was expected and what came.
"""

from edgernn.training.formats.colour_images import Images, read_cifar10, read_svhn
from edgernn.training.formats.csv_text import CsvTable, read_csv, read_text
from edgernn.training.formats.idx import read_idx
from edgernn.training.formats.npz import read_npz
from edgernn.training.formats.physionet import Stays, read_physionet

__all__ = [
    "CsvTable",
    "Images",
    "Stays",
    "read_cifar10",
    "read_csv",
    "read_idx",
    "read_npz",
    "read_physionet",
    "read_svhn",
    "read_text",
]
