# SPDX-License-Identifier: Apache-2.0
"""Calibration: thresholds under which a trained network sends fewer values, found on data."""
