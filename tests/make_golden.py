# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the present formats: `python -m tests.make_golden`.

A folder of tests/golden has exported files, packed models, saved states, a run directory, one of an interrupted run,
files that `edgernn calibrate` wrote, and the outputs that they give. Its name is the versions of the ops, of packed
models and of saved states. Later versions of edgernn read it in tests/test_golden.py, so it is never written again: a
further folder, whose name ends in -2 and so on, gets what the folders of the present formats lack.
"""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from edgernn.export import graph
from edgernn.export.rounding import rounded
from edgernn.model import SequenceModel
from edgernn.runtime import Session, packed, saved_state
from edgernn.runtime.library import SCHEMA
from edgernn.runtime.open_model import open_session
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.calibration.calibrate import with_thresholds
from edgernn.training.calibration.calibrate_file import calibrate_file
from tests.models import contractive
from tests.training_helpers import SMALL, Stop

GOLDEN = Path(__file__).resolve().parent / "golden"
FORMATS = (SCHEMA, packed.VERSION, saved_state.VERSION)
NAME = ".".join(map(str, FORMATS))
# y before a state is saved, and after it
BEFORE, AFTER, BATCH = 6, 5, 2
TRAINING = {**SMALL, "steps": 6, "eval_every": 3, "checkpoint_every": 2, "train_size": 40, "test_size": 20}
STOPPED = 5
SIZES = {"input_size": 3, "hidden_size": 8, "output_size": 2}
# thresholds of x and h of two layers
THRESHOLDS = [(0.4, 0.05), (0.1, 0.02)]
# the result of `edgernn calibrate` for a file that edgernn exported, and for one of another tool
CALIBRATED, OPERATORS = "calibrated", "operators"
RUN, INTERRUPTED = "run", "interrupted"


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
        "delta": (with_thresholds(contractive("gru", **SIZES, layers=2), THRESHOLDS), "int8"),
        "topk": (contractive("gru-before", "topk", **SIZES), "float32"),
        "egru": (contractive("egru", "delta", **SIZES), "float32"),
    }


class Network(nn.Module):
    """A model of another tool."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.rnn(x)[0]
        return y[-1]


def folders() -> list[Path]:
    """Return the folders of the present formats."""
    return [folder for folder in GOLDEN.iterdir() if folder.name.partition("-")[0] == NAME]


def is_lacking(file: str) -> bool:
    return not any((folder / file).exists() for folder in folders())


def inputs(session: Session) -> NDArray[np.generic]:
    """Draw the input of a session, (T, B, ...)."""
    random = np.random.default_rng(0)
    shape = (BEFORE + AFTER, BATCH, *session.channels)
    if session.vocabulary is not None:
        return random.integers(0, session.vocabulary, shape)
    x = random.standard_normal(shape, np.float32)
    # values, masks and times of an imputer
    return np.abs(x).round() if session.path.stem == "imputer" else x


def drift(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw sequences that move slowly along the first axis, as sensors do."""
    return (0.1 * np.random.default_rng(1).standard_normal(shape, np.float32)).cumsum(0)


def write_model(folder: Path, name: str, content: bytes) -> None:
    """Write an exported file, its packed model, a saved state, and the outputs of a stream."""
    path = folder / f"{name}.onnx"
    path.write_bytes(content)
    (folder / f"{name}.edgernn").write_bytes(packed.pack(content, path))
    session = Session(path, backend="native")
    x = inputs(session)
    y = [session.step(x_t) for x_t in x[:BEFORE]]
    (folder / f"{name}.state").write_bytes(session.save_state())
    y += [session.step(x_t) for x_t in x[BEFORE:]]
    np.savez_compressed(folder / f"{name}.npz", x=x, y=np.stack(y))


def calibrated(model: SequenceModel) -> bytes:
    """Return the calibrated file of a model."""
    with tempfile.TemporaryDirectory() as temporary:
        path, data = Path(temporary, "model.onnx"), Path(temporary, "data.npz")
        path.write_bytes(graph.build(model).SerializeToString())
        np.savez(data, x=drift((60, 4, SIZES["input_size"])).swapaxes(0, 1))
        return Path(calibrate_file(path, data, loss=5.0)["model"]).read_bytes()


def write_operators(folder: Path) -> None:
    """Write the calibrated file of another tool's model, and its outputs."""
    x = drift((60, BATCH, 3))
    with tempfile.TemporaryDirectory() as temporary, torch.random.fork_rng():
        torch.manual_seed(1)
        path, data = Path(temporary, "model.onnx"), Path(temporary, "data.npz")
        axes = {0: torch.export.Dim("T"), 1: torch.export.Dim("B")}
        torch.onnx.export(
            Network().eval(),
            (torch.from_numpy(x),),
            str(path),
            input_names=["x"],
            dynamic_shapes=(axes,),
            verbose=False,
        )
        np.savez(data, x=x)
        proto = onnx.load(path)
        # paths of this machine
        for node in proto.graph.node:
            node.ClearField("metadata_props")
        onnx.save(proto, path)
        content = Path(calibrate_file(path, data, loss=5.0)["model"]).read_bytes()
    # beside the files of edgernn, which are packed and stepped, too
    (folder / OPERATORS).mkdir()
    (folder / OPERATORS / "model.onnx").write_bytes(content)
    y, *_ = open_session(OPERATORS, content, None, 1).run(None, {"x": x})
    np.savez_compressed(folder / f"{OPERATORS}.npz", x=x, y=y)


def write_runs(folder: Path) -> None:
    """Write a run directory, its outputs, and a run directory of a run that was interrupted."""
    # relative paths: a run directory records its command
    with contextlib.chdir(folder):
        train("adding", "sarnn", out=Path(RUN), settings=TRAINING)
    model, _ = load_model(folder / RUN)
    x = np.load(folder / RUN / "example.npz")["x"]
    with torch.no_grad():
        y, _ = model(torch.from_numpy(x.swapaxes(0, 1)))
    np.savez_compressed(folder / f"{RUN}.npz", x=x, y=y.numpy())
    # the test's own error, as after a kill
    with contextlib.chdir(folder), contextlib.suppress(RuntimeError):
        train("adding", "sarnn", out=Path(INTERRUPTED), settings=TRAINING, progress=Stop(STOPPED))
    for picture in folder.rglob("*.png"):
        picture.unlink()


def main() -> None:
    lacking = [name for name in (*models(), CALIBRATED) if is_lacking(f"{name}.onnx")]
    operators, runs = is_lacking(f"{OPERATORS}.npz"), is_lacking(RUN)
    if not (lacking or operators or runs):
        raise SystemExit(f"make_golden: the folders of the formats {NAME} have every file")
    folder = GOLDEN / (f"{NAME}-{len(folders()) + 1}" if folders() else NAME)
    folder.mkdir(parents=True)
    for name, (model, weights) in models().items():
        if name in lacking:
            write_model(folder, name, graph.build(rounded(model, weights), weights=weights).SerializeToString())
    if CALIBRATED in lacking:
        write_model(folder, CALIBRATED, calibrated(contractive("gru", **SIZES, layers=2)))
    if operators:
        write_operators(folder)
    if runs:
        write_runs(folder)


if __name__ == "__main__":
    main()
