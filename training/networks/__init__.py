# SPDX-License-Identifier: Apache-2.0
"""Networks other than `SequenceModel`, built around recurrent layers of any cell and rule."""
