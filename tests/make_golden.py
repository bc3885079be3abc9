# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the present formats: `python -m tests.make_golden`.

A folder of tests/golden has exported files, packed models, saved states, a run directory, one of an interrupted run,
and the outputs that they give. Its name is the versions of the ops, of packed models and of saved states. Later
versions of edgernn read it in tests/test_golden.py, so it is never written again.
"""

import contextlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgernn.export import graph
from edgernn.export.rounding import rounded
from edgernn.model import SequenceModel
from edgernn.runtime import Session, packed, saved_state
from edgernn.runtime.library import SCHEMA
from edgernn.store import load_model
from edgernn.training import train
from tests.models import contractive
from tests.training_helpers import SMALL, Stop

GOLDEN = Path(__file__).resolve().parent / "golden"
FORMATS = (SCHEMA, packed.VERSION, saved_state.VERSION)
# y before a state is saved, and after it
BEFORE, AFTER, BATCH = 6, 5, 2
TRAINING = {**SMALL, "steps": 6, "eval_every": 3, "checkpoint_every": 2, "train_size": 40, "test_size": 20}
STOPPED = 5
SIZES = {"input_size": 3, "hidden_size": 8, "output_size": 2}


def models() -> dict[str, tuple[SequenceModel, str]]:
    """Models with each part of a file, by name, and the types of their weights."""
    audio = {"frontend": "logmel", "window_size": 7, "hop": 3, "bands": 2, "low_frequency": 500.0}
    words = {"input_size": 4, "output_size": 5, "vocabulary": 5, "output": "all"}
    return {
        "layers": (contractive("gru-before", "selective", **SIZES, layers=2, mean=0.5, std=2.0), "float32"),
        "words": (contractive("lstm", "skip", **SIZES | words), "int8"),
        "imputer": (contractive("lstm", "phased", **SIZES, imputer="gru-d"), "bfloat16"),
        "audio": (contractive("fastgrnn", "random", **SIZES, **audio, normalise="pcen"), "float32"),
        "low-rank": (contractive("gru", "skip", **SIZES, rank=2), "float32"),
        "blocks": (contractive("mingru", **SIZES, layers=2, block="gated"), "int8"),
        "last-input": (contractive("t-lstm", "clockwork", **SIZES), "float32"),
    }


def inputs(session: Session) -> NDArray[np.generic]:
    """Draw the input of a session, (T, B, ...)."""
    random = np.random.default_rng(0)
    shape = (BEFORE + AFTER, BATCH, *session.channels)
    if session.vocabulary is not None:
        return random.integers(0, session.vocabulary, shape)
    x = random.standard_normal(shape, np.float32)
    # values, masks and times of an imputer
    return np.abs(x).round() if session.path.stem == "imputer" else x


def write_model(folder: Path, name: str, model: SequenceModel, weights: str) -> None:
    path = folder / f"{name}.onnx"
    content = graph.build(rounded(model, weights), weights=weights).SerializeToString()
    path.write_bytes(content)
    (folder / f"{name}.edgernn").write_bytes(packed.pack(content, path))
    session = Session(path, backend="native")
    x = inputs(session)
    y = [session.step(x_t) for x_t in x[:BEFORE]]
    (folder / f"{name}.state").write_bytes(session.save_state())
    y += [session.step(x_t) for x_t in x[BEFORE:]]
    np.savez_compressed(folder / f"{name}.npz", x=x, y=np.stack(y))


def main() -> None:
    folder = GOLDEN / ".".join(map(str, FORMATS))
    folder.mkdir(parents=True)
    for name, (model, weights) in models().items():
        write_model(folder, name, model, weights)
    # relative paths: a run directory records its command
    with contextlib.chdir(folder):
        train("adding", "sarnn", out=Path("run"), settings=TRAINING)
    model, _ = load_model(folder / "run")
    x = np.load(folder / "run" / "example.npz")["x"]
    with torch.no_grad():
        y, _ = model(torch.from_numpy(x.swapaxes(0, 1)))
    np.savez_compressed(folder / "run.npz", x=x, y=y.numpy())
    # the test's own error, as after a kill
    with contextlib.chdir(folder), contextlib.suppress(RuntimeError):
        train("adding", "sarnn", out=Path("interrupted"), settings=TRAINING, progress=Stop(STOPPED))
    for picture in folder.rglob("*.png"):
        picture.unlink()


if __name__ == "__main__":
    main()
