# SPDX-License-Identifier: Apache-2.0
"""Readers of the file formats of data sets, one module per format.

Files may be corrupt, truncated or malicious. Memory grows with the data that are read, not with the size that a file's
header claims. Files that unpack to more than a limit are refused. Nothing is executed, and no pickle is read. A file
that is invalid raises an EdgernnError, which names the file, the expected content and the content found.
"""

from edgernn.npz import read_npz
from edgernn.runtime.csv_table import CsvTable
from edgernn.training.formats.csv_text import read_csv, read_numbers, read_text
from edgernn.training.formats.hapt import read_hapt
from edgernn.training.formats.idx import read_idx
from edgernn.training.formats.wfdb import WfdbRecord, read_wfdb

__all__ = [
    "CsvTable",
    "WfdbRecord",
    "read_csv",
    "read_hapt",
    "read_idx",
    "read_npz",
    "read_numbers",
    "read_text",
    "read_wfdb",
]
