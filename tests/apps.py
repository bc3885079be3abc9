# SPDX-License-Identifier: Apache-2.0
"""Runs the example apps on a model and its input, to compare their outputs.

x is (N, T, I), or (N, T) for words; y is (N, T, O). A test is skipped if a tool is missing.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from filelock import FileLock
from numpy.typing import NDArray

from edgernn.runtime import Session, library_path
from edgernn.runtime.packed import pack_file

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
Array = NDArray[np.floating]


@dataclass(frozen=True)
class Streamed:
    """The outputs of an example: y, the updates per step if it reports them, and its report of times."""

    y: Array
    updates: NDArray[np.int64] | None
    report: str


def stream_in_python(model: Path, x: NDArray, backend: str = "native") -> Streamed:
    session = Session(model, backend=backend)
    y, updates = [], []
    for sequence in x:
        session.reset()
        for x_t in sequence:
            y.append(session.step(x_t))
            updates.append(session.updates)
    counts = None if session.updates is None else np.array(updates).reshape(x.shape[:2])
    return Streamed(np.array(y).reshape(*x.shape[:2], -1), counts, session.backend)


def stream_in_cpp(model: Path, x: NDArray, library: str | None = None) -> Streamed:
    """Stream in C++. library: Path of the native ops, by default the installed ones; "" for the portable functions."""
    words = [cpp_program(), model, library_path() if library is None else library]
    return _through_pipes(words[: 2 if library == "" else 3], x)


def stream_in_c(model: Path, x: NDArray) -> Streamed:
    """Pack the model and stream it in C."""
    with tempfile.TemporaryDirectory() as folder:
        return stream_packed([c_program()], pack_file(model, Path(folder, "model.edgernn"))["packed"], x)


def stream_packed(program: list[object], model: object, x: NDArray) -> Streamed:
    """Stream a packed model. program: The command that starts examples/c."""
    return _through_pipes([*program, model], x)


def stream_in_node(model: Path, x: NDArray) -> Streamed:
    need_node("node", "onnxruntime-node")
    return _through_pipes(["node", EXAMPLES / "node" / "stream.mjs", model], x)


def stream_packed_in_node(model: Path, x: NDArray) -> Streamed:
    """Pack the model and stream it in Node, with the package in runtime/js."""
    need("node")
    need_wasm()
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_file(model, Path(folder, "model.edgernn"))["packed"]
        return _through_pipes(["node", EXAMPLES / "node" / "stream.mjs", packed], x)


def stream_packed_in_chromium(model: Path, x: NDArray) -> Streamed:
    """Pack the model and stream it on the page, with the package in runtime/js."""
    need_wasm()
    with tempfile.TemporaryDirectory() as folder:
        return stream_in_chromium(pack_file(model, Path(folder, "model.edgernn"))["packed"], x)


def stream_in_chromium(model: Path, x: NDArray, picture: Path | None = None) -> Streamed:
    need_chromium()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "x.csv"), Path(folder, "y.csv")
        source.write_text(csv_of(x), encoding="utf-8")
        process = on_the_page(model, source, target, *([picture] if picture else []))
        assert process.returncode == 0, process.stderr
        names, *lines = target.read_text(encoding="utf-8").split()
    table = np.array([line.split(",") for line in lines], float).reshape(*x.shape[:2], -1)
    columns = names.split(",")
    y = table[..., [c for c, name in enumerate(columns) if name.startswith("y")]]
    updates = table[..., -1].astype(np.int64) if columns[-1] == "updates" else None
    return Streamed(y, updates, process.stdout)


def csv_of(x: NDArray) -> str:
    """Return the input as CSV: one line per step, an empty line between sequences; nine digits are exact."""
    rows = x.reshape(*x.shape[:2], -1)
    return "\n\n".join("\n".join(",".join(f"{v:.9g}" for v in x_t) for x_t in sequence) for sequence in rows) + "\n"


def run(
    *words: object, text: str = "", timeout: float = 900, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with the input `text`. environment: Variables that are added to this process's own."""
    env = os.environ | (environment or {})
    return subprocess.run(list(map(str, words)), input=text, capture_output=True, text=True, timeout=timeout, env=env)


def on_the_page(model: Path, source: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run examples/browser/headless.mjs on a model and a CSV file, with further arguments after the page's address."""
    with serving(model, source) as address:
        return run("node", EXAMPLES / "browser" / "headless.mjs", address, *arguments)


def listen(page: str, model: Path, *arguments: object) -> dict[str, Any]:
    """Run examples/browser/headless_audio.mjs on a page with a model, and return what it prints."""
    need_chromium()
    need_wasm()
    with serving(model, EXAMPLES / "adding.csv") as address:
        process = run("node", EXAMPLES / "browser" / "headless_audio.mjs", address + page, *arguments)
    assert process.returncode == 0, process.stderr
    assert "page:" not in process.stderr, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    return result


@contextmanager
def serving(*files: Path) -> Iterator[str]:
    """Serve the page and yield its address."""
    words = ["node", EXAMPLES / "browser" / "serve.mjs", *files, "0"]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


@functools.cache
def cpp_program() -> Path:
    """Build examples/cpp once, against the runtime in onnxruntime's wheel."""
    libraries = list((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("onnxruntime has no libonnxruntime.so")
    return _built("cpp", f"-DONNXRUNTIME_LIBRARY={libraries[0]}")


@functools.cache
def c_program() -> Path:
    """Build examples/c once, against the installed library."""
    return _built("c", f"-DEDGERNN_LIBRARY={library_path()}")


@functools.cache
def arm_program() -> Path:
    """Build examples/c once for 64-bit Arm, with edgernn's functions linked in."""
    need("aarch64-linux-gnu-g++")
    toolchain = ROOT / "cmake" / "aarch64-linux-gnu.cmake"
    return _built("c", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", processor="arm")


def _built(example: str, *options: str, processor: str = "host") -> Path:
    """Build an example's program in a folder that persists, which processes of pytest-xdist share."""
    for tool in ("cmake", os.environ.get("CXX", "c++")):
        need(tool)
    folder = ROOT / "build" / "tests" / f"example-{example}-{processor}"
    folder.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", EXAMPLES / example, "-B", folder, *options]
    with FileLock(folder / ".lock"):
        for words in (configure, ["cmake", "--build", folder, "--parallel", "2"]):
            # cross-compiling the kernels takes minutes
            process = run(*words, timeout=1200)
            assert process.returncode == 0, process.stdout + process.stderr
            assert "warning" not in process.stderr, process.stderr
    return folder / "stream"


def need(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


@functools.cache
def need_wasm() -> None:
    """Build runtime/js/edgernn.wasm once."""
    tools = run("make", "--silent", "wasm-tools", "-C", ROOT)
    if tools.returncode != 0:
        pytest.skip(tools.stderr.splitlines()[0])
    folder = ROOT / "build" / "wasm"
    folder.mkdir(parents=True, exist_ok=True)
    # processes of pytest-xdist build in the same folder
    with FileLock(folder / ".lock"):
        process = run("make", "--silent", "wasm", "-C", ROOT, timeout=1200)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "warning" not in process.stderr, process.stderr


def need_node(example: str, *packages: str) -> None:
    need("node")
    for package in packages:
        if not (EXAMPLES / example / "node_modules" / package).is_dir():
            pytest.skip(f"{package} is not installed: npm ci --prefix examples/{example}")


def need_chromium() -> None:
    need_node("browser", "onnxruntime-web", "playwright-core")
    need(CHROMIUM)


def _through_pipes(words: list[object], x: NDArray) -> Streamed:
    process = run(*words, text=csv_of(x))
    assert process.returncode == 0, process.stderr
    y = np.array([line.split(",") for line in process.stdout.split()], float)
    return Streamed(y.reshape(*x.shape[:2], -1), None, process.stderr)


def figures(said: str) -> tuple[float, float | None]:
    """Parse the median time per step in µs and, if reported, the updates per step."""
    if said.startswith("{"):
        return float(json.loads(said)["latency"].split()[0]), None
    median, updated = re.search(r"median ([\d.]+) us", said), re.search(r"([\d.]+) updates", said)
    assert median, said
    return float(median[1]), float(updated[1]) if updated else None
