# SPDX-License-Identifier: Apache-2.0
"""Kernels that take the place of a layer's loop over time in training."""

from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer
from edgernn.model import RecurrentModel
from edgernn.training.kernels import cpu

BACKENDS = ("auto", "torch", "fused")


def attach(model: RecurrentModel, backend: str, device: str) -> str:
    """Make a model's layers run by kernels; returns what runs them: "fused", "torch" or, where both do, "fused, torch".

    backend: "auto" takes kernels for the layers that have them, "torch" for none, "fused" for all.
    Raises UsageError for another backend, or for "fused" where a layer has no kernels: it says why.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    for layer in model.recurrent_layers():
        layer.unroller = None
        if backend == "torch":
            continue
        why = _why_not(layer, device)
        if why is None:
            layer.unroller = cpu.CpuUnroller(layer)
        elif backend == "fused":
            raise UsageError(f"backend: fused cannot run this model: {why}; use backend=auto")
    return ", ".join(sorted({layer.backend for layer in model.recurrent_layers()}))


def _why_not(layer: RecurrentLayer, device: str) -> str | None:
    return cpu.why_not(layer) if device == "cpu" else f"there are no kernels for the device {device}"
