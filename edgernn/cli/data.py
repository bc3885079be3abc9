# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn data`: list and download data sets."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import CommandGroup, json_command
from edgernn.cli.options import PATH, data_folder


@click.group(cls=CommandGroup, example="edgernn data list")
def command() -> None:
    """List the data sets that training tasks need, or download one.

    The data folder is the value of --data, else $EDGERNN_DATA. A task searches for the files of a data set first in the
    subfolder for this data set, then in the data folder itself, then in the user's cache.
    """


def _list_text(result: list[dict[str, Any]]) -> str:
    from edgernn.training.datasets.listing import text

    return text(result)


@json_command(example="edgernn data list", text=_list_text)
@data_folder
def _list(data: Path | None) -> list[dict[str, Any]]:
    """List the data sets and show which ones are installed.

    Each entry names the source, the terms of use where known, the folder of the files and the tasks that need them.
    """
    from edgernn.training.datasets import list_sets

    return list_sets(data)


def _fetch_text(result: dict[str, Any]) -> str:
    lines = [f"{result['name']}: {'downloaded to' if result['fetched'] else 'already in'} {result['folder']}"]
    for file in result["files"]:
        verdict = "as expected" if file["known"] else "no expected value is known: not verified"
        lines.append(f"  {file['file']}: {file['bytes']:,} bytes, SHA-256 {file['sha256']} ({verdict})")
    lines += [f"  {folder}: the files in this folder are not verified" for folder in result["folders"]]
    return "\n".join(lines)


@json_command(example="edgernn data fetch tinyshakespeare", text=_fetch_text)
@click.argument("name")
@click.option("--data", type=PATH, help="Folder to download to.  [default: $EDGERNN_DATA, else the user's cache]")
def _fetch(name: str, data: Path | None) -> dict[str, Any]:
    """Download the data set NAME to a folder where tasks find it.

    The command verifies SHA-256 sums and unpacks archives. Run it again to resume an interrupted download. Files that
    are in their place already are verified and kept, also those of a set that cannot be downloaded. Tasks look in the
    default folder by themselves. With --data, give the same folder to `edgernn train`.
    """
    from edgernn.progress import Progress
    from edgernn.training.datasets import fetch

    return fetch(name, data, Progress())


command.add_command(_list, "list")
command.add_command(_fetch, "fetch")
