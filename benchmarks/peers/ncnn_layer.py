# SPDX-License-Identifier: Apache-2.0
"""ncnn's GRU and LSTM layers, in float32."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream, UnsupportedError

_ORDER = {"gru": ("r", "z", "n"), "lstm": ("i", "f", "o", "g")}


class Ncnn(Peer):
    """Adapter of ncnn, whose recurrent layers have no batch axis."""

    name = "ncnn"
    package = "ncnn"

    def sequence(self, problem: Problem) -> Sequence:
        import ncnn

        net = _net(problem)
        x = np.ascontiguousarray(problem.x[:, 0])
        # a Mat does not keep its array alive; clone() owns its memory
        inputs = {name: ncnn.Mat(value).clone() for name, value in {"x": x, **problem.states}.items()}

        def call() -> tuple[Array, Array]:
            extractor = net.create_extractor()
            for name, value in inputs.items():
                extractor.input(name, value)
            y, h = extractor.extract("y")[1], extractor.extract("h_next")[1]
            return np.array(y)[:, None], np.array(h).reshape(1, -1)

        return call

    def stream(self, problem: Problem) -> Stream:
        import ncnn

        net = _net(problem)
        state = {name: ncnn.Mat(value).clone() for name, value in problem.states.items()}

        def step(x_t: Array) -> Array:
            extractor = net.create_extractor()
            extractor.input("x", ncnn.Mat(x_t))
            for name, value in state.items():
                extractor.input(name, value)
            for name in state:
                state[name] = extractor.extract(f"{name}_next")[1]
            return np.array(state["h"]).reshape(1, -1)

        return step


def _net(problem: Problem) -> Any:
    """Build an ncnn network of one GRU or LSTM, from a .param file (layers) and a .bin file (weights)."""
    import ncnn

    if problem.batch != 1:
        raise UnsupportedError("ncnn's recurrent layers have no batch axis: only B = 1 can run")
    order, count = _ORDER[problem.cell], problem.W.size
    b_x, b_h = problem.gates(problem.b_x, order), problem.gates(problem.b_h, order)
    if problem.cell == "gru":
        H = problem.hidden_size
        bias = np.concatenate([(b_x + b_h)[: 2 * H], b_x[2 * H :], b_h[2 * H :]])
    else:
        bias = b_x + b_h
    states = list(problem.states)
    names = " ".join(["x", *states, "y", *(f"{name}_next" for name in states)])
    ports = 1 + len(states)
    extra = f" 3={problem.hidden_size}" if problem.cell == "lstm" else ""
    lines = [
        "7767517",
        f"{ports + 1} {2 * ports}",
        *(f"Input {name} 0 1 {name}" for name in ["x", *states]),
        f"{problem.cell.upper()} layer {ports} {ports} {names} 0={problem.hidden_size} 1={count} 2=0{extra}",
    ]
    # each array follows a 32-bit storage flag: 0 for float32
    arrays = (problem.gates(problem.W, order), bias.astype(np.float32), problem.gates(problem.R, order))
    net = ncnn.Net()
    net.opt.num_threads = problem.threads
    for option in ("packed", "storage", "arithmetic"):
        setattr(net.opt, f"use_fp16_{option}", False)
    net.opt.use_bf16_storage = False
    with tempfile.TemporaryDirectory() as folder:
        texts, weights = Path(folder) / "net.param", Path(folder) / "net.bin"
        texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
        weights.write_bytes(b"".join(np.int32(0).tobytes() + array.tobytes() for array in arrays))
        if net.load_param(str(texts)) or net.load_model(str(weights)):
            raise UnsupportedError("ncnn cannot load the .param and .bin files; install another version of ncnn")
    return net
