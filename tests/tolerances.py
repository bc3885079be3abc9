# SPDX-License-Identifier: Apache-2.0
"""How close is close: one table, the same everywhere."""

POISON = True

# against the float64 oracle, absolute
FLOAT64 = 1e-10
# float32 paths that add in another order
FLOAT32 = 1e-5
