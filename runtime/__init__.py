# SPDX-License-Identifier: Apache-2.0
"""Run an exported model: `Session` for inference, `Detector` for spoken words, and the native library for apps."""

from edgernn.runtime.library import library_path
from edgernn.runtime.session import Session
from edgernn.runtime.word_detection import Detector, PostProcessing

__all__ = ["Detector", "PostProcessing", "Session", "library_path"]
