# SPDX-License-Identifier: Apache-2.0
"""The command line: the frame, and one module a verb that is imported when the verb is used."""
