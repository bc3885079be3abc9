# SPDX-License-Identifier: Apache-2.0
"""Fused kernels that replace the loop over time steps of a recurrent layer in training, on CPU and GPU.

On both devices, `recurrent_op` chooses between kernels and loop, `common` has checks, and `column` serves rules of the
kind COLUMN.

On a CPU the kernels are those of the native training library: `training_library` loads and calls it, `cpu` is the
autograd function, `program_cell` passes a user's own cell to the library, and `batch_norm` a normalisation.

On a GPU the kernels are generated in Triton. `describe_layer` describes a layer as a `LayerSpec`, and `sequence`
writes their source: `forward` and `backward` on the base `writer`, with the part of each kind of rule from `rule` and
the equations from `pointwise`. `kernel_form` chooses tile sizes, `gpu` is the autograd function, `gradients` computes
those of weights, and `send` the values that rules of the kind COLUMN send of x. `graphs` replays the loop where kernels
would be slower.
"""

import warnings
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

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


# implementations that `fastest` chose, by device type; kept here, because a copy of a layer chooses anew
_CHOSEN: "WeakKeyDictionary[RecurrentLayer, dict[str, Unroller | str]]" = WeakKeyDictionary()


def fastest(layer: "RecurrentLayer", device: str) -> "Unroller | None":
    """Return the fastest implementation of a layer's loop over time steps; None for the Python loop.

    Args:
        layer: The layer.
        device: Device type, such as "cuda".

    Returns:
        Fused kernels, unless the layer has none, or has low-rank recurrent weights and more than 256 neurons
        (`WIDEST_LOW_RANK`) on a CPU, or has more than 512 neurons (`WIDEST_WITHOUT_GRAPHS`) on a GPU.
    """
    chosen = _chosen(layer, device)
    return None if isinstance(chosen, str) else chosen


def why_loop(layer: "RecurrentLayer", device: str) -> str | None:
    """Return the reason why `fastest` chooses the Python loop for a layer; None if it chooses kernels."""
    chosen = _chosen(layer, device)
    return chosen if isinstance(chosen, str) else None


def _chosen(layer: "RecurrentLayer", device: str) -> "Unroller | str":
    by_device = _CHOSEN.setdefault(layer, {})
    if device not in by_device:
        by_device[device] = _unroller(layer, device, "auto")
    return by_device[device]


def attach(model: "RecurrentModel", backend: str, device: str, replays: bool = True) -> str:
    """Select the implementation of the loop over time steps for each recurrent layer of a model.

    Args:
        model: The network. The attribute `unroller` of its recurrent layers is set in place.
        backend: "torch": a Python loop in torch. "fused": fused kernels for all layers. "auto": what `fastest` returns.
            On a GPU, "auto" replays CUDA graphs of the loop in two cases: instead of fused kernels if a layer has more
            than 256 neurons (`WIDEST`), and instead of the Python loop if a layer has a normalisation. It uses no
            graphs if training rounds the weights (setting weights), because a graph holds the tensors of the weights,
            and rounded ones are new at every step.
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
    kind = torch.device(device).type
    for layer in model.recurrent_layers():
        layer.unroller = None if backend == "torch" else "auto"
        if backend == "fused":
            unroller = _unroller(layer, kind, backend)
            if isinstance(unroller, str):
                raise UsageError(f"backend: fused cannot run this model: {unroller}; backend=auto can run this model")
            layer.unroller = unroller
        elif backend == "auto" and kind == "cuda" and (graphs := _graphs(layer)) is not None:
            if replays and not rounds:
                layer.unroller = graphs
            elif rounds and layer.cell.norm is not None:
                text = (
                    f"weights={model.rounding.weights}: the loop over time steps runs in torch and is slower, because "
                    "CUDA graphs cannot replay it with weights that are rounded anew at every step; use norm=none for "
                    "kernels"
                )
                warnings.warn(text, EdgernnWarning, stacklevel=2)
    return ", ".join(sorted({layer.backend_on(kind) for layer in model.recurrent_layers()}))


def _graphs(layer: "RecurrentLayer") -> "Unroller | None":
    """Return CUDA graphs of a layer's loop, if they are faster than its kernels; None if they are not."""
    # importing it takes time that a CPU need not spend
    from edgernn.kernels.graphs import GraphUnroller

    fused = not isinstance(_unroller(layer, "cuda", "fused"), str)
    wins = layer.cell.hidden_size > WIDEST if fused else layer.cell.norm is not None
    return GraphUnroller() if wins else None


def _unroller(layer: "RecurrentLayer", device: str, backend: str) -> "Unroller | str":
    auto, size = backend == "auto", layer.cell.hidden_size
    # building them may draw random numbers, which must not change those of the training, and save tensors, which a
    # checkpoint around the first call would count
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        try:
            if device == "cpu":
                if auto and layer.cell.recurrent.rank is not None and size > WIDEST_LOW_RANK:
                    return f"with low-rank weights and {size} neurons, the fused kernels are slower than the loop"
                return cpu.CpuUnroller(layer)
            if device == "cuda":
                from edgernn.kernels.gpu import GpuUnroller

                fused = GpuUnroller(layer)
                if auto and size > WIDEST_WITHOUT_GRAPHS:
                    return f"with {size} neurons, the fused kernels are slower than the loop"
                return fused
        except UsageError as error:
            return str(error)
    return f"there are no kernels for the device {device}, only for cpu and cuda"
