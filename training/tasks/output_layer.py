# SPDX-License-Identifier: Apache-2.0
"""Change of a model's outputs to other units or another temperature, in the weights of its last linear layer."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from edgernn.model import RecurrentModel, SequenceModel

if TYPE_CHECKING:
    from edgernn.training.tasks.sources import Batch

# sequences and steps on which a layer is tried
_SEQUENCES, _STEPS = 4, 32
# relative error of outputs up to which they have changed as the layer has
_NEAR = 1e-4


def output_layer(model: RecurrentModel, batch: "Batch") -> nn.Linear | None:
    """Find the linear layer that computes the outputs of a model.

    In a network of one's own, each layer is tried: with its outputs times powers of two, those of the network are to
    change alike.

    Args:
        model: The model.
        batch: Sequences on which it is run, on its device.

    Returns:
        The layer, or None if the outputs are not those of one linear layer.
    """
    if isinstance(model, SequenceModel):
        return model.head if isinstance(model.head, nn.Linear) else None
    x = batch.x[:_STEPS, :_SEQUENCES]
    before = _outputs(model, x)
    for layer in model.modules():
        if not isinstance(layer, nn.Linear) or layer.out_features != before.shape[-1]:
            continue
        kept = {name: weights.clone() for name, weights in layer.state_dict().items()}
        factors = 2.0 ** (torch.arange(layer.out_features, device=x.device) % 3 + 1)
        scale_layer(layer, factors)
        after = _outputs(model, x)
        layer.load_state_dict(kept)
        if torch.allclose(after, before * factors, _NEAR, _NEAR * float(before.abs().max())):
            return layer
    return None


@torch.no_grad()
def scale_layer(layer: nn.Linear, factor: Tensor | float, offset: Tensor | float = 0.0) -> None:
    """Change a linear layer in place, so that its outputs y (..., O) become y * factor + offset.

    Args:
        layer: The layer, which needs a bias for an offset.
        factor: Factor of each output (O,), or of all.
        offset: Offset of each output (O,), or of all.
    """
    factor, offset = (torch.as_tensor(values).to(layer.weight) for values in (factor, offset))
    layer.weight.mul_(factor[..., None])
    if layer.bias is not None:
        layer.bias.mul_(factor).add_(offset)


@torch.no_grad()
def _outputs(model: RecurrentModel, x: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]):
        y = model.outputs(x)
    model.train(was_training)
    return y
