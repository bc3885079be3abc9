# SPDX-License-Identifier: Apache-2.0
"""Trainings that a measurement runs as commands, with the options of a command in place of those of another one."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgernn.files import read_json
from edgernn.runtime.zoo import ENTRY, find_model
from edgernn.training.run_directory import RESULT


def merged(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command whose options --NAME VALUE and settings NAME=VALUE are replaced or added."""
    values: dict[str, list[str]] = {}
    for words in (command, options):
        rest = iter(words)
        for word in rest:
            values[word.partition("=")[0]] = [word, next(rest)] if word.startswith("--") else [word]
    return [word for words in values.values() for word in words]


def card_words(model: str) -> list[str]:
    """Return the words of the command on the card of a model in the zoo, after `edgernn train`."""
    return list(read_json(find_model(Path(model)).with_name(ENTRY))["command"][2:])


def trained(run: Path, seed: int, command: Sequence[str], options: Sequence[str] = ()) -> dict[str, Any]:
    """Train with the words of `edgernn train` and other options, unless the run is finished; return its result.json."""
    if not (run / RESULT).is_file():
        words = merged(command, [*options, "--out", str(run), "--seed", str(seed)])
        subprocess.run([sys.executable, "-m", "edgernn", "train", *words], check=True)
    return dict(read_json(run / RESULT))
