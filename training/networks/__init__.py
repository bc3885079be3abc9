# SPDX-License-Identifier: Apache-2.0
"""Networks of tasks that no SequenceModel is: recurrent layers of any cell and rule, and what stands around them."""
