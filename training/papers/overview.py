# SPDX-License-Identifier: Apache-2.0
"""Overview of all papers' tables: how much is measured, what it costs, and how well it agrees with the paper."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import read_json
from edgernn.training.papers.agreement import VERDICTS
from edgernn.training.papers.recipe import Table, load_table, table_names
from edgernn.training.tables.table import TABLE
from edgernn.training.tables.table_text import grid, number
from edgernn.training.tables.toml_settings import label

# folders with results of tables: the default of `reproduce`, and the results that a checkout contains
RESULTS = (Path("runs"), Path("docs") / "results")


def overview(results: Sequence[Path] = RESULTS) -> list[dict[str, Any]]:
    """Summarise, for every paper's table, how much of it is measured and how well it agrees with the paper.

    `results` are folders with the results of tables, in order of preference: TABLE/table.json, as `reproduce` writes
    it, or TABLE.json. EdgernnError is raised for a file that is no report of `reproduce`.

    There is a dict per table, sorted by name. It has the name, "table", and these texts from the table's TOML file:
    "title"; "paper" (where the table is printed); "needs" (requirements such as a GPU). "hours" is the time of all
    trainings on one CPU core, or None if the TOML file does not give it. "state" is "measured", "partly" or "not run".
    "rows" is the number of rows. "seeds" is a dict with "asked" (number of trainings that the table wants per row),
    "fewest" and "most" (smallest and largest number of finished trainings of a row). "agreement" is a dict from a
    verdict, such as "within", to the number of the paper's figures that have it. "results" is the path of the file with
    the results. "agreement" and "results" are None if the folders have no such file.
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
            raise EdgernnError(
                f"{path}: expected a table of `edgernn reproduce`, got another file ({error}); remove it"
            ) from None
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
    """Format the result of `overview` as a Markdown table, and return its lines."""
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
    """Shorten the reference to a paper's table to its authors and the table, such as "Kuo et al. 2020, Table II"."""
    match = re.fullmatch(r'(?:(.+), )?"([^:"]*).*", (.*)', paper)
    return paper if match is None else f"{match[1] or match[2]}, {match[3]}"
