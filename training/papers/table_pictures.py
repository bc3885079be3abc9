# SPDX-License-Identifier: Apache-2.0
"""Plots of a reproduced paper's table, declared in the table's TOML file as entries [[pictures]].

name      name of the file: NAME.png beside the table, and TABLE-NAME.png in docs/results
kind      kind of the plot, a key of the dict KINDS, such as trend or boxes
text      caption on the page of results

The other keys of an entry are the fields of the class KINDS[kind]. Most kinds are drawn from table.json alone. A class
whose attribute `of_runs` is True also needs the trained models in the run directories.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, nearest
from edgernn.settings import parse
from edgernn.training.papers.report_pictures import (
    Boxes,
    Curves,
    Picture,
    Runs,
    Scatter,
    Tradeoff,
    Trend,
)
from edgernn.training.papers.run_pictures import Cobwebs, EquationCobwebs, Kept, Patterns, Samples
from edgernn.training.pictures import NothingToDrawError

KINDS: dict[str, type[Picture]] = {
    kind.kind: kind
    for kind in (Trend, Curves, Boxes, Tradeoff, Scatter, Patterns, Cobwebs, Kept, Samples, EquationCobwebs)
}


def read_picture(values: object) -> Picture:
    """Create a plot, an object of KINDS[kind], from an entry [[pictures]] of a table's TOML file.

    EdgernnError is raised if the entry is not a dict, its kind is unknown, or a key is missing, unknown or has a bad
    value.
    """
    if not isinstance(values, dict):
        raise EdgernnError(f"pictures: expected a TOML table with the key kind, got {values!r}; correct the entry")
    fields = dict(values)
    name = str(fields.pop("kind", ""))
    if name not in KINDS:
        raise nearest("kind", name, KINDS)
    return parse(KINDS[name], fields, name)


def draw_pictures(
    pictures: Sequence[Picture], report: Mapping[str, Any], folder: Path, runs: Runs, prefix: str = ""
) -> list[Path]:
    """Draw the plots of a table of results as PNG files; plots whose data has not been measured are left out.

    Args:
        pictures: The plots.
        report: Content of table.json.
        folder: Folder of the files.
        runs: Dict from the key (row, variant) to the run directory of the first finished seed. row is the name of a
            table row; variant is the label of the settings that vary within the row, such as "T=10".
        prefix: Prefix of the file names.

    Returns:
        The files written.
    """
    files = []
    for picture in pictures:
        path = folder / f"{prefix}{picture.name}.png"
        try:
            picture.draw(path, report, runs)
        except NothingToDrawError:
            continue
        files.append(path)
    return files
