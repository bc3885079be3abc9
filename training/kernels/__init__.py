# SPDX-License-Identifier: Apache-2.0
"""Kernels that take the place of a layer's loop over time in training."""

import torch

from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Unroller
from edgernn.model import RecurrentModel
from edgernn.training.kernels import cpu

BACKENDS = ("auto", "torch", "fused")
# the widest state for which a GPU's kernels are taken by themselves: beyond it all weights come out of the L2 cache at
# every step for each few rows, and the launches that are spared weigh less
WIDEST = 512


def attach(model: RecurrentModel, backend: str, device: str) -> str:
    """Make a model's layers run by kernels; returns what runs them: "fused", "torch" or, where both do, "fused, torch".

    backend: "auto" takes kernels for the layers that have them, and on a GPU "graphs", recorded loops, for those that
    are wide or have a normalisation; "torch" none; "fused" kernels for all.
    Raises UsageError for another backend, or for "fused" where a layer has no kernels: it says why.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    for layer in model.recurrent_layers():
        layer.unroller = None
        if backend == "torch":
            continue
        found = _unroller(layer, torch.device(device).type, backend)
        if not isinstance(found, str):
            layer.unroller = found
        elif backend == "fused":
            raise UsageError(f"backend: fused cannot run this model: {found}; use backend=auto")
    return ", ".join(sorted({layer.backend for layer in model.recurrent_layers()}))


def _unroller(layer: RecurrentLayer, device: str, backend: str) -> Unroller | str:
    """What takes the place of a layer's loop, or why nothing can."""
    if device == "cpu":
        try:
            return cpu.CpuUnroller(layer)
        except UsageError as error:
            return str(error)
    if device == "cuda":
        # the op that it registers is of no use elsewhere
        from edgernn.training.kernels import gpu, graphs

        try:
            fused = gpu.GpuUnroller(layer)
        except UsageError as error:
            return graphs.GraphUnroller() if backend == "auto" and layer.cell.norm is not None else str(error)
        wide = backend == "auto" and layer.cell.hidden_size > WIDEST
        return graphs.GraphUnroller() if wide else fused
    return f"there are no kernels for the device {device}"
