# SPDX-License-Identifier: Apache-2.0
"""Measures the wheels and the kit: `python -m benchmarks.wheels --out docs/results/wheels.json`.

Sizes are those of the files that `make wheels` and `make sdk` write. Rounds of the libraries for Linux and for Windows
alternate, the latter in wine. Run it on an idle machine.
"""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import write_measured
from benchmarks.wasm import TRAINED, adding
from edgernn.bench.provenance import machine
from edgernn.export import to_onnx
from edgernn.runtime.packed import pack_file
from tests import apps
from tests.checks.sdk import kits
from tests.checks.wheels import libraries, program, wheel
from tests.foreign import ARM, LINUX, WINDOWS, output
from tests.models import contractive

ROUNDS = 5
# a run takes so many seconds, as the clock of Windows has 1 ms
SECONDS = 0.3
MODELS = {"gru (2, 32)": ("gru", 32), "gru (2, 128)": ("gru", 128), "lstm (2, 256)": ("lstm", 256)}


def size(path: Path) -> int:
    return path.resolve().stat().st_size


def sizes(target: str) -> dict[str, int]:
    """Return the bytes of a target's files."""
    (library,) = libraries(target).glob("libedgernn_ops.*")
    (shared,) = [path for path in (kits() / target).rglob("libedgernn.*") if path.suffix in (".so", ".dll")]
    return {
        "wheel": size(wheel(target)),
        "library": size(library),
        "static": size(kits() / target / "lib" / "libedgernn.a"),
        "shared": size(shared),
    }


def packed_models(folder: Path) -> dict[str, Path]:
    """Pack the trained model, and models with random weights in float32 and int8."""
    packed = {"adding-sarnn": Path(pack_file(TRAINED, folder / "adding.edgernn")["packed"])}
    for name, (cell, hidden) in MODELS.items():
        for weights in ("float32", "int8"):
            path = folder / f"{cell}-{hidden}-{weights}.onnx"
            to_onnx(contractive(cell, input_size=2, hidden_size=hidden, output_size=1), path, weights=weights)
            packed[f"{name}, {weights}"] = Path(pack_file(path, path.with_suffix(".edgernn"))["packed"])
    return packed


def step_time(target: str, model: Path, passes: int) -> float:
    """Return the time of a step in µs, over so many passes through a sequence."""
    words = [target, program(target, "time_steps.c"), model, passes]
    return float(output(*words, libraries=libraries(target), data=adding()[0].tobytes()))


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        models = packed_models(Path(name))
        kept: dict[str, dict[str, list[float]]] = {model: {LINUX: [], WINDOWS: []} for model in models}
        steps = len(adding()[0])
        passes = {
            model: round(SECONDS / (1e-6 * step_time(LINUX, path, 100) * steps)) for model, path in models.items()
        }
        for _ in range(ROUNDS):
            for model, times in kept.items():
                for target, values in times.items():
                    values.append(step_time(target, models[model], passes[model]))
    rows = {model: {target: min(values) for target, values in times.items()} for model, times in kept.items()}
    return {
        "machine": machine(),
        "rounds": ROUNDS,
        "bytes": {target: sizes(target) for target in (LINUX, ARM, WINDOWS)},
        "microseconds": rows,
        "versions": {
            "gcc": apps.run("gcc", "-dumpfullversion").stdout.strip(),
            "mingw": apps.run("x86_64-w64-mingw32-gcc-posix", "-dumpversion").stdout.strip().removesuffix("-posix"),
            "wine": apps.run("wine", "--version").stdout.split()[0].removeprefix("wine-"),
        },
    }


if __name__ == "__main__":
    write_measured(measure, __doc__)
