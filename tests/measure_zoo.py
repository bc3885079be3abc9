# SPDX-License-Identifier: Apache-2.0
"""Measures the trained models again from their files: `python -m tests.measure_zoo [NAME ...]`, without a training.

Writes sequences, further metrics, the figures on parts of the test, and a missing interval to the entries of models/,
and the sections of their cards that come from the entries. EDGERNN_DATA is the folder of data sets. A model whose
metric on the test sequences is not the one in its entry is refused.
"""

import argparse
import copy
import math
import os
import re
from pathlib import Path
from typing import Any

import torch

from edgernn.files import write_json, write_text
from edgernn.runtime import Session
from edgernn.runtime.zoo import CARD, ENTRY, FILES, entries
from edgernn.settings import fields_of, split_words
from edgernn.training.confidence import metric_interval
from edgernn.training.evaluate import evaluate
from edgernn.training.tasks import Split, Task, find_task
from edgernn.zoo_entry import as_dict, card_sections, part_figures, with_intervals
from tests.measure_room import trained

ROOT = Path(__file__).resolve().parent.parent


def opened(entry: dict[str, Any]) -> Task:
    """Open the task of a trained model with the settings, the seed and the data of its training command."""
    kind, _ = find_task(entry["task"])
    words, fields = split_words(word for word in entry["command"] if "=" in word), fields_of(kind)
    settings = {name: field.read(words[name]) for name, field in fields.items() if name in words}
    data = Path(os.environ.get("EDGERNN_DATA", "data"))
    if "noise_folder" in settings:
        settings["noise_folder"] = str(data / settings["noise_folder"])
    task = kind(**settings)
    task.open(data, int(entry["command"][entry["command"].index("--seed") + 1]))
    return task


def from_session(file: Path, task: Task, split: Split) -> float:
    """Return the main metric of a model's file on a split, from the outputs of the session."""
    session, tally = Session(file), task.tally(split)
    assert tally is not None
    for batch in split.chunks():
        tally.add(torch.from_numpy(session.run(batch.x.numpy())), batch)
    return tally.result()[task.objective.metric]


def measure(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a model with its figures measured again; ValueError if its metric is another one."""
    folder, task, metric = Path(entry["folder"]), opened(entry), entry["metric"]
    model = trained(folder / FILES["float32"])
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
        if key not in ("folder", "sequences", "further", "parts"):
            updated[key] = value
        if key == "interval":
            updated[key] = value or as_dict(metric_interval(model, task))
            updated["sequences"] = len(task.test)
            updated["further"] = {name: figures[name] for name in task.further}
            updated["parts"] = with_intervals(parts, model, task)
    return updated | {"files": files}


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
    names = parser.parse_args().names
    for entry in entries(ROOT / "models"):
        if not names or entry["name"] in names:
            write(Path(entry["folder"]), measure(entry))


if __name__ == "__main__":
    main()
