# SPDX-License-Identifier: Apache-2.0
"""Train a light recurrent cell, export it as one ONNX file, run it fast, and measure its cost.

Names are imported on first use: `import edgernn` is fast, and the names that run models work without torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgernn import cells as cells
    from edgernn import convert as convert
    from edgernn import costs as costs
    from edgernn import errors as errors
    from edgernn import export as export
    from edgernn import model as model
    from edgernn import nn as nn
    from edgernn import rules as rules
    from edgernn import runtime as runtime
    from edgernn import training as training
    from edgernn.cells import CELLS as CELLS
    from edgernn.cells import Cell as Cell
    from edgernn.cells import Gate as Gate
    from edgernn.cells import UpdateGate as UpdateGate
    from edgernn.cells import Vector as Vector
    from edgernn.convert import from_torch as from_torch
    from edgernn.convert import to_torch as to_torch
    from edgernn.errors import EdgernnError as EdgernnError
    from edgernn.errors import UsageError as UsageError
    from edgernn.model import SequenceModel as SequenceModel
    from edgernn.rules import RULES as RULES
    from edgernn.rules import UpdateRule as UpdateRule
    from edgernn.surrogate import event as event

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
_MODULES = ("cells", "convert", "costs", "errors", "export", "model", "nn", "rules", "runtime", "training")

__all__ = [*_NAMES, *_MODULES, "__version__"]  # noqa: PLE0604


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})


if not TYPE_CHECKING:
    # type checkers know all names from the imports above, and report others

    def __getattr__(name):
        if name not in _NAMES and name not in _MODULES:
            raise AttributeError(f"module 'edgernn' has no attribute {name!r}; edgernn.__all__ lists all names")
        from edgernn.extras import needed_by

        with needed_by(f"edgernn.{name}"):
            module = importlib.import_module(_NAMES.get(name, f"edgernn.{name}"))
        return getattr(module, name) if name in _NAMES else module
