# SPDX-License-Identifier: Apache-2.0
"""Model card of an exported model: its training, its metrics and its interface."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgernn.errors import counted, some
from edgernn.export.check import Check
from edgernn.export.latency import Latency, microseconds
from edgernn.export.rounding import Loss
from edgernn.files import read_json
from edgernn.model import SequenceModel
from edgernn.own_network import OwnNetwork
from edgernn.runtime.info import update_words

# number of classes that a card lists
_CLASSES = 100


def card(
    model: SequenceModel | OwnNetwork,
    config: dict[str, Any],
    result: dict[str, Any],
    checks: list[Check],
    file: Path,
    took: Latency,
    weights: tuple[str, str] = ("float32", "float32"),
    loss: Loss | None = None,
    notes: Sequence[tuple[str, str]] = (),
    example: str | None = None,
    has_counts: bool = False,
) -> str:
    """Format the model card of an exported model as Markdown.

    Args:
        model: The exported model.
        config: Content of config.json in the run directory: the settings of the training.
        result: Content of result.json in the run directory: the metrics and costs of the model.
        checks: Results of the comparison of the file with torch, one per backend.
        file: The exported file.
        took: Latency of the exported model, measured on this machine.
        weights: Types of the matrices: the one that the model was trained for, and that of the file, such as int8.
        loss: Metric before and after the weights were rounded, or None if it was not measured.
        notes: Further rows, as pairs of name and text.
        example: Name of the file whose outputs are in example.npz. Default: that of `file`.
        has_counts: True if the file has the outputs `updates` and `macs`.

    Returns:
        The text of the card.
    """
    task, metric = config["task"], result["metric"]
    own = isinstance(model, OwnNetwork)
    words = update_words(model.rule_kind if isinstance(model, OwnNetwork) else model.rule_type.kind)
    block_macs = result.get("block_macs", 0)
    settings = ", ".join(f"{k}={v}" for k, v in task["settings"].items())
    threshold = "" if result["threshold"] is None else f" (solved: {result['threshold']:.3g})"
    rows = [
        ("task", f"{task['name']} ({settings})" if settings else task["name"]),
        *notes,
        *_interface_rows(model, task),
        *(_network_rows(model) if isinstance(model, OwnNetwork) else [("cell and rule", _layers(model))]),
        (f"{metric} on the test sequences", f"{result[metric]:.4g}{threshold}"),
        *_detection_rows(task, result),
        *_calibration_rows(result),
        (words.skipped, f"{result['skip_percent']:.1f} %"),
        ("parameters", f"{result['parameters']:,}"),
        ("multiply-adds a step, executed / dense", f"{result['macs_executed']:,.0f} / {result['macs']:,}"),
        *([("multiply-adds a step, front end", f"{model.frontend.macs():,}")] if model.frontend is not None else []),
        *([("multiply-adds a step, blocks", f"{block_macs:,}")] if block_macs else []),
        ("flops_paper a step", f"{result['flops_paper']:,.0f}"),
        ("trained for", f"{counted(result['steps'], 'step')}, {result['seconds']:.0f} s on {config['machine']}"),
        ("seed", f"{config['seed']}"),
        ("versions", f"edgernn {config['edgernn']}, torch {config['torch']}, {config['threads']} thread(s)"),
    ]
    trained, stored = weights
    rows += [("matrices", stored + f", trained for {trained}" * (trained != "float32"))]
    if own and stored != "float32":
        rows += [("arithmetic", "float32, with the rounded matrices")]
    rows += [("file", f"{file.stat().st_size:,} bytes")]
    if loss is not None:
        rows.append((f"{metric} with {stored}", f"{loss.after:.4g}{', a large loss' * loss.is_large}"))
    rows += [(f"worst error against torch, {c.backend}", f"{c.worst:.1e}") for c in checks]
    rows += latency_rows(took)
    width = model.output_size or (model.width if isinstance(model, SequenceModel) else 0)
    reads_words = model.vocabulary is not None
    x = "(T, B)" if reads_words else f"(T, B, {model.input_size})"
    y = f"(B, {width})" if model.output == "last" else f"(T, B, {width})"
    with torch.no_grad():
        start = dict(zip(model.state_names, model.initial_state(1, model.input_mean), strict=True))
    begins = (
        "a state starts as zeros"
        if not any(s.any() for s in start.values())
        else "the metadata says how a state starts"
    )
    counts = f"; `updates` (T, B), {words.updated}; `macs` (B,), multiply-adds executed" * has_counts
    last = ", the next state as " + ", ".join(f"`{name}.next`" for name in start) if start else ""
    outputs = "the model's outputs" if example in (None, file.name) else f"the outputs of `{example}`"
    lines = [
        f"# {task['name']}, {result['cell']}",
        "",
        "Made by",
        "",
        f"    {shlex.join(config['command'])}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in rows),
        "",
        f"`{file.name}` takes `x` {x}"
        + "".join(f", `{name}` (B, {s.shape[1]})" for name, s in start.items())
        + f" and gives `y` {y}{last}{counts}. All floats are float32;{f' {begins};' * bool(start)} x is "
        f"{_taken(model)}.",
        "",
        f"`example.npz` holds inputs x {'(N, T)' if reads_words else '(N, T, I)'} and {outputs} y.",
    ]
    return "\n".join(lines) + "\n"


def _layers(model: SequenceModel) -> str:
    return f"{model.cell_type.name} + {model.rule_type.name}{_groups(model)}, {_sizes(model)}"


def _network_rows(model: OwnNetwork) -> list[tuple[str, str]]:
    """Return the rows about a network of one's own: its class and settings, and its recurrent layers."""
    settings = ", ".join(f"{name}={value}" for name, value in model.config.options.items())
    layers = [
        f"{layer.cell.name} + {layer.rule.name} ({layer.cell.input_size}, {layer.cell.hidden_size})"
        for layer in model.recurrent_layers()
    ]
    return [("network", f"{model.config.title}({settings})"), ("recurrent layers (I, H)", ", ".join(layers))]


def _interface_rows(model: SequenceModel | OwnNetwork, task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about the channels of x and the classes of y."""
    rows, classes = [], task["classes"] or []
    if model.vocabulary is None and model.frontend is None:
        channels = task.get("channels")
        rows.append(("channels of x", ", ".join(channels) if channels else f"{model.input_size}, without names"))
    reading = task.get("reading")
    if reading and "samples" in reading:
        rows.append(("sequences", f"clips of {reading['samples']:,} samples; the loudest stretch of longer ones"))
    elif reading:
        rate = reading["rate"] or reading["measured"]
        words = [f"{rate:.4g} rows a second"] if rate else []
        words += [f"windows of {reading['window']} rows"] if reading["window"] else []
        words += ["missing values are filled in"] if reading["missing"] else []
        rows += [("sequences", f"{', '.join(words)}; give an app the same")] if words else []
    if classes:
        more = f" and {len(classes) - _CLASSES:,} more" if len(classes) > _CLASSES else ""
        rows.append(("classes of y", ", ".join(map(_cell, classes[:_CLASSES])) + more))
    return rows


def split_rows(path: Path) -> list[tuple[str, str]]:
    """Return the row about the split of a user's own data, which `path` has, or none without this file."""
    if not path.is_file():
        return []
    split = read_json(path)
    counts = "; ".join(f"{part}: {len(split[part]):,} ({some(split[part])})" for part in split if part != "by")
    return [(f"split by {split['by']}", counts.replace("|", chr(92) + "|"))]


def _cell(name: str) -> str:
    """Return the name of a class as code in a cell of a Markdown table, with quotes if a reader may not see it."""
    is_seen = name.isprintable() and name == name.strip() != ""
    return f"`{(name if is_seen else json.dumps(name)).replace('|', chr(92) + '|')}`"


def _detection_rows(task: Mapping[str, Any], result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about detections in long recordings, if the task measures them."""
    if "room_false_alarms_an_hour" not in result:
        return []
    threshold = task["settings"].get("threshold")
    where = f"in {result['room_hours']:.2g} h of recordings, threshold {threshold:g}"
    return [
        (f"false alarms an hour {where}", f"{result['room_false_alarms_an_hour']:.3g}"),
        (f"words detected {where}", f"{100 * result['room_hits']:.1f} % of {result['room_words']:,.0f}"),
    ]


def _calibration_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the row about the probabilities of classes, if the training calibrated them."""
    if "temperature" not in result:
        return []
    before, after = result["calibration_error_before"], result["calibration_error"]
    text = f"calibrated on the validation part: scores divided by {result['temperature']:.3g}; calibration error on the"
    return [("probabilities", f"{text} test sequences {after:.3f}, {before:.3f} before")]


def latency_rows(took: Latency) -> list[tuple[str, str]]:
    """Return the rows of a card about times, as pairs of name and text."""
    on = "the standard operators" if took.instruction_set is None else f"the native library ({took.instruction_set})"
    whole = f"{microseconds(took.sequence)}, {microseconds(took.sequence / took.steps)} a step"
    rows = [(f"a call with a sequence, T={took.steps:,}", whole)]
    if took.step is not None:
        rows.append(("a call with a step, T=1", microseconds(took.step)))
    return [
        *rows,
        ("measured on", f"{took.processor}, one thread, {on}, from Python, one call after the other: caches are warm"),
    ]


def _taken(model: SequenceModel | OwnNetwork) -> str:
    if model.vocabulary is not None:
        return f"int64, words from 0 to {model.vocabulary - 1}"
    if model.frontend is not None:
        config = model.frontend.config
        hops = "one hop" if config.stack == 1 else f"{config.stack} hops"
        return f"{hops} of samples a step, from -1 to 1, at {config.sample_rate:,} Hz"
    return "taken as it comes" + " and standardised inside" * model.standardises


def _sizes(model: SequenceModel) -> str:
    layers = len(model.layers) // model.directions
    text = "" if model.vocabulary is None else f"{counted(model.vocabulary, 'word')}, "
    if model.frontend is not None:
        settings = model.frontend.config
        stacked = f" in {settings.stack} windows" if settings.stack > 1 else ""
        text += f"{settings.name} ({settings.normalise}) of {settings.samples} samples a step{stacked}, "
    text += f"I={model.config.features}, H={model.hidden_size}, {layers} layer" + "s" * (layers > 1)
    text += f", the last one of {model.last_size}" * (model.last_size is not None)
    text += "" if model.config.block is None else f", {model.config.block} blocks"
    return text + ", bidirectional" * model.bidirectional


def _groups(model: SequenceModel) -> str:
    sizes = sorted({layer.rule.group_size for layer in model.recurrent_layers()})
    return "" if sizes == [1] else f" in groups of {' or '.join(map(str, sizes))} neurons"
