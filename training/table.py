# SPDX-License-Identifier: Apache-2.0
"""Tables of results of `edgernn reproduce` and `edgernn sweep`, in which a row is several trainings with own seeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import read_json, write_json, write_text
from edgernn.locks import hold_folder
from edgernn.store import CONFIG
from edgernn.training.jobs import Job, Workers, run_missing
from edgernn.training.paper_table import figure
from edgernn.training.recipe import Settings
from edgernn.training.run_directory import RunDirectory
from edgernn.training.statistics import spread

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
        """Main metric on the validation split of the finished trainings' final weights: a dict from seed to value."""
        return {job.seed: _validation(job.out, self.results[job.seed]) for job in self.jobs if job.seed in self.results}

    @property
    def sign(self) -> int:
        """1 if a higher value of the task's main metric is better, else -1; at least one training must be finished."""
        return 1 if next(iter(self.results.values()))["higher_is_better"] else -1

    @property
    def best(self) -> Path | None:
        """Directory of the finished run with the best validation metric; None if no run is finished."""
        if not self.results:
            return None
        seed = max(self.validation, key=lambda seed: self.sign * self.validation[seed])
        return next(job.out for job in self.jobs if job.seed == seed)

    def spread(self, column: str) -> dict[str, Any]:
        """Compute `statistics.spread` of a column over the seeds; `paper_table.figure` describes columns and units."""
        values = (figure(result, column) for result in self.results.values())
        return spread([value for value in values if value is not None])

    def record(self, failures: Failures) -> dict[str, Any]:
        """Return the row's entries in table.json that tables of `reproduce` and `sweep` have in common.

        Args:
            failures: Dict from the run directory of each failed run to its error message.

        Returns:
            A dict with "name", "seeds" (of finished runs), "failed" (dict from seed to error message), "parameters" and
            "macs" (None without a finished run).
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


def results_of(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """List the results (`Job.result`) of all finished trainings of the rows, row by row."""
    return [result for row in rows for result in row.results.values()]


@contextmanager
def trained(
    rows: Sequence[Row], out: Path, workers: Callable[[int], AbstractContextManager[Workers]] | None
) -> Iterator[Failures]:
    """Train the unfinished runs of some rows, and hold the lock of their folder until the `with` block ends.

    The first seed of every row is trained first, then the second seed of every row, and so on.

    Args:
        rows: The rows, with equally many seeds.
        out: The folder of their runs.
        workers: Function that opens a pool of workers, see `run_missing`, also for the errors raised. None: train
            nothing.

    Yields:
        Dict from the run directory of each failed run to its error message.
    """
    with hold_folder(out) if workers else nullcontext():
        jobs = [job for of_seed in zip(*(row.jobs for row in rows), strict=True) for job in of_seed]
        yield run_missing(jobs, workers) if workers else {}


def save(report: dict[str, Any], page: str, out: Path) -> list[str]:
    """Write the table of results as table.json and table.md.

    Args:
        report: Content of table.json.
        page: Content of table.md.
        out: The folder.

    Returns:
        The paths of the files.
    """
    files = [out / f"{TABLE}.json", out / f"{TABLE}.md"]
    write_json(files[0], report)
    write_text(files[1], page)
    return list(map(str, files))


def check_none_failed(report: dict[str, Any]) -> None:
    """Raise EdgernnError with the first error message if runs of a table failed.

    `report` is the content of table.json, with the paths of table.json and table.md under "files".
    """
    reasons = [reason for row in report["rows"] for reason in row["failed"].values()]
    if reasons:
        raise EdgernnError(f"{len(reasons)} runs failed, {report['files'][1]} lists them; the first: {reasons[0]}")
