# SPDX-License-Identifier: Apache-2.0
"""Train a light recurrent cell, export it as one ONNX file, run it fast, and measure its cost.

Names are imported on first use: `import edgernn` is fast, and the names that run models work without torch.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "Vector": "edgernn.cells",
    "CELLS": "edgernn.cells",
    "Cell": "edgernn.cells",
    "Gate": "edgernn.cells",
    "UpdateGate": "edgernn.cells",
    "event": "edgernn.surrogate",
    "RULES": "edgernn.rules",
    "UpdateRule": "edgernn.rules",
    "SequenceModel": "edgernn.model",
    "from_torch": "edgernn.convert",
    "to_torch": "edgernn.convert",
    "EdgernnError": "edgernn.errors",
    "UsageError": "edgernn.errors",
}
_MODULES = ("cells", "convert", "costs", "errors", "export", "model", "rules", "runtime", "training")

__all__ = [*_NAMES, *_MODULES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _NAMES and name not in _MODULES:
        raise AttributeError(f"module 'edgernn' has no attribute {name!r}; edgernn.__all__ lists all names")
    from edgernn.extras import needed_by

    with needed_by(f"edgernn.{name}"):
        module = importlib.import_module(_NAMES.get(name, f"edgernn.{name}"))
    return getattr(module, name) if name in _NAMES else module
