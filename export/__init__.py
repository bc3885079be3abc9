# SPDX-License-Identifier: Apache-2.0
"""Export of a torch model to one .onnx file, which runs on any ONNX Runtime and faster with the native library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgernn.extras import needed_by

with needed_by("edgernn.export"):
    import torch
    from torch import nn

    from edgernn.convert import check_permanent
    from edgernn.errors import EdgernnError, UsageError
    from edgernn.export.check import Check, check, check_numbers
    from edgernn.export.graph import build
    from edgernn.export.network import add_functions, export_network
    from edgernn.export.own_network import export_own_network
    from edgernn.export.rounding import check_goes_with, rounded
    from edgernn.files import replacing
    from edgernn.model import SequenceModel
    from edgernn.own_network import OwnNetwork

__all__ = ["Check", "add_functions", "check", "to_onnx"]


def to_onnx(
    model: nn.Module,
    path: str | Path,
    example: Any = None,
    *,
    metadata: dict[str, Any] | None = None,
    weights: str | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    convert: bool = True,
) -> list[Check]:
    """Write a model, or any torch module with recurrent layers, as an ONNX file (opset 20, IR 9), and check it.

    The inputs of a `SequenceModel`'s file are x (T, B, I), or int64 word indices (T, B) for a model with a vocabulary,
    and the state. Its outputs are y and the next state. A model that can skip updates of neurons has two further
    outputs: `updates` (T, B), the number of updated neurons, or under the rule delta of values of h that were sent, and
    `macs` (B,), the number of executed multiply-adds. All commands of edgernn read such a file.

    The file of any other module has the inputs and outputs of its forward(), and a node of edgernn for each recurrent
    layer. torch.onnx.export traces it. All axes have variable sizes, except those on which the module's Python code
    depends, and those of size 1 that it broadcasts; they keep the size in `example`. Where the code only asks whether a
    size is below or above a limit, the metadata `sizes` has the limits, which `NetworkSession` checks. A state is an
    input NAME and an output NAME.next.

    Args:
        model: The model, or a module on the CPU. It is not changed.
        path: The file to write.
        example: Input for the check, in place of random input: x (T, B, I) or word indices (T, B). For any other
            module: the arguments of forward(), which it needs, a tensor or a tuple of tensors and tuples.
        metadata: JSON-compatible dict of values to add to the file's metadata.
        weights: Type of stored matrices, "float32", "bfloat16" or "int8"; for a `SequenceModel` or a network that
            `edgernn train` trained only, which computes with float32 in every type. For a `SequenceModel`, the native
            library computes with this type. Without the library, the matrices are converted to float32 when the file is
            loaded. Default: the value of the training setting `weights`. For another type, the matrices are rounded
            first to the type of the training, then to the type of the file.
        inputs: Names of the module's inputs, one for each tensor in `example`. Default: x, or x0, x1, ...
        outputs: Names of the module's outputs. Default: y, or y0, y1, ...
        dynamic_shapes: Variable axes, as for torch.export.export. Default: all.
        convert: False to leave nn.GRU, nn.LSTM and nn.RNN of the module as they are. Default: they become nodes of
            edgernn, too.

    Returns:
        Results of the check, one per backend: portable (standard ONNX operators) and, if edgernn's native library has
        the kernels, native.

    Raises:
        EdgernnError: The outputs differ from those of torch with the same weights. No file is written.
        UsageError: The type of weights is unknown, the model cannot be exported, its weights are no finite float32
            numbers, names or a state do not fit it, or `path` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"path: expected a file to write, got the folder {path}; pass {path / 'model.onnx'}")
    # the file computes in float32, also if the caller does not
    with torch.autocast("cpu", enabled=False):
        if isinstance(model, OwnNetwork):
            if example is None:
                raise UsageError("example: expected some sequences x (T, B, I), got none; pass them")
            return export_own_network(model, path, example, metadata, weights or "float32")
        if not isinstance(model, SequenceModel):
            if weights not in (None, "float32"):
                raise UsageError(f"weights: expected float32 for {type(model).__name__}, got {weights}; leave it out")
            if example is None:
                raise UsageError("example: expected the arguments of forward(), got none; pass a tensor or a tuple")
            return export_network(model, path, example, inputs, outputs, dynamic_shapes, metadata, convert)
        check_permanent(model)
        weights = weights or model.rounding.weights
        was_training = model.training
        model.eval()
        try:
            check_goes_with(model.recurrent_layers(), weights)
            exported = rounded(model, weights)
            check_numbers(exported)
            proto = build(exported, metadata, weights)
            with replacing(path) as temporary:
                temporary.write_bytes(proto.SerializeToString())
                results = check(exported, temporary, example, whole_numbers=weights == "int8")
        finally:
            model.train(was_training)
        if not any(f.domain == "ai.edgernn" for f in proto.functions):
            raise EdgernnError(
                f"{path}: expected functions of standard ONNX operators for the layers in the written file, got none; "
                "report a bug"
            )
        return results
