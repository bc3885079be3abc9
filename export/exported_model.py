# SPDX-License-Identifier: Apache-2.0
"""Reader of an exported file as a torch model, for an evaluation on the data of a task."""

from pathlib import Path

import torch
from torch import Tensor

from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError
from edgernn.export.graph import layer_names
from edgernn.model import SequenceModel
from edgernn.runtime.info import read_info, read_model
from edgernn.runtime.weights import Weights, parse
from edgernn.settings import load

# tensors of a model outside its layers, and their names in an exported file
_NAMES = {"input_mean": "input.mean", "input_std": "input.std", "head.weight": "head.W.T", "head.bias": "head.b"}


def read_exported(path: Path) -> tuple[SequenceModel, dict[str, object]]:
    """Read an exported ONNX file as a torch model.

    The weights of a bfloat16 or int8 file are converted to float32.

    Args:
        path: The ONNX file.

    Returns:
        The model in evaluation mode, and the metadata of the file, as `read_info` returns it.

    Raises:
        EdgernnError: The file was not exported by edgernn, is damaged, or has tensors in another form than in training:
            those of residual blocks, of a normalisation, of an embedding or of a user-defined cell.
    """
    proto = parse(read_model(path), path)
    info = read_info({entry.key: entry.value for entry in proto.metadata_props}.get("edgernn"), path)
    weights = Weights(proto, path)
    try:
        model = SequenceModel(load(ModelConfig, info["model"], str(path)))
    except Exception as error:  # constructors of cells raise errors of many types for wrong options
        reason = " ".join(str(error).split())
        raise EdgernnError(
            f"{path}: expected a model that edgernn can build again, got one with the error '{reason:.200}'; name the "
            "run directory instead"
        ) from None
    state = model.state_dict()
    names = layer_names(model)
    for key, tensor in state.items():
        name = _name(key, names)
        if name not in weights:
            # a file has neither mean nor standard deviation if they are 0 and 1
            if key in ("input_mean", "input_std") and "input.mean" not in weights:
                continue
            raise EdgernnError(
                f"{path}: expected the weight {name}, got none: the file has it in another form; name the run "
                "directory instead"
            )
        values = torch.from_numpy(weights[name].floats.copy())
        state[key] = _shaped(values, tensor, f"{path}: {name}")
    model.load_state_dict(state)
    return model.eval(), info


def _name(key: str, layers: list[str]) -> str:
    """Return the name in an exported file of the tensor with the name `key` in the state of a model."""
    if key in _NAMES:
        return _NAMES[key]
    part, _, inner = key.partition(".")
    if part == "layers":
        index, _, path = inner.partition(".")
        # cell.W and rule.rule_W are W and rule_W in the file
        return f"{layers[int(index)]}.{path.partition('.')[2]}"
    return key


def _shaped(values: Tensor, tensor: Tensor, name: str) -> Tensor:
    """Return the values in the shape of a model's tensor, or raise EdgernnError if their number differs."""
    if values.numel() != tensor.numel():
        raise EdgernnError(
            f"{name}: expected shape {tuple(tensor.shape)}, got {tuple(values.shape)}; export the model again"
        )
    return values.reshape(tensor.shape).to(tensor.dtype)
