# SPDX-License-Identifier: Apache-2.0
"""Adapters of the runtimes that edgernn is compared with, one in each file.

MNN has no adapter: the command of its model converter installs packages and sends reports.
"""

from benchmarks.peers.base import Peer, Problem, UnsupportedError, random_problem, reference
from benchmarks.peers.jax_scan import Jax
from benchmarks.peers.litert import LiteRt
from benchmarks.peers.ncnn_layer import Ncnn
from benchmarks.peers.onnx_runtime import DynamicLstm, OnnxRuntime
from benchmarks.peers.open_vino import OpenVino
from benchmarks.peers.ours import Edgernn, stepper_of
from benchmarks.peers.pytorch import PyTorch

__all__ = [
    "OURS",
    "PEERS",
    "ROUNDING",
    "SMALL",
    "Peer",
    "Problem",
    "UnsupportedError",
    "random_problem",
    "reference",
    "stepper_of",
]

OURS = Edgernn("edgernn", "float32")
# keyed by weight type
SMALL = {weights: Edgernn("edgernn", weights) for weights in ("bfloat16", "int8")}
_OPENVINO = OpenVino("OpenVINO", None)
PEERS: tuple[Peer, ...] = (
    OnnxRuntime(),
    OpenVino("OpenVINO f32", "f32"),
    _OPENVINO,
    LiteRt(),
    Jax("JAX", False),
    Jax("JAX, input first", True),
    PyTorch(),
    Ncnn(),
)
# runtimes that compute with fewer bits than float32
ROUNDING: tuple[Peer, ...] = (_OPENVINO, DynamicLstm())
