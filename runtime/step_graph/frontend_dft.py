# SPDX-License-Identifier: Apache-2.0
"""Puts one operator DFT in place of the matrix products by which a front end of edgernn transforms its windows."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgernn.runtime.fourier import factors, fourier_parts, frequency_order

# largest difference of a stored matrix from that of the transform
_CLOSE = 1e-6


def transform_fast(model: onnx.ModelProto) -> None:
    """Change the nodes of a front end from its windows to the energies of frequencies, unless they are others.

    The frequencies get their natural order, and so do the rows of the mel filters.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes = {node.output[0]: node for node in graph.node if node.output}
    names = "dft.cos", "dft.sin", "twiddle.cos", "twiddle.sin", "dft.rows", "filters", "squares.axis"
    known = [tensors[f"frontend.{name}"] for name in names if f"frontend.{name}" in tensors]
    if len(known) < len(names) or not {"frontend.samples.grid", "frontend.power.flat"} <= nodes.keys():
        return
    try:
        *matrices, stored, _ = map(numpy_helper.to_array, known)
    except Exception:  # of many types for a damaged tensor, which its node will name
        return
    size = matrices[0].shape[-1] * matrices[2].shape[-1] if all(m.ndim == 2 for m in (*matrices, stored)) else 0
    if size < 2 or size & (size - 1):
        return
    # the largest matrix is in the file, so that the expected ones take no more memory than it
    first, second = factors(size)
    if matrices[0].shape[-1] != first or matrices[-1].shape != (2 * second, 2 * second):
        return
    order = frequency_order(size)
    parts = fourier_parts(size, np.zeros((1, size // 2 + 1)))
    expected = parts.first, parts.first_turned, parts.twiddle, parts.twiddle_turned, parts.second
    same = (a.shape == b.shape and np.abs(a - b).max() < _CLOSE for a, b in zip(matrices, expected, strict=True))
    if len(stored) != len(order) or not all(same):
        return
    filters = np.zeros((size // 2 + 1, stored.shape[1]), np.float32)
    np.add.at(filters, order, stored)
    tensors["frontend.filters"].CopyFrom(numpy_helper.from_array(filters, "frontend.filters"))
    listed = list(graph.node)
    begin, end = (listed.index(nodes[f"frontend.{name}"]) for name in ("samples.grid", "power.flat"))
    graph.initializer.append(numpy_helper.from_array(np.array(2), "frontend.transform.axis"))
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    transform = (
        helper.make_node("DFT", ["frontend.real", "", "frontend.transform.axis"], ["frontend.spectrum"], onesided=1)
        if opset >= 20
        else helper.make_node("DFT", ["frontend.real"], ["frontend.spectrum"], onesided=1, axis=2)
    )
    fast = [
        helper.make_node("Unsqueeze", [listed[begin].input[0], "frontend.squares.axis"], ["frontend.real"]),
        transform,
        helper.make_node("Mul", ["frontend.spectrum", "frontend.spectrum"], ["frontend.squares"]),
        helper.make_node(
            "ReduceSum", ["frontend.squares", "frontend.squares.axis"], ["frontend.power.flat"], keepdims=0
        ),
    ]
    del graph.node[:]
    graph.node.extend([*listed[:begin], *fast, *listed[end + 1 :]])
