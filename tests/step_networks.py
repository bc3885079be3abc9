# SPDX-License-Identifier: Apache-2.0
"""Packed step graphs with inputs, for the checks of each target: the zoo, and networks of other tools."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.graph_options import GraphOptions
from edgernn.runtime.packed import pack, pack_file
from edgernn.training.calibration.calibrated_graph import open_graph
from tests.apps import ROOT
from tests.test_calibrate_calls import linear_maps
from tests.test_step_graph import Net, periodic, small_file

STEPS = 12


def streaming_network() -> tuple[Net, str, dict[str, str]]:
    """A network of one's own: a causal convolution, a GRU, a linear map with the states between calls."""
    rng = np.random.default_rng(2)

    def normal(*shape):
        return 0.5 * rng.standard_normal(shape, np.float32)

    net = Net(x=[1, 4, 1], past=[1, 4, 4], h=[1, 1, 32])
    joined = net("Concat", "past", "x", axis=2)
    after = net("Slice", joined, np.array([1]), np.array([5]), np.array([2]))
    wide = net("Relu", net("Conv", joined, normal(48, 4, 5), normal(48)))
    weights = normal(1, 96, 48), normal(1, 96, 32), normal(1, 192)
    turned = net("Transpose", wide, perm=[2, 0, 1])
    y, h = net("GRU", turned, *weights, "", "h", outputs=2, hidden_size=32, linear_before_reset=1)
    return net, net("Sigmoid", net("MatMul", y, normal(32, 3))), {"past": after, "h": h}


def delta_network(folder: Path, kind: str) -> Path:
    """Write a network whose GRU and linear maps, or 1×1 convolutions, have the rule delta."""
    path = folder / f"{kind}.onnx"
    path.write_bytes(linear_maps(kind).SerializeToString())
    graph = open_graph(path, linear=True)
    path.write_bytes(graph.with_delta([(0.1, 0.05)] * len(graph.nodes), False).SerializeToString())
    return path


def zoo() -> list[Path]:
    """Files of all trained models."""
    return sorted((ROOT / "models").glob("*/*.onnx"))


def packed_networks(folder: Path) -> dict[str, tuple[bytes, NDArray[np.float32]]]:
    """Return the packed models by name, with inputs x (T, B, I)."""
    rng, networks = np.random.default_rng(0), dict[str, tuple[bytes, NDArray[np.float32]]]()
    for path in zoo():
        x = np.load(path.parent / "example.npz")["x"][:2, :STEPS].astype(np.float32)
        networks[f"{path.parent.name} {path.stem}"] = pack(path.read_bytes(), path), x.swapaxes(0, 1)
    net, y, states = streaming_network()
    (folder / "streaming.onnx").write_bytes(net.model(y, **states).SerializeToString())
    net, y, held = periodic()
    (folder / "periodic.onnx").write_bytes(net.model(y, **held).SerializeToString())
    files = [
        folder / "streaming.onnx",
        folder / "periodic.onnx",
        small_file(folder),
        delta_network(folder, "gemm"),
        delta_network(folder, "conv"),
    ]
    for path in files:
        for weights in ("float32", "int8"):
            packed = folder / f"{path.stem}-{weights}.edgernn"
            options = GraphOptions(weights=weights, states=held if path.stem == "periodic" else None)
            pack_file(path, packed, options)
            width = {"streaming": 4, "small": 3, "periodic": 5}.get(path.stem, 12)
            x = 0.3 * rng.standard_normal((STEPS, 2, width)).cumsum(0)
            networks[packed.stem] = packed.read_bytes(), x.astype(np.float32)
    return networks
