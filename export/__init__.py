# SPDX-License-Identifier: Apache-2.0
"""From a model in torch to one .onnx file that runs on any ONNX Runtime, and fast with the native library."""

from pathlib import Path
from typing import Any

from torch import Tensor

from edgernn.errors import EdgernnError
from edgernn.export.check import Check, check
from edgernn.export.graph import build
from edgernn.export.rounding import check_goes_with, rounded
from edgernn.files import replacing
from edgernn.model import SequenceModel

__all__ = ["Check", "check", "to_onnx"]


def to_onnx(
    model: SequenceModel,
    path: str | Path,
    *,
    metadata: dict[str, Any] | None = None,
    example: Tensor | None = None,
    weights: str = "float32",
) -> list[Check]:
    """Write the model as an ONNX file (opset 20, IR 9) and check it against torch; returns what the check found.

    The file takes x (T, B, I), or int64 (T, B) where the model has a vocabulary, and the state, and gives y, the next
    state and, for a rule that can skip, the number of neurons updated (T, B) and the multiply-adds executed (B,).
    weights: "float32", "bfloat16" or "int8", what the file keeps matrices as (`rounding.rounded`); the native library
    computes with them, elsewhere they become float32 when the file is loaded, with the same values.
    `metadata` is added to the file's description. example, as x: what the check runs beside random input.
    Raises EdgernnError if the file does not compute what torch does with such weights; then nothing is left at `path`.
    """
    path = Path(path)
    was_training = model.training
    model.eval()
    try:
        check_goes_with(model.recurrent_layers(), weights)
        kept = rounded(model, weights)
        proto = build(kept, metadata, weights)
        with replacing(path) as temporary:
            temporary.write_bytes(proto.SerializeToString())
            results = check(kept, temporary, example, whole_numbers=weights == "int8")
    finally:
        model.train(was_training)
    if not any(f.domain == "ai.edgernn" for f in proto.functions):
        raise EdgernnError(f"{path}: the portable function is missing from the written file")
    return results
