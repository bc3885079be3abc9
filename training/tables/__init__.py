# SPDX-License-Identifier: Apache-2.0
"""Tables of many trainings: their jobs and worker processes, series for plots, and text."""
