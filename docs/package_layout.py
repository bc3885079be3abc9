# SPDX-License-Identifier: Apache-2.0
"""MkDocs hook that links the source folders in the layout of the installed package, for mkdocstrings."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = ROOT / "build" / "documented" / "edgernn"
# folders beside edgernn/ that pyproject.toml installs as subpackages of edgernn
BESIDE = ("export", "runtime", "training")


def on_startup(**_: Any) -> None:
    """Link the modules of edgernn, and the folders of BESIDE, into one folder."""
    LAYOUT.mkdir(parents=True, exist_ok=True)
    for link in LAYOUT.iterdir():
        link.unlink()
    for source in [*(ROOT / "edgernn").iterdir(), *(ROOT / name for name in BESIDE)]:
        if source.name != "__pycache__":
            (LAYOUT / source.name).symlink_to(source)
