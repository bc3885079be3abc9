# SPDX-License-Identifier: Apache-2.0
"""Scores the trivial baselines of reports that lack them: `python -m benchmarks.baselines NAME.json ...`.

A report is a table.json of `edgernn reproduce` or `edgernn sweep`. Only its entry "baselines" is written; nothing is
trained. EDGERNN_DATA is the folder of data sets.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgernn.files import read_json, write_json
from edgernn.settings import fields_of
from edgernn.training.papers.recipe import load_table
from edgernn.training.papers.reproduce import table_rows
from edgernn.training.sweep.plan import load_sweep
from edgernn.training.tables.jobs import Job, first_change
from edgernn.training.tables.table import Row
from edgernn.training.tables.toml_settings import label
from edgernn.training.tables.trivial_baselines import baselines

# the folder of run directories, none of which are read
_RUNS = Path("runs")


def trained_jobs(report: dict[str, Any]) -> list[Job]:
    """List the trainings that a report has results of; ValueError is raised if their task has other settings now."""
    most = 1 + max(seed for row in report["rows"] for seed in row["seeds"])
    rows: Sequence[Row]
    if "table" in report:
        rows = table_rows(load_table(report["table"]), most, _RUNS, quick=report["quick"])
    else:
        rows = load_sweep(Path(report["sweep"]), _RUNS).rows
    by_name = {(row.name, label(row.settings)): row for row in rows}
    jobs = []
    for entry in report["rows"]:
        varied = entry["variant"] if "table" in report else entry["settings"]
        row = by_name.get((entry["name"], label(varied)))
        if row is None:
            raise ValueError(f"{entry['name']}: its recipe is gone; train the table again")
        task = fields_of(type(row.jobs[0].choice().task))
        # reports of the first version lack the settings
        before = {**report.get("settings", {}), **entry.get("settings", {})}
        if change := first_change(before, {key: row.jobs[0].all_settings()[key] for key in task}):
            raise ValueError(f"{entry['name']}: the task was trained with {change}; train the table again")
        jobs += [job for job in row.jobs if job.seed in entry["seeds"]]
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    for path in parser.parse_args().reports:
        report = read_json(path)
        columns = report["columns"] if "table" in report else [report["metric"], "skip_percent"]
        report["baselines"] = baselines(trained_jobs(report), columns, None)
        write_json(path, report)
        for entry in report["baselines"]:
            means = {metric: column["mean"] for metric, column in entry["columns"].items()}
            print(path.name, entry["name"], entry["settings"], json.dumps(means), entry.get("error", ""), flush=True)


if __name__ == "__main__":
    main()
