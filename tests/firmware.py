# SPDX-License-Identifier: Apache-2.0
"""Compiles the C files of exported models for this machine, and steps them."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.folder import CFiles, c_files
from edgernn.runtime.graph_options import GraphOptions
from edgernn.runtime.input_check import OnNonfinite
from tests.apps import ROOT, need, run

HARNESS = ROOT / "tests" / "step_model.c"
# without what a microcontroller lacks
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-ffreestanding")
CHECKED = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class SteppedModel:
    """Outputs (T, O) of a model, the neurons (T,) that each step updated, and the number of bad samples if counted."""

    y: NDArray[np.float32]
    updates: NDArray[np.int32]
    nonfinite: int | None = None


def write_files(content: bytes, folder: Path, on_nonfinite: OnNonfinite = "error", **options: Any) -> CFiles:
    """Write the C files of a model; `options` are those of `GraphOptions`."""
    files = c_files(content, Path("model.onnx"), on_nonfinite=on_nonfinite, options=GraphOptions(**options))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return files


def step_in_c(
    content: bytes, x: NDArray[np.float32] | NDArray[np.int64], on_nonfinite: OnNonfinite = "error", **options: Any
) -> SteppedModel:
    """Step a model over x (T, I), or words (T,), in a program with sanitizers, with the `options` of `GraphOptions`."""
    need("gcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(content, folder, on_nonfinite, **options)
        program = folder / "step"
        compiled = run("gcc", *STRICT, *CHECKED, "-c", folder / "model.c", "-o", folder / "model.o")
        assert compiled.returncode == 0, compiled.stderr
        counts = on_nonfinite != "error"
        words = ("gcc", *CHECKED, *["-DHOLDS"] * counts, "-I", folder, HARNESS, folder / "model.o", "-o", program)
        assert run(*words).returncode == 0
        numbers = x.astype(np.int32 if x.ndim == 1 else np.float32).tobytes()
        process = subprocess.run([program], input=numbers, capture_output=True, timeout=60)
        assert process.returncode == 0, process.stderr.decode()
    steps, words_out = len(x), np.frombuffer(process.stdout, np.int32)
    *nonfinite, numbers = [int(words_out[-1]), words_out[:-1]] if counts else [words_out]
    y = numbers[:-steps].view(np.float32).reshape(steps, -1)
    return SteppedModel(y, numbers[-steps:], *nonfinite)
