# SPDX-License-Identifier: Apache-2.0
"""Choice of the form (resident or streamed) and the tile sizes of a layer's Triton kernels."""

from dataclasses import dataclass
from typing import Any

import torch

from edgernn.kernels.layer_spec import LayerSpec
from edgernn.kernels.writer import padded

# bytes of shared memory that the compiler needs besides the weights (`KernelForm.held`)
_SPARE = 24 * 1024
# bytes of shared memory of an H100 or H200
_SHARED = 227 * 1024


@dataclass(frozen=True)
class KernelForm:
    """Form and tile sizes of a layer's Triton kernels.

    In the resident form, states stay in registers for all steps. In the streamed form, states pass through memory in
    blocks of columns. The module `sequence` describes both forms.

    Attributes:
        resident: True for the resident form, false for the streamed one.
        held: Number of matrix products whose weights are read once and stay in shared memory, in the resident form.
        rows: Number of sequences of the batch that one Triton program instance processes.
        block: Number of columns of a tile, in the streamed form.
        block_k: Size of a tile of weights along the axis that a matrix product sums over, in the streamed form.
        warps: Number of warps per program instance.
    """

    resident: bool
    held: int = 0
    rows: int = 16
    block: int = 64
    block_k: int = 64
    warps: int = 8


def precision() -> str:
    """Return the precision of matrix products that torch is set to: "bf16", "tf32" or "ieee" (float32)."""
    if torch.get_float32_matmul_precision() == "medium":
        return "bf16"
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def choose(spec: LayerSpec, precision: str, shared: int = _SHARED) -> KernelForm:
    """Choose the form and the tile sizes of a layer's Triton kernels.

    Matrix products in float32 ("ieee") do not use tensor cores, and their tiles need many registers. Kernels
    with this precision therefore have the streamed form with small tiles.

    Args:
        spec: Description of the layer.
        precision: Precision of the matrix products, as returned by the function `precision`.
        shared: Shared memory in bytes that a thread block may use.

    Returns:
        The form.
    """
    if precision == "ieee":
        return KernelForm(False, block=32, block_k=32)
    widths = {"H": padded(spec.H), "M": padded(spec.M)}
    tiles = [widths[p.rows] * widths[p.columns] * (2 if precision == "bf16" else 4) for p in spec.products]
    if max(widths.values()) > 256:
        return KernelForm(False)
    left = shared - _SPARE
    if sum(tiles) <= left:
        return KernelForm(True, held=len(tiles))
    if max(widths.values()) > 128:
        return KernelForm(False)
    # weights that are read at every step need space for one tile
    held, left = 0, left - max(tiles)
    while left >= tiles[held]:
        left -= tiles[held]
        held += 1
    return KernelForm(True, held=held)


def constants(spec: LayerSpec, form: KernelForm, precision: str) -> dict[str, Any]:
    """Return the sizes and the precision that a layer's Triton kernels take as compile-time constants.

    Args:
        spec: Description of the layer.
        form: Form and tile sizes of the kernel.
        precision: Precision of the matrix products, as returned by the function `precision`.

    Returns:
        Dict from name to value of the constants.
    """
    # with bf16, the type of the operands selects the products, and this constant is unused
    input_precision = "tf32" if precision == "bf16" else precision
    sizes = {"ROWS": form.rows, "BLOCK": form.block, "BLOCK_K": form.block_k}
    return {"H": spec.H, "M": spec.M, **sizes, "PRECISION": input_precision}
