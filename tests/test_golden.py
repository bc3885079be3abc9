# SPDX-License-Identifier: Apache-2.0
"""Files that earlier versions wrote: each gives the same outputs, or is refused with a sentence."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError
from edgernn.runtime import Session, library_path
from edgernn.runtime.open_model import open_session
from edgernn.runtime.packed import pack
from edgernn.runtime.stepper import Stepper
from edgernn.store import load_model, read_tensors
from edgernn.training import train
from tests import make_golden
from tests.make_golden import (
    AFTER,
    BATCH,
    BEFORE,
    CALIBRATED,
    FORMATS,
    GOLDEN,
    INTERRUPTED,
    OPERATORS,
    RUN,
    TRAINING,
)
from tests.tolerances import FLOAT32
from tests.training_helpers import without_pictures


def formats_of(folder):
    return tuple(map(int, folder.name.partition("-")[0].split(".")))


# names of folders and kinds of their files that this release refuses, because it raised the version of their format
REFUSED: set[tuple[str, str]] = set()
FOLDERS = sorted(GOLDEN.iterdir(), key=lambda folder: (formats_of(folder), folder.name))


def folders_with(name):
    """Run a test with each folder that has this file."""
    folders = [folder for folder in FOLDERS if (folder / name).exists()]
    return pytest.mark.parametrize("folder", folders, ids=lambda folder: folder.name)


models = pytest.mark.parametrize(
    "path", [path.with_suffix("") for folder in FOLDERS for path in sorted(folder.glob("*.onnx"))], ids=lambda p: p.name
)


def refusal(folder, kind):
    """A context in which the files of this kind must be refused if REFUSED has them, else must be read."""
    return pytest.raises(EdgernnError) if (folder.name, kind) in REFUSED else nullcontext()


def arrays(path):
    loaded = np.load(f"{path}.npz")
    return loaded["x"], loaded["y"]


def close(y, expected):
    np.testing.assert_allclose(y, expected, rtol=0, atol=FLOAT32)


def test_the_present_formats_have_golden_files():
    assert formats_of(FOLDERS[-1]) == FORMATS
    for name in (*make_golden.models(), CALIBRATED):
        assert not make_golden.is_lacking(f"{name}.onnx"), f"{name}: run python -m tests.make_golden"
    assert not any(map(make_golden.is_lacking, (OPERATORS, RUN, INTERRUPTED)))
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*")) < 400_000


def test_layers_have_thresholds_of_their_own():
    for name in ("delta", CALIBRATED):
        (path,) = GOLDEN.glob(f"{make_golden.NAME}*/{name}.onnx")
        first, second = Session(path).info["model"]["layer"]["rule"]["layers"]
        assert first != second


@pytest.mark.parametrize("backend", ["native", "portable"])
@models
def test_exported_files(path, backend):
    x, y = arrays(path)
    with refusal(path.parent, "exported"):
        session = Session(path.with_name(f"{path.name}.onnx"), backend=backend)
        close([session.step(x_t) for x_t in x], y)
        session.restore_state(path.with_suffix(".state").read_bytes())
        close([session.step(x_t) for x_t in x[BEFORE:]], y[BEFORE:])


@models
def test_packed_models(path):
    x, y = arrays(path)
    with refusal(path.parent, "packed"):
        stepper = Stepper(path.with_suffix(".edgernn").read_bytes(), BATCH)
        for start in (0, BEFORE):
            if start:
                stepper.restore_state(path.with_suffix(".state").read_bytes())
            for x_t, y_t in zip(x[start:], y[start:], strict=True):
                stepper.x[...] = x_t
                assert stepper.step(), stepper.refusal()
                close(stepper.y, y_t)


@models
def test_saved_states_fit_packed_files_that_are_written_anew(path):
    x, y = arrays(path)
    with refusal(path.parent, "state"):
        content = path.with_name(f"{path.name}.onnx").read_bytes()
        stepper = Stepper(pack(content, path), BATCH)
        stepper.restore_state(path.with_suffix(".state").read_bytes())
        stepper.x[...] = x[BEFORE]
        assert stepper.step(), stepper.refusal()
        close(stepper.y, y[BEFORE])
        assert len(y) == BEFORE + AFTER


@pytest.mark.parametrize("native", [True, False], ids=["native", "portable"])
@folders_with(OPERATORS)
def test_calibrated_files_of_other_tools(folder, native):
    x, expected = arrays(folder / OPERATORS)
    with refusal(folder, "operators"):
        content = (folder / OPERATORS / "model.onnx").read_bytes()
        session = open_session(OPERATORS, content, library_path() if native else None, 1)
        y, *_ = session.run(None, {"x": x})
        close(y, expected)


@folders_with(RUN)
def test_run_directories(folder):
    x, expected = arrays(folder / RUN)
    with refusal(folder, "run"), torch.no_grad():
        model, _ = load_model(folder / RUN)
        y, _ = model(torch.from_numpy(x.swapaxes(0, 1)))
        close(y.numpy(), expected)


@folders_with(INTERRUPTED)
def test_an_interrupted_run_is_resumed(folder, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    shutil.copytree(folder / INTERRUPTED, tmp_path / "run")
    with refusal(folder, "interrupted"):
        train("adding", "sarnn", out=tmp_path / "run", settings=TRAINING, resume=True)
        resumed, expected = (read_tensors(run / "model.safetensors") for run in (tmp_path / "run", folder / RUN))
        assert resumed.keys() == expected.keys()
        for weight, tensor in expected.items():
            close(resumed[weight].numpy(), tensor.numpy())
