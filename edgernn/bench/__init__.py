# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of one exported model, or of many models beside other runtimes. Outputs are checked before timing."""

from edgernn.bench.measure import Settings, bench, read_example
from edgernn.bench.report import markdown, save

__all__ = ["Settings", "bench", "markdown", "read_example", "save"]
