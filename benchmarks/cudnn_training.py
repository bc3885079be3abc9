# SPDX-License-Identifier: Apache-2.0
"""`edgernn train` with cuDNN for the layers of the cell gru: python -m benchmarks.cudnn_training WORDS.

It is the rival of our kernels in a whole training: the same data, weights, loss and optimiser.
"""

import sys

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace
from edgernn.model import RecurrentModel


class CuDnn:
    """Runs all steps of one layer of the cell gru by cuDNN, with the layer's own weights."""

    name = "cudnn"

    def __call__(self, layer: RecurrentLayer, x: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        """Return the outputs, the final state and an empty trace, as `RecurrentLayer.forward` does."""
        cell, H = layer.cell, layer.cell.hidden_size
        W, R, b = (cell.get_parameter(name) for name in ("W", "R", "b"))
        # our gru has one bias per gate, and a second one of the candidate's recurrent product
        recurrent = torch.cat([b.new_zeros(2 * H), b[3 * H :]])
        start = state[0][None].contiguous()
        y, last = torch._VF.gru(x, start, [W, R, b[: 3 * H], recurrent], True, 1, 0.0, layer.training, False, False)
        return y, (last[0],), Trace(None, x.new_zeros(()))


def attach(model: RecurrentModel, backend: str, device: str, replays: bool = True) -> str:
    """Let cuDNN run all recurrent layers of a model, of the cell gru; replaces `edgernn.kernels.attach`."""
    for layer in model.recurrent_layers():
        if layer.kernel_name != "gru":
            raise UsageError(
                f"cell: expected gru without an update rule for cuDNN, got {layer.kernel_name}; use --cell gru"
            )
        layer.unroller = CuDnn()
    return CuDnn.name


def main() -> None:
    """Train as `edgernn train` does, with the words of the command line."""
    from edgernn.__main__ import run
    from edgernn.training import api

    api.attach = attach
    sys.argv = ["edgernn", "train", *sys.argv[1:]]
    run()


if __name__ == "__main__":
    main()
