# SPDX-License-Identifier: Apache-2.0
"""Adds the model of a run directory to the zoo, the folder of trained models: `python -m benchmarks.zoo_entry RUN`.

It exports the run with float32 and int8 weights, reads the test data of the task again for the metric with int8 weights
and the confidence interval, and writes a card, model.md. Check that the terms of use of the data sets, which the card
names, allow you to distribute the model and the sequences in example.npz.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.confidence import Interval, metric_interval
from edgernn.bench.measure import Settings, bench
from edgernn.bench.report import save
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.run import export_run
from edgernn.files import EXAMPLE, read_bytes, read_json, write_arrays, write_json, write_text
from edgernn.locks import LOCK, hold
from edgernn.model import SequenceModel
from edgernn.npz import read_npz
from edgernn.progress import Progress
from edgernn.runtime.firmware.equations import kind_of_rule
from edgernn.runtime.info import update_words
from edgernn.runtime.zoo import CARD, ENTRY, FILES, INT8, seed_note, zoo_folder
from edgernn.signals import delaying
from edgernn.store import load_model, read_config
from edgernn.training.datasets.registry import sets_of
from edgernn.training.evaluate import evaluate, open_task
from edgernn.training.tasks import TASKS
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.intended_use import limits_of, use_rows

# limits in bytes: of all models, and of the example of one
MOST, MOST_EXAMPLE = 8_000_000, 200_000
# figures of result.json that describe the work
_WORK = ("parameters", "macs", "macs_executed", "frontend_macs", "block_macs", "skip_percent")


def add_model(
    run: Path, name: str | None = None, folder: Path | None = None, *, replace: bool = False
) -> dict[str, Any]:
    """Add the model of a run to the zoo, the folder of trained models, as a folder of its own.

    This folder has the ONNX files with float32 and int8 weights, an example, a benchmark, entry.json with the figures,
    and a model card (model.md). No model is added or replaced if a step fails.

    Args:
        run: The run directory. The data of its task is read again, for the metric with int8 weights.
        name: Name of the model. Default: the run directory's name.
        folder: The zoo. Default: `zoo_folder`.
        replace: Whether to replace a model of that name.

    Returns:
        The content of entry.json, with the model's folder as "folder" and the size of the zoo as "bytes_of_all".

    Raises:
        UsageError: The name is invalid, or the zoo has a model of that name already.
        EdgernnError: The run is not finished, its data is missing, or all models together have more than MOST bytes.
    """
    folder = folder or zoo_folder()
    name = name or run.resolve().name
    if Path(name).name != name or Path(name).suffix or name.startswith("."):
        raise UsageError(f"--name: expected a name without a dot or slash, got {name!r}")
    if name.endswith(INT8):
        raise UsageError(
            f"--name: expected a name that does not end in {INT8}, which stands for int8 weights, got {name!r}"
        )
    target = folder / name
    if target.exists() and not replace:
        raise UsageError(
            f"{target}: expected a new name, got that of a model in the zoo; set another --name, or add --replace"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = hold(folder / f".{name}{LOCK}", target)
    with lock, tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as temporary:
        staged = Path(temporary) / name
        staged.mkdir()
        entry = _make(run, staged, name)
        size = sum(file.stat().st_size for file in staged.iterdir()) + _size(folder, without=name)
        if size > MOST:
            raise EdgernnError(
                f"{name}: expected at most {MOST:,} bytes in all models together, got {size:,} with this one; train a "
                "smaller one, or remove another model"
            )
        replaced = Path(temporary) / "replaced"
        with delaying():
            if target.exists():
                target.rename(replaced)
            try:
                staged.rename(target)
            except OSError:
                if replaced.exists():
                    replaced.rename(target)
                raise
    return {**entry, "folder": str(target), "bytes_of_all": size}


def _size(folder: Path, without: str) -> int:
    """Return the size in bytes of all models in a folder, except the one named `without`."""
    models = [path for path in folder.iterdir() if path.name != without and not path.name.startswith(".")]
    return sum(file.stat().st_size for model in models if model.is_dir() for file in model.rglob("*") if file.is_file())


def _make(run: Path, folder: Path, name: str) -> dict[str, Any]:
    config, result, task = read_config(run), read_json(run / "result.json"), open_task(run)
    known = {name: value for name, value in result.items() if isinstance(value, float)}
    # a run that was trained for int8 has one metric for both files
    metrics: dict[str, dict[str, float]] = {"float32": known, "int8": known}
    model = load_model(run, allow_code=True)[0]
    parts = part_figures(model, task)
    of_parts = {"float32": parts, "int8": parts}

    def score(quantised: SequenceModel) -> tuple[float, bool]:
        metrics["int8"], of_parts["int8"] = evaluate(quantised, task, task.test), part_figures(quantised, task)
        return metrics["int8"][task.objective.metric], task.objective.higher_is_better

    # the last one writes the example, whose outputs are those of float32
    exported = {
        weights: export_run(run, folder / FILES[weights], weights, score, notes=use_rows)
        for weights in ("int8", "float32")
    }
    metric = result["metric"]
    _shorten(folder / EXAMPLE)
    report = bench(folder / FILES["float32"], Settings(), progress=Progress())
    save(report, folder)
    interval = metric_interval(model, task)
    files = {
        file: {
            "weights": weights,
            "bytes": exported[weights]["bytes"],
            metric: metrics[weights][metric],
            **{f"{metric}_{part}": figures["value"] for part, figures in of_parts[weights].items()},
            "skip_percent": metrics[weights]["skip_percent"],
            "us_a_step": exported[weights]["latency"]["step"],
        }
        for weights, file in FILES.items()
    }
    entry = {
        "name": name,
        "task": config["task"]["name"],
        "cell": result["cell"],
        "rule": result["rule"],
        "metric": metric,
        "value": result[metric],
        "higher_is_better": result["higher_is_better"],
        "interval": as_dict(interval),
        "sequences": len(task.test),
        "card_metrics": {key: result[key] for key in task.card_metrics if key in result},
        "parts": with_intervals(parts, model, task),
        **{key: result[key] for key in _WORK if key in result},
        "files": files,
        "processor": exported["float32"]["latency"]["processor"],
        "limits": limits_of(config["task"]["name"]),
        "data": _data(config["task"]),
        "classes": _class_figures(run, config, result),
        "room": {key: value for key, value in result.items() if key.startswith("room_")} or None,
        "command": config["command"],
    }
    write_json(folder / ENTRY, entry)
    card = read_bytes(folder / CARD, "a model card").decode()
    write_text(folder / CARD, card.rstrip() + "\n\n" + "\n".join(card_sections(entry)) + "\n")
    # the card has the figures of both files
    (folder / FILES["int8"]).with_suffix(".md").unlink()
    return entry


def _shorten(example: Path) -> None:
    """Shorten the file example.npz to as many sequences as fit into MOST_EXAMPLE bytes, but at least one."""
    arrays = read_npz(example, ("x", "y"))
    size = sum(array[:1].nbytes for array in arrays.values())
    count = max(1, MOST_EXAMPLE // size)
    if count < len(arrays["x"]):
        write_arrays(example, {name: np.ascontiguousarray(array[:count]) for name, array in arrays.items()})


def _data(task: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return title, origin and terms of use of the data sets of a task; `task` is the key "task" of config.json."""
    sets = sets_of(task["name"], task["settings"])
    return [{"title": data.title, "origin": data.origin, "terms": data.terms} for data in sets]


def _class_figures(run: Path, config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Collect the precision and the recall, or sensitivity, of each class: a dict from class to {metric: value}."""
    classes = config["task"]["classes"] or sorted({key.split("_", 1)[1] for key in result if _is_of_class(key)})
    figures: dict[str, dict[str, float]] = {name: {} for name in classes}
    series = run / "series.json"
    stored = read_json(series) if series.is_file() else {}
    for measure in ("recall", "precision", "sensitivity"):
        values = stored.get(measure)
        for i, name in enumerate(classes):
            if f"{measure}_{name}" in result:
                figures[name][measure] = result[f"{measure}_{name}"]
            elif isinstance(values, list) and len(values) == len(classes):
                figures[name][measure] = values[i]
    return {name: of_class for name, of_class in figures.items() if of_class}


def _is_of_class(key: str) -> bool:
    return key.startswith(("recall_", "precision_", "sensitivity_"))


def part_figures(model: SequenceModel, task: Task) -> dict[str, dict[str, float]]:
    """Compute the main metric and the work of a model on each part of the test split, see `Task.test_parts`.

    Args:
        model: The trained model.
        task: The model's task, with its data loaded.

    Returns:
        Dict from the name of each part to the number of its "sequences", the metric as "value", "skip_percent" and
        "macs_executed".
    """
    figures = {}
    for name, split in task.test_parts().items():
        metrics = evaluate(model, task, split)
        figures[name] = {"sequences": len(split), "value": metrics[task.objective.metric]}
        figures[name] |= {key: metrics[key] for key in ("skip_percent", "macs_executed")}
    return figures


def with_intervals(
    parts: Mapping[str, Mapping[str, float]], model: SequenceModel, task: Task
) -> dict[str, dict[str, Any]]:
    """Add the confidence interval of the metric on each part to figures from `part_figures`, as "interval"."""
    return {
        name: {**parts[name], "interval": as_dict(metric_interval(model, task, split))}
        for name, split in task.test_parts().items()
    }


def as_dict(interval: Interval | None) -> dict[str, Any] | None:
    """Convert a confidence interval for entry.json; None stays None."""
    return None if interval is None else dataclasses.asdict(interval)


def _with_interval(figures: Mapping[str, Any]) -> str:
    """Format the key "value", and the key "interval" unless it is None."""
    value, interval = f"{figures['value']:.4g}", figures["interval"]
    if interval is None:
        return value
    return f"{value}, 95 % confidence interval {interval['low']:.4g} to {interval['high']:.4g} ({interval['method']})"


def card_sections(entry: Mapping[str, Any]) -> list[str]:
    """Format the model card of an entry.json as Markdown lines: quality, inputs and outputs, files and data."""
    metric, parts, words = entry["metric"], entry["parts"], update_words(kind_of_rule(entry["rule"]))
    lines = ["## Quality", "", f"{metric} on the test sequences: {_with_interval(entry)}."]
    if note := seed_note(entry):
        lines += ["", note]
    scope = entry["interval"] and Interval(**entry["interval"]).scope
    if scope and entry["data"]:
        # sequences that a task generates are independent
        lines += ["", scope]
    for name, value in entry["card_metrics"].items():
        lines += ["", f"{name} on the same sequences: {value:.4g}."]
    lines += ["", f"The work above is the mean over all {entry['sequences']:,} test sequences."]
    for part, figures in parts.items():
        text = (
            f"{metric}_{part}, over the {figures['sequences']:,} sequences of `{part}` alone: "
            f"{_with_interval(figures)}. There, {words.skipped}: {figures['skip_percent']:.1f} %, and "
            f"multiply-adds a step executed: {figures['macs_executed']:,.0f}."
        )
        lines += ["", text]
    if entry["room"]:
        lines += ["", "| in a running recording | |", "|---|---:|"]
        lines += [f"| {key.removeprefix('room_')} | {_text(number)} |" for key, number in entry["room"].items()]
    if entry["classes"]:
        measures = list(next(iter(entry["classes"].values())))
        lines += ["", f"| class | {' | '.join(measures)} |", f"|---|{'---:|' * len(measures)}"]
        lines += [
            f"| {name} | {' | '.join(f'{figures[measure]:.3f}' for measure in measures)} |"
            for name, figures in entry["classes"].items()
        ]
    measured = [metric, *(f"{metric}_{part}" for part in parts)]
    heading = f"| file | weights | bytes | {' | '.join(measured)} | {words.skipped} | µs a step |"
    if entry["task"] in TASKS:
        # relative to models/NAME in the repository
        page = f"../../docs/reference/tasks.md#{entry['task']}"
        text = (
            f"[The task {entry['task']}]({page}) defines x and y: the order and the units of the inputs, the sample "
            "rate, and the scale of y or the order of its classes. The settings of the task are in the first table of "
            "this card."
        )
        lines += ["", "## Inputs and outputs", "", text]
    lines += ["", "## Files", "", heading, f"|---|---|---:|{'---:|' * len(measured)}---:|---:|"]
    for file, figures in entry["files"].items():
        took = "" if figures["us_a_step"] is None else f"{figures['us_a_step']:.3g}"
        lines.append(
            f"| `{file}` | {figures['weights']} | {figures['bytes']:,} | "
            f"{' | '.join(f'{figures[name]:.4g}' for name in measured)} | "
            f"{figures['skip_percent']:.1f} % | {took} |"
        )
    lines += [
        "",
        f"Times: one call of one step, with warm caches, from Python on one thread of {entry['processor']}.",
        "",
        "## Data",
        "",
    ]
    lines += [f"- {data['title']}. {data['origin']}. Terms: {data['terms']}." for data in entry["data"]]
    return lines if entry["data"] else [*lines, "Generated by the task."]


def _text(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--name", help="name of the model; default: the name of the run directory")
    parser.add_argument("--folder", type=Path, help="folder of the models; default: $EDGERNN_MODELS, else models/")
    parser.add_argument("--replace", action="store_true", help="replace an existing model of the same name")
    options = parser.parse_args(arguments)
    entry = add_model(options.run, options.name, options.folder, replace=options.replace)
    print(f"{entry['folder']}: {entry['metric']} {entry['value']:.4g}")
    for data in entry["data"]:
        print(f"data: {data['title']}; terms: {data['terms']}")


if __name__ == "__main__":
    main()
