# SPDX-License-Identifier: Apache-2.0
"""Time of a training step: `python -m benchmarks.training_steps [CELL...]`.

A training step is a forward and backward pass of one layer. It is timed with fused CPU kernels, as a Python loop over
time steps, and with torch.nn.GRU, in interleaved rounds of one process. With --own, the cell is also timed as a custom
cell: the library then interprets its equations, instead of running a built-in kernel.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from edgernn.cells.recurrent import recurrent_weights
from edgernn.errors import UsageError
from edgernn.files import write_json
from edgernn.kernels.cpu import CpuUnroller
from edgernn.layer import RecurrentLayer
from edgernn.machine import processor
from edgernn.names import resolve


def measure(runs: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Time functions in interleaved rounds, after a warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begun = clock()
            run()
            # the first round warms up
            if repeat:
                times[name].append(clock() - begun)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def both_ways(module: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return a function that runs a layer on x (T, B, I) and computes the gradients of the sum of its last outputs."""

    def run() -> None:
        module.zero_grad()
        module(x)[0][-1].sum().backward()

    return run


def table(report: dict[str, Any]) -> str:
    """Format a report of this module as a Markdown table of milliseconds and ratios."""
    sizes = ", ".join(f"{name} = {value}" for name, value in report["sizes"].items())
    lines = [
        f"Forward and backward of one layer, {sizes}, {report['threads']} threads, {report['cpu']}, torch "
        f"{report['torch']}: medians of {report['repeats']} interleaved rounds.",
        "",
        "| | ms | torch.nn.GRU | the loop |",
        "|---|---:|---:|---:|",
    ]
    times = report["ms"]
    for name, ms in times.items():
        loop = times.get(name.replace(" as a user's own", "").replace(", fused", ", loop"))
        ratio = f"{ms / loop:.2f}" if loop and name.endswith(", fused") else ""
        lines.append(f"| {name} | {ms:.2f} | {ms / times['torch.nn.GRU']:.2f} | {ratio} |")
    return "\n".join(lines)


@click.command()
@click.argument("cells", nargs=-1)
@click.option("--steps", default=100, show_default=True, help="Time steps (T).")
@click.option("--batch", default=100, show_default=True, help="Sequences in a batch (B).")
@click.option("--input-size", default=2, show_default=True, help="Input size (I).")
@click.option("--hidden-size", default=128, show_default=True, help="Hidden size (H).")
@click.option(
    "--rank", type=click.IntRange(min=1), help="Rank of the cells' recurrent weights.  [default: dense weights]"
)
@click.option("--threads", default=2, show_default=True, help="Threads of torch and of the kernels.")
@click.option("--repeats", default=15, show_default=True, help="Number of timing rounds; each round times all layers.")
@click.option(
    "--loop/--no-loop", default=True, help="Also time the slower implementation: a Python loop over the time steps."
)
@click.option(
    "--own",
    "custom",
    is_flag=True,
    help="Also time each cell as a custom cell: its equations are interpreted, without a built-in kernel.",
)
@click.option(
    "--cpu-time",
    is_flag=True,
    help="Measure CPU time instead of elapsed time, because other programs on a busy machine lengthen the elapsed "
    "time. The CPU times of all threads are added: set --threads 1.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the measured times to this JSON file.")
def main(
    cells: tuple[str, ...],
    steps: int,
    batch: int,
    input_size: int,
    hidden_size: int,
    rank: int | None,
    threads: int,
    repeats: int,
    loop: bool,
    custom: bool,
    cpu_time: bool,
    out: Path | None,
) -> None:
    """Time training steps of CELLS (default: gru, pru and sarnn) beside torch.nn.GRU."""
    torch.set_num_threads(threads)
    x = torch.randn(steps, batch, input_size)
    runs = {"torch.nn.GRU": both_ways(nn.GRU(input_size, hidden_size), x)}
    for name in cells or ("gru", "pru", "sarnn"):
        cell_type, rule = resolve(name)
        kinds = {f"{name}, loop": cell_type} if loop else {}
        kinds |= {f"{name}, fused": cell_type}
        kinds |= {f"{name} as a user's own, fused": type("Own", (cell_type,), {"name": f"my-{name}"})} if custom else {}
        for key, kind in kinds.items():
            try:
                cell = kind(input_size, hidden_size, recurrent=recurrent_weights(rank))
            except UsageError as error:
                raise click.UsageError(str(error)) from None
            layer = RecurrentLayer(cell, rule(input_size, hidden_size))
            if key.endswith("fused"):
                layer.unroller = CpuUnroller(layer)
            runs[key] = both_ways(layer, x)
    medians = measure(runs, repeats, time.process_time if cpu_time else time.perf_counter)
    report = {
        "cpu": processor(),
        "torch": torch.__version__,
        "sizes": {"T": steps, "B": batch, "I": input_size, "H": hidden_size} | ({"rank": rank} if rank else {}),
        "threads": threads,
        "repeats": repeats,
        "ms": {name: seconds * 1e3 for name, seconds in medians.items()},
    }
    click.echo(table(report))
    if out is not None:
        write_json(out, report)


if __name__ == "__main__":
    main()
