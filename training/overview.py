# SPDX-License-Identifier: Apache-2.0
"""All tables of recipes in one view: how far each is measured, what it costs and how it agrees with its paper."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import read_json
from edgernn.training.agreement import VERDICTS
from edgernn.training.paper_table import grid, number
from edgernn.training.recipe import Table, label, load_table, table_names
from edgernn.training.table import TABLE

# where `reproduce` writes tables, and where a checkout keeps those that were measured
RESULTS = (Path("runs"), Path("docs") / "results")


def overview(results: Sequence[Path] = RESULTS) -> list[dict[str, Any]]:
    """The state of every table.

    Args:
        results: Folders of TABLE/table.json, as `reproduce` leaves them, or TABLE.json; the first one that has a table
            counts.

    Raises:
        EdgernnError: A file is no report of `reproduce`.
    """
    return [_line(load_table(name), _report(name, results)) for name in table_names()]


def _report(name: str, results: Sequence[Path]) -> Path | None:
    places = (folder / file for folder in results for file in (Path(name) / f"{TABLE}.json", Path(f"{name}.json")))
    return next((place for place in places if place.is_file()), None)


def _line(table: Table, path: Path | None) -> dict[str, Any]:
    seeds: dict[tuple[str, str], int] = {}
    counts: dict[str, int] | None = None
    if path is not None:
        try:
            report = read_json(path)
            seeds = {(row["name"], label(row["variant"])): len(row["seeds"]) for row in report["rows"]}
            counts = {verdict: int(report["agreement"][verdict]) for verdict in VERDICTS}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EdgernnError(f"{path}: not a table of `edgernn reproduce` ({error})") from None
    done = [seeds.get((row.row, label(variant)), 0) for row in table.rows for variant in table.variants()]
    is_measured = min(done) >= table.seeds
    return {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "state": "measured" if is_measured else "partly" if any(done) else "not run",
        "rows": len(done),
        "seeds": {"asked": table.seeds, "fewest": min(done), "most": max(done)},
        "hours": table.hours,
        "needs": table.needs,
        "agreement": counts,
        "results": None if path is None else str(path),
    }


def overview_table(lines: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of `overview` as a Markdown table."""
    heads = ["table", "title", "paper", "state", "rows", "seeds", "hours", "needs", *VERDICTS]
    return grid(heads, map(_cells, lines))


def _cells(line: dict[str, Any]) -> list[str]:
    seeds = line["seeds"]
    done = "-".join(str(count) for count in sorted({seeds["fewest"], seeds["most"]}))
    counts = line["agreement"] or {}
    return [
        line["table"],
        line["title"],
        _short(line["paper"]),
        line["state"],
        str(line["rows"]),
        f"{done} of {seeds['asked']}",
        number(line["hours"]),
        line["needs"],
        *(str(counts.get(verdict, "")) for verdict in VERDICTS),
    ]


def _short(paper: str) -> str:
    """A paper without its title, but for the name in it where there is no author: Kuo et al. 2020, Table II."""
    match = re.fullmatch(r'(?:(.+), )?"([^:"]*).*", (.*)', paper)
    return paper if match is None else f"{match[1] or match[2]}, {match[3]}"
