# SPDX-License-Identifier: Apache-2.0
"""`make check-wheel`: the wheel works from another folder, and runs models in an environment without torch.

The wheel of `make wheels` has the same bytes from two folders, each with its own compilation.
"""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgernn.runtime import library_path
from tests.source_tree import ROOT, first_sequence, python_without_editable_install, run
from tests.test_packaging import USE
from tests.words import RATE, write_wav

NATIVE = "x86_64-linux-gnu"
MODEL = ROOT / "models" / "adding-sarnn" / "model.onnx"
# packages that only the extra `train` requires
HEAVY = ("torch", "pydantic", "rich", "matplotlib", "scipy", "onnxscript", "safetensors", "pooch", "filelock")
# single steps equal a whole sequence
STEP = """
import sys, numpy as np
from edgernn.runtime import Session
session, x = Session(sys.argv[1]), np.ones((5, 2), np.float32)
for x_t in x:
    y = session.step(x_t)
np.testing.assert_allclose(session.run(x), y, atol=1e-6)
print(session.backend)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel as `pip install .` does, from a copy of the source; return the wheel and the unpacked folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    # the files that git would clone, without leftovers of other builds
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (copy / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (copy / name).write_bytes((ROOT / name).read_bytes())
            # another umask
            (copy / name).chmod(0o600)
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, copy, env=environment)
    (wheel_file,) = folder.glob("edgernn-*.whl")
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(folder / "site")
    return wheel_file, folder / "site"


def test_wheel_works_from_another_folder(wheel, tmp_path):
    file, site = wheel
    output = python_without_editable_install("-W", "ignore", "-c", USE, path=site, cwd=tmp_path)
    shape, module, library = output.strip().split("|")
    assert shape == "(1,)"
    assert module.startswith(str(site))
    assert library.startswith(str(site / "edgernn" / "runtime"))
    names = zipfile.ZipFile(file).namelist()
    code = [n for n in names if n.endswith((".cc", ".h")) and not n.startswith("edgernn/runtime/firmware/")]
    assert code == ["edgernn/runtime/edgernn.h"]
    assert not [n for n in names if n.startswith("tests")]
    assert "edgernn/py.typed" in names


@pytest.mark.parametrize("name", ["libedgernn_ops.so", "libedgernn_train.so"])
def test_libraries_have_the_same_bytes_from_any_folder(wheel, name):
    """The editable install was built in the source tree, and the wheel in another folder."""
    installed = Path(library_path()).with_name(name)
    assert (wheel[1] / "edgernn" / "runtime" / name).read_bytes() == installed.read_bytes()


def test_a_wheel_has_the_same_bytes_from_any_folder(wheel, tmp_path):
    """The source folder's libraries are those of the editable install, and the copy's those of `pip wheel`."""
    wheels = []
    for source in (ROOT, wheel[0].parent / "source"):
        dist = tmp_path / str(len(wheels))
        words = ["wheels", "--target", NATIVE, "--dist", dist]
        run(sys.executable, source / "cmake" / "build.py", *words, cwd=tmp_path)
        (file,) = dist.glob("edgernn-*.whl")
        wheels.append(file)
    entries = [
        [(i.filename, i.CRC, i.date_time, i.external_attr) for i in zipfile.ZipFile(file).infolist()] for file in wheels
    ]
    assert entries[0] == entries[1]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.fixture(scope="module")
def light(wheel, tmp_path_factory):
    """The bin folder of a fresh environment with the wheel and its extra `cpu` only."""
    folder = tmp_path_factory.mktemp("light") / "venv"
    run(sys.executable, "-m", "venv", folder)
    words = ["install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel[0]}[cpu]"]
    run(folder / "bin" / "python", "-m", "pip", *words)
    return folder / "bin"


def python(light, code, *words):
    """Return what the code prints; -P keeps the source folder out of sys.path."""
    return run(light / "python", "-P", "-W", "error", "-c", code, *words).strip()


def test_light_install_has_no_package_of_training(light):
    code = f"from importlib.util import find_spec; print([name for name in {HEAVY} if find_spec(name)])"
    assert python(light, code) == "[]"


def test_light_install_steps_a_model(light):
    assert python(light, STEP, MODEL) == "native"


def test_light_install_has_the_trained_models(light, tmp_path):
    names = sorted(path.parent.name for path in ROOT.glob("models/*/entry.json"))
    listed = json.loads(run(light / "edgernn", "models", "list", "--json", cwd=tmp_path))
    assert [model["name"] for model in listed] == names
    write_wav(tmp_path / "x.wav", [0] * RATE)
    assert "1.0 s" in run(light / "edgernn", "run", "english-room-delta", "--stream", "x.wav", cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("--version", []),
        ("--help", []),
        ("train --help", []),
        (f"run {MODEL} --input x.csv --output y.csv", ["y.csv"]),
        (f"bench {MODEL} --steps 20 --rounds 2 --warmup 0 --out bench", ["bench/bench.json", "bench/bench.md"]),
        (f"pack {MODEL} --out model.edgernn", ["model.edgernn"]),
        (f"pack {MODEL} --target c --out c", ["c/model.c", "c/model.cmake", "c/edgernn_math.h", "c/gcc.flags"]),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_light_install_runs_what_needs_no_training(command, files, light, tmp_path):
    first_sequence(tmp_path)
    assert run(light / "edgernn", *shlex.split(command), cwd=tmp_path)
    assert all((tmp_path / file).is_file() for file in files)


@pytest.mark.parametrize(
    "command",
    [
        "train --task adding --cell gru",
        "export runs/adding-gru",
        "plot runs/adding-gru",
        "reproduce pru-adding",
        "sweep sweep.toml",
        "data list",
        "cells",
        "bench --cell gru",
    ],
)
def test_other_verbs_say_what_to_install(command, light, tmp_path):
    process = subprocess.run([light / "edgernn", *command.split()], cwd=tmp_path, capture_output=True, text=True)
    verb = "data list" if command.startswith("data") else command.split()[0]
    assert process.stderr.startswith(f"edgernn: error: edgernn {verb}: needs torch; pip install 'torch>=2.9' ")
    assert process.returncode == 2


def test_names_of_python_say_what_to_install(light):
    code = """
import edgernn
try:
    edgernn.SequenceModel
except edgernn.UsageError as error:
    print(error)
"""
    assert python(light, code).startswith("edgernn.SequenceModel: needs torch; pip install 'torch>=2.9' ")
