# SPDX-License-Identifier: Apache-2.0
"""Data sets of the tasks: registry, search and download."""

from edgernn.training.datasets.fetch import fetch, find_set
from edgernn.training.datasets.listing import list_sets
from edgernn.training.datasets.registry import SETS, DataSet, Download, File

__all__ = ["SETS", "DataSet", "Download", "File", "fetch", "find_set", "list_sets"]
