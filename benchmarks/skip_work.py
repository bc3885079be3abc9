# SPDX-License-Identifier: Apache-2.0
"""Instructions and bytes loaded per step by share of skipped updates: `python -m benchmarks.skip_work --out FOLDER`.

Each layer that `benchmarks.skip_curve` times runs step by step in a C loop under valgrind. Valgrind counts the
instructions, and the bytes that are loaded into a simulated first-level data cache. Its counts do not depend on the
load of the machine. It lacks AVX-512, so the kernels are those for AVX2.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.skip_curve import GROUP_SIZES, LAYERS, SKIPS, draw_shares, group_title
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.random_models import random_model
from edgernn.runtime.library import library_path, train_library
from edgernn.runtime.packed import pack_file
from edgernn.runtime.session import Session
from edgernn.training.pictures import save

# first-level data cache that valgrind simulates
CACHE_BYTES, WAYS, LINE = 32_768, 8, 64
DENSE = "dense"
# fields of StepWork that are reported, with their titles in the table and the picture
MEASURES = {"instructions": "instructions", "bytes": "bytes loaded"}


@dataclass(frozen=True)
class StepWork:
    """Mean work of one step of a model, counted by valgrind.

    Attributes:
        instructions: Number of instructions.
        bytes: Number of bytes in the cache lines that reads load into the simulated cache.
        instruction_set: Instruction set of the kernels.
    """

    instructions: float
    bytes: float
    instruction_set: str


def count_step(model: Path, x: Path, steps: int) -> StepWork:
    """Count the mean work of a packed model's steps, when the cache already holds the data of previous steps.

    A process steps the model under Valgrind: once with one pass over the input, and once with two passes. The
    difference of the two counts is the work of the second pass.
    """
    once, twice = (_counts(model, x, passes) for passes in (1, 2))
    added = {name: (twice[0][name] - count) / steps for name, count in once[0].items()}
    return StepWork(added["Ir"], added["D1mr"] * LINE, once[1])


def _counts(model: Path, x: Path, passes: int) -> tuple[dict[str, int], str]:
    """Run a packed model on all steps of the input file `x`, `passes` times, under callgrind."""
    out = model.with_name(f"{model.name}.{passes}.out")
    cache = f"{CACHE_BYTES},{WAYS},{LINE}"
    isa = callgrind(model, x, passes, out, "--cache-sim=yes", f"--D1={cache}")
    text = out.read_text(encoding="utf-8")
    rows = [re.findall(rf"^{name}: (.*)$", text, re.MULTILINE)[-1].split() for name in ("events", "totals")]
    return dict(zip(rows[0], map(int, rows[1]), strict=True)), isa


def callgrind(model: Path, x: Path, passes: int, out: Path, *options: str) -> str:
    """Run a packed model step by step, in a process under valgrind's tool callgrind."""
    if shutil.which("valgrind") is None:
        raise EdgernnError("valgrind is not installed; run: apt-get install valgrind")
    words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
    program = [sys.executable, "-S", Path(__file__).with_name("stream_steps.py"), library_path(), train_library()]
    # a fixed seed of hashes: Python's own instructions are the same in each process, so that they cancel;
    # and no string instructions in memset and memcpy, of which valgrind counts every byte
    tunables = "glibc.cpu.x86_rep_stosb_threshold=1073741824:glibc.cpu.x86_rep_movsb_threshold=1073741824"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "GLIBC_TUNABLES": tunables}
    command = list(map(str, [*words, *program, model, x, passes]))
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    if process.returncode != 0:
        raise EdgernnError(
            f"valgrind: failed with status {process.returncode}; correct the error that it reports: "
            f"{process.stderr[-2000:]}"
        )
    return process.stdout.strip()


def measure(cell: str, input_size: int, hidden_size: int, steps: int) -> dict[str, Any]:
    """Count the instructions and the bytes loaded by a layer's steps, for each share of skipped updates."""
    x = np.random.default_rng(0).standard_normal((steps, 1, input_size)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        x.tofile(folder / "x")

        def pack(title: str, **options: Any) -> tuple[Path, Session]:
            path = folder / f"{title}.onnx"
            to_onnx(random_model(cell, input_size, hidden_size, **options), path)
            pack_file(path, path.with_suffix(".edgernn"))
            return path.with_suffix(".edgernn"), Session(path, backend="native")

        dense = pool.submit(count_step, pack(DENSE, rule="always")[0], folder / "x", steps)
        points = []
        for size in GROUP_SIZES:
            for skip in SKIPS:
                options = {"rule": "selective", "rule_options": {"group_size": size}, "skip": skip}
                model, session = pack(f"{size}-{100 * skip:.0f}", **options)
                session.run_from(x, session.initial_state(1))
                assert session.updates is not None
                skipped = 1 - float(session.updates.mean()) / hidden_size
                points.append((size, skip, skipped, pool.submit(count_step, model, folder / "x", steps)))
        layer = random_model(cell, input_size, hidden_size, rule="always").recurrent_layers()[0]
        return {
            "cell": cell,
            "I": input_size,
            "H": hidden_size,
            "weight_bytes": 4 * layer.macs(),
            DENSE: vars(dense.result()),
            "points": [
                {"group_size": size, "skip": skip, "skipped": skipped, **vars(work.result())}
                for size, skip, skipped, work in points
            ],
        }


def table(report: dict[str, Any]) -> str:
    """Format a report of this module as a Markdown table of instructions and bytes loaded."""
    lines = [
        f"Means of {report['T']} steps of one sequence, streamed from C, float32, counted by valgrind with the kernels "
        f"for {report['layers'][0][DENSE]['instruction_set']}. Bytes loaded: those of the lines of {LINE} bytes that "
        f"reads load into a simulated first-level data cache of {CACHE_BYTES // 1024} kB ({WAYS} ways). Nearly all of "
        "them are weights, because the weights of these layers exceed the cache. After the counts of the layer without "
        "a rule, the others are relative to it.",
        "",
        f"| layer (I, H) | a step, without a rule | {' | '.join(f'{100 * skip:.0f} % skipped' for skip in SKIPS)} |",
        f"|---|---:|{'---:|' * len(SKIPS)}",
    ]
    for layer in report["layers"]:
        for measure_name, title in MEASURES.items():
            dense = layer[DENSE][measure_name]
            for size in GROUP_SIZES:
                points = [point for point in layer["points"] if point["group_size"] == size]
                cells = " | ".join(f"{point[measure_name] / dense:.2f}" for point in points)
                name = f"{layer['cell']} ({layer['I']}, {layer['H']}), {title}, {group_title(size)}"
                lines.append(f"| {name} | {dense:,.0f} | {cells} |")
    return "\n".join(lines)


def picture(path: Path, layers: list[dict[str, Any]]) -> None:
    """Plot instructions and bytes over the share of skipped updates, a column of two panels for each layer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.5 + 1.7 * len(layers), 5), layout="constrained")
    panels = figure.subplots(len(MEASURES), len(layers), sharex=True, sharey=True, squeeze=False)
    for row, (name, title) in zip(panels, MEASURES.items(), strict=True):
        row[0].set_ylabel(title)
        for panel, layer in zip(row, layers, strict=True):
            draw_shares(panel, layer["points"], partial(_relative, name, layer[DENSE]))
    for panel, layer in zip(panels[0], layers, strict=True):
        panel.set_title(f"{layer['cell']} ({layer['I']}, {layer['H']})", fontsize="medium")
    panels[0, 0].set_ylim(bottom=0)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("updates skipped, %")
    figure.supylabel("relative to the layer without a rule")
    save(figure, path)


def _relative(measure_name: str, dense: dict[str, Any], point: dict[str, Any]) -> float:
    return float(point[measure_name] / dense[measure_name])


@click.command()
@click.option("--steps", default=100, show_default=True, help="Time steps (T).")
@click.option(
    "--layers",
    "count",
    default=len(LAYERS),
    show_default=True,
    help="Measure only the first COUNT layers of the built-in list of layers.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for skip-work.json and skip-work.png.")
def main(steps: int, count: int, out: Path | None) -> None:
    """Count the instructions and the bytes loaded in a step of layers that skip 0 to 90 % of their updates."""
    layers = [measure(*layer, steps) for layer in LAYERS[:count]]
    report = {"T": steps, "layers": layers}
    click.echo(table(report))
    if out is not None:
        write_json(out / "skip-work.json", report)
        picture(out / "skip-work.png", layers)


if __name__ == "__main__":
    main()
