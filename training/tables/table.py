# SPDX-License-Identifier: Apache-2.0
"""Tables of results of `edgernn reproduce` and `edgernn sweep`. The trainings of a row differ only in their seed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import CONFIG, read_json, write_json, write_text
from edgernn.locks import hold_folder
from edgernn.training.run_directory import RunDirectory
from edgernn.training.statistics import spread
from edgernn.training.tables.jobs import WHOLE, Job, Part, Pool, run_missing
from edgernn.training.tables.table_text import figure
from edgernn.training.tables.toml_settings import Settings

TABLE = "table"
Failures = Mapping[Path, str]


@dataclass(frozen=True)
class Row:
    """A row of a table of results: trainings that differ only in their seeds.

    Results are read on first access, so access them after the training.

    Attributes:
        name: Name of the row.
        settings: The settings, as a dict from name to value, that distinguish the row from other rows.
        jobs: The trainings, one per seed.
    """

    name: str
    settings: Settings
    jobs: tuple[Job, ...]

    @cached_property
    def results(self) -> dict[int, dict[str, Any]]:
        """Results of the finished trainings: a dict from seed to the result of `Job.result`."""
        return {job.seed: result for job in self.jobs if (result := job.result())}

    @cached_property
    def validation(self) -> dict[int, float]:
        """Main metric of each finished training on the validation split: a dict from seed to value.

        The metric is that of the weights that the training saved as its result.
        """
        return {job.seed: _validation(job.out, self.results[job.seed]) for job in self.jobs if job.seed in self.results}

    @property
    def sign(self) -> int:
        """1 if a higher value of the task's main metric is better, else -1.

        The result is read from a finished training; StopIteration is raised if none is finished.
        """
        return 1 if next(iter(self.results.values()))["higher_is_better"] else -1

    @property
    def best(self) -> Path | None:
        """Directory of the finished run with the best main metric on the validation split; None if none is finished."""
        if not self.results:
            return None
        seed = max(self.validation, key=lambda seed: self.sign * self.validation[seed])
        return next(job.out for job in self.jobs if job.seed == seed)

    def spread(self, column: str) -> dict[str, Any]:
        """Compute the statistics (`statistics.spread`) of one column over the finished seeds, in the column's unit.

        A column is an entry of result.json, such as accuracy, or a value that `paper_table.figure` computes from
        entries, such as neurons_updated.
        """
        values = (figure(result, column) for result in self.results.values())
        return spread([value for value in values if value is not None])

    def record(self, failures: Failures) -> dict[str, Any]:
        """Return those entries of the row in table.json that `edgernn reproduce` and `edgernn sweep` both write.

        They are "name", "seeds" (of finished runs), "failed" (dict from seed to error message), "parameters" (their
        number) and "macs" (multiply-adds per step). The last two are None without a finished run. `failures` maps the
        run directory of each failed run to its error message.
        """
        first = next(iter(self.results.values()), {})
        return {
            "name": self.name,
            "seeds": list(self.results),
            "failed": {job.seed: failures[job.out] for job in self.jobs if job.out in failures},
            "parameters": first.get("parameters"),
            "macs": first.get("macs"),
        }


def _validation(run: Path, result: dict[str, Any]) -> float:
    kept_best = read_json(run / CONFIG)["train"]["keep"] == "best" and result["best_validation"] is not None
    return float(result["best_validation"] if kept_best else RunDirectory(run).metrics()[-1][result["metric"]])


def finished_jobs(rows: Iterable[Row]) -> list[Job]:
    """List the finished trainings of the rows, row by row."""
    return [job for row in rows for job in row.jobs if job.seed in row.results]


def results_of(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """List the results of all finished trainings of the rows, row by row; each is a dict that `Job.result` returns."""
    return [result for row in rows for result in row.results.values()]


@contextmanager
def trained(rows: Sequence[Row], out: Path, workers: Pool | None, part: Part = WHOLE) -> Iterator[Failures]:
    """Train the unfinished runs of some rows, and hold the lock of their folder until the `with` block ends.

    The first seed of every row is trained first, then the second seed of every row, and so on. UsageError is raised
    for an invalid setting, EdgernnError for a full disk, and Interrupted after Ctrl-C (see `run_missing`).

    Args:
        rows: The rows.
        out: Folder of the runs.
        workers: Function from the number of unfinished trainings to a context manager that opens a pool of workers.
            None: train nothing, and take no lock.
        part: The part of the trainings to run. Each part has a lock of its own, so that parts may run at once.

    Yields:
        Dict from the run directory of each failed run to its error message.
    """
    number, count = part
    place = out if part == WHOLE else out / f".part-{number}-of-{count}"
    with hold_folder(place) if workers else nullcontext():
        jobs = [job for of_seed in zip_longest(*(row.jobs for row in rows)) for job in of_seed if job is not None]
        yield run_missing(jobs[number - 1 :: count], workers) if workers else {}


def save(report: dict[str, Any], page: str, out: Path) -> list[str]:
    """Write the table of results as table.json and table.md.

    Args:
        report: Content of table.json.
        page: Content of table.md.
        out: Folder of both files.

    Returns:
        The paths of table.json and table.md.
    """
    files = [out / f"{TABLE}.json", out / f"{TABLE}.md"]
    write_json(files[0], report)
    write_text(files[1], page)
    return list(map(str, files))


def check_none_failed(report: dict[str, Any]) -> None:
    """Raise EdgernnError if runs of a table failed; the text has their number and the first error message.

    `report` is the content of table.json, with the paths of table.json and table.md, if they were written, under
    "files".
    """
    reasons = [reason for row in report["rows"] for reason in row["failed"].values()]
    if reasons:
        see = f", see {report['files'][0]}" if report["files"] else ""
        raise EdgernnError(
            f"{len(reasons)} runs failed{see}; the first error is: {reasons[0]}; correct the "
            "cause and run the same command again"
        )
