# SPDX-License-Identifier: Apache-2.0
"""Sweeps: trainings of one task, in parallel, for every combination of cells, update rules, settings and seeds."""

from edgernn.training.sweep.run import sweep

__all__ = ["sweep"]
