# SPDX-License-Identifier: Apache-2.0
"""A rule added for tests as users of the project would add one. `plugin` registers it and its oracle."""
