# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgernn.files import replacing
from edgernn.model import SequenceModel


def learning_curve(path: Path, lines: list[dict[str, Any]], metric: str, solved: float | None, can_skip: bool) -> None:
    """Training loss, validation metric, and the skip percentage if the rule can skip, over steps."""
    from matplotlib.figure import Figure

    panels = [("loss", "training loss"), (metric, f"validation {metric}")]
    if can_skip:
        panels.append(("skip_percent", "updates skipped, %"))
    figure = Figure(figsize=(7, 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    steps = [line["step"] for line in lines]
    for ax, (key, label) in zip(axes, panels, strict=True):
        values = [line[key] for line in lines]
        ax.plot(steps, values, color="black", linewidth=1.2, marker="." if len(steps) < 30 else "")
        ax.set_ylabel(label)
        if key == metric and solved is not None:
            ax.axhline(solved, color="tab:red", linewidth=0.8, linestyle="--", label=f"solved: {solved:.3g}")
            ax.legend(frameon=False)
        if key in ("loss", "mse") and all(value > 0 for value in values):
            ax.set_yscale("log")
        if key == "skip_percent":
            ax.set_ylim(-2, 102)
    axes[-1].set_xlabel("step")
    _save(figure, path)


def update_pattern(path: Path, model: SequenceModel, x: Tensor) -> None:
    """Which neurons change at which step of one sequence x (T, 1, I): black is an update; above it the input.

    Neurons of several cells stand under each other, the first layer's on top.
    """
    from matplotlib.figure import Figure

    with torch.no_grad():
        model(x)
    parts = []
    for i, trace in enumerate(model.traces):
        if trace.decisions is not None:
            # the second of two directions reads the sequence backwards
            parts.append(trace.decisions[:, 0].flip(0) if i % model.directions else trace.decisions[:, 0])
    pattern = torch.cat(parts, 1).float().cpu().numpy().T
    inputs = x[:, 0].cpu().numpy()
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
    below.set_ylabel("neuron")
    below.set_xlabel(f"time step ({100 * (1 - pattern.mean()):.1f} % of the updates skipped)")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
