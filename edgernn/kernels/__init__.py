# SPDX-License-Identifier: Apache-2.0
"""Fused kernels that replace the loop over time steps of a recurrent layer in training, on CPU and GPU."""

import warnings
from typing import TYPE_CHECKING

import torch

from edgernn.errors import EdgernnWarning, UsageError
from edgernn.kernels import cpu

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer, Unroller
    from edgernn.model import RecurrentModel

BACKENDS = ("auto", "torch", "fused")
# widest state for which "auto" prefers fused kernels to CUDA graphs on a GPU; beyond it every step reads all weights
# from the L2 cache, which costs more than the saved launches
WIDEST = 256
# widest state for which "auto" prefers fused kernels to the Python loop on a GPU, where graphs cannot be replayed
WIDEST_WITHOUT_GRAPHS = 512
# widest state with low-rank recurrent weights R Q for which "auto" uses fused kernels on a CPU; they read the product,
# and for a wider state its multiply-adds cost more than the loop's calls of torch
WIDEST_LOW_RANK = 256


def attach(model: "RecurrentModel", backend: str, device: str, replays: bool = True) -> str:
    """Select the implementation of the loop over time steps for each recurrent layer of a model.

    Args:
        model: The network. The attribute `unroller` of its recurrent layers is set in place.
        backend: "torch": a Python loop in torch. "fused": fused kernels for all layers. "auto": fused kernels for the
            layers that have them, and the Python loop for the others. On a CPU, it uses the Python loop, too, for a
            layer with low-rank recurrent weights and more than 256 neurons (`WIDEST_LOW_RANK`). On a GPU, "auto"
            replays CUDA graphs of the loop in two cases: instead of fused kernels if a layer has more than 256 neurons
            (`WIDEST`), and instead of the Python loop if a layer has a normalisation. It uses no graphs if training
            rounds the weights (setting weights), because a graph holds the tensors of the weights, and rounded ones
            are new at every step. Without graphs, it uses the Python loop for more than 512 neurons
            (`WIDEST_WITHOUT_GRAPHS`).
        device: The device of the model, such as "cpu".
        replays: False if "auto" must not use CUDA graphs, because the training could not replay them (`Plan.replays`).

    Returns:
        The names of the implementations in use, sorted and separated by commas, such as "fused, torch".

    Raises:
        UsageError: The backend is unknown, or it is "fused" and a layer has no kernels.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}; choose one")
    rounds = model.rounding.weights != "float32"
    for layer in model.recurrent_layers():
        layer.unroller = None
        kind = torch.device(device).type
        wide = layer.cell.recurrent.rank is not None and layer.cell.hidden_size > WIDEST_LOW_RANK
        if backend == "torch" or (backend == "auto" and kind == "cpu" and wide):
            continue
        unroller = _unroller(layer, kind, backend, replays and not rounds)
        if not isinstance(unroller, str):
            layer.unroller = unroller
        elif backend == "fused":
            raise UsageError(f"backend: fused cannot run this model: {unroller}; backend=auto can run this model")
        elif rounds and kind == "cuda" and layer.cell.norm is not None:
            text = (
                f"weights={model.rounding.weights}: the loop over time steps runs in torch and is slower, because CUDA "
                "graphs cannot replay it with weights that are rounded anew at every step; use norm=none for kernels"
            )
            warnings.warn(text, EdgernnWarning, stacklevel=2)
    return ", ".join(sorted({layer.backend for layer in model.recurrent_layers()}))


def _unroller(layer: "RecurrentLayer", device: str, backend: str, replays: bool) -> "Unroller | str":
    """Build the implementation that replaces a layer's Python loop over time steps: fused kernels or CUDA graphs.

    Args:
        layer: The layer.
        device: Device type, such as "cuda".
        backend: "fused", or "auto" for what is fastest.
        replays: True if training can replay CUDA graphs of the layer's loop.

    Returns:
        The implementation, or a text with the reason why there is none.
    """
    if device == "cpu":
        try:
            return cpu.CpuUnroller(layer)
        except UsageError as error:
            return str(error)
    if device == "cuda":
        # importing it registers an op that only a GPU needs
        from edgernn.kernels import gpu, graphs

        uses_graphs = backend == "auto" and replays
        try:
            fused = gpu.GpuUnroller(layer)
        except UsageError as error:
            return graphs.GraphUnroller() if uses_graphs and layer.cell.norm is not None else str(error)
        if uses_graphs and layer.cell.hidden_size > WIDEST:
            return graphs.GraphUnroller()
        if backend == "auto" and layer.cell.hidden_size > WIDEST_WITHOUT_GRAPHS:
            return f"with {layer.cell.hidden_size} neurons, the fused kernels are slower than the loop"
        return fused
    return f"there are no kernels for the device {device}, only for cpu and cuda"
