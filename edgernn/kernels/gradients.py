# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights and biases on a GPU, from those of the pre-activations of all steps."""

from collections.abc import Mapping

import torch
from torch import Tensor

from edgernn.kernels.layout import SENT_H, Layout
from edgernn.rules.delta import threshold_grad


def input_grads(
    layout: Layout, named: Mapping[str, Tensor], kept: Mapping[str, Tensor], outs: Mapping[str, Tensor], slope: float
) -> list[Tensor]:
    """Compute the gradients of all inputs of the torch op `sequence` from the outputs of the backward kernel.

    The gradients of weights are matrix products, and those of biases are sums, over all steps and samples.

    Args:
        layout: Description of the layer.
        named: Dict from name to input of `sequence`.
        kept: Dict from name to output of `sequence`.
        outs: Dict from name (`Layout.gradients`) to output of the backward kernel.
        slope: Slope of the surrogate derivatives of the rule (`UpdateRule.slope`).

    Returns:
        The gradients, in the order of `Layout.inputs`.
    """
    d_p = outs["d_p"].flatten(0, 1)
    sizes = {gate.name: layout.length(layout.size(gate)) for gate in layout.gates}

    def columns(gate: str) -> Tensor:
        return d_p[:, layout.offsets[gate] : layout.offsets[gate] + sizes[gate]]

    grads: dict[str, Tensor] = {}
    for name in layout.inputs:
        if name == "a":
            grads[name] = outs["d_p"][..., : layout.A]
        elif name in ("R", "C", "V", *layout.biases):
            grads[name] = torch.zeros_like(named[name])
        elif f"d_{name}" in outs:
            grads[name] = outs[f"d_{name}"]
        else:
            sums = [outs[f"sum_{key}"] for key, (vector, _) in layout.sums.items() if vector == name]
            total = sum(s.sum() if named[name].numel() == 1 else s.sum(0) for s in sums)
            grads[name] = (
                total.reshape(named[name].shape) if isinstance(total, Tensor) else torch.zeros_like(named[name])
            )
    for product in layout.products:
        factor = kept[product.factor]
        if product.factor != "m":
            factor = factor[1:] if product.factor == SENT_H else factor[:-1]
        rows = slice(product.offset, product.offset + sizes[product.gate])
        torch.mm(columns(product.gate).T, factor.flatten(0, 1), out=grads[product.key][rows])
    for gate in layout.gates:
        if (place := layout.bias(gate)) is not None:
            key, at = place
            grads[key][at : at + sizes[gate.name]] = columns(gate.name).sum(0)
    if layout.learns_threshold:
        to_sent = torch.zeros_like(kept[SENT_H][1:])
        for product in layout.products:
            if product.factor == SENT_H:
                rows = slice(product.offset, product.offset + sizes[product.gate])
                to_sent.flatten(0, 1).addmm_(columns(product.gate), named[product.key][rows])
        changes = kept[f"s_{layout.states[0]}"][:-1] - kept[SENT_H][:-1]
        grads[layout.threshold] = threshold_grad(to_sent, changes, named[layout.threshold], slope)
    return list(grads.values())
