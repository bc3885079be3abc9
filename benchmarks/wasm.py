# SPDX-License-Identifier: Apache-2.0
"""Measures edgernn.wasm: `python -m benchmarks.wasm --out docs/results/wasm.json`.

Rounds of Node and of the native library with SSE2 and with this processor's best instructions alternate; each round
streams examples/adding.csv step by step, and reports medians. Run it on an idle machine, after `make wasm`.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.bench.provenance import machine
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.runtime import Session
from edgernn.runtime.packed import pack_file
from edgernn.runtime.probes import streamed
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import wall
from tests import apps
from tests.models import contractive

TRAINED = apps.ROOT / "models" / "adding-sarnn" / "model.onnx"
WASM = apps.ROOT / "runtime" / "js" / "edgernn.wasm"
TIMER = apps.ROOT / "benchmarks" / "time_packed.mjs"
RELAXED = "--experimental-wasm-relaxed-simd"  # for versions of Node that have relaxed SIMD behind this option
ROUNDS = 7
WARM_UP, PASSES = 20, 60
BEST = "native"  # the best instruction set of this processor


def adding() -> NDArray[np.float32]:
    """Return x (N, T, I) of examples/adding.csv."""
    lines = (apps.EXAMPLES / "adding.csv").read_text(encoding="utf-8").split()[1:]
    return np.array([line.split(",") for line in lines], np.float32).reshape(8, 50, 2)


def time_native(models: list[Path]) -> list[float]:
    """Return the median time of a step of each model in µs, in this process."""
    x, times = adding(), []
    for model in models:
        call = streamed(Stepper(model.read_bytes(), 1), x)
        for _ in range(WARM_UP):
            call()
        seconds = [wall(call, 1) for _ in range(PASSES)]
        times.append(1e6 * statistics.median(seconds) / (x.shape[0] * x.shape[1]))
    return times


def times_of(words: list[object], environment: dict[str, str] | None = None) -> list[float]:
    """Run a command that prints a list of times."""
    process = apps.run(*words, timeout=600, environment=environment)
    if process.returncode != 0:
        raise SystemExit(process.stderr)
    times: list[float] = json.loads(process.stdout.splitlines()[-1])
    return times


def worst_error(models: list[Path]) -> float:
    """Return the largest difference between Node and Session, over the outputs of all models."""
    x, worst = adding(), 0.0
    for model in models:
        packed = model.with_suffix(".edgernn")
        session = Session(model)
        y = []
        for sequence in x:
            session.reset()
            y.append([session.step(x_t) for x_t in sequence])
        got = apps.stream_packed(["node", apps.EXAMPLES / "node" / "stream.mjs"], packed, x)
        worst = max(worst, float(np.abs(got.y - np.array(y).reshape(got.y.shape)).max()))
    return worst


def page_contents(model: Path) -> list[bytes]:
    """Return the contents of all files that the page loads with a model."""
    with tempfile.TemporaryDirectory() as folder, apps.serving(model, apps.EXAMPLES / "adding.csv") as address:
        process = apps.run("node", apps.EXAMPLES / "browser" / "headless.mjs", address, Path(folder, "y.csv"))
        return [urllib.request.urlopen(url).read() for url in json.loads(process.stdout)["loaded"]]


def chromium_times(x: Path, models: list[Path]) -> list[float]:
    """Return the median time of a step of each model in Chromium in µs."""
    times = []
    for model in models:
        with apps.serving(model, apps.EXAMPLES / "adding.csv") as address:
            times += times_of(["node", TIMER, x, address])
    return times


def measure() -> dict[str, Any]:
    subprocess.run(["make", "--silent", "-C", apps.ROOT, "wasm"], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"adding-sarnn": TRAINED}
        for weights in ("float32", "int8"):
            files[f"gru (2, 128), {weights}"] = folder / f"gru-{weights}.onnx"
            model = contractive("gru", input_size=2, hidden_size=128, output_size=1)
            to_onnx(model, folder / f"gru-{weights}.onnx", weights=weights)
        (folder / "model.onnx").write_bytes(TRAINED.read_bytes())
        files["adding-sarnn"] = folder / "model.onnx"
        packed = [Path(pack_file(path, path.with_suffix(".edgernn"))["packed"]) for path in files.values()]
        (folder / "x").write_bytes(adding().tobytes())
        native = [sys.executable, "-m", "benchmarks.wasm", "--native", *packed]
        contenders: dict[str, tuple[list[object], dict[str, str] | None]] = {
            "node": (["node", TIMER, folder / "x", *packed], None),
            "node_relaxed": (["node", RELAXED, TIMER, folder / "x", *packed], None),
            "sse2": (native, {"EDGERNN_ISA": "baseline"}),
            BEST: (native, None),
        }
        rounds: dict[str, list[list[float]]] = {name: [] for name in contenders}
        rounds["chromium"] = []
        for _ in range(ROUNDS):
            for contender, (words, environment) in contenders.items():
                rounds[contender].append(times_of(words, environment))
            rounds["chromium"].append(chromium_times(folder / "x", packed))
        times = {
            contender: dict(zip(files, map(statistics.median, zip(*kept, strict=True)), strict=True))
            for contender, kept in rounds.items()
        }
        return {
            "machine": machine(),
            "rounds": ROUNDS,
            "microseconds": times,
            "worst_error": worst_error(list(files.values())),
            "bytes": {
                "module": WASM.stat().st_size,
                "module_gzipped": len(gzip.compress(WASM.read_bytes(), 9)),
                "page_gzipped": sum(len(gzip.compress(content)) for content in page_contents(packed[-1])),
            },
            "versions": {
                "node": apps.run("node", "--version").stdout.strip().lstrip("v"),
                "chromium": apps.run(apps.CHROMIUM, "--version").stdout.split()[1],
                "clang": apps.run("clang++-19", "--version").stdout.split("version ")[1].split()[0],
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--native", type=Path, nargs="+", metavar="MODEL", help="Print the times of packed models.")
    options = parser.parse_args()
    if options.native:
        print(json.dumps(time_native(options.native)))
    else:
        if options.out is None:
            parser.error("--out: expected the JSON file to write, got none; pass it")
        write_json(options.out, measure())


if __name__ == "__main__":
    main()
