# SPDX-License-Identifier: Apache-2.0
"""Measures the trained models again from their files: `python -m benchmarks.zoo [NAME ...]`, without a training.

Writes sequences, the metrics of the card, the figures on parts of the test, and a missing interval to the entries of
models/, and the sections of their cards that come from the entries. EDGERNN_DATA is the folder of data sets. A model
whose metric on the test sequences is not the one in its entry is refused. With --times it measures the times of the
entries, of the cards and of bench.md instead; nothing else may run on the machine, and times are comparable only if all
models are measured in one call.
"""

import argparse
import copy
import math
import re
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks.confidence import metric_interval
from benchmarks.zoo_entry import as_dict, card_sections, part_figures, with_intervals
from edgernn.bench.measure import Settings, bench
from edgernn.bench.report import save
from edgernn.export.card import latency_rows
from edgernn.export.exported_model import read_exported
from edgernn.export.latency import latency
from edgernn.files import EXAMPLE, write_json, write_text
from edgernn.machine import processor
from edgernn.npz import read_npz
from edgernn.runtime import Session
from edgernn.runtime.zoo import CARD, ENTRY, FILES, entries
from edgernn.training.evaluate import evaluate
from edgernn.training.evaluate_model import open_entry
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.sources import Split


def from_session(file: Path, task: Task, split: Split) -> float:
    """Return the main metric of a model's file on a split, from the outputs of the session."""
    session, tally = Session(file), task.tally(split)
    assert tally is not None
    for batch in split.chunks():
        tally.add(torch.from_numpy(session.run(batch.x.numpy())), batch)
    return tally.result()[task.objective.metric]


def measure(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a model with its figures measured again; ValueError if its metric is another one."""
    folder, task, metric = Path(entry["folder"]), open_entry(Path(entry["folder"]) / ENTRY, {}), entry["metric"]
    model, _ = read_exported(folder / FILES["float32"])
    # a copy of the test split is no test split for the task, which would measure an hour of recordings, too
    figures = evaluate(model, task, copy.copy(task.test))
    for name, expected in {metric: entry["value"], "skip_percent": entry["skip_percent"]}.items():
        if not math.isclose(figures[name], expected, rel_tol=1e-3, abs_tol=1e-3):
            raise ValueError(f"{entry['name']}: expected {name} {expected}, as in its entry, got {figures[name]}")
    parts = part_figures(model, task)
    files = {}
    for file, of_file in entry["files"].items():
        added = {f"{metric}_{part}": figures["value"] for part, figures in parts.items()}
        if of_file["weights"] != "float32":
            added = {f"{metric}_{part}": from_session(folder / file, task, s) for part, s in task.test_parts().items()}
            if added:
                print(entry["name"], file, from_session(folder / file, task, task.test), of_file[metric])
        head = {key: of_file[key] for key in ("weights", "bytes", metric)}
        files[file] = head | added | {key: value for key, value in of_file.items() if key not in head | added}
    print(entry["name"], figures[metric], entry["value"], figures["skip_percent"], entry["skip_percent"])
    updated: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in ("folder", "sequences", "card_metrics", "parts"):
            updated[key] = value
        if key == "interval":
            updated[key] = value or as_dict(metric_interval(model, task))
            updated["sequences"] = len(task.test)
            updated["card_metrics"] = {name: figures[name] for name in task.card_metrics}
            updated["parts"] = with_intervals(parts, model, task)
    return updated | {"files": files}


def measure_times(entry: dict[str, Any]) -> dict[str, Any]:
    """Measure the times of a model's files again; write bench.json, bench.md and the card; return the new entry."""
    folder = Path(entry["folder"])
    x = read_npz(folder / EXAMPLE, ("x",))["x"].swapaxes(0, 1)
    took = {file: latency(folder / file, x) for file in entry["files"]}
    card = (folder / CARD).read_text(encoding="utf-8")
    for name, text in latency_rows(took[FILES["float32"]]):
        card, count = re.subn(rf"(?m)^\| {re.escape(name)} \| .* \|$", f"| {name} | {text} |", card)
        if count != 1:
            raise ValueError(f"{folder / CARD}: expected one row '{name}', got {count}")
    write_text(folder / CARD, card)
    save(bench(folder / FILES["float32"], Settings()), folder)
    files = {file: {**figures, "us_a_step": took[file].step} for file, figures in entry["files"].items()}
    kept = {key: value for key, value in entry.items() if key != "folder"}
    print(entry["name"], {file: figures["us_a_step"] for file, figures in files.items()})
    return kept | {"files": files, "processor": processor()}


def write(folder: Path, entry: dict[str, Any]) -> None:
    """Write an entry, and replace the sections of the card that come from it."""
    write_json(folder / ENTRY, entry)
    card = (folder / CARD).read_text(encoding="utf-8").partition("\n## Quality\n")[0].strip()
    size = (folder / FILES["float32"]).stat().st_size
    card = re.sub(r"(?m)^\| file \| [\d,]+ bytes \|$", f"| file | {size:,} bytes |", card)
    write_text(folder / CARD, card + "\n\n" + "\n".join(card_sections(entry)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of models; default: all")
    parser.add_argument("--times", action="store_true", help="measure the times instead of the metrics")
    arguments = parser.parse_args()
    names, measured = arguments.names, measure_times if arguments.times else measure
    for entry in entries(ROOT / "models"):
        if not names or entry["name"] in names:
            write(Path(entry["folder"]), measured(entry))


if __name__ == "__main__":
    main()
