# SPDX-License-Identifier: Apache-2.0
"""`make check-sdk`: programs that CMake and pkg-config build with the kit, in C and C++, equal the Python session."""

import functools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgernn.runtime import Session
from edgernn.runtime.packed import pack_file
from tests.apps import ROOT, need, run
from tests.foreign import ARM, LINUX, WINDOWS, compiled, compiler, output
from tests.models import exported
from tests.pairs import pairwise
from tests.tolerances import FLOAT32

SOURCES = {"C": ROOT / "tests" / "side_by_side.c", "CXX": ROOT / "tests" / "kit" / "step.cc"}
VERSION = "0.1"
TARGETS = [LINUX, ARM, WINDOWS]


@functools.cache
def kits() -> Path:
    """Build the kit for all targets; return its folder."""
    process = run("make", "--silent", "sdk", "-C", ROOT, timeout=1800)
    if process.returncode != 0:
        pytest.exit(f"make sdk: {process.stdout}{process.stderr}", returncode=1)
    return ROOT / "build" / "sdk"


def with_cmake(target: str, language: str, kind: str, folder: Path, version: str = VERSION) -> Path:
    """Build a program with the kit's CMake package."""
    words = ["cmake", "-S", ROOT / "tests" / "kit", "-B", folder, f"-DLANGUAGE={language}", f"-DKIND={kind}"]
    words += [f"-Dedgernn_DIR={kits() / target / 'lib' / 'cmake' / 'edgernn'}", f"-DSOURCE={SOURCES[language]}"]
    if target != LINUX:
        words.append(f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / f'{target}.cmake'}")
    for command in ([*words, f"-DVERSION={version}"], ["cmake", "--build", folder]):
        process = run(*command)
        assert process.returncode == 0, process.stdout + process.stderr
        assert "warning" not in process.stderr, process.stderr
    return folder / ("step.exe" if target == WINDOWS else "step")


def with_pkg_config(target: str, language: str, kind: str, folder: Path) -> Path:
    """Build a program with the options that pkg-config prints."""
    need("pkg-config")
    package = "edgernn-static" if kind == "static" else "edgernn"
    return compiled(target, SOURCES[language], folder, *pkg_config(target, "--cflags", "--libs", package).split())


def pkg_config(target: str, *words: str) -> str:
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(kits() / target / "lib" / "pkgconfig")}
    return subprocess.run(["pkg-config", *words], env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("target", "kind", "language", "build"),
    pairwise(TARGETS, ["static", "shared"], list(SOURCES), [with_cmake, with_pkg_config]),
)
def test_a_program_equals_the_session(build, language, kind, target, tmp_path):
    compiler(target, SOURCES[language])
    program = build(target, language, kind, tmp_path / "program" if build is with_cmake else tmp_path)
    needed = run("objdump", "-p", program).stdout
    assert ("libedgernn" in needed) == (kind == "shared")
    model = exported("gru", "selective", output="all", layers=2)[1]
    session, x = Session(model), np.random.default_rng(0).standard_normal((20, 3), np.float32)
    expected = np.array([session.step(x_t) for x_t in x])
    packed = pack_file(model, tmp_path / "model.edgernn")["packed"]
    libraries = kits() / target / ("bin" if target == WINDOWS else "lib")
    y = np.frombuffer(output(target, program, packed, 1, libraries=libraries, data=x.tobytes()), np.float32)
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=0, atol=FLOAT32)
    (tmp_path / "half.edgernn").write_bytes(Path(packed).read_bytes()[:1000])
    with pytest.raises(AssertionError, match="packed model: expected "):
        output(target, program, tmp_path / "half.edgernn", 1, libraries=libraries)


@pytest.mark.parametrize("target", TARGETS)
def test_the_kit_is_complete(target):
    compiler(target, SOURCES["CXX"])
    names = {str(path.relative_to(kits() / target)) for path in (kits() / target).rglob("*") if not path.is_dir()}
    shared = {"bin/libedgernn.dll", "lib/libedgernn.dll.a"} if target == WINDOWS else {"lib/libedgernn.so"}
    assert names >= shared | {
        "LICENSE",
        "include/edgernn.h",
        "lib/libedgernn.a",
        "lib/cmake/edgernn/edgernnConfig.cmake",
        "lib/cmake/edgernn/edgernnConfigVersion.cmake",
        "lib/pkgconfig/edgernn.pc",
        "lib/pkgconfig/edgernn-static.pc",
    }
    # it may be moved: no file names the folder where it was built
    for name in names:
        assert str(ROOT).encode() not in (kits() / target / name).read_bytes(), name


def test_another_version_is_refused(tmp_path):
    with pytest.raises(AssertionError, match=r'requested version "9\.0"'):
        with_cmake(LINUX, "C", "shared", tmp_path, version="9.0")
    need("pkg-config")
    with pytest.raises(subprocess.CalledProcessError):
        pkg_config(LINUX, "--exists", "edgernn >= 9.0")
