# SPDX-License-Identifier: Apache-2.0
"""Time of a step against the share of skipped updates: `python -m benchmarks.skip_curve --out docs/results`.

Layers with the update rule `selective`, which skips single neurons or groups of them, are timed beside the same layer
without a rule, in interleaved rounds of one process. Weights are random: the skipped neurons differ from step to step.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgernn.bench.provenance import machine
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.model import SequenceModel
from edgernn.random_models import random_model
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.training.pictures import save

# cell, I, H
LAYERS = (("gru", 2, 128), ("gru", 40, 96), ("gru", 64, 128), ("pru", 40, 96), ("lstm", 40, 96), ("gru", 128, 256))
SKIPS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.9)
GROUP_SIZES = (1, 16)
# target, by group size: `CurvePoint.time` exceeds `CurvePoint.needed` by no more than this
MARGINS = {1: 0.1, 16: 0.05}
DENSE = "dense"


@dataclass(frozen=True)
class CurvePoint:
    """Measurement of a layer at one share of skipped updates.

    Attributes:
        group_size: Number of adjacent neurons that the rule updates or skips together.
        skip: Wanted share of skipped updates (0 to 1), for which the parameters of the update rule are set.
        skipped: Measured share of skipped updates (0 to 1).
        needed: Multiply-adds of the updates and of the rule's decisions, divided by those of the layer without a rule.
        time: Time of the layer divided by the time of the layer without a rule; the median over the rounds.
    """

    group_size: int
    skip: float
    skipped: float
    needed: float
    time: float

    @property
    def limit(self) -> float:
        """Performance target: the largest permitted value of `time`, which is `needed` plus a margin."""
        return self.needed + MARGINS[self.group_size]


def measure(
    cell: str,
    input_size: int,
    hidden_size: int,
    steps: int,
    batch: int,
    settings: Rounds,
    skips: Sequence[float] = SKIPS,
    stepwise: bool = False,
) -> dict[str, Any]:
    """Time a layer at several shares of skipped updates."""
    x = np.random.default_rng(0).standard_normal((steps, batch, input_size)).astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {}
    points: dict[str, tuple[int, float, float, float]] = {}

    def stream(session: Session) -> None:
        for x_t in x:
            session.step(x_t)

    def add(name: str, **options: Any) -> tuple[SequenceModel, Session]:
        model = random_model(cell, input_size, hidden_size, **options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            to_onnx(model, path)
            session = Session(path, backend="native")
        start = session.initial_state(batch)
        session.run_from(x, start)
        calls[name] = (lambda: stream(session)) if stepwise else (lambda: session.run_from(x, start))
        return model, session

    (dense,) = add(DENSE, rule="always")[0].recurrent_layers()
    row = dense.macs() / hidden_size
    for size in GROUP_SIZES:
        for skip in skips:
            name = f"{size} {skip}"
            model, session = add(name, rule="selective", rule_options={"group_size": size}, skip=skip)
            updates = session.updates
            assert updates is not None
            (layer,) = model.recurrent_layers()
            needed = (float(updates.mean()) * row + layer.rule.macs()) / dense.macs()
            points[name] = (size, skip, 1 - float(updates.mean()) / hidden_size, needed)
    seconds = interleaved(calls, settings)
    medians = {name: np.array([np.median(block) for block in blocks]) for name, blocks in seconds.items()}
    return {
        "cell": cell,
        "I": input_size,
        "H": hidden_size,
        "dense_us": float(np.median(medians[DENSE])) / steps * 1e6,
        "points": [
            vars(CurvePoint(*point, time=float(np.median(medians[name] / medians[DENSE]))))
            for name, point in points.items()
        ],
    }


def table(report: dict[str, Any]) -> str:
    """Format the report of this module, which `main` writes as JSON, as a Markdown table of relative times."""
    lines = [
        f"Time relative to the layer without a rule, T = {report['T']}, B = {report['B']}, one thread, "
        f"{report['machine']['cpu']}, {report['machine']['instruction_set']}: medians of {report['rounds']} "
        "interleaved rounds. In brackets: the multiply-adds that updates and decisions need, relative to that layer, "
        f"plus {MARGINS[1]:g} for single neurons and {MARGINS[16]:g} for groups, which is the target.",
        "",
        f"| layer (I, H) | µs a step | {' | '.join(f'{100 * skip:.0f} % skipped' for skip in SKIPS)} |",
        f"|---|---:|{'---:|' * len(SKIPS)}",
    ]
    for layer in report["layers"]:
        for size in GROUP_SIZES:
            points = [point for point in map(_point, layer["points"]) if point.group_size == size]
            cells = [f"{point.time:.2f} ({point.limit:.2f})" for point in points]
            name = f"{layer['cell']} ({layer['I']}, {layer['H']}), {group_title(size)}"
            lines.append(f"| {name} | {layer['dense_us']:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(path: Path, layers: Sequence[dict[str, Any]]) -> None:
    """Plot the time over the share of skipped updates, a panel for each layer."""
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(layers) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(layers) :]:
        panel.remove()
    for panel, layer in zip(panels.flat, layers, strict=False):
        draw_shares(panel, layer["points"], lambda point: float(point["time"]))
        panel.set_title(f"{layer['cell']} ({layer['I']}, {layer['H']})", fontsize="medium")
    panels[0, 0].set_ylim(0, 1.05 * max(point["time"] for layer in layers for point in layer["points"]))
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("updates skipped, %")
    figure.supylabel("time, relative to the layer without a rule")
    save(figure, path)


def draw_shares(panel: Any, points: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> None:
    """Plot a relative cost over the share of skipped updates, with a curve for each group size.

    The group size is the number of adjacent neurons that the update rule updates or skips together. A grey line shows
    the ideal cost, which is the share of the updates that are not skipped.
    """
    panel.plot((0, 100), (1, 0), color="0.7", linewidth=0.8, label="multiply-adds of the updates")
    for size in GROUP_SIZES:
        curve = [point for point in points if point["group_size"] == size]
        panel.plot([100 * p["skipped"] for p in curve], [*map(value, curve)], marker=".", label=group_title(size))


def group_title(group_size: int) -> str:
    """Return a label for neurons that are skipped in groups of this size: "groups of 16", or "single neurons" for 1."""
    return "single neurons" if group_size == 1 else f"groups of {group_size}"


def _point(values: dict[str, Any]) -> CurvePoint:
    return CurvePoint(**values)


@click.command()
@click.option("--steps", default=500, show_default=True, help="Time steps (T).")
@click.option("--batch", default=1, show_default=True, help="Sequences in a batch (B).")
@click.option(
    "--rounds",
    default=15,
    show_default=True,
    help="Number of timing rounds per layer; each round times all shares of skipped updates.",
)
@click.option(
    "--layers",
    "count",
    default=len(LAYERS),
    show_default=True,
    help="Time only the first COUNT layers of the built-in list of layers.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for skip-curve.json and skip-curve.png.")
def main(steps: int, batch: int, rounds: int, count: int, out: Path | None) -> None:
    """Time layers that skip 0 to 90 % of their updates beside the same layers without a rule."""
    settings = Rounds(rounds=rounds, block_ms=10, group_us=50)
    report: dict[str, Any] = {
        "machine": machine(),
        "T": steps,
        "B": batch,
        "rounds": rounds,
        "layers": [measure(*layer, steps, batch, settings) for layer in LAYERS[:count]],
    }
    click.echo(table(report))
    if out is not None:
        write_json(out / "skip-curve.json", report)
        picture(out / "skip-curve.png", report["layers"])


if __name__ == "__main__":
    main()
