# SPDX-License-Identifier: Apache-2.0
"""Reproduction of the tables and figures of five papers: their recipes, tasks, networks and pictures.

The other modules of edgernn do not import this package.
"""
