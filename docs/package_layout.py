# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs that lays the sources out as they are installed, so that mkdocstrings finds every module."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = ROOT / "build" / "documented" / "edgernn"
# folders of the repository that install below edgernn, as pyproject.toml has them
BESIDE = ("export", "runtime", "training")


def on_startup(**_: Any) -> None:
    """Link the modules of edgernn, and the folders that install below it, into one folder."""
    LAYOUT.mkdir(parents=True, exist_ok=True)
    for link in LAYOUT.iterdir():
        link.unlink()
    for source in [*(ROOT / "edgernn").iterdir(), *(ROOT / name for name in BESIDE)]:
        if source.name != "__pycache__":
            (LAYOUT / source.name).symlink_to(source)
