# SPDX-License-Identifier: Apache-2.0
"""Networks of tasks that need more than a `SequenceModel`, built around recurrent layers of any cell and rule."""
