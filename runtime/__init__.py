# SPDX-License-Identifier: Apache-2.0
"""Run an exported model: `Session`, `NetworkSession` for a network of one's own, `Detector` for spoken words."""

from edgernn.runtime.library import library_path
from edgernn.runtime.network import NetworkSession
from edgernn.runtime.session import Session
from edgernn.runtime.word_detection import Detector, PostProcessing

__all__ = ["Detector", "NetworkSession", "PostProcessing", "Session", "library_path"]
