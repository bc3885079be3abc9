# SPDX-License-Identifier: Apache-2.0
"""Kinds of update rules: base classes that own a step in torch, by what a decision is about."""
