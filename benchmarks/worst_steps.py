# SPDX-License-Identifier: Apache-2.0
"""Mean and largest number of instructions of a step by update rule: `python -m benchmarks.worst_steps --out FOLDER`.

A C loop runs the steps of a packed model, and valgrind counts the instructions of each step. Its counts do not depend
on the load of the machine. Valgrind lacks AVX-512, so the kernels are those for AVX2.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.skip_work import callgrind
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.random_models import random_model
from edgernn.rules import RULES, Delta
from edgernn.runtime.packed import pack_file

CELL, INPUTS, NEURONS, SKIPPED = "gru", 2, 128, 0.8
# more than two periods of every rule that computes its sums anew after a number of steps
STEPS = 2 * Delta.period + 88


def count_steps(rule: str, steps: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], str]:
    """Count the instructions of each step of a GRU with random weights and an update rule."""
    x = np.random.default_rng(0).standard_normal((steps, INPUTS)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x.tofile(folder / "x")
        skip = 0.0 if RULES[rule].is_dense() else SKIPPED
        to_onnx(random_model(CELL, INPUTS, NEURONS, rule=rule, skip=skip), folder / "model.onnx")
        model = folder / "model.edgernn"
        pack_file(folder / "model.onnx", model)
        # each call of edgernn_step begins a new file with the counts since the last one
        isa = callgrind(model, folder / "x", 1, folder / "out", "--dump-before=edgernn_step")
        files = sorted(folder.glob("out.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text(encoding="utf-8") for path in files]
    counts = [int(re.findall(r"^(?:totals|summary): (\d+)$", text, re.MULTILINE)[-1]) for text in texts]
    # out.1 counts what precedes the first step; `out`, which is not read, the last step and the end of the program
    return np.array(counts[1:]), isa


def table(report: dict[str, Any]) -> str:
    """Format a report of this module as a Markdown table: the executed instructions of a step, for each update rule."""
    lines = [
        f"Instructions of {report['T']} steps of {report['cell']}, I = {report['I']}, H = {report['H']}, one sequence, "
        f"float32, streamed from C, counted by valgrind with the kernels for {report['instruction_set']}. The weights "
        f"are random, and chosen so that rules skip about {100 * SKIPPED:.0f} % of the updates if they can.",
        "",
        "| rule | mean | median | worst | worst, relative to the mean |",
        "|---|---:|---:|---:|---:|",
    ]
    for rule, figures in report["rules"].items():
        mean, median, worst = (figures[name] for name in ("mean", "median", "worst"))
        lines.append(f"| {rule} | {mean:,.0f} | {median:,.0f} | {worst:,} | {worst / mean:.2f} |")
    return "\n".join(lines)


@click.command()
@click.option("--steps", default=STEPS, show_default=True, help="Time steps (T).")
@click.option("--rules", default=",".join(RULES), show_default=True, help="Names of update rules, separated by commas.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for worst-steps.json.")
def main(steps: int, rules: str, out: Path | None) -> None:
    """Count the instructions of each step; show their mean, median and largest number for each update rule."""
    report: dict[str, Any] = {"T": steps, "cell": CELL, "I": INPUTS, "H": NEURONS, "rules": {}}
    for rule in rules.split(","):
        counts, report["instruction_set"] = count_steps(rule, steps)
        report["rules"][rule] = {
            "mean": float(counts.mean()),
            "median": float(np.median(counts)),
            "worst": int(counts.max()),
        }
    click.echo(table(report))
    if out is not None:
        write_json(out / "worst-steps.json", report)


if __name__ == "__main__":
    main()
