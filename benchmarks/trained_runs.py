# SPDX-License-Identifier: Apache-2.0
"""Run `edgernn train` for a measurement, with some arguments of a command replaced."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import parser_of
from edgernn.export.run import read_result
from edgernn.files import read_json
from edgernn.runtime.zoo import ENTRY, find_model
from edgernn.store import read_config
from edgernn.training.run_directory import RESULT


def parse(description: str | None) -> argparse.Namespace:
    """Parse the arguments of a measurement: `folder` of the runs, and `out`, the JSON file to write."""
    parser = parser_of(description)
    parser.add_argument("folder", type=Path, help="Folder of the runs.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file to write.")
    return parser.parse_args()


def replace_options(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments of a command whose options --NAME VALUE and settings NAME=VALUE are replaced or added.

    Every option must have its value as the next argument.
    """
    values: dict[str, list[str]] = {}
    for arguments in (command, options):
        following = iter(arguments)
        for word in following:
            values[word.partition("=")[0]] = [word, next(following)] if word.startswith("--") else [word]
    return [word for arguments in values.values() for word in arguments]


def card_arguments(model: str) -> list[str]:
    """Return the arguments of the command on the card of a model in the zoo, after `edgernn train`."""
    return list(read_json(find_model(Path(model)).with_name(ENTRY))["command"][2:])


def train_once(run: Path, seed: int, command: Sequence[str], options: Sequence[str] = ()) -> dict[str, Any]:
    """Train with a command's arguments and other options, unless `run` is finished, and return its result.json.

    Args:
        run: The run directory.
        seed: Random seed.
        command: Arguments of a command after `edgernn train`.
        options: Arguments that replace some of them, or are added.

    Returns:
        The content of the run's result.json.

    Raises:
        SystemExit: The run was trained with other arguments.
    """
    arguments = replace_options(command, [*options, "--out", str(run), "--seed", str(seed)])
    if not (run / RESULT).is_file():
        subprocess.run([sys.executable, "-m", "edgernn", "train", *arguments], check=True)
    # the run may have been moved
    earlier = replace_options(read_config(run)["command"][2:], ["--out", str(run)])
    if sorted(earlier) != sorted(arguments):
        raise SystemExit(f"{run}: expected a run of {shlex.join(arguments)}, got {shlex.join(earlier)}; remove it")
    return read_result(run)
