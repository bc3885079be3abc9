# SPDX-License-Identifier: Apache-2.0
"""States for ONNX files of other tools: passes over a graph that let a caller run it in chunks."""
