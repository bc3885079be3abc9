# SPDX-License-Identifier: Apache-2.0
"""What an exported file says of itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.runtime.library import SCHEMA

# what is read
_KEYS = {"ops", "input_size", "hidden_size", "layers", "bidirectional", "output", "streaming", "initial_state", "cost"}


def read_model(path: Path) -> bytes:
    """Raises EdgernnError where there is no such file."""
    if not path.is_file():
        raise EdgernnError(f"{path}: no such file")
    return path.read_bytes()


def read_info(text: str | None, path: Path) -> dict[str, Any]:
    """A model's description of itself, from the text in its metadata. Raises EdgernnError where it cannot be read."""
    if text is None:
        raise EdgernnError(f"{path}: not exported by edgernn (no metadata)")
    try:
        info: dict[str, Any] = json.loads(text)
        schema, missing = info["schema"], _KEYS - info.keys()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise EdgernnError(f"{path}: its edgernn metadata cannot be read") from None
    if schema != SCHEMA:
        raise EdgernnError(f"{path}: schema {schema}, this version of edgernn reads {SCHEMA}; update edgernn")
    if missing:
        raise EdgernnError(f"{path}: its edgernn metadata lacks {', '.join(sorted(missing))}; export it again")
    return info


def layer_sizes(info: Mapping[str, Any]) -> list[int]:
    """H of each layer, from a file's description."""
    return [info["hidden_size"]] * (info["layers"] - 1) + [info.get("last_size", info["hidden_size"])]
