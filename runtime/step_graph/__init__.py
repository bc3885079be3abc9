# SPDX-License-Identifier: Apache-2.0
"""Plans a streaming ONNX graph as a list of steps over float buffers, which the native library runs."""
