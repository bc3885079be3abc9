# SPDX-License-Identifier: Apache-2.0
"""Measures times and sizes of the examples: `python -m benchmarks.apps --out docs/results/apps.json`.

Each example streams examples/adding.csv ten times and reports its times; its outputs must equal those of the Python
session. Sizes are those of the required files. Run it on an idle machine.
"""

import gzip
import json
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import write_measured
from benchmarks.wasm import TRAINED, adding, page_contents
from edgernn.bench.provenance import machine
from edgernn.export import to_onnx
from edgernn.runtime import library_path
from edgernn.runtime.packed import pack_file
from edgernn.weight_types import WEIGHTS
from tests import apps
from tests.models import contractive
from tests.tolerances import FLOAT32

TIMES = 10  # repetitions of the file
RUNS = 3  # runs, of which the median is reported


def measured(stream: Callable[[Path, np.ndarray], apps.Streamed], x: np.ndarray, y: np.ndarray) -> float:
    """Return the median over the runs of the median time per step in µs."""
    medians = []
    for _ in range(RUNS):
        streamed = stream(TRAINED, x)
        np.testing.assert_allclose(streamed.y, y, rtol=0, atol=FLOAT32)
        medians.append(apps.figures(streamed.report)[0])
    return statistics.median(medians)


def size(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths)


def node_sizes() -> dict[str, int]:
    """Sizes of the installed packages, and of their files for this platform."""
    files = [p for p in (apps.EXAMPLES / "node" / "node_modules").rglob("*") if p.is_file()]
    arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    here = f"/{platform.system().lower()}/{arch}/"
    used = [p for p in files if "/onnxruntime-node/bin/" not in str(p) or here in str(p)]
    return {"installed": size(*files), "used": size(*used, TRAINED)}


def page_sizes() -> dict[str, int]:
    """Size of all files that the page loads, as they are and gzipped."""
    contents = page_contents(TRAINED)
    return {"loaded": sum(map(len, contents)), "gzipped": sum(len(gzip.compress(c)) for c in contents)}


def cpp_sizes() -> dict[str, int]:
    program = apps.cpp_program()
    runtime, library = program.with_name("libonnxruntime.so.1").resolve(), Path(library_path())
    subprocess.run(["strip", program], check=True)
    parts = {"program": program, "runtime": runtime, "library": library, "model": TRAINED}
    return {name: size(path) for name, path in parts.items()}


def c_sizes() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_file(TRAINED, Path(folder, "model.edgernn"))
    program = apps.c_program()
    subprocess.run(["strip", program], check=True)
    return {
        "program": size(program),
        "library": size(Path(library_path())),
        "model": packed["bytes"],
        "memory": packed["memory"],
    }


def arm_sizes() -> dict[str, int]:
    """Sizes of the static program and of the shared library."""
    program = apps.arm_program()
    with tempfile.TemporaryDirectory() as folder:
        toolchain = f"-DCMAKE_TOOLCHAIN_FILE={apps.ROOT / 'cmake' / 'aarch64-linux-gnu.cmake'}"
        for words in (
            ["cmake", "-S", apps.ROOT, "-B", folder, toolchain],
            ["cmake", "--build", folder, "--parallel", "2", "--target", "edgernn_ops"],
        ):
            subprocess.run(words, check=True, capture_output=True)
        return {"program": size(program), "library": size(Path(folder, "libedgernn_ops.so"))}


def model_sizes() -> list[dict[str, Any]]:
    """Sizes of models with O=1 by weight type: ONNX file, packed file and workspace of one sequence, in bytes."""
    rows = [("gru", "always", 2, 32), ("fastgrnn", "always", 9, 32), ("lstm", "always", 9, 64)]
    rows += [("gru", "always", 2, 128), ("gru", "selective", 2, 128), ("gru", "always", 64, 128)]
    rows += [("gru", "always", 64, 256), ("lstm", "always", 64, 256), ("gru", "always", 400, 1150)]
    sizes = []
    for cell, rule, inputs, hidden in rows:
        model = contractive(cell, rule, input_size=inputs, hidden_size=hidden, output_size=1)
        row: dict[str, Any] = {
            "model": f"{cell}, {rule}, I={inputs}, H={hidden}",
            "file": {},
            "packed": {},
            "memory": {},
        }
        for weights in WEIGHTS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                to_onnx(model, path, weights=weights)
                row["file"][weights] = size(path)
                packed = pack_file(path, Path(folder, "model.edgernn"))
            row["packed"][weights], row["memory"][weights] = packed["bytes"], packed["memory"]
        sizes.append(row)
    return sizes


def measure() -> dict[str, Any]:
    x = np.tile(adding(), (TIMES, 1, 1))
    y = apps.stream_in_python(TRAINED, x).y
    return {
        "machine": machine(),
        "steps": x.shape[0] * x.shape[1],
        "microseconds": {
            "cpp": measured(apps.stream_in_cpp, x, y),
            "c": measured(apps.stream_in_c, x, y),
            "cpp_portable": measured(lambda model, x: apps.stream_in_cpp(model, x, ""), x, y),
            "node": measured(apps.stream_in_node, x, y),
            "browser": measured(apps.stream_in_chromium, x, y),
        },
        "bytes": {
            "cpp": cpp_sizes(),
            "c": c_sizes(),
            "node": node_sizes(),
            "browser": page_sizes(),
            "arm": arm_sizes(),
        },
        "models": model_sizes(),
        "versions": {
            "node": apps.run("node", "--version").stdout.strip(),
            "chromium": apps.run(apps.CHROMIUM, "--version").stdout.split()[1],
            **{
                name: json.loads((apps.EXAMPLES / folder / "package.json").read_text())["dependencies"][name]
                for folder, name in (("node", "onnxruntime-node"), ("browser", "onnxruntime-web"))
            },
        },
    }


if __name__ == "__main__":
    write_measured(measure, __doc__)
