# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn info`: describe a model without running it."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH

# rows of the text: a key of the result, and its title
_TITLES = {
    "kind": "kind",
    "bytes": "bytes",
    "task": "task",
    "state": "training",
    "network": "network",
    "cell": "cell",
    "rule": "update rule",
    "kernels": "kernels of the layers",
    "operations": "operations a step",
    "input": "input x",
    "channels": "channels of x",
    "sample_rate": "samples a second",
    "output": "output y",
    "classes": "classes of y",
    "detector": "detection of words",
    "layers": "neurons of each layer",
    "bidirectional": "bidirectional",
    "states": "states",
    "streaming": "runs step by step",
    "weights": "weights",
    "parameters": "parameters",
    "macs": "multiply-adds a step",
    "macs_executed": "executed, mean",
    "value": "test metric",
    "skip_percent": "skipped, %",
    "opsets": "opsets",
    "operators": "operators",
    "producer": "written by",
    "edgernn": "edgernn",
    "seed": "seed",
    "machine": "machine",
    "code": "code",
    "command": "command",
    "data": "data",
    "limits": "limits of use",
}


def _text(result: dict[str, Any]) -> str:
    width = max(map(len, _TITLES.values()))
    rows = [(title, _shown(key, result)) for key, title in _TITLES.items() if result.get(key) not in (None, [], {})]
    return "\n".join([_printable(result["file"]), *(f"  {title:<{width}}  {_printable(text)}" for title, text in rows)])


def _shown(key: str, result: dict[str, Any]) -> str:
    value = result[key]
    if key in ("input", "output"):
        return ", ".join(f"{name} {size}" for name, size in value.items() if size is not None)
    if key == "value":
        return f"{result['metric']} {value:.4g}" if isinstance(value, int | float) else str(value)
    if key == "data":
        return "; ".join(f"{entry.get('title')}, terms: {entry.get('terms')}" for entry in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {size}" for name, size in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key != "seed":
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _printable(text: str) -> str:
    """Replace control characters, which a name in an untrusted file may have, by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _describe_run(run: Path) -> dict[str, Any]:
    """Describe a run directory from its JSON files; the file of a custom cell is not executed."""
    from edgernn.cell_files import copy_of
    from edgernn.runtime.describe import described_model, origin
    from edgernn.store import WEIGHTS, read_config
    from edgernn.training.run_directory import RunDirectory

    config, result = read_config(run), RunDirectory(run).result()
    known = result or {}
    return {
        "file": str(run),
        "kind": "run directory",
        "bytes": (run / WEIGHTS).stat().st_size if (run / WEIGHTS).is_file() else None,
        "task": config["task"]["name"],
        "state": "finished" if result else "not finished",
        **described_model(config["model"]),
        "channels": config["task"]["channels"],
        "classes": config["task"]["classes"],
        **{key: known.get(key) for key in ("weights", "parameters", "macs", "macs_executed", "metric", "skip_percent")},
        "value": known.get(known.get("metric", "")),
        **{key: config.get(key) for key in ("edgernn", "seed", "machine")},
        "code": None if (copy := copy_of(config)) is None else f"{copy}, executed when the model is used",
        **origin(run / WEIGHTS),
    }


@json_command(example="edgernn info runs/adding-sarnn", text=_text)
@click.argument("model", type=PATH)
def command(model: Path) -> dict[str, Any]:
    """Describe MODEL: channels, classes, states, sizes, test metric, and the command and data of its training.

    MODEL is an ONNX file, a packed model, a run directory, or a name that `edgernn models` lists. Nothing is run, and
    no code of a run directory is executed. For an ONNX file of another program, the command lists inputs, outputs and
    operators.
    """
    from edgernn.files import CONFIG, MODEL
    from edgernn.runtime.describe import describe_file
    from edgernn.runtime.zoo import find_model

    path = find_model(model)
    if (path / CONFIG).is_file():
        return _describe_run(path)
    return describe_file(path / MODEL if (path / MODEL).is_file() else path)
