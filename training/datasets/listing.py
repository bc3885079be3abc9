# SPDX-License-Identifier: Apache-2.0
"""List of the data sets for `edgernn data list`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgernn.training.datasets.find import locate, places
from edgernn.training.datasets.registry import SETS, DataSet


def list_sets(data: Path | None = None) -> list[dict[str, Any]]:
    """List all data sets, a dict of JSON values each; no file is opened.

    "here" has the paths of its files on this machine, in the user's folder `data` or in EDGERNN_DATA, or None if any
    are missing. "files" has a dict with name, size and sha256 for each unpacked file; size and sha256 are None if
    unknown. "unchecked" has the names of files whose download cannot be verified, because neither their own checksum
    nor that of their archive is known. "urls" has the URLs of all downloads. "name" is the name of the data set.
    "title", "origin", "terms", "tasks", "folder", "agreement" and "note" are as in `DataSet`, with None for an empty
    agreement or note.
    """
    return [
        {
            "name": name,
            "title": entry.title,
            "origin": entry.origin,
            "terms": entry.terms,
            "tasks": list(entry.tasks),
            "folder": entry.folder,
            "here": _here(entry, data),
            "files": [asdict(file) for file in entry.files.values()],
            "urls": [url for download in entry.downloads for url in download.urls],
            "unchecked": [f.name for download in entry.downloads if not download.checked for f in download.gives],
            "agreement": entry.agreement or None,
            "note": entry.note or None,
        }
        for name, entry in SETS.items()
    ]


def _here(entry: DataSet, data: Path | None) -> list[str] | None:
    where = places(entry.folder, data)
    for form in entry.forms:
        paths = locate(form, where)
        if None not in paths:
            return [str(path) for path in paths]
    return None


def text(entries: list[dict[str, Any]]) -> str:
    """Format the entries of `list_sets` as text for a terminal, one paragraph per data set."""
    return "\n\n".join("\n".join(_lines(entry)) for entry in entries)


def _lines(entry: dict[str, Any]) -> list[str]:
    if entry["here"]:
        here = f"here: {', '.join(sorted({str(Path(path).parent) for path in entry['here']}))}"
    elif entry["agreement"]:
        here = f"not here, and cannot be downloaded: {entry['agreement']}"
    else:
        here = f"not here: edgernn data fetch {entry['name']}"
    return [
        f"{entry['name']}: {entry['title']}",
        f"  {here}",
        f"  from: {entry['origin']}",
        f"  terms: {entry['terms']}",
        *_sums(entry),
        f"  tasks: {', '.join(entry['tasks'])}",
        *([f"  note: {entry['note']}"] if entry["note"] else []),
    ]


def _sums(entry: dict[str, Any]) -> list[str]:
    """Return a line that says which files have no known SHA-256; none if all have one."""
    if entry["unchecked"]:
        return [f"  SHA-256: unknown for {', '.join(entry['unchecked'])}; the first download is trusted"]
    if entry["urls"]:
        return []
    known = [file["name"] for file in entry["files"] if file["sha256"]]
    return [f"  SHA-256: known for {', '.join(known)} alone" if known else "  SHA-256: unknown; no file is verified"]
