# SPDX-License-Identifier: Apache-2.0
"""The zoo: trained models in the folder models/ of edgernn, which commands accept by their names.

Each model is a folder with model.onnx, usually model-int8.onnx, example.npz, and a model card model.md. Its entry.json
has the data of the card, such as metric and file sizes, for programs to read. The models are in the wheel, too. To use
others, set the environment variable EDGERNN_MODELS to the path of a folder of models.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import CONFIG, MODEL, check_path, read_json

VARIABLE = "EDGERNN_MODELS"
ENTRY, CARD = "entry.json", "model.md"
# the file of each type of weights
FILES = {"float32": MODEL, "int8": "model-int8.onnx"}
# values of entry.json that the list of models shows, and figures of the whole test or of a part of it
_FIELDS = {"task": str, "cell": str, "rule": str, "metric": str, "macs": int, "files": dict}
_FIGURES = ("value", "skip_percent", "macs_executed")
# a larger number in entry.json is damage, and too large for a float
_LARGEST = 1e300
# end of the name of a model with int8 weights
INT8 = "-int8"


def zoo_folder() -> Path:
    """Return the folder of trained models: the environment variable EDGERNN_MODELS, or that of edgernn."""
    # models/ in a clone, edgernn/models in an installed wheel: beside the folder of this file in both
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parent.parent / "models")


def entries(folder: Path | None = None) -> list[dict[str, Any]]:
    """Read the entry.json of each trained model in a folder, by default `zoo_folder`, in the order of their names.

    Each is a dict with the data of the model card, and with the model's "name" and the path of its "folder" added.
    EdgernnError is raised if the folder does not exist, or an entry.json cannot be read.
    """
    models = []
    for path in sorted(_existing(folder or zoo_folder()).glob(f"*/{ENTRY}")):
        entry = read_json(path)
        if missing := _missing(entry):
            raise EdgernnError(f"{path}: expected {missing}, got other JSON; remove the folder, or get it again")
        models.append({**entry, "name": path.parent.name, "folder": str(path.parent)})
    return models


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise EdgernnError(f"{folder}: expected a folder of models, got none; check {VARIABLE}")
    return folder


def _missing(entry: Any) -> str | None:
    """Return what the content of an entry.json lacks for the list of models, or None."""
    if not isinstance(entry, dict):
        return "a JSON object with the figures of a model"
    if wrong := [name for name, kind in _FIELDS.items() if not isinstance(entry.get(name), kind)]:
        return f"the value {wrong[0]!r}"
    parts = entry.get("parts", {})
    all_figures = [entry, *parts.values()] if isinstance(parts, dict) else [None]
    for figures in all_figures:
        if not isinstance(figures, dict) or not all(_is_number(figures.get(name)) for name in _FIGURES):
            return f"the numbers {', '.join(_FIGURES)}"
        interval = figures.get("interval", {})
        if interval is not None and not (
            isinstance(interval, dict) and all(_is_number(interval.get(name)) for name in ("low", "high"))
        ):
            return "an interval with low and high, or null"
    for file in entry["files"].values():
        if not isinstance(file, dict) or not isinstance(file.get("weights"), str) or not _is_number(file.get("bytes")):
            return "the weights and bytes of each file"
    if "seeds" in entry and not isinstance(entry.get("higher_is_better"), bool):
        return "the value 'higher_is_better'"
    if "seeds" in entry and not _has_seeds(entry["seeds"]):
        return "seeds with the seed of the model and the validation and test metric of each seed"
    return None


def _has_seeds(seeds: Any) -> bool:
    """Return True if the value is the dict "seeds" that `seed_note` reads."""
    if not isinstance(seeds, dict) or not isinstance(seeds.get("model"), str):
        return False
    splits = [split for name in ("validation", "test") if isinstance(split := seeds.get(name), dict)]
    if len(splits) < 2 or splits[0].keys() != splits[1].keys() or seeds["model"] not in splits[0]:
        return False
    return all(_is_number(value) for split in splits for value in split.values())


def _is_number(value: Any) -> bool:
    """Return True for a number that is not NaN, and that a float can hold."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def seed_mean(entry: Mapping[str, Any]) -> float | None:
    """Return the mean test metric of all seeds that were trained; None if only the model's own is known."""
    return fmean(entry["seeds"]["test"].values()) if "seeds" in entry else None


def seed_note(entry: Mapping[str, Any]) -> str | None:
    """Say which of several trained seeds a model has, what all of them reach, and which one validation prefers.

    The optional key "seeds" of an entry.json is a dict with "model" (the seed of the model, as a string), "validation"
    and "test" (dicts from each trained seed to its metric on this split). The result is None without it.
    """
    if "seeds" not in entry:
        return None
    seeds, sign = entry["seeds"], 1 if entry["higher_is_better"] else -1
    best = {split: max(seeds[split], key=lambda seed: sign * seeds[split][seed]) for split in ("validation", "test")}
    count, preferred, metric = len(seeds["test"]), best["validation"], entry["metric"]
    optimistic = seeds["model"] == best["test"]
    text = f"This model has seed {seeds['model']} of {count}"
    text += ", the best of them on the test, so its figures are optimistic. " if optimistic else ". "
    text += (
        f"The mean {metric} of the {count} seeds on the test is {seed_mean(entry):.4g}. The validation split prefers "
    )
    if preferred == seeds["model"]:
        return f"{text}this seed{', too' * optimistic}."
    return f"{text}seed {preferred}, which has {seeds['test'][preferred]:.4g} on the test."


def find_model(model: Path) -> Path:
    """Return the path of a model's file for an argument that is a path or the name of a model in the zoo.

    The zoo is the folder of trained models that `zoo_folder` returns. A file or a run directory of the same name comes
    before the model. Any other folder does not, such as the one that `edgernn pack NAME --target c` writes. NAME-int8
    is the model NAME with int8 weights. UsageError is raised for an argument that is neither a path nor a name, or if
    the zoo does not exist.
    """
    check_path(model)
    is_model = model.is_file() or any((model / name).is_file() for name in (CONFIG, MODEL))
    if is_model or len(model.parts) != 1 or model.suffix:
        return model
    try:
        folder = _existing(zoo_folder())
    except EdgernnError as missing:
        if model.exists():
            return model
        raise UsageError(f"{model}: no such file or folder; {missing}") from None
    names = {path.parent.name: path.parent for path in folder.glob(f"*/{ENTRY}")}
    files = {name: path / FILES["float32"] for name, path in names.items()}
    files |= {f"{name}{INT8}": path / FILES["int8"] for name, path in names.items()}
    known = {name: file for name, file in files.items() if file.is_file()}
    if str(model) not in known:
        if model.exists():
            return model
        error = nearest("model", str(model), known)
        error.args = (f"{error}; or give the path of a file",)
        raise error
    return known[str(model)]
