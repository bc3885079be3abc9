# SPDX-License-Identifier: Apache-2.0
"""A model in a folder: config.json, whose key "model" holds a ModelConfig, and model.safetensors."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from edgernn.cell_files import kept_word, load_kept
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError
from edgernn.files import read_json, write_bytes
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.settings import load

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file."""
    write_bytes(path, save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, dict(metadata or {})))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Raises EdgernnError where the file is missing, truncated or not safetensors."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
        return tensors
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise EdgernnError(f"{path}: corrupt or truncated ({error})") from None


def save_weights(model: RecurrentModel, folder: Path, name: str = WEIGHTS) -> None:
    write_tensors(folder / name, model.state_dict(), {"format": "pt"})


def load_weights(model: RecurrentModel, folder: Path, name: str = WEIGHTS) -> None:
    """Raises EdgernnError where the file does not hold exactly the tensors of this model, with their shapes."""
    found, expected = read_tensors(folder / name), model.state_dict()
    if found.keys() != expected.keys():
        names = ", ".join(sorted(found.keys() ^ expected.keys()))
        raise EdgernnError(f"{folder / name}: not the weights of this model; missing or unknown: {names}")
    for key, tensor in expected.items():
        if found[key].shape != tensor.shape:
            shapes = f"expected {tuple(tensor.shape)}, got {tuple(found[key].shape)}"
            raise EdgernnError(f"{folder / name}: {key}: {shapes}")
    model.load_state_dict(found)


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run directory. Raises EdgernnError for a file that is none, or of an older form."""
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise EdgernnError(f"{path}: not the config of a run")
    if "layer" not in config["model"]:
        version = config.get("edgernn", "an older version")
        raise EdgernnError(
            f"{path}: written by edgernn {version} in a form that this version does not read; train again"
        )
    return config


def load_model(folder: Path) -> tuple[SequenceModel, dict[str, Any]]:
    """The model of a run directory, ready to run, and the whole config.

    A cell of the user's own is loaded from the run's copy of its file, which executes it.

    Raises:
        EdgernnError: A file of the run is bad.
    """
    if not folder.is_dir():
        raise EdgernnError(f"{folder}: no such run directory")
    config = read_config(folder)
    if (network := config.get("network", SequenceModel.__name__)) != SequenceModel.__name__:
        raise EdgernnError(f"{folder}: its network is a {network}; only a {SequenceModel.__name__} can be used alone")
    settings = load(ModelConfig, config["model"], str(folder / CONFIG))
    if (cell := load_kept(folder, config)) is not None:
        layer = settings.layer
        layer = dataclasses.replace(layer, cell=dataclasses.replace(layer.cell, name=cell))
        settings = dataclasses.replace(settings, layer=layer)
    model = SequenceModel(settings)
    load_weights(model, folder)
    return model.eval(), config


def kept_cell(folder: Path, cell: str) -> str:
    """The word for a run's copy of the file in FILE.py:CLASS; `cell` itself where there is no run that keeps one.

    Raises:
        EdgernnError: The copy is missing, or is not what the run was begun with.
    """
    return kept_word(folder, read_config(folder), cell) if (folder / CONFIG).is_file() else cell
