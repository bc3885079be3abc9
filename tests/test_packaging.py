# SPDX-License-Identifier: Apache-2.0
"""The editable install, used from another folder, and the native library: its size and dependencies."""

import json
import sys
from pathlib import Path

import pytest

import edgernn
from edgernn.runtime import library_path
from tests.source_tree import ROOT, load_script, python_without_editable_install, run

# functions that would open files, start threads or processes, load code, or use a network; also as __name or name64
FORBIDDEN = {
    *("open", "openat", "creat", "fopen", "freopen", "fdopen", "opendir", "mkstemp", "tmpfile", "shm_open", "dlopen"),
    *("pthread_create", "thrd_create", "fork", "vfork", "clone", "system", "popen", "posix_spawn", "posix_spawnp"),
    *("execve", "execv", "execvp", "execl", "execlp", "execle", "execvpe", "fexecve"),
    *("socket", "socketpair", "connect", "bind", "listen", "accept", "send", "sendto", "sendmsg", "recv", "recvfrom"),
    *("getaddrinfo", "gethostbyname"),
}
USE = """
import edgernn, edgernn.export, edgernn.training, numpy as np
from edgernn.runtime import Session, library_path
model = edgernn.SequenceModel("sarnn", 2, 8, 1)
checks = edgernn.export.to_onnx(model, "m.onnx")
assert [c.backend for c in checks] == ["portable", "native"], checks
print(Session("m.onnx").run(np.zeros((3, 2))).shape, edgernn.__file__, library_path(), sep="|")
"""


@pytest.mark.slow
def test_editable_install_works_from_another_folder(tmp_path):
    shape, module, _ = run(sys.executable, "-W", "ignore", "-c", USE, cwd=tmp_path).strip().split("|")
    assert shape == "(1,)"
    assert Path(module).parent == ROOT / "edgernn"


def test_checkout_works_without_an_install(tmp_path):
    words = ["-c", "import edgernn.export, edgernn.runtime, edgernn.training; print(edgernn.training.__file__)"]
    output = python_without_editable_install(*words, path=ROOT, cwd=tmp_path)
    assert output.strip() == str(ROOT / "edgernn" / "training" / "__init__.py")


def test_library_is_small():
    """For all instruction sets, user-defined cells take 67 kB of it, blocks of neurons 100 kB, shared rows 70 kB.

    The rule delta takes 60 kB: it has a driver of its own. The rule topk takes 29 kB: products of the rows without the
    update gate for each of 4 cells, and the selection of the largest scores. The rule periodic takes 43 kB, and
    step graphs 100 kB. Tiles of 3, 5 and 6 rows take 150 kB.
    """
    assert Path(library_path()).stat().st_size <= 1_800_000


def test_library_needs_nothing():
    library = Path(library_path())
    needed = [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", library).splitlines() if "NEEDED" in line]
    assert set(needed) <= {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2"}


def test_library_is_hardened():
    library = Path(library_path())
    assert "BIND_NOW" in run("readelf", "-d", library)
    headers = run("readelf", "-lW", library)
    assert "GNU_RELRO" in headers
    (stack,) = [line for line in headers.splitlines() if "GNU_STACK" in line]
    assert stack.split()[6] == "RW"
    symbols = run("readelf", "-sW", "--dyn-syms", library)
    assert "__stack_chk_fail" in symbols
    # number, value, size, type, binding, visibility, section, name
    rows = [line.split() for line in symbols.splitlines() if " GLOBAL DEFAULT " in line]
    exported = {row[7].partition("@")[0] for row in rows if row[6] != "UND"}
    imported = {row[7].partition("@")[0].strip("_").removesuffix("64") for row in rows if row[6] == "UND"}
    assert "malloc" in imported
    assert not imported & FORBIDDEN
    assert "edgernn_step" in exported
    assert all(name.startswith("edgernn_") or name == "RegisterCustomOps" for name in exported), exported


def test_npm_package_has_the_version_of_the_library():
    package = json.loads((ROOT / "runtime" / "js" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == edgernn.__version__
    assert "dependencies" not in package


def test_npm_package_has_its_licences(tmp_path, monkeypatch):
    build = load_script(ROOT / "cmake" / "build.py")
    (tmp_path / "copyright").write_text("MIT")
    monkeypatch.setattr(build, "WASI_LIBC", tmp_path / "copyright")
    folder = build.npm_package(tmp_path / "wasm")
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / "LICENSE.wasi-libc").read_text() == "MIT"
    files = json.loads((folder / "package.json").read_text(encoding="utf-8"))["files"]
    modules = {"edgernn.wasm", "edgernn-relaxed.wasm"}
    assert set(files) | modules == {file.name for file in folder.iterdir()} - {"package.json"} | modules
    (tmp_path / "copyright").unlink()
    with pytest.raises(SystemExit, match="run: apt-get install wasi-libc"):
        build.npm_package(tmp_path / "other")
