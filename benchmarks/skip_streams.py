# SPDX-License-Identifier: Apache-2.0
"""Speed of many streams that skip updates: `python -m benchmarks.skip_streams --out docs/results`.

Batches of independent streams, with the update rule `selective`, are timed beside the same batch in the same layer
without a rule, in interleaved rounds of one process.
"""

from pathlib import Path
from typing import Any

import click

from benchmarks.skip_curve import GROUP_SIZES, group_title, measure
from edgernn.bench.provenance import machine
from edgernn.files import write_json
from edgernn.runtime.timing import Rounds

# cell, I, H
LAYERS = (("gru", 2, 128), ("gru", 64, 128))
BATCHES = (8, 32, 128, 256)
SKIPS = (0.4, 0.75, 0.9)
# steps of a call: a call of `Session.step` has one
STEPS = (1, 100)
# smallest wanted speed with 90 % of the updates skipped, relative to the layer without a rule, by group size and batch
TARGETS = {1: dict.fromkeys(BATCHES, 4.5), 16: {8: 4.5, 32: 6.0, 128: 7.0, 256: 7.0}}


def table(report: dict[str, Any]) -> str:
    """Format a report of this module as a Markdown table of speeds relative to the layer without a rule."""
    heads = [f"T = {steps}, {100 * skip:.0f} % skipped" for steps in report["T"] for skip in report["skips"]]
    lines = [
        "Speed relative to the same batch of B streams in the layer without a rule: its time divided by that of the "
        f"layer with the rule. One thread, {report['machine']['cpu']}, {report['machine']['instruction_set']}; medians "
        f"of {report['rounds']} interleaved rounds. T = 1 is one call of `Session.step` for each step. In brackets: "
        "the target.",
        "",
        f"| layer (I, H) | B | {' | '.join(heads)} |",
        f"|---|---:|{'---:|' * len(heads)}",
    ]
    for layer in report["layers"]:
        for size in GROUP_SIZES:
            for batch in report["batches"]:
                speeds = [
                    _speed(point, batch)
                    for result in layer["results"]
                    if result["B"] == batch
                    for point in result["points"]
                    if point["group_size"] == size
                ]
                name = f"{layer['cell']} ({layer['I']}, {layer['H']}), {group_title(size)}"
                lines.append(f"| {name} | {batch} | {' | '.join(speeds)} |")
    return "\n".join(lines)


def _speed(point: dict[str, Any], batch: int) -> str:
    target = f" ({TARGETS[point['group_size']][batch]:g})" if point["skip"] == max(SKIPS) else ""
    return f"{1 / point['time']:.1f}{target}"


@click.command()
@click.option(
    "--rounds",
    default=9,
    show_default=True,
    help="Number of timing rounds per batch size; each round times all shares of skipped updates.",
)
@click.option(
    "--batches",
    "count",
    default=len(BATCHES),
    show_default=True,
    help="Time only the first COUNT of the batch sizes 8, 32, 128 and 256.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for skip-streams.json.")
def main(rounds: int, count: int, out: Path | None) -> None:
    """Time batches that skip 40 to 90 % of the updates beside the same batches without an update rule."""
    settings = Rounds(rounds=rounds, block_ms=10, group_us=50)
    batches = BATCHES[:count]
    report: dict[str, Any] = {
        "machine": machine(),
        "T": STEPS,
        "batches": batches,
        "skips": SKIPS,
        "rounds": rounds,
        "layers": [
            {
                "cell": cell,
                "I": input_size,
                "H": hidden_size,
                "results": [
                    {"B": batch, "T": steps}
                    | measure(cell, input_size, hidden_size, max(STEPS), batch, settings, SKIPS, stepwise=steps == 1)
                    for batch in batches
                    for steps in STEPS
                ],
            }
            for cell, input_size, hidden_size in LAYERS
        ],
    }
    click.echo(table(report))
    if out is not None:
        write_json(out / "skip-streams.json", report)


if __name__ == "__main__":
    main()
