# SPDX-License-Identifier: Apache-2.0
"""Plots that accompany a reproduced table of results.

Some are drawn from the models that were trained for the table, others from equations alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgernn.training.papers.report_pictures import Names, Picture, Runs
from edgernn.training.papers.state_pictures import Equation, cobweb, equations, kept_shares
from edgernn.training.pictures import NothingToDrawError, save, update_patterns


@dataclass(frozen=True, kw_only=True)
class RunPicture(Picture):
    """Base class of plots of trained models: the model of the first finished seed of each table row named in `rows`.

    If the table has varied settings, `variant` is the label of the values that the plotted models were trained with,
    such as "T=10".
    """

    of_runs: ClassVar[bool] = True

    rows: Names
    variant: str = ""

    def directories(self, runs: Runs) -> dict[str, Path]:
        """Return a dict from each name in `rows` to its run directory; raise NothingToDrawError if one is missing."""
        if missing := [row for row in self.rows if (row, self.variant) not in runs]:
            raise NothingToDrawError(
                f"expected a finished run of the row {missing[0]}, got none; train it with "
                f"`edgernn reproduce TABLE --rows {missing[0]}`"
            )
        return {row: runs[row, self.variant] for row in self.rows}


@dataclass(frozen=True, kw_only=True)
class Patterns(RunPicture):
    """Plots of the neurons that are updated at each step of a test sequence, one plot per row of a paper's table."""

    kind = "patterns"

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        from edgernn.training.plot import load_run

        loaded = {row: load_run(run) for row, run in self.directories(runs).items()}
        x = next(iter(loaded.values()))[1][:, :1]
        update_patterns(path, {row: model for row, (model, _) in loaded.items()}, x)


@dataclass(frozen=True, kw_only=True)
class Cobwebs(RunPicture):
    """Cobweb diagrams of a neuron's state over some steps of one test sequence, for one trained model.

    The model is that of the first table row named in `rows`.
    """

    kind = "cobwebs"

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        from edgernn.training.plot import load_run

        model, x = load_run(next(iter(self.directories(runs).values())))
        cobweb(path, model, x[:, :1])


@dataclass(frozen=True, kw_only=True)
class Kept(RunPicture):
    """Plots of the fraction of its state that a neuron keeps at each step (an LSTM's forget gate), for some neurons."""

    kind = "kept"

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        from edgernn.training.plot import load_run

        kept_shares(path, {row: load_run(run) for row, run in self.directories(runs).items()})


@dataclass(frozen=True, kw_only=True)
class Samples(RunPicture):
    """One image that stacks the images samples.png of several runs: one run for each table row named in `rows`.

    Some tasks write samples.png into the run directory (see `Task.pictures`).
    """

    kind = "samples"

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        from matplotlib import image
        from matplotlib.figure import Figure

        from edgernn.training.tasks.base import SAMPLES

        pixels = {row: image.imread(run / SAMPLES) for row, run in self.directories(runs).items()}
        heights = [9 * len(picture) / picture.shape[1] for picture in pixels.values()]
        figure = Figure(figsize=(9, sum(heights) + 0.4 * len(heights)), layout="constrained")
        axes = figure.subplots(len(pixels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, (row, picture) in zip(axes, pixels.items(), strict=True):
            ax.imshow(picture)
            ax.set_title(row, fontsize="small")
            ax.set_axis_off()
        save(figure, path)


@dataclass(frozen=True, kw_only=True)
class EquationCobwebs(Picture):
    """Cobweb diagrams of the difference equations in `equations`; they need no trained model."""

    kind = "equations"

    equations: Annotated[list[Equation], Field(min_length=1)]

    def draw(self, path: Path, report: Mapping[str, Any], runs: Runs) -> None:
        equations(path, self.equations)
