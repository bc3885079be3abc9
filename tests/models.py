# SPDX-License-Identifier: Apache-2.0
"""Exported models that several tests read; tracing takes seconds, so each is made once a run."""

import functools
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

import edgernn
from edgernn.export import Check, to_onnx
from edgernn.export.graph import build
from edgernn.runtime import Session
from edgernn.runtime.packed import pack
from tests.native import OPTIONS

_FOLDER = tempfile.TemporaryDirectory()


def contractive(cell: str, rule: str = "always", **options) -> edgernn.SequenceModel:
    """A model with contractive random weights, I=3, H=33 unless said."""
    arguments = {"input_size": 3, "hidden_size": 33, "output_size": 2, "rule_options": OPTIONS.get(rule)} | options
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = edgernn.SequenceModel(cell, rule=rule, **arguments).eval()
        for layer in model.recurrent_layers():
            for name, p in layer.named_parameters():
                # periods and shifts stay what they are
                if name not in ("rule.rule_tau", "rule.rule_s"):
                    torch.nn.init.normal_(p, std=0.5 / p.shape[-1] ** 0.5)
            if rule == "skip":
                # two or three steps a wait
                layer.rule.rule_b.fill_(-1.0)
    return model


def packed_alone(model: edgernn.SequenceModel, weights: str = "float32") -> bytes:
    """The packed model that comes of the exported file, without the portable functions, which take seconds to trace.

    weights: what its matrices, which are rounded so already, are kept as.
    """
    proto = build(model, weights=weights, portable=False)
    return pack(proto.SerializeToString(), Path("model.onnx"))


@functools.cache
def exported(cell: str, rule: str = "always", **options) -> tuple[edgernn.SequenceModel, Path, list[Check]]:
    """The model of these arguments, its file, and what the export's check found."""
    model = contractive(cell, rule, **options)
    path = Path(_FOLDER.name) / f"{len(list(Path(_FOLDER.name).iterdir()))}.onnx"
    return model, path, to_onnx(model, path)


def assert_threads_get_the_same(session: Session, inputs: list[np.ndarray], repeats: int) -> None:
    """What one session answers to threads at once, an input each, and again and again, is what it answers to one."""
    expected, wrong = [session.run(x) for x in inputs], []

    def work(i: int) -> None:
        for _ in range(repeats):
            if not np.array_equal(session.run(inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
