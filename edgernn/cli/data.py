# SPDX-License-Identifier: Apache-2.0
"""`edgernn data`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import Family, verb


@click.group(cls=Family, example="edgernn data list")
def command() -> None:
    """List the data sets that tasks need, or fetch one.

    A set is looked for in its own folder of the data folder, in that itself, and where `fetch` puts it without one.
    """


def _list_text(result: list[dict[str, Any]]) -> str:
    from edgernn.training.datasets.listing import text

    return text(result)


@verb(example="edgernn data list", text=_list_text)
@click.option("--data", type=click.Path(path_type=Path), help="The folder of data sets.  [$EDGERNN_DATA]")
def _list(data: Path | None) -> list[dict[str, Any]]:
    """List the data sets, and whether they are here.

    Of each: where it comes from, its terms as far as they were read, where its files lie, and which tasks need it.
    """
    from edgernn.training.datasets import list_sets

    return list_sets(data)


def _fetch_text(result: dict[str, Any]) -> str:
    lines = [f"{result['name']}: {'fetched to' if result['fetched'] else 'already in'} {result['folder']}"]
    for file in result["files"]:
        sum_ = "as expected" if file["known"] else "not known before, trusted as it came"
        lines.append(f"  {file['file']}: {file['bytes']:,} bytes, SHA-256 {file['sha256']} ({sum_})")
    return "\n".join(lines)


@verb(example="edgernn data fetch tinyshakespeare", text=_fetch_text)
@click.argument("name")
@click.option("--data", type=click.Path(path_type=Path), help="Where to.  [$EDGERNN_DATA, else the user's cache]")
def _fetch(name: str, data: Path | None) -> dict[str, Any]:
    """Download a data set to where tasks find it.

    Its SHA-256 is checked, and what is packed is unpacked. The same command goes on with a download that was cut. Tasks
    look in the user's cache by themselves; a folder given with --data must be given to them, too.
    """
    from edgernn.progress import Progress
    from edgernn.training.datasets import fetch

    return fetch(name, data, Progress())


command.add_command(_list, "list")
command.add_command(_fetch, "fetch")
