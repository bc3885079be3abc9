# SPDX-License-Identifier: Apache-2.0
"""A rule that is added as rules are, for tests: its file. `plugin` is its line in the list and its oracle."""
