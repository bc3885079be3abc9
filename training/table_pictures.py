# SPDX-License-Identifier: Apache-2.0
"""Pictures of a table, which its file asks for under [[pictures]].

name      the picture is NAME.png beside the table, and TABLE-NAME.png in docs/results
kind      a name of KINDS
text      what it shows, for the page of results

and the fields of its kind. Most kinds draw what the table's report holds; those that are `of_runs` need the run
directories.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, nearest
from edgernn.settings import parse
from edgernn.training.pictures import NothingToDrawError
from edgernn.training.report_pictures import (
    Boxes,
    Curves,
    Picture,
    Runs,
    Scatter,
    Searched,
    Tradeoff,
    Trend,
)
from edgernn.training.run_pictures import Cobwebs, EquationCobwebs, Kept, Patterns, Samples

KINDS: dict[str, type[Picture]] = {
    kind.kind: kind
    for kind in (Trend, Curves, Boxes, Tradeoff, Scatter, Searched, Patterns, Cobwebs, Kept, Samples, EquationCobwebs)
}


def read_picture(values: object) -> Picture:
    """Read a picture from TOML.

    Raises:
        EdgernnError: An unknown kind, a mistake in one of its keys, or no table at all.
    """
    if not isinstance(values, dict):
        raise EdgernnError(f"expected a table, got {values!r}")
    fields = dict(values)
    name = str(fields.pop("kind", ""))
    if name not in KINDS:
        raise nearest("kind", name, KINDS)
    return parse(KINDS[name], fields, name)


def draw_pictures(
    pictures: Sequence[Picture], report: Mapping[str, Any], folder: Path, runs: Runs, prefix: str = ""
) -> list[Path]:
    """Draw those pictures whose rows are measured, as `folder`/NAME.png, with a prefix before the name; the files."""
    files = []
    for picture in pictures:
        path = folder / f"{prefix}{picture.name}.png"
        try:
            picture.draw(path, report, runs)
        except NothingToDrawError:
            continue
        files.append(path)
    return files
