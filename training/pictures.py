# SPDX-License-Identifier: Apache-2.0
"""Plots of training runs. Every function writes one image file, a PNG or an SVG by its suffix."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.files import replacing
from edgernn.model import SequenceModel
from edgernn.runtime.info import update_words

# heading of a column, and factor from a value in result.json to the column's unit; other columns have factor 1
COLUMNS = {
    "accuracy": ("accuracy, %", 100.0),
    "bit_accuracy": ("bit accuracy, %", 100.0),
    "auc": ("AUC", 1.0),
    "gmean": ("√(accuracy · skip), %", 1.0),
    "skip_percent": ("skip, %", 1.0),
    "flops": ("FLOPs a sequence", 1.0),
    "cross_entropy": ("cross entropy, nats", 1.0),
    "accuracy_words": ("accuracy on words, %", 100.0),
    "mse": ("MSE", 1.0),
    "mae": ("MAE", 1.0),
    "mre": ("MRE", 1.0),
    "solved": ("solved, % of the seeds", 100.0),
    "seconds_per_epoch": ("s an epoch", 1.0),
    "neurons_updated": ("neurons updated a step", 1.0),
    "mse_over_delta2": ("MSE / δ²", 1.0),
    # in the latency of a row
    "microseconds": ("µs a sequence", 1.0),
}
Array = npt.NDArray[Any]


class NothingToDrawError(Exception):
    """Raised if the training runs to plot lack the data that the plot needs."""


# colour of a single run; several runs get matplotlib's colours
_INK = "black"
# metrics with a logarithmic axis if positive
_LOGARITHMIC = ("mse", "squared_error")
# axis labels of settings, and of columns and metrics whose name is no label
_LABELS = {
    "T": "T, steps",
    "bits": "bits of a number",
    "delta2": "variance δ²",
    "hidden_size": "H, neurons",
    "macro_f1": "macro F1",
    "macs_executed": "multiply-adds executed per step",
    "noise": "N, steps of noise",
    "rmse": "RMSE, cycles",
}
# ways to save work, with their colours in the plot `fronts`
WAYS = {"dense cell": "#0072b2", "skipped updates": "#d55e00", "smaller weights": "#009e73"}
# styles of that plot: points on the front, all others, cells to compare with, and the line
_DISC = {"marker": "o", "markersize": 10, "linestyle": "none", "zorder": 4}
_DOT = {"marker": "o", "markersize": 3, "color": "silver", "linestyle": "none", "zorder": 1}
_HOLLOW = {"markersize": 6, "color": "black", "fillstyle": "none", "linestyle": "none", "zorder": 2}
_REFERENCES = {"gru": {**_HOLLOW, "marker": "D"}, "lstm": {**_HOLLOW, "marker": "s"}}
_LINE = {"color": "gray", "linewidth": 1, "zorder": 0}
# ratio of the largest to the smallest cost above which the axis is logarithmic
_LOGARITHMIC_RATIO = 4
# ratio of the largest to the smallest cost above which a logarithmic axis has two labels per decade, not three
_WIDE_RATIO = 12


def caption(name: str) -> str:
    """Return the name of a run or class as text that matplotlib draws as it stands.

    Matplotlib reads what lies between dollar signs as mathematics, leaves a label with a leading underscore out of
    legends, and cannot draw the bytes of a file name that is not UTF-8.
    """
    text = name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


# metric of the validation part that is drawn beside the training loss
_ENTROPY = "cross_entropy"


def learning_curve(
    path: Path, runs: Mapping[str, list[dict[str, Any]]], metric: str, solved: float | None, can_skip: bool
) -> None:
    """Plot training loss, validation metric and percentage of skipped updates over the training steps.

    The losses of a single run of classes are drawn together, so that overfitting shows.

    Args:
        path: The image file to write.
        runs: Dict from a run's name, shown in the legend, to its lines of metrics.jsonl.
        metric: Name of the main metric, a key of these lines.
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
        if key == "loss" and len(runs) == 1 and _ENTROPY in lines[0]:
            entropies = [line[_ENTROPY] for line in lines]
            ax.plot(steps, entropies, linewidth=1.2, linestyle="--", color="tab:red", label="validation cross entropy")
            ax.lines[0].set_label(label)
            ax.set_ylabel("loss")
            ax.legend(frameon=False)
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
    """Plot a sequence and, below it, which neurons are updated at which step, in black.

    A row of the lower plot is a neuron, or a group of neurons that are always updated together. The rows of several
    layers are stacked, the first layer on top. Under a rule of the kind COLUMN, such as delta, all neurons change, and
    black shows which values of h products read anew.

    Args:
        path: The image file to write.
        model: The model.
        x: Sequence (T, 1, I).
    """
    from matplotlib.figure import Figure

    pattern, updated = _pattern(model, x)
    # word indices are drawn as one channel
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
    skipped = update_words(model.rule_type.kind).skipped
    below.set_xlabel(f"time step ({skipped}: {100 * (1 - updated):.1f} %)")
    save(figure, path)


def update_patterns(path: Path, models: Mapping[str, SequenceModel], x: Tensor) -> None:
    """Plot which neurons are updated at which step, in black, for several models side by side.

    Source: SA-RNN paper, Figure 3.

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
    """A point in the plot `tradeoff`: results of one run, or means over runs, at one weight λ of the update penalty.

    Attributes:
        group: Name of the curve that the point belongs to.
        skip_percent: Percentage of updates skipped.
        value: Value of the metric.
        weight: λ, the weight of the penalty on updates in the loss (setting lambda).
        interval: Confidence interval of the value over several runs; None for a single run.
    """

    group: str
    skip_percent: float
    value: float
    weight: float
    interval: tuple[float, float] | None = None


def confusion_matrix(path: Path, counts: Tensor, classes: Sequence[str]) -> None:
    """Plot a confusion matrix, as percentages of each true class.

    Args:
        path: The image file to write.
        counts: Number of targets of each true class (row) that were predicted as each class (column).
        classes: Names of the classes.
    """
    from matplotlib.figure import Figure

    percent = (100 * counts.double() / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
    side = max(3.0, 0.45 * len(classes) + 1.5)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    ax = figure.subplots()
    captions = [caption(name) for name in classes]
    image = ax.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    for row, column in zip(*percent.round().nonzero(), strict=True):
        value = percent[row, column]
        ax.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value > 50 else "black")
    ax.set_xticks(range(len(classes)), captions, rotation=90)
    ax.set_yticks(range(len(classes)), captions)
    ax.set_xlabel("predicted class")
    ax.set_ylabel("true class")
    figure.colorbar(image, ax=ax, label="% of the true class")
    save(figure, path)


def tradeoff(path: Path, outcomes: Sequence[OperatingPoint], metric: str) -> None:
    """Plot a metric over λ and over the percentage of skipped updates, as in Figure 4 of the SA-RNN paper.

    λ is the weight of the penalty on updates in the loss (setting lambda). Points with the same `group` form a curve.

    Args:
        path: The image file to write.
        outcomes: The points, in any order.
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
    """A point in the plot `fronts`: the means over seeds of one combination of cell, rule and settings of a sweep.

    Attributes:
        way: The way to save work, a key of `WAYS`.
        group: Name of cell, rule and type of weights, such as "gru, selective, int8".
        label: Settings of the point.
        value: Mean of the metric over the seeds.
        interval: Confidence interval of this mean; None for a single seed.
        costs: Dict from the name of each measured cost to its value.
        fronts: Names of the costs for which the point is on the Pareto front of cost and metric on the validation
            split.
    """

    way: str
    group: str
    label: str
    value: float
    interval: tuple[float, float] | None
    costs: Mapping[str, float]
    fronts: Sequence[str]


def fronts(path: Path, points: Sequence[Point], costs: Mapping[str, str], metric: str, higher_is_better: bool) -> None:
    """Plot a metric on the test split against several costs, one plot per cost.

    A numbered disc marks each point that is on the Pareto front of the validation split, with a bar for its confidence
    interval; the legend explains the number. This front does not depend on the plotted test values, so that it does not
    favour points that are good on the test split by chance. Hollow markers are the reference cells, and small gray dots
    all other points. The gray step line is the Pareto front of the plotted points: at each cost, the best metric of all
    points that cost no more. Bars that reach beyond one end of the axis are cut off; bars that reach beyond both ends
    are not drawn. Points that are much worse than most are drawn at one value near the edge, and the legend has their
    range.

    Args:
        path: The image file to write.
        points: The points, one for each combination of cell, rule and settings.
        costs: Dict from a cost's name to its axis label. Costs that no point has are not plotted.
        metric: Name of the metric.
        higher_is_better: True if a larger metric is better.
    """
    from matplotlib.figure import Figure

    logarithmic = metric in _LOGARITHMIC and min(point.value for point in points) > 0
    bound, sign = _bound([point.value for point in points], higher_is_better), 1 if higher_is_better else -1
    # on a logarithmic axis all points have room
    beyond = [] if logarithmic else [point for point in points if sign * point.value < sign * bound]
    points = [replace(point, value=bound, interval=None) if point in beyond else point for point in points]
    shown = [name for name in costs if any(name in point.costs for point in points)]
    marked = {name: _on_front(points, name) for name in shown}
    numbered: list[Point] = []
    for point in chain(*marked.values()):
        if point not in numbered:
            numbered.append(point)
    bottom, top = _limits([point.value for point in points], logarithmic)
    figure = Figure(figsize=(0.6 + 2.6 * len(shown), 3.4 + 0.09 * (len(numbered) + 9)), layout="constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    is_bar_missing = False
    for ax, name in zip(axes, shown, strict=True):
        known = [point for point in points if name in point.costs]
        line = shown_front(points, name, higher_is_better)
        at, values = [*(point.costs[name] for point in line), max(point.costs[name] for point in known)], line[-1:]
        ax.step(at, [point.value for point in (*line, *values)], where="post", **_LINE)
        for point in known:
            if point not in marked[name]:
                ax.plot(point.costs[name], point.value, **_REFERENCES.get(point.group, _DOT))
        for point in marked[name]:
            place, color = (point.costs[name], point.value), WAYS[point.way]
            ax.plot(*place, color=color, **_DISC)
            number = {"ha": "center", "va": "center_baseline", "fontsize": 6.5, "color": "white", "zorder": 5}
            ax.annotate(f"{numbered.index(point) + 1}", place, **number)
            if point.interval and point.interval[0] < bottom and point.interval[1] > top:
                is_bar_missing = True
            elif point.interval:
                errors = [[point.value - point.interval[0]], [point.interval[1] - point.value]]
                ax.errorbar(*place, errors, ecolor=color, fmt="none", capsize=2, linewidth=1, alpha=0.6, zorder=3)
        prices = [point.costs[name] for point in known]
        if min(prices) > 0 and max(prices) > _LOGARITHMIC_RATIO * min(prices):
            # three labels for each power of ten would overlap
            wide = max(prices) > _WIDE_RATIO * min(prices)
            plain_logarithm(ax.xaxis, ax.set_xscale, (1, 3) if wide else (1, 2, 5))
        ax.tick_params(labelsize="small")
        ax.margins(x=0.1)
        ax.set_xlabel(costs[name], fontsize="small")
    axes[0].set_ylabel(f"{column_title(metric)} (test split)", fontsize="small")
    if logarithmic:
        plain_logarithm(axes[0].yaxis, axes[0].set_yscale)
    axes[0].set_ylim(bottom, top)
    entries: dict[str, dict[str, Any]] = {
        f"{i}: {', '.join(filter(None, [point.group, point.label]))}": {**_DISC, "color": WAYS[point.way]}
        for i, point in enumerate(numbered, 1)
    }
    for way in dict.fromkeys(point.way for point in numbered):
        entries[f"{way}, on a front of the validation split"] = {**_DISC, "color": WAYS[way]}
    groups = {point.group for point in points}
    entries |= {f"{name}, dense": style for name, style in _REFERENCES.items() if name in groups}
    entries |= {"other models": _DOT, "front of the test split": _LINE}
    if is_bar_missing:
        entries["no bar: longer than the axis"] = {"linestyle": "none"}
    if beyond:
        worse = sorted(point.value for point in beyond)
        noun = "value" if len(worse) == 1 else "values"
        ends = " to ".join(f"{value:.3g}" for value in dict.fromkeys((worse[0], worse[-1])))
        entries[f"clipped to {bound:.3g} (true {noun} {ends})"] = {"linestyle": "none"}
    for label, style in entries.items():
        axes[0].plot([], [], label=label, **{**style, "markersize": min(6, style.get("markersize", 6))})
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="x-small")
    save(figure, path)


def _on_front(points: Sequence[Point], cost: str) -> list[Point]:
    """Return the points on the front of the validation split for a cost, the cheapest first."""
    return sorted((point for point in points if cost in point.fronts), key=lambda point: point.costs[cost])


def _limits(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Return the ends of the metric's axis, from the values alone: intervals of few seeds would make it too long."""
    lowest, highest = min(values), max(values)
    if logarithmic:
        return lowest / 1.5, highest * 1.5
    room = 0.3 * (highest - lowest) or 0.1 * abs(highest) or 1.0
    return lowest - room, highest + room


def _bound(values: Sequence[float], higher_is_better: bool) -> float:
    """Return the value at which worse points are drawn: four times as far from the best value as the median."""
    best, median = (max if higher_is_better else min)(values), float(np.median(values))
    return best + 4 * (median - best)


def shown_front(points: Sequence[Point], cost: str, higher_is_better: bool) -> list[Point]:
    """Return the points on the Pareto front of one cost and the metric, the cheapest first.

    If several points have the same cost and the same metric, only one of them is returned.

    Args:
        points: The points; those without this cost are ignored.
        cost: Name of the cost, a key of `Point.costs`.
        higher_is_better: True if a larger metric is better.

    Returns:
        The points on the front.
    """
    sign = 1 if higher_is_better else -1
    line: list[Point] = []
    known = [point for point in points if cost in point.costs]
    for point in sorted(known, key=lambda point: (point.costs[cost], -sign * point.value)):
        if not line or sign * point.value > sign * line[-1].value:
            line.append(point)
    return line


def column_title(name: str) -> str:
    """Return the axis label of a column of a table, a metric, a varied setting or a recorded series."""
    return _LABELS.get(name) or COLUMNS.get(name, (name.replace("_", " "), 1.0))[0]


def plain_logarithm(axis: Any, set_scale: Any, digits: tuple[int, ...] = (1, 2, 5)) -> None:
    """Make a matplotlib axis logarithmic, with tick labels in plain decimal notation.

    `axis` is ax.xaxis or ax.yaxis, and `set_scale` is ax.set_xscale or ax.set_yscale. The labels are `digits` times
    powers of ten.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _pattern(model: SequenceModel, x: Tensor) -> tuple[Array, float]:
    """Run a model on a sequence, and record which neurons are updated at each step."""
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
    """Return the axis label for the rows of an update pattern, such as "neuron" or "group of 4 neurons"."""
    sizes = sorted({layer.rule.group_size for layer in model.recurrent_layers()})
    return "neuron" if sizes == [1] else f"group of {' or '.join(map(str, sizes))} neurons"


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure to an image file; its suffix sets the format."""
    # of letters that its font lacks, and of names that take all the room
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph|Tight layout|constrained_layout", UserWarning)
        figure.savefig(temporary, dpi=120)
