# SPDX-License-Identifier: Apache-2.0
"""Readers of the file formats of data sets, one module per format.

Files may be corrupt, truncated or malicious. No reader allocates more memory than the bytes in the file can fill, files
that unpack to more than a limit are refused, nothing is executed, and no pickle is read. Every error is an EdgernnError
that names the file, the expected content and the content found.
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
