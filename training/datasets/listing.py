# SPDX-License-Identifier: Apache-2.0
"""What `edgernn data list` says."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgernn.training.data import locate, places
from edgernn.training.datasets.registry import SETS, DataSet


def list_sets(data: Path | None = None) -> list[dict[str, Any]]:
    """One entry a data set, with plain values.

    data: the user's data folder; None is what EDGERNN_DATA says. here: the paths of its files, None where it is not
    there as a whole; nothing is opened. files: sizes and sums of what they unpack to, null where they are not known.
    unchecked: the files that would be trusted as they come, as neither their sum nor that of their archive is known.
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
    """A paragraph a data set."""
    return "\n\n".join("\n".join(_lines(entry)) for entry in entries)


def _lines(entry: dict[str, Any]) -> list[str]:
    if entry["here"]:
        here = f"here: {', '.join(sorted({str(Path(path).parent) for path in entry['here']}))}"
    elif entry["agreement"]:
        here = f"not here, and not to be downloaded: {entry['agreement']}"
    else:
        here = f"not here: edgernn data fetch {entry['name']}"
    unchecked = f"  SHA-256: not known of {', '.join(entry['unchecked'])}; what comes first is trusted"
    return [
        f"{entry['name']}: {entry['title']}",
        f"  {here}",
        f"  from: {entry['origin']}",
        f"  terms: {entry['terms']}",
        *([unchecked] if entry["unchecked"] else []),
        f"  tasks: {', '.join(entry['tasks'])}",
        *([f"  note: {entry['note']}"] if entry["note"] else []),
    ]
