# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of a model file, or of a suite of cases beside other runtimes. Outputs are verified before timing."""

from edgernn.bench.measure import Settings, bench, read_example
from edgernn.bench.report import markdown, save

__all__ = ["Settings", "bench", "markdown", "read_example", "save"]
