# SPDX-License-Identifier: Apache-2.0
"""A model in a folder: config.json, whose key "model" holds the arguments of SequenceModel, and model.safetensors."""

from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import read_json, read_tensors, write_tensors
from edgernn.model import RecurrentModel, SequenceModel

CONFIG, WEIGHTS = "config.json", "model.safetensors"


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


def model_from(config: dict[str, Any], where: str) -> SequenceModel:
    """A new model from the arguments in a config."""
    try:
        return SequenceModel(**config)
    except TypeError as error:
        raise EdgernnError(f"{where}: not a model of this version of edgernn ({error})") from None


def load_model(folder: Path) -> tuple[SequenceModel, dict[str, Any]]:
    """The model of a run directory, ready to run, and the whole config. Raises EdgernnError if either file is bad."""
    if not folder.is_dir():
        raise EdgernnError(f"{folder}: no such run directory")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise EdgernnError(f"{folder / CONFIG}: not the config of a run")
    if (network := config.get("network", SequenceModel.__name__)) != SequenceModel.__name__:
        raise EdgernnError(f"{folder}: its network is a {network}; only a {SequenceModel.__name__} can be used alone")
    model = model_from(config["model"], str(folder / CONFIG))
    load_weights(model, folder)
    return model.eval(), config
