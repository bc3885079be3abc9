# SPDX-License-Identifier: Apache-2.0
"""Many trainings of one task, beside each other: every combination of cells, rules and settings, over several seeds."""

from edgernn.training.sweep.run_sweep import sweep

__all__ = ["sweep"]
