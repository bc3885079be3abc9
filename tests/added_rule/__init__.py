# SPDX-License-Identifier: Apache-2.0
"""A rule that is added as rules are, for tests: its two files. `plugin` is its line in each list and its oracle."""
