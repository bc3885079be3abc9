# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights and biases on a GPU, from those of the pre-activations of all steps."""

from collections.abc import Mapping

import torch
from torch import Tensor

from edgernn.kernels.layer_spec import SENT_H, LayerSpec
from edgernn.rules.delta import threshold_grad


def input_grads(
    spec: LayerSpec, named: Mapping[str, Tensor], saved: Mapping[str, Tensor], outs: Mapping[str, Tensor], slope: float
) -> list[Tensor]:
    """Compute the gradients of all inputs of the torch op `sequence` from the outputs of the backward kernel.

    The gradients of weights are matrix products, and those of biases are sums, over all steps and samples.

    Args:
        spec: Description of the layer.
        named: Dict from name to input of `sequence`.
        saved: Dict from name to output of `sequence`.
        outs: Dict from name (`LayerSpec.gradients`) to output of the backward kernel.
        slope: Slope of the surrogate derivatives of the rule (`UpdateRule.slope`).

    Returns:
        The gradients, in the order of `LayerSpec.inputs`.
    """
    d_p = outs["d_p"].flatten(0, 1)
    sizes = {gate.name: spec.length(spec.size(gate)) for gate in spec.gates}

    def columns(gate: str) -> Tensor:
        return d_p[:, spec.offsets[gate] : spec.offsets[gate] + sizes[gate]]

    grads: dict[str, Tensor] = {}
    for name in spec.inputs:
        if name == "a":
            grads[name] = outs["d_p"][..., : spec.A]
        elif name in ("R", "C", "V", *spec.biases):
            grads[name] = torch.zeros_like(named[name])
        elif f"d_{name}" in outs:
            grads[name] = outs[f"d_{name}"]
        else:
            sums = [outs[f"sum_{key}"] for key, (vector, _) in spec.sums.items() if vector == name]
            total = sum(s.sum() if named[name].numel() == 1 else s.sum(0) for s in sums)
            grads[name] = (
                total.reshape(named[name].shape) if isinstance(total, Tensor) else torch.zeros_like(named[name])
            )
    for product in spec.products:
        factor = saved[product.factor]
        if product.factor != "m":
            factor = factor[1:] if product.factor == SENT_H else factor[:-1]
        rows = slice(product.offset, product.offset + sizes[product.gate])
        torch.mm(columns(product.gate).T, factor.flatten(0, 1), out=grads[product.key][rows])
    for gate in spec.gates:
        if (place := spec.bias(gate)) is not None:
            key, at = place
            grads[key][at : at + sizes[gate.name]] = columns(gate.name).sum(0)
    if spec.learns_threshold:
        to_sent = torch.zeros_like(saved[SENT_H][1:])
        for product in spec.products:
            if product.factor == SENT_H:
                rows = slice(product.offset, product.offset + sizes[product.gate])
                to_sent.flatten(0, 1).addmm_(columns(product.gate), named[product.key][rows])
        changes = saved[f"s_{spec.states[0]}"][:-1] - saved[SENT_H][:-1]
        grads[spec.threshold] = threshold_grad(to_sent, changes, named[spec.threshold], slope)
    return list(grads.values())
