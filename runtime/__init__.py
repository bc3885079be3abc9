# SPDX-License-Identifier: Apache-2.0
"""Run an exported model: `Session`, `NetworkSession` for a network of one's own, `Detector` for spoken words."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgernn.runtime.library import library_path as library_path
    from edgernn.runtime.network import NetworkSession as NetworkSession
    from edgernn.runtime.session import Session as Session
    from edgernn.runtime.word_detection import Detector as Detector
    from edgernn.runtime.word_detection import PostProcessing as PostProcessing

_MODULES = {
    "Detector": "word_detection",
    "NetworkSession": "network",
    "PostProcessing": "word_detection",
    "Session": "session",
    "library_path": "library",
}
__all__ = [*_MODULES]  # noqa: PLE0604

if not TYPE_CHECKING:
    # a training imports edgernn.runtime.library, which needs none of these

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module 'edgernn.runtime' has no attribute {name!r}")
        from edgernn.extras import needed_by

        with needed_by(f"edgernn.runtime.{name}"):
            return getattr(importlib.import_module(f"edgernn.runtime.{_MODULES[name]}"), name)
