# SPDX-License-Identifier: Apache-2.0
"""Storage of a model in a folder: config.json, with its configuration under the key "model", and model.safetensors."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from edgernn.cell_files import KEPT, copy_of, is_cell_file, kept_word, load_kept
from edgernn.cells.base import Cell
from edgernn.config import AnyConfig, ModelConfig, NetworkConfig
from edgernn.errors import CodeError, EdgernnError, UsageError, some
from edgernn.files import CONFIG, check_path, read_bytes, read_json, write_bytes
from edgernn.frontends import FrontendConfig
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.own_network import OwnNetwork
from edgernn.settings import load

WEIGHTS = "model.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by name, and metadata if any, to a safetensors file, atomically."""
    # copies, as tensors of the format share no memory
    write_bytes(
        path, save({k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, dict(metadata or {}))
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; raise EdgernnError if it is missing or damaged."""
    try:
        # load_file reads no path that is not UTF-8
        tensors: dict[str, Tensor] = load_tensors(read_bytes(path, "a safetensors file"))
        return tensors
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None
    except SafetensorError as error:
        raise EdgernnError(
            f"{path}: expected a safetensors file, got a damaged one ({error}); restore it or train again"
        ) from None


def save_weights(model: RecurrentModel, folder: Path, name: str = WEIGHTS) -> None:
    """Write the parameters and buffers of a model to the safetensors file `name` in a folder."""
    write_tensors(folder / name, model.state_dict(), {"format": "pt"})


def load_weights(model: RecurrentModel, folder: Path, name: str = WEIGHTS) -> None:
    """Load the parameters and buffers of a model in place from a safetensors file.

    Args:
        model: The model.
        folder: Folder of the file.
        name: Name of the safetensors file.

    Raises:
        EdgernnError: The file cannot be read, or its tensors have other names or shapes than those of the model.
    """
    _set_weights(model, read_tensors(folder / name), folder / name)


def _set_weights(model: RecurrentModel, tensors: Mapping[str, Tensor], path: Path) -> None:
    expected = model.state_dict()
    if tensors.keys() != expected.keys():
        names = some(sorted(tensors.keys() ^ expected.keys()))
        raise EdgernnError(
            f"{path}: expected the tensors of this model, but these are missing in the file or unknown to the "
            f"model: {names}; restore the file or train again"
        )
    _check_shapes(path, tensors, expected)
    model.load_state_dict(tensors)


def _check_shapes(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for key, tensor in expected.items():
        if key in tensors and tensors[key].shape != tensor.shape:
            shapes = f"expected {tuple(tensor.shape)}, got {tuple(tensors[key].shape)}"
            raise EdgernnError(f"{path}: {key}: {shapes}; restore the file, or train again")


def _check_sizes(config: ModelConfig, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Compare the sizes of a model with its stored tensors before memory is allocated for it."""
    # an audio front end and sparse weights cannot be built without memory
    recurrent = dataclasses.replace(config.layer.recurrent, density=None)
    layer = dataclasses.replace(config.layer, recurrent=recurrent)
    audio = dataclasses.replace(config.input, size=config.features)
    plain = dataclasses.replace(config, layer=layer, frontend=FrontendConfig(), input=audio)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            expected = SequenceModel(plain).state_dict()
    except (RuntimeError, OverflowError) as error:
        raise EdgernnError(
            f"{folder / CONFIG}: model: expected sizes that a model can have, got larger ones ({error}); restore the "
            "file, or train again"
        ) from None
    _check_shapes(folder / WEIGHTS, tensors, expected)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a run directory's config.json; raise EdgernnError if it is missing, invalid or too old.

    A config whose cell is a Python file is invalid: the code of a custom cell is in the run's copy `cell.py`.
    """
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise EdgernnError(
            f"{path}: expected the config of a run, with a JSON object under the key 'model', got none; train again"
        )
    own = config.get("network") == OwnNetwork.__name__
    if not own and "layer" not in config["model"]:
        version = config.get("edgernn", "an older version")
        raise EdgernnError(
            f"{path}: written by edgernn {version} in a format that this version does not read; train again"
        )
    task = config.get("task")
    if not (
        isinstance(task, dict)
        and isinstance(task.get("name"), str)
        and isinstance(task.get("settings"), dict)
        and isinstance(task.setdefault("classes", None), list | None)
        and isinstance(task.setdefault("channels", None), list | None)
        and isinstance(task.setdefault("reading", None), dict | None)
        and isinstance(task.setdefault("fingerprint", None), str | None)
        and all(isinstance(config.setdefault(key, None), str | None) for key in ("folder", "source", "data"))
        and type(config.get("seed")) is int
    ):
        raise EdgernnError(f"{path}: expected the task, data and seed of a run, got none; train again")
    model = model_config(config, path)
    if isinstance(model, ModelConfig) and is_cell_file(cell := model.layer.cell.name):
        raise EdgernnError(
            f"{path}: model.layer.cell.name: expected a cell of edgernn, got the Python file {cell!r:.50}, which is "
            f"not the run's copy {KEPT} and is not executed; train again"
        )
    return config


def model_config(config: Mapping[str, Any], path: Path) -> AnyConfig:
    """Return the configuration of the model in a run's config.json, whose `path` is for errors."""
    if config.get("network") == OwnNetwork.__name__:
        return load(NetworkConfig, config["model"], str(path))
    return load(ModelConfig, config["model"], str(path))


def resume_command(run: Path) -> str:
    """Return the command line that resumes the interrupted training in a run directory."""
    return shlex.join(["edgernn", "train", "--resume", "--out", str(run)])


def load_model(folder: Path, *, allow_code: bool = False) -> tuple[SequenceModel, dict[str, Any]]:
    """Load the model of a run directory, as `load_any`; raise UsageError for a network of one's own."""
    model, config = load_any(folder, allow_code=allow_code)
    if isinstance(model, OwnNetwork):
        raise UsageError(
            f"{folder}: expected a run with a cell, got one with the network {model.config.title}, which this command "
            "does not take; use evaluate, export, run or info"
        )
    return model, config


def load_any(folder: Path, *, allow_code: bool = False) -> tuple[SequenceModel | OwnNetwork, dict[str, Any]]:
    """Load the model of a run directory.

    A user-defined cell or network is loaded from the run's copy of its Python file, which executes that file.

    Args:
        folder: The run directory.
        allow_code: True if the run's copy of a Python file may be executed.

    Returns:
        The model in evaluation mode, and the content of config.json.

    Raises:
        EdgernnError: A file of the run is missing or invalid.
        CodeError: The run has a user-defined cell or network, and `allow_code` is False.
    """
    check_path(folder)
    if folder.is_file():
        raise EdgernnError(
            f"{folder}: expected a run directory, got a file; name the folder that `edgernn train` wrote"
        )
    if not folder.is_dir():
        raise EdgernnError(f"{folder}: no such run directory; `edgernn train` writes one")
    config = read_config(folder)
    known = (SequenceModel.__name__, OwnNetwork.__name__)
    if (network := config.get("network", known[0])) not in known:
        expected = f"a {SequenceModel.__name__}, got a {network}"
        raise EdgernnError(
            f"{folder}: config.json: network: expected {expected}, which edgernn runs only in training; "
            "name a run of another task"
        )
    if not (folder / WEIGHTS).exists():
        raise EdgernnError(
            f"{folder}: expected a trained model, got a training without {WEIGHTS}; resume it: {resume_command(folder)}"
        )
    settings = model_config(config, folder / CONFIG)
    if (copy := copy_of(config)) is not None and not allow_code:
        what = copy.removesuffix(".py")
        raise CodeError(
            f"{folder / copy}: the run's {what} is Python code, which is not executed; add --allow-code (in Python, "
            "allow_code=True) if you trust it"
        )
    kind = load_kept(folder, config)
    model: SequenceModel | OwnNetwork
    tensors = read_tensors(folder / WEIGHTS)
    if isinstance(settings, NetworkConfig):
        if kind is None:
            raise EdgernnError(
                f"{folder}: config.json: network_file: expected the run's copy of a file, got none; train again"
            )
        with torch.random.fork_rng(devices=[]):
            model = OwnNetwork(dataclasses.replace(settings, name=kind))
    else:
        if kind is not None:
            assert issubclass(kind, Cell)
            layer = settings.layer
            layer = dataclasses.replace(layer, cell=dataclasses.replace(layer.cell, name=kind))
            settings = dataclasses.replace(settings, layer=layer)
        _check_sizes(settings, tensors, folder)
        model = SequenceModel(settings)
    _set_weights(model, tensors, folder / WEIGHTS)
    return model.eval(), config


def kept_cell(folder: Path, cell: str) -> str:
    """Replace FILE.py in FILE.py:CLASS by the path of the copy of FILE.py in a run directory.

    Args:
        folder: Folder that may be a run directory.
        cell: Name of a cell, or FILE.py:CLASS of a cell or network.

    Returns:
        PATH:CLASS with the path of the copy. `cell` is returned unchanged if it names no file, if the folder is not a
        run directory, or if the run's config.json lists no copy.

    Raises:
        EdgernnError: The copy that config.json lists is missing or has changed, or config.json is invalid.
    """
    return kept_word(folder, read_config(folder), cell) if (folder / CONFIG).is_file() else cell
