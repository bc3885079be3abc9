# SPDX-License-Identifier: Apache-2.0
"""Plots of training runs. Every function writes one image file, a PNG or an SVG by its suffix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.files import replacing
from edgernn.model import SequenceModel

Array = npt.NDArray[Any]


class NothingToDrawError(Exception):
    """Raised if the runs lack the data that a plot needs."""


# colour of a single run; several runs get matplotlib's colours
_INK = "black"
# metrics with a logarithmic axis if positive
_LOGARITHMIC = ("mse", "squared_error")
# ratio of the largest to the smallest cost above which the axis is logarithmic
_LOGARITHMIC_RATIO = 4


def learning_curve(
    path: Path, runs: Mapping[str, list[dict[str, Any]]], metric: str, solved: float | None, can_skip: bool
) -> None:
    """Plot training loss, validation metric and skip percentage over steps.

    Args:
        path: The image file to write.
        runs: Dict from a run's name, shown in the legend, to its lines of metrics.jsonl.
        metric: Main metric.
        solved: Threshold of the metric, drawn as a line; None for no line.
        can_skip: True to plot the percentage of skipped updates as well.
    """
    from matplotlib.figure import Figure

    panels = [("loss", "training loss"), (metric, f"validation {metric.replace('_', ' ')}")]
    if can_skip:
        panels.append(("skip_percent", "updates skipped, %"))
    figure = Figure(figsize=(7, 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (key, label) in zip(axes, panels, strict=True):
        positive = True
        for name, lines in runs.items():
            values = [line[key] for line in lines]
            positive = positive and all(value > 0 for value in values)
            style = {"color": _INK} if len(runs) == 1 else {"label": name}
            steps = [line["step"] for line in lines]
            ax.plot(steps, values, linewidth=1.2, marker="." if len(steps) < 30 else "", **style)
        ax.set_ylabel(label)
        if key == metric and solved is not None:
            ax.axhline(solved, color="tab:red", linewidth=0.8, linestyle="--", label=f"solved: {solved:.3g}")
            if len(runs) == 1:
                ax.legend(frameon=False)
        if key in ("loss", *_LOGARITHMIC) and positive:
            ax.set_yscale("log")
        if key == "skip_percent":
            ax.set_ylim(-2, 102)
    if len(runs) > 1:
        axes[0].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes[-1].set_xlabel("step")
    save(figure, path)


def update_pattern(path: Path, model: SequenceModel, x: Tensor) -> None:
    """Draw which neurons are updated at which step of a sequence, in black, below the input.

    Neurons of several layers are stacked, the first layer on top. Groups of neurons that share a decision have one row.

    Args:
        path: The image file to write.
        model: The model.
        x: Sequence (T, 1, I).
    """
    from matplotlib.figure import Figure

    pattern, updated = _pattern(model, x)
    # word numbers are drawn as one channel
    inputs = x[:, 0].reshape(len(x), -1).cpu().numpy()
    steps, channels = inputs.shape
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    if channels <= 4:
        for i in range(channels):
            above.step(np.arange(steps), inputs[:, i], where="mid", linewidth=1, label=f"input {i}")
        above.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        above.set_ylabel("input")
    else:
        above.imshow(inputs.T, aspect="auto", cmap="gray", interpolation="nearest")
        above.set_ylabel("input channel")
    below.imshow(pattern, aspect="auto", cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    below.set_ylabel(_row_title(model))
    below.locator_params(integer=True)
    below.set_xlabel(f"time step ({100 * (1 - updated):.1f} % of the updates skipped)")
    save(figure, path)


def update_patterns(path: Path, models: Mapping[str, SequenceModel], x: Tensor) -> None:
    """Draw which neurons are updated at which step, for several models side by side (SA-RNN paper, Figure 3).

    Args:
        path: The image file to write.
        models: Dict from the title of a plot to its model.
        x: Sequence (T, 1, I).
    """
    from matplotlib.figure import Figure

    columns = min(len(models), 4)
    rows = -(-len(models) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(models) :]:
        ax.set_axis_off()
    for ax, (name, model) in zip(axes, models.items(), strict=False):
        pattern, updated = _pattern(model, x)
        ax.imshow(pattern, aspect="auto", cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        ax.set_title(f"{name}\n{100 * (1 - updated):.0f} % skipped", fontsize="small")
        ax.tick_params(labelsize="x-small")
        ax.locator_params(integer=True)
    for ax, model in zip(axes[::columns], list(models.values())[::columns], strict=True):
        ax.set_ylabel(_row_title(model), fontsize="small")
    # the lowest plot of each column
    for ax in axes[max(0, len(models) - columns) : len(models)]:
        ax.set_xlabel("time step", fontsize="small")
    save(figure, path)


@dataclass(frozen=True)
class OperatingPoint:
    """Percentage of skipped updates and metric of a run, or means over runs, at one weight λ of the penalty on updates.

    Attributes:
        group: Name of the curve that the point belongs to.
        skip_percent: Percentage of updates skipped.
        value: The metric.
        weight: λ, the weight of the penalty on updates in the loss (setting lambda).
        interval: Confidence interval of the value over several runs; None for a single run.
    """

    group: str
    skip_percent: float
    value: float
    weight: float
    interval: tuple[float, float] | None = None


def tradeoff(path: Path, outcomes: Sequence[OperatingPoint], metric: str) -> None:
    """Plot a metric over λ and over the percentage of skipped updates, as in Figure 4 of the SA-RNN paper.

    λ is the weight of the penalty on updates in the loss (setting lambda). Points with the same `group` form a curve.

    Args:
        path: The image file to write.
        outcomes: The points, one for each run or mean over runs.
        metric: Name of the metric.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    groups: dict[str, list[OperatingPoint]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    for name, group in groups.items():
        for ax, place in ((left, "weight"), (right, "skip_percent")):
            line = sorted(group, key=lambda o: getattr(o, place))
            places, values = ([getattr(o, key) for o in line] for key in (place, "value"))
            errors = np.array(
                [(o.value - o.interval[0], o.interval[1] - o.value) if o.interval else (0, 0) for o in line]
            )
            ax.errorbar(places, values, errors.T, marker=".", linewidth=1, capsize=2, label=name)
    weights = [o.weight for o in outcomes if o.weight > 0]
    # λ = 0 lies in the linear part, at the left end
    left.set_xscale("symlog", linthresh=min(weights, default=1.0))
    left.set_xlabel("λ")
    left.set_ylabel(metric.replace("_", " "))
    right.set_xlabel("updates skipped, %")
    right.set_xlim(-2, 102)
    right.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path)


@dataclass(frozen=True)
class Point:
    """A point in the plot of Pareto fronts: one combination of cell, rule and settings of a sweep.

    Attributes:
        group: Cell and rule of the row, which set its colour.
        label: Label of the point.
        value: The metric.
        interval: Confidence interval of the metric.
        costs: Dict from the name to the value of each cost; an unknown cost is left out.
        fronts: Names of the costs for which the row is on the Pareto front.
    """

    group: str
    label: str
    value: float
    interval: tuple[float, float] | None
    costs: Mapping[str, float]
    fronts: Sequence[str]


def fronts(path: Path, points: Sequence[Point], costs: Mapping[str, str], metric: str) -> None:
    """Plot a metric against several costs, each with its Pareto front as a line; bars are confidence intervals.

    Args:
        path: The image file to write.
        points: The rows of the sweep.
        costs: Dict from a cost's name to its axis label; a cost that no point has is left out.
        metric: Name of the metric.
    """
    from matplotlib.figure import Figure

    shown = [name for name in costs if any(name in point.costs for point in points)]
    figure = Figure(figsize=(1.6 + 4.4 * len(shown), 4.2), layout="constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    groups = list(dict.fromkeys(point.group for point in points))
    for ax, name in zip(axes, shown, strict=True):
        for i, group in enumerate(groups):
            members = [point for point in points if point.group == group and name in point.costs]
            low = [point.value - point.interval[0] if point.interval else 0.0 for point in members]
            high = [point.interval[1] - point.value if point.interval else 0.0 for point in members]
            style = {"color": f"C{i % 10}", "fmt": "os^Dv<>Ph*"[i % 10], "markersize": 5, "capsize": 2, "linewidth": 1}
            values = [point.value for point in members]
            ax.errorbar([point.costs[name] for point in members], values, [low, high], label=group, **style)
        best = sorted((point for point in points if name in point.fronts), key=lambda point: point.costs[name])
        ax.plot([p.costs[name] for p in best], [p.value for p in best], color="gray", linewidth=1, zorder=0)
        for i, point in enumerate(best):
            place, offset = (point.costs[name], point.value), (4, -11 if i % 2 else 5)
            ax.annotate(point.label, place, offset, textcoords="offset points", fontsize="x-small")
        numbers = [point.costs[name] for point in points if name in point.costs]
        if min(numbers) > 0 and max(numbers) > _LOGARITHMIC_RATIO * min(numbers):
            plain_logarithm(ax.xaxis, ax.set_xscale)
        # room for the labels
        ax.margins(x=0.2)
        ax.set_xlabel(costs[name])
    axes[0].set_ylabel(f"{metric.replace('_', ' ')}, test")
    if metric in _LOGARITHMIC and all(point.value > 0 for point in points):
        plain_logarithm(axes[0].yaxis, axes[0].set_yscale)
    axes[-1].plot([], [], color="gray", linewidth=1, label="front, of the validation split")
    axes[-1].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path)


def plain_logarithm(axis: Any, set_scale: Any) -> None:
    """Make an axis logarithmic, with tick labels in plain decimal notation."""
    from matplotlib.ticker import LogLocator, NullFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _pattern(model: SequenceModel, x: Tensor) -> tuple[Array, float]:
    """Compute the update pattern (groups of neurons of all layers, T): 1 where a group is updated, else 0.

    Args:
        model: The model.
        x: Sequence (T, 1, I).

    Returns:
        The pattern, and the share of neurons that are updated.
    """
    with torch.no_grad():
        model(x)
    parts = []
    for i, (trace, layer) in enumerate(zip(model.traces, model.recurrent_layers(), strict=True)):
        if trace.decisions is None:
            parts.append(torch.ones(len(x), layer.cell.hidden_size))
        else:
            # the neurons of a group share a row; the backward direction reads the sequence in reverse
            decisions = trace.decisions[:, 0, :: layer.rule.group_size]
            parts.append(decisions.flip(0) if i % model.directions else decisions)
    pattern: Array = torch.cat([part.float().cpu() for part in parts], 1).numpy().T
    return pattern, model.update_rate


def _row_title(model: SequenceModel) -> str:
    """Return what a row in the picture of the model's update pattern stands for."""
    sizes = sorted({layer.rule.group_size for layer in model.recurrent_layers()})
    return "neuron" if sizes == [1] else f"group of {' or '.join(map(str, sizes))} neurons"


def save(figure: Any, path: Path) -> None:
    """Write a figure to an image file."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
