# SPDX-License-Identifier: Apache-2.0
"""What is installed: the wheel and the editable install, used from another folder; types of the whole package."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = sysconfig.get_paths()["purelib"]
USE = """
import edgernn, edgernn.export, edgernn.training, numpy as np
from edgernn.runtime import Session, library_path
model = edgernn.SequenceModel("sarnn", 2, 8, 1)
checks = edgernn.export.to_onnx(model, "m.onnx")
assert [c.backend for c in checks] == ["portable", "native"], checks
print(Session("m.onnx").run(np.zeros((3, 2))).shape, edgernn.__file__, library_path(), sep="|")
"""


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built as `pip install .` builds it, and the folder it is unpacked to."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    # what git would clone, so that nothing left over from other builds can help
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            (copy / name).write_bytes((ROOT / name).read_bytes())
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, copy, env=environment)
    (made,) = folder.glob("edgernn-*.whl")
    with zipfile.ZipFile(made) as file:
        file.extractall(folder / "site")
    return made, folder / "site"


@pytest.mark.slow
def test_wheel_works_from_another_folder(wheel, tmp_path):
    made, site = wheel
    # -S leaves out the editable install of this environment
    path = f"import sys; sys.path[:0] = [{str(site)!r}]; sys.path.append({SITE!r})\n"
    shape, module, library = (
        run(sys.executable, "-S", "-W", "ignore", "-c", path + USE, cwd=tmp_path).strip().split("|")
    )
    assert shape == "(1,)"
    assert module.startswith(str(site))
    assert library.startswith(str(site / "edgernn" / "runtime"))
    names = zipfile.ZipFile(made).namelist()
    assert [n for n in names if n.endswith((".cc", ".h"))] == ["edgernn/runtime/edgernn.h"]
    assert not [n for n in names if n.startswith("tests")]
    assert "edgernn/py.typed" in names


@pytest.mark.slow
def test_types_of_the_package_are_strict(wheel, tmp_path):
    environment = os.environ | {"MYPYPATH": str(wheel[1])}
    words = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path, "-p", "edgernn"]
    run(sys.executable, "-m", "mypy", *words, env=environment, cwd=tmp_path)


def test_editable_install_works_from_another_folder(tmp_path):
    shape, module, _ = run(sys.executable, "-W", "ignore", "-c", USE, cwd=tmp_path).strip().split("|")
    assert shape == "(1,)"
    assert Path(module).parent == ROOT / "edgernn"


def test_library_is_small():
    from edgernn.runtime import library_path

    assert Path(library_path()).stat().st_size <= 1_000_000


def test_library_needs_nothing():
    from edgernn.runtime import library_path

    library = Path(library_path())
    needed = [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", library).splitlines() if "NEEDED" in line]
    assert set(needed) <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
