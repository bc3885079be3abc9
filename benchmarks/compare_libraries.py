# SPDX-License-Identifier: Apache-2.0
"""Compare two builds of the native library: `python -m benchmarks.compare_libraries OTHER/libedgernn_ops.so`.

One process loads this installation's library and the other one, and times both in interleaved rounds on the cases of
the benchmark suite. The models run in ONNX Runtime. In the cases "from C", a C loop runs a packed model step by step.
"""

import ctypes
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.suite import chosen
from edgernn.bench.case import PAUSE_MS, Case
from edgernn.bench.provenance import machine
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.random_models import random_model
from edgernn.runtime.info import read_model
from edgernn.runtime.library import library_path
from edgernn.runtime.open_model import open_session
from edgernn.runtime.packed import pack
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import aligned
from edgernn.runtime.timing import Rounds, interleaved

THIS, OTHER = "this", "other"
# steps of one call of a packed model
_STEPS = 200


class PackedSteps:
    """Callable that runs 200 steps of a packed model (.edgernn file) in a C loop, with a given build of the library."""

    def __init__(self, library: str, packed: bytes, case: Case) -> None:
        """Load a packed model into a build of the native library."""
        self._library = ctypes.CDLL(library)
        self._library.edgernn_message.restype = ctypes.c_char_p
        self._file = aligned(packed)
        size, model = ctypes.c_size_t(), ctypes.c_void_p()
        file, batch = ctypes.c_void_p(self._file.ctypes.data), ctypes.c_int64(case.batch)
        length = ctypes.c_size_t(len(packed))
        self._check(self._library.edgernn_memory(file, length, batch, ctypes.byref(size)))
        self._memory = aligned(size.value)
        memory = ctypes.c_void_p(self._memory.ctypes.data)
        self._check(self._library.edgernn_open(file, length, batch, memory, size, ctypes.byref(model)))
        self._x = _input(case)[0]
        self._y = np.zeros((case.batch, case.sizes[1]), np.float32)
        functions = (self._library.edgernn_step, self._library.edgernn_reset)
        step, reset = (ctypes.cast(function, ctypes.c_void_p) for function in functions)
        x, y = (array.ctypes.data for array in (self._x, self._y))
        self._arguments = step, reset, model, x, 1, _STEPS, 0, y

    def __call__(self) -> None:
        self._check(probes().edgernn_probe_sequences(*self._arguments))

    def _check(self, status: int) -> None:
        if status != 0:
            raise EdgernnError(self._library.edgernn_message().decode())


def compare(case: Case, other: str, settings: Rounds, models: Path | None = None) -> dict[str, Any]:
    """Time a benchmark case with this installation's library and with another build of it."""
    suffix = ".edgernn" if case.in_c else ".onnx"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        to_onnx(random_model(case.model, skip=case.skip or 0.0), path, weights=case.weights)
        content = pack(read_model(path), path) if case.in_c else read_model(path)
    contents = {THIS: content, OTHER: content if models is None else read_model(models / file_name(case, suffix))}
    libraries = {THIS: library_path(), OTHER: other}
    calls = {name: _call(case, libraries[name], contents[name]) for name in contents}
    if case.threads > 1:
        settings = Rounds(**{**vars(settings), "pause_ms": PAUSE_MS})
    seconds = interleaved(calls, settings)
    steps = _STEPS if case.in_c else max(1, case.steps)
    times = {name: 1e6 / steps * np.array([np.median(block) for block in seconds[name]]) for name in calls}
    low, ratio, high = np.percentile(times[THIS] / times[OTHER], (25, 50, 75))
    return {
        "name": case.name,
        **{f"{name}_us": float(np.median(values)) for name, values in times.items()},
        "ratio": float(ratio),
        "ratio_q1": float(low),
        "ratio_q3": float(high),
    }


def file_name(case: Case, suffix: str) -> str:
    """Return the name of a case's model file: the lower-case words and numbers of its name, joined by hyphens.

    `suffix` is appended: .onnx, or .edgernn for a packed model.
    """
    return "-".join(re.findall(r"[a-z0-9.]+", case.name.lower())) + suffix


def _call(case: Case, library: str, content: bytes) -> Callable[[], Any]:
    if case.in_c:
        return PackedSteps(library, content, case)
    path = Path(file_name(case, ".onnx"))
    if not case.steps:
        return lambda: open_session(path, content, library, case.threads)
    session = open_session(path, content, library, case.threads)
    axes = {"T": case.steps, "B": case.batch}
    feeds = {
        value.name: np.zeros([axes.get(axis, axis) for axis in value.shape], np.float32)
        for value in session.get_inputs()
    }
    feeds["x"] = _input(case)
    return lambda: session.run(None, feeds)


def _input(case: Case) -> np.ndarray[Any, np.dtype[np.float32]]:
    shape = (max(1, case.steps), case.batch, case.sizes[0])
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@click.command()
@click.argument("other", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", metavar="TEXT", help="Time only the benchmark cases whose names contain TEXT, such as gru.")
@click.option("--rounds", default=31, show_default=True, help="Number of timing rounds; each times both libraries.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the models for OTHER, such as gru-2-128-t-500.onnx. Needed if OTHER cannot read the files "
    "that this version exports. Default: both libraries run the same files.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the measured times to this JSON file.")
def main(other: Path, only: str | None, rounds: int, models: Path | None, out: Path | None) -> None:
    """Time the native library beside another build of it, the file OTHER.

    A ratio above 1 means that this installation's library is slower.
    """
    cases = chosen(only)
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "cases": []}
    width = max(len(case.name) for case in cases)
    for case in cases:
        entry = compare(case, str(other.resolve()), Rounds(rounds=rounds, block_ms=10, group_us=50), models)
        report["cases"].append(entry)
        spread = f"{entry['ratio_q1']:.3f} to {entry['ratio_q3']:.3f}"
        click.echo(
            f"{case.name:{width}}  {entry['this_us']:9.2f} µs  other {entry['other_us']:9.2f} µs  "
            f"ratio {entry['ratio']:.3f} ({spread})"
        )
        if out is not None:
            write_json(out, report)


if __name__ == "__main__":
    main()
