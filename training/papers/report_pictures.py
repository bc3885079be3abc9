# SPDX-License-Identifier: Apache-2.0
"""Plots of a reproduced table of results, drawn from its table.json alone, without the trained models."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, StrictBool, StrictInt, with_config

from edgernn.settings import FILE, Expected
from edgernn.training.pictures import NothingToDrawError, OperatingPoint, column_title, plain_logarithm, save, tradeoff

Row = dict[str, Any]
Names = Annotated[list[str], Field(min_length=1), Expected("a list of names")]
# dict from row name and variant label (`recipe.label`) to the run directory of the first seed
Runs = Mapping[tuple[str, str], Path]
# ratio of the largest to the smallest value of a setting above which its axis is logarithmic
_LOGARITHMIC_RATIO = 8
# plots beside each other
_COLUMNS = 3
# length of a label that fits below a box
_LABEL_LENGTH = 12


@dataclass(frozen=True)
class Panel:
    """One plot of an image file: its title, and the rows of table.json that it shows."""

    title: str
    rows: list[Row]


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class Picture(abc.ABC):
    """Base class of image files with plots of a reproduced table, as declared in its TOML file under [[pictures]].

    Attributes:
        kind: Value of the key `kind` that selects this class in the TOML file of a table.
        of_runs: True if the plots need the trained models, in their run directories.
        name: Name of the image file, without suffix.
        text: Caption.
    """

    kind: ClassVar[str]
    of_runs: ClassVar[bool] = False

    name: str
    text: str

    @abc.abstractmethod
    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        """Draw the plots into an image file.

        Args:
            path: The image file.
            report: Content of table.json.
            runs: Dict from (row name, variant label such as "T=10") to the run directory of the first finished seed.

        Raises:
            NothingToDrawError: No row has the data that the plots show.
        """


@dataclass(frozen=True, kw_only=True)
class Trend(Picture):
    """Plot of a column of the table over a varied setting: means over the seeds and their 95 % confidence intervals.

    A line joins the rows that differ only in this setting. Bars of intervals end at the column's limits, 0 and 100 %.

    Attributes:
        kind: Value of the key `kind` that selects this class in the TOML file of a table.
        column: Name of the column.
        over: Name of the varied setting on the horizontal axis.
        panels: How the rows are divided into plots. Lists of row names: a plot for each list. Name of another varied
            setting: a plot for each of its values. None: one plot.
        log: True for a logarithmic vertical axis.
    """

    kind = "trend"

    column: str
    over: str
    panels: list[list[str]] | str | None = None
    log: StrictBool = False

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        rows = [row for row in report["rows"] if row["columns"][self.column]["mean"] is not None]
        figure, axes = _plots(panels := _panels(rows, self.panels))
        for ax, panel in zip(axes, panels, strict=True):
            for label, line in _lines(panel.rows, self.over, self.panels).items():
                points = sorted(line, key=lambda row: row["variant"][self.over])
                entries = [row["columns"][self.column] for row in points]
                values = [entry["mean"] for entry in entries]
                places = [row["variant"][self.over] for row in points]
                style = {"marker": ".", "linewidth": 1.2, "capsize": 2}
                ax.errorbar(places, values, _bars(entries, self.column), label=label, **style)
            places = sorted({row["variant"][self.over] for row in panel.rows})
            if places[0] > 0 and places[-1] > _LOGARITHMIC_RATIO * places[0]:
                ax.set_xscale("log")
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.minorticks_off()
            ax.set_xlabel(column_title(self.over))
            if (
                not self.log
                and min(entry["mean"] for entry in (row["columns"][self.column] for row in panel.rows)) >= 0
            ):
                ax.set_ylim(bottom=0)
            ax.legend(frameon=False, fontsize="small")
        _finish(path, figure, axes, self.column, self.log)


@dataclass(frozen=True, kw_only=True)
class Curves(Picture):
    """Plot of a recorded series, such as the loss, over steps or epochs, one line per row: mean and range over seeds.

    Attributes:
        kind: Value of the key `kind` that selects this class in the TOML file of a table.
        series: Name of the series.
        baselines: Names of series that are equal in all rows, so that they are drawn once.
        panels: How the rows are divided into plots. Lists of row names: a plot for each list. Name of a varied setting:
            a plot for each of its values. None: one plot.
        log: True for a logarithmic vertical axis.
    """

    kind = "curves"

    series: str
    baselines: list[str] = field(default_factory=list)
    panels: list[list[str]] | str | None = None
    log: StrictBool = False

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        rows = [row for row in report["rows"] if self.series in row.get("series", {})]
        figure, axes = _plots(panels := _panels(rows, self.panels))
        for ax, panel in zip(axes, panels, strict=True):
            lines = {label: line[0]["series"][self.series] for label, line in _lines(panel.rows, self.panels).items()}
            first = panel.rows[0]["series"]
            # a baseline of the series loss is named sgd_loss, and labelled sgd
            baselines = {name: name.removesuffix(self.series).rstrip("_") or name for name in self.baselines}
            lines |= {label: first[name] for name, label in baselines.items() if name in first}
            for label, series in lines.items():
                length = min(map(len, series["values"]))
                values = np.array([seed_values[:length] for seed_values in series["values"]])
                places = series["at"][:length]
                (drawn,) = ax.plot(places, values.mean(0), linewidth=1.2, label=label)
                shade = {"color": drawn.get_color(), "alpha": 0.15, "linewidth": 0}
                ax.fill_between(places, values.min(0), values.max(0), **shade)
            ax.set_xlabel(next(iter(lines.values()))["over"])
            ax.legend(frameon=False, fontsize="small")
        _finish(path, figure, axes, self.series, self.log)


@dataclass(frozen=True, kw_only=True)
class Boxes(Picture):
    """Box plots or violin plots of a column, over the seeds, or of a recorded series, over steps and seeds.

    Each row of the table has one box; or, if `every` is set, one box for each interval of `every` values of the series.

    Attributes:
        kind: Value of the key `kind` that selects this class in the TOML file of a table.
        of: Names of columns or series. The plots of the first name are on top, those of the next name below them.
        panels: How the rows are divided into plots. Lists of row names: a plot for each list. Name of a varied setting:
            a plot for each of its values. None: one plot.
        every: Number of successive values of a series per box, so that a row has several boxes. None: one box per row.
        violins: True for violin plots around the boxes.
        log: True for a logarithmic vertical axis.
    """

    kind = "boxes"

    of: Names
    panels: list[list[str]] | str | None = None
    every: Annotated[StrictInt, Field(ge=1)] | None = None
    violins: StrictBool = False
    log: StrictBool = False

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        rows = [row for row in report["rows"] if all(_values(row, name) for name in self.of)]
        panels = _panels(rows, self.panels)
        figure, axes = _plots(panels * len(self.of), len(self.of))
        for i, name in enumerate(self.of):
            for ax, panel in zip(axes[i * len(panels) :], panels, strict=False):
                self._draw_panel(ax, name, panel)
                ax.set_ylabel(column_title(name))
                if self.log:
                    plain_logarithm(ax.yaxis, ax.set_yscale)
        save(figure, path)

    def _draw_panel(self, ax: Any, name: str, panel: Panel) -> None:
        lines = {label: line[0] for label, line in _lines(panel.rows, self.panels).items()}
        parts = {label: _parts(_series(row, name), self.every) for label, row in lines.items()}
        count = len(lines)
        for i, (label, values) in enumerate(parts.items()):
            places = [part * (count + 1) + i for part in range(len(values))]
            colour = f"C{i}"
            if self.violins:
                bodies = ax.violinplot(values, places, widths=0.9, showextrema=False)["bodies"]
                for body in bodies:
                    body.set_facecolor(colour)
            boxes = {"color": colour}
            style = {"boxprops": boxes, "whiskerprops": boxes, "capprops": boxes, "medianprops": {"color": "black"}}
            ax.boxplot(
                values, positions=places, widths=0.3 if self.violins else 0.7, flierprops={"marker": "."}, **style
            )
            ax.plot([], [], color=colour, linewidth=4, label=label)
        if self.every is None:
            long = max(len(line) for label in lines for line in label.split("\n")) > _LABEL_LENGTH
            ax.set_xticks(range(count), lines, fontsize="small", **({"rotation": 25, "ha": "right"} if long else {}))
        else:
            cuts = range(len(next(iter(parts.values()))))
            names = [f"{cut * self.every + 1}-{(cut + 1) * self.every}" for cut in cuts]
            ax.set_xticks([cut * (count + 1) + (count - 1) / 2 for cut in cuts], names)
            ax.set_xlabel(next(iter(lines.values()))["series"][name]["over"])
            ax.legend(frameon=False, fontsize="small")


@dataclass(frozen=True, kw_only=True)
class Tradeoff(Picture):
    """Two plots of one column of a table: against λ, and against the percentage of skipped updates.

    Rows with the same name form a curve. λ is the weight of the penalty on updates in the loss (setting lambda).
    """

    kind = "tradeoff"

    column: str

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        outcomes = [
            OperatingPoint(
                row["name"],
                row["columns"]["skip_percent"]["mean"],
                row["columns"][self.column]["mean"],
                row["variant"]["lambda"],
                row["columns"][self.column]["interval"],
            )
            for row in report["rows"]
            if row["columns"][self.column]["mean"] is not None
        ]
        if not outcomes:
            raise NothingToDrawError
        tradeoff(path, outcomes, column_title(self.column))


@dataclass(frozen=True, kw_only=True)
class Scatter(Picture):
    """Plot of a column against another, one line per group of rows: means and 95 % confidence intervals over seeds.

    Bars of intervals end at the columns' limits, 0 and 100 %.
    The label of a line is the name of its row. A line that joins several rows is labelled by the name of the first row
    in its group, cut at the first dash: "gru" for a group with the rows gru-8, gru-16 and gru-32.

    Attributes:
        kind: Value of the key `kind` that selects this class in the TOML file of a table.
        column: Name of the column on the vertical axis.
        against: Name of the column on the horizontal axis; "microseconds" is the measured time of a sequence.
        groups: Lists of row names, with a line for each list. None: a line for each row name.
        log: True for a logarithmic vertical axis.
    """

    kind = "scatter"

    column: str
    against: str
    groups: Annotated[list[Names], Field(min_length=1)] | None = None
    log: StrictBool = False

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        rows = [{**row, "columns": _measured_columns(row)} for row in report["rows"]]
        groups = self.groups or [[name] for name in dict.fromkeys(row["name"] for row in rows)]
        rows = [row for row in rows if {self.column, self.against} <= row["columns"].keys()]
        figure, (ax,) = _plots([Panel("", rows)] if rows else [])
        for i, group in enumerate(groups):
            columns = [row["columns"] for row in rows if row["name"] in group]
            columns.sort(key=lambda entry: entry[self.against]["mean"])
            x, y = ([entry[name]["mean"] for entry in columns] for name in (self.against, self.column))
            errors = [_bars([entry[name] for entry in columns], name) for name in (self.column, self.against)]
            if columns:
                label = group[0] if len(group) == 1 else group[0].partition("-")[0]
                marker = "os^Dv<>Ph*"[i % 10]
                ax.errorbar(x, y, *errors, label=label, marker=marker, markersize=4, linewidth=1, capsize=2)
        ax.set_xlabel(column_title(self.against))
        # bars may be anywhere in the plot
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        _finish(path, figure, [ax], self.column, self.log)


def _measured_columns(row: Row) -> Row:
    """Return the columns of a row of table.json that have a result, as a dict from name to statistics over seeds."""
    columns = {**row["columns"], "microseconds": (row.get("latency") or {}).get("microseconds", {"mean": None})}
    return {name: entry for name, entry in columns.items() if entry["mean"] is not None}


def _panels(rows: list[Row], panels: list[list[str]] | str | None) -> list[Panel]:
    """Divide rows of the table among plots; leave out plots without a row."""
    if panels is None:
        plots = [Panel("", rows)]
    elif isinstance(panels, str):
        values = dict.fromkeys(row["variant"][panels] for row in rows)
        plots = [
            Panel(
                f"{column_title(panels).partition(',')[0]} = {value}",
                [r for r in rows if r["variant"][panels] == value],
            )
            for value in values
        ]
    else:
        plots = [Panel("", [row for row in rows if row["name"] in names]) for names in panels]
    return [plot for plot in plots if plot.rows]


def _plots(panels: list[Panel], lines: int = 1) -> tuple[Any, list[Any]]:
    """Create a matplotlib figure with one titled plot per panel, arranged in `lines` rows, or more if they are long."""
    from matplotlib.figure import Figure

    if not panels:
        raise NothingToDrawError
    lines = max(lines, -(-len(panels) // _COLUMNS))
    columns = -(-len(panels) // lines)
    figure = Figure(figsize=(1.2 + 3.6 * columns, 3.4 * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    for ax, panel in zip(axes, panels, strict=False):
        ax.set_title(panel.title, fontsize="small")
    return figure, axes[: len(panels)]


def _lines(rows: list[Row], *apart: object) -> dict[str, list[Row]]:
    """Group rows of table.json into the lines of a plot; return a dict from the label of each line to its rows."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        settings = [f"{key}={value}" for key, value in row["variant"].items() if key not in apart]
        lines.setdefault("\n".join([row["name"], *settings]), []).append(row)
    return lines


def _values(row: Row, name: str) -> list[Any]:
    """Return one value per seed for a row: numbers of the column `name`, or lists of numbers of the series `name`."""
    if name in row["columns"]:
        return list(row["columns"][name]["values"])
    return list(row.get("series", {}).get(name, {"values": []})["values"])


def _series(row: Row, name: str) -> list[list[float]]:
    """Return a list of numbers per seed: the values of the series `name`, or the one value of the column `name`."""
    return [value if isinstance(value, list) else [value] for value in _values(row, name)]


def _parts(series: list[list[float]], every: int | None) -> list[list[float]]:
    """Cut the series of all seeds into intervals of `every` values, and join the seeds' values of each interval."""
    size = every or max(map(len, series))
    count = -(-max(map(len, series)) // size)
    return [[x for values in series for x in values[i * size : (i + 1) * size]] for i in range(count)]


def _bars(entries: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    """Return the lengths of the bars below and above the means of a column, which end at its limits 0 and 100 %."""
    means = [entry["mean"] for entry in entries]
    ends = [entry["interval"] or (entry["mean"], entry["mean"]) for entry in entries]
    least = 0.0 if min(means, default=0.0) >= 0 else -np.inf
    most = max(100.0, *means) if means and column_title(name).endswith("%") else np.inf
    below = [mean - max(low, least) for mean, (low, _) in zip(means, ends, strict=True)]
    return [below, [min(high, most) - mean for mean, (_, high) in zip(means, ends, strict=True)]]


def _finish(path: Path, figure: Any, axes: list[Any], name: str, log: bool) -> None:
    for ax in axes:
        if log:
            plain_logarithm(ax.yaxis, ax.set_yscale)
    axes[0].set_ylabel(column_title(name))
    save(figure, path)
