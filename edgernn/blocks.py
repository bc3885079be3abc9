# SPDX-License-Identifier: Apache-2.0
"""Residual blocks around recurrent layers: normalisation, the layer, a linear map, and a sum with the block's input.

Set the block with `SequenceModel(..., block="linear")` or `block="gated"`; on the command line with `block=gated`. It
goes with any cell and update rule. A bidirectional model and one with an imputer have no blocks.

Saves: nothing. A block adds one (`linear`) or two (`gated`) matrices (H, H) to its layer. A block whose input has
another size I than its layer also adds a matrix (H, I): that of the first layer, and with `last_size` that of the last
one. `block_macs` in results and reports counts the multiply-adds of these matrices in one step.
Choose it for models of two layers or more, above all if no matrix of the cell multiplies its state: `mingru`,
`minlstm`, `lru`, `sru` and `t-lstm`.
"""

import torch
from torch import Tensor, nn

from edgernn.rounded_weights import Rounding


class ResidualBlock(nn.Module):
    """Residual block around a recurrent layer with H neurons: a normalisation before it, and a linear map after it.

    u_t = E x_t + e                            where the input has size I ≠ H, else u_t = x_t
    h_t = layer(norm(u_t))
    y_t = u_t + A h_t + a                      block="linear"
    y_t = u_t + (A h_t + a) ⊙ σ(G h_t + g)     block="gated"

    norm is layer normalisation over the H values, with a learned scale and shift (H,). It adds 1e-5 to the variance.
    x_t is the input of the model in the first block, and the output y_t of the previous block in all others.
    Shapes: x (..., I), u, h and y (..., H), E (H, I), A and G (H, H), e, a and g (H,).
    Source: Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", ICML 2023,
    https://arxiv.org/abs/2303.06349; and Feng et al., "Were RNNs All We Needed?", 2024,
    https://arxiv.org/abs/2410.01201. Both papers' blocks have further parts, which are left out here.

    Args:
        kind: "linear" or "gated".
        input_size: I, the size of the block's input.
        hidden_size: H, the number of neurons of the layer, and the size of the block's output.
        rounding: The model's rounding, which is applied to the block's matrices in forward passes. Default: none.

    Attributes:
        name: Name of the setting, for the reference page.
        encoder: The linear map E, e; None if I = H.
        norm: The layer normalisation.
        linear: The linear map A, a.
        gate: The linear map G, g; None for "linear".
    """

    name = "block"
    encoder: nn.Linear | None
    norm: nn.LayerNorm
    linear: nn.Linear
    gate: nn.Linear | None

    def __init__(self, kind: str, input_size: int, hidden_size: int, rounding: Rounding | None = None) -> None:
        super().__init__()
        self._rounding = rounding or Rounding()
        self.encoder = None if input_size == hidden_size else nn.Linear(input_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.linear = nn.Linear(hidden_size, hidden_size)
        self.gate = nn.Linear(hidden_size, hidden_size) if kind == "gated" else None

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u, which goes past the layer, and norm(u), which the layer reads, (..., H) each, for x (..., I)."""
        u = x if self.encoder is None else self._map(self.encoder, x)
        return u, self.norm(u)

    def leave(self, u: Tensor, h: Tensor) -> Tensor:
        """Return the block's output y for u and the layer's output h, (..., H) each."""
        branch = self._map(self.linear, h)
        return u + (branch if self.gate is None else branch * torch.sigmoid(self._map(self.gate, h)))

    def _map(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self._rounding.matrix(linear.weight, self.training), linear.bias)

    def linear_maps(self) -> dict[str, nn.Linear]:
        """Return a dict from the name of each linear map to the map, in the order in which they are computed."""
        maps = {"encoder": self.encoder, "linear": self.linear, "gate": self.gate}
        return {name: linear for name, linear in maps.items() if linear is not None}

    def macs(self) -> int:
        """Count the multiply-adds of one step in the linear maps; element-wise arithmetic is not counted."""
        return sum(linear.weight.numel() for linear in self.linear_maps().values())
