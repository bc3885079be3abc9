# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the documentation, from the reports in docs/results; docs/generate.py uses them."""
