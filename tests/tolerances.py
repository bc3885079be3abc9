# SPDX-License-Identifier: Apache-2.0
"""Tolerances used by all tests."""

POISON = True

# against the float64 oracle, absolute
FLOAT64 = 1e-10
# between float32 paths with different orders of summation
FLOAT32 = 1e-5
