# SPDX-License-Identifier: Apache-2.0
"""Times a GRU or LSTM of any size in every installed runtime: `python -m benchmarks.one_cell gru --hidden 128`.

The other runtimes, such as PyTorch, OpenVINO and JAX, are in the extra `bench`. Each runs in a process of its own.
"""

from dataclasses import replace
from pathlib import Path

import click

from benchmarks.page import page
from benchmarks.suite import FULL, run_suite
from edgernn.bench.case import Case
from edgernn.config import ModelConfig
from edgernn.progress import Progress


@click.command()
@click.argument("cell", type=click.Choice(["gru", "lstm"]))
@click.option("--input", "input_size", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--hidden", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=FULL.rounds, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), help="Folder for peers.json.")
def main(cell: str, input_size: int, hidden: int, steps: int, batch: int, threads: int, rounds: int, out: Path) -> None:
    case = Case("Peers", ModelConfig.of(cell, input_size, hidden), steps, batch, threads)
    print(page(run_suite(out / "peers.json", [case], replace(FULL, rounds=rounds), progress=Progress())))


if __name__ == "__main__":
    main()
