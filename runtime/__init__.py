# SPDX-License-Identifier: Apache-2.0
"""Run an exported model: `Session`, and the native library for apps that use ONNX Runtime themselves."""

from edgernn.runtime.library import library_path
from edgernn.runtime.session import Session

__all__ = ["Session", "library_path"]
