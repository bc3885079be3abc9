# SPDX-License-Identifier: Apache-2.0
"""The data sets that tasks need: what they are, where they lie, and how to get them."""

from edgernn.training.datasets.fetch import fetch, find_set
from edgernn.training.datasets.listing import list_sets
from edgernn.training.datasets.registry import SETS, DataSet, Download, File

__all__ = ["SETS", "DataSet", "Download", "File", "fetch", "find_set", "list_sets"]
