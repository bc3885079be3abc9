# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a model on a GPU (`edgernn bench --device cuda`), and its report."""

import datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgernn.bench.case import Case
from edgernn.bench.gpu_times import COPIED, CPU, measure_on_gpu, require
from edgernn.bench.measure import Settings, example_input
from edgernn.bench.page import tables
from edgernn.bench.provenance import gpu, machine
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.files import write_json, write_text
from edgernn.progress import Progress
from edgernn.runtime.info import is_network
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds
from edgernn.settings import load


def bench_on_gpu(
    path: Path,
    folder: Path,
    settings: Settings | None = None,
    *,
    x: NDArray[Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check and time an exported model on a GPU, and write cuda.json and cuda.md.

    Args:
        path: The exported file.
        folder: Folder to write the report to.
        settings: Sizes, threads and rounds of the benchmark. Default: `Settings()`.
        x: Inputs (T, B, I), or word indices (T, B). Default: `example.npz` beside the model, else random numbers.
        progress: Progress bar. Default: none.

    Returns:
        The JSON-compatible report, with the paths of both files as `files`.

    Raises:
        EdgernnError: No GPU can be used, or the outputs are wrong.
        UsageError: The shape of x does not fit the model.
    """
    require()
    settings = settings or Settings()
    session = Session(path, backend="portable")
    x, source = example_input(path, session, settings, x)
    info, (T, B) = session.info, x.shape[:2]
    if is_network(info):
        raise UsageError(
            f"{path}: expected the file of a cell with --device cuda, got that of a network; use --device cpu"
        )
    case = Case(path.name, load(ModelConfig, info["model"], str(path)), T, B, settings.threads)
    rounds = Rounds(settings.rounds, settings.warmup, settings.block_ms)
    report = {**empty_report(rounds, "edgernn bench --device cuda"), "input": source}
    report["cases"].append(measure_on_gpu(path, case, x, rounds, progress))
    files = [folder / "cuda.json", folder / "cuda.md"]
    write_json(files[0], report)
    write_text(files[1], gpu_page(report))
    return {**report, "files": list(map(str, files))}


def empty_report(settings: Rounds, command: str, quick: bool = False) -> dict[str, Any]:
    """Return a report without cases; `quick` marks one of few and short timing rounds."""
    return {
        "device": "cuda",
        "quick": quick,
        "command": command,
        "begun": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {**machine(), **gpu()},
        "settings": {"rounds": settings.rounds, "block_ms": settings.block_ms},
        "cases": [],
    }


def gpu_page(report: dict[str, Any]) -> str:
    """Format a benchmark report of a GPU as Markdown."""
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    clocks = sorted({case["clock"] for case in report["cases"] if "clock" in case})
    threads = sorted({case["cpu_threads"] for case in report["cases"] if "clock" in case})
    short = "**A quick run, whose figures are rough.** " if report["quick"] else ""
    parts = [
        f"{machine['gpu']}, driver {machine['driver']}; {machine['cpu']}, {machine['cores']} cores, instruction set "
        f"{machine['instruction_set']}; Python {machine['python']}, {versions}. Begun {report['begun']} by "
        f"`{report['command']}`.",
        f"{short}All contenders are verified first. Then each of {settings['rounds']} rounds times a block of "
        f"{settings['block_ms']:g} ms of each contender, in shuffled order. A figure is the median over rounds of the "
        "block medians, in µs per step of the whole batch. A ratio is the median over rounds of our time divided by "
        f"the other's in the same round: below 1 we are faster. The clock is: {' or '.join(clocks) or 'none'}. Calls "
        f"follow one another, with x, y and all states on the GPU. `{COPIED}` is `Session.run_from`, which reads and "
        f"returns NumPy arrays; `{CPU}` uses {' or '.join(map(str, threads)) or 'no'} threads and the CPU's memory. "
        "ONNX Runtime and torch run cuDNN in tf32, their default; ours is float32.",
        _processor(report["cases"]),
    ]
    return "\n\n".join([*parts, *tables(report["cases"])]) + "\n"


def _processor(cases: list[dict[str, Any]]) -> str:
    """Return a sentence that names the cases in which edgernn is faster on the CPU than on the GPU."""
    wins = [case["name"] for case in cases if case.get("contenders", {}).get(CPU, {"ratio": 0.0})["ratio"] > 1]
    if not any(CPU in case.get("contenders", {}) for case in cases):
        return "Our kernel on the CPU was not measured."
    if not wins:
        return "Our kernel on the CPU is slower in all cases."
    return f"Our kernel on the CPU is faster than ours on the GPU in: {'; '.join(wins)}."
