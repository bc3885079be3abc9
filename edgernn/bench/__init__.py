# SPDX-License-Identifier: Apache-2.0
"""Measure a model file, or a whole suite beside other runtimes: verified first, then timed in one run."""

from edgernn.bench.measure import Settings, bench, read_example
from edgernn.bench.report import markdown, save

__all__ = ["Settings", "bench", "markdown", "read_example", "save"]
