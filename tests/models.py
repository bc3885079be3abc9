# SPDX-License-Identifier: Apache-2.0
"""Exported models shared by several tests; each is made once per run, as tracing takes seconds."""

import ctypes
import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edgernn
from edgernn.config import ModelConfig
from edgernn.costs import Cost, model_cost
from edgernn.export.graph import build
from edgernn.runtime import Session
from edgernn.runtime.packed import pack
from edgernn.runtime.stepper import Sizes, Stepper
from tests.native import OPTIONS

_FOLDER = tempfile.TemporaryDirectory()


def contractive(cell: str, rule: str = "always", **options) -> edgernn.SequenceModel:
    """Make a model with contractive random weights; by default I=3, H=33."""
    arguments = {"input_size": 3, "hidden_size": 33, "output_size": 2, "rule_options": OPTIONS.get(rule)} | options
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = edgernn.SequenceModel(cell, rule=rule, **arguments).eval()
        for layer in model.recurrent_layers():
            for name, p in layer.named_parameters():
                # keep periods and shifts
                if name not in ("rule.rule_tau", "rule.rule_s"):
                    torch.nn.init.normal_(p, std=0.5 / p.shape[-1] ** 0.5)
            if rule == "skip":
                # waits of two or three steps
                layer.rule.rule_b.fill_(-1.0)
    return model


def exported_alone(
    model: edgernn.SequenceModel, weights: str = "float32", metadata: dict[str, Any] | None = None
) -> bytes:
    """Export a model without its portable functions, which take seconds to trace.

    Args:
        model: The model; its matrices are rounded to `weights` already.
        weights: Type in which the matrices are stored.
        metadata: Further metadata of the file, such as `classes`.
    """
    content: bytes = build(model, metadata, weights, portable=False).SerializeToString()
    return content


def write(model: edgernn.SequenceModel, path: Path) -> Path:
    """Export a model to a file that is not checked as `to_onnx` does, and return its path."""
    path.write_bytes(build(model).SerializeToString())
    return path


def write_alone(model: edgernn.SequenceModel, path: Path, *options: Any, **named: Any) -> Path:
    """Write what `exported_alone` returns for these options to a file, and return its path."""
    path.write_bytes(exported_alone(model, *options, **named))
    return path


def packed_alone(model: edgernn.SequenceModel, weights: str = "float32") -> bytes:
    """Pack a model exported by `exported_alone`."""
    return pack(exported_alone(model, weights), Path("model.onnx"))


def state_of(stepper: Stepper) -> np.ndarray:
    """Return a view of all states of a packed model, one after the other, as C programs see them."""
    sizes, state = Sizes(), ctypes.POINTER(ctypes.c_float)()
    assert stepper._library.edgernn_sizes(stepper._model, ctypes.byref(sizes)) == 0
    assert stepper._library.edgernn_state(stepper._model, ctypes.byref(state)) == 0
    return np.ctypeslib.as_array(state, (sizes.state,))


@functools.cache
def exported(cell: str, rule: str = "always", **options) -> tuple[edgernn.SequenceModel, Path]:
    """Return the model of these arguments and its file, which is not checked as `to_onnx` does."""
    model = contractive(cell, rule, **options)
    return model, write(model, Path(_FOLDER.name) / f"{len(list(Path(_FOLDER.name).iterdir()))}.onnx")


@functools.cache
def written(cell: str, rule: str = "always", **options) -> Path:
    """Return the file of `exported` without portable functions."""
    path = Path(_FOLDER.name) / f"alone-{len(list(Path(_FOLDER.name).iterdir()))}.onnx"
    return write_alone(contractive(cell, rule, **options), path)


def file_for(backend: str, cell: str, rule: str, **options) -> Path:
    """Return the file of `written` for the native backend, which reads no portable function, or that of `exported`."""
    return written(cell, rule, **options) if backend == "native" else exported(cell, rule, **options)[1]


def assert_threads_get_the_same(session: Session, inputs: list[np.ndarray], repeats: int) -> None:
    """Assert that concurrent runs of one session, one input per thread, equal sequential ones."""
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


def named_cost(
    cell: str, rule: str | None, input_size: int, hidden_size: int, *, update_rate: float = 1.0, **settings: Any
) -> Cost:
    """Return the cost of a step of a model without a head; its block-sparse weights are pruned."""
    config = ModelConfig.of(cell, input_size, hidden_size, rule=rule, **settings)
    # pruning needs numbers
    device = "meta" if config.layer.recurrent.density is None else "cpu"
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        model = edgernn.SequenceModel(config)
    for layer in model.recurrent_layers():
        if layer.cell.is_sparse:
            layer.cell.threshold(hold=True)
    return model_cost(model, update_rate)
