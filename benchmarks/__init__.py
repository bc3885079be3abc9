# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and measurements behind the figures of the documentation; README.md lists the command of each figure."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
