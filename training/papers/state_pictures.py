# SPDX-License-Identifier: Apache-2.0
"""Pictures of a cell's state s: cobweb diagrams (s_t as a function of s_{t-1}, with its path), and kept shares of s.

Source: anonymous authors (under double-blind review), "DecayNet: A Study on the Cell States of Long-Short Term
Memories", section 3 and appendices A and B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import StrictBool, StrictFloat, with_config
from torch import Tensor

from edgernn.cells import Cell, Gate, Gates, State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, python_loop
from edgernn.model import SequenceModel
from edgernn.settings import FILE
from edgernn.training.pictures import save

Array = npt.NDArray[Any]
_NEURONS, _SEQUENCES = 4, 2
_GRID = 201


class CellState(Cell):
    """Cell with the state equation of an LSTM, whose inputs are the gates f_t, i_t and k_t; for cobweb diagrams.

    s_t = f_t ⊙ s_{t-1} + i_t ⊙ tanh(k_t ⊙ s_{t-1})

    Source: DecayNet, Figures 1 and 2.
    """

    name = "cell-state"
    gates = (Gate("f", h=False, bias=False), Gate("i", h=False, bias=False), Gate("k", h=False, bias=False))
    states = ("s",)

    def update(self, p: Gates, state: State) -> State:
        (s,) = state
        return (p.f * s + p.i * torch.tanh(p.k * s),)


@with_config(FILE)
@dataclass(frozen=True, kw_only=True)
class Equation:
    """Difference equation s_t = f_t s_{t-1} + i_t tanh(k s_{t-1}) of one neuron, and how to plot it.

    Attributes:
        title: Title of the plots.
        start: Initial state s_0.
        f: Forget gate f_t at each step.
        i: Input gate i_t at each step.
        k: Factor k of the state in tanh, the same at all steps.
        apart: True: one plot per step, with the function s_{t-1} -> s_t of this step as a solid line, and that of the
            previous step as a dash-dotted line. False: one plot, with the function of the first step and the path of s
            over all steps.
    """

    title: str
    start: StrictFloat
    f: list[StrictFloat]
    i: list[StrictFloat]
    k: StrictFloat = 1.0
    apart: StrictBool = False

    def __post_init__(self) -> None:
        if not self.f or len(self.f) != len(self.i):
            raise UsageError(
                f"{self.title}: expected as many forget gates f as input gates i, at least one, got {len(self.f)} and "
                f"{len(self.i)}; give one f and one i per step"
            )

    def layer(self) -> tuple[RecurrentLayer, Tensor]:
        """Build a layer of one neuron that computes the equation, and its inputs (T, 1, 3): f_t, i_t and k.

        The layer has the cell `CellState`, with weights that pass the inputs on to its gates.
        """
        model = SequenceModel(CellState, 3, 1).double().eval()
        (layer,) = model.recurrent_layers()
        with torch.no_grad():
            layer.cell.W.copy_(torch.eye(3))
        gates = [[f, i, self.k] for f, i in zip(self.f, self.i, strict=True)]
        return layer, torch.tensor(gates, dtype=torch.float64)[:, None]


def cobweb(path: Path, model: SequenceModel, x: Tensor, steps: int = 6) -> None:
    """Draw cobweb diagrams of one neuron's state over successive steps of a sequence.

    The neuron is the one of the first layer whose state varies most. The plotted steps are the consecutive ones
    in which this state changes most. The state s is c if the cell has one, else the cell's first state. The solid line
    of step t is the map from s_{t-1} to s_t of this neuron, with all other values fixed; the dashed line is y = x. The
    dotted trail goes from s_{t-1} (rhombus) vertically to the map and horizontally to s_t (circle). Where the map
    crosses y = x is a fixed point.

    Args:
        path: The image file to write.
        model: The model.
        x: Sequence (T, 1, I).
        steps: Number of steps, with a plot for each.
    """
    from matplotlib.figure import Figure

    layer = first_layer(model, len(x))
    which = memory_of(layer)
    x = model.inputs(x)
    start = layer.initial_state(1, x)
    values = track_of(layer, x, which, start)
    neuron = int(values.std(0).argmax())
    track = values[:, neuron].numpy()
    steps = min(steps, len(x))
    moved = np.abs(np.diff(track))
    first = int(np.convolve(moved, np.ones(steps), "valid").argmax())
    columns = min(steps, 3)
    rows = -(-steps // columns)
    figure = Figure(figsize=(3 * columns, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    reach = 1.25 * max(1e-3, float(np.abs(track[first : first + steps + 1]).max()))
    grid = np.linspace(-reach, reach, _GRID, dtype=np.float32)
    for ax in axes[steps:]:
        ax.set_axis_off()
    for ax, t in zip(axes, range(first, first + steps), strict=False):
        _frame(ax, reach, f"t = {t + 1}")
        ax.plot(grid, map_at(layer, x, t, which, neuron, grid, start), color="black", linewidth=1.2)
        _trail(ax, track[t : t + 2])
    name = layer.cell.states[which]
    figure.suptitle(
        f"{layer.cell.name}: {name} of neuron {neuron}, before (across) and after a step (up)", fontsize="small"
    )
    save(figure, path)


def equations(path: Path, rows: Sequence[Equation]) -> None:
    """Draw cobweb diagrams of difference equations, as in Figures 1, 2 and 5 of the DecayNet paper.

    Args:
        path: The image file to write.
        rows: The equations. An equation with `apart` gets a row of plots, one per step; any other gets one plot.
    """
    from matplotlib.figure import Figure

    columns = max(len(row.f) if row.apart else 1 for row in rows)
    columns, lines = (columns, len(rows)) if columns > 1 else (len(rows), 1)
    figure = Figure(figsize=(3 * columns, 3.2 * lines), layout="constrained")
    axes = iter(figure.subplots(lines, columns, squeeze=False).ravel())
    for row in rows:
        layer, x = row.layer()
        start = (x.new_full((1, 1), row.start),)
        track = track_of(layer, x, 0, start)[:, 0].numpy()
        reach = 1.25 * float(np.abs(track).max())
        grid = np.linspace(-reach, reach, _GRID)
        maps = [map_at(layer, x, t, 0, 0, grid, start) for t in range(len(x))]
        if not row.apart:
            ax = next(axes)
            _frame(ax, reach, row.title)
            ax.plot(grid, maps[0], color="black", linewidth=1.2)
            _trail(ax, track)
            continue
        for t, after in enumerate(maps):
            ax = next(axes)
            _frame(ax, reach, f"{row.title}, t = {t + 1}")
            if t:
                ax.plot(grid, maps[t - 1], color="gray", linewidth=1, linestyle="-.")
            ax.plot(grid, after, color="black", linewidth=1.2)
            _trail(ax, track[t : t + 2])
    save(figure, path)


def kept_shares(path: Path, models: Mapping[str, tuple[SequenceModel, Tensor]]) -> None:
    """Plot the fraction of their state that neurons keep at each step, as in Figure 6 of the DecayNet paper.

    The fraction is ∂s_t / ∂s_{t-1}, where s is the state c of an LSTM, or another cell's first state if it has no c. It
    is shown for up to four neurons of the first layer.

    Args:
        path: The image file to write.
        models: Dict from name to a model and its test sequences (T, B, I). A model has a row of plots, one for each of
            its first two sequences.
    """
    from matplotlib.figure import Figure

    columns = min(_SEQUENCES, *(x.shape[1] for _, x in models.values()))
    figure = Figure(figsize=(1 + 3.6 * columns, 2.6 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), columns, squeeze=False)
    for line, (name, (model, x)) in zip(axes, models.items(), strict=True):
        layer = first_layer(model, len(x))
        which = memory_of(layer)
        hidden_size = layer.cell.hidden_size
        neurons = np.unique(np.linspace(min(1, hidden_size - 1), hidden_size - 1, _NEURONS).round().astype(int))
        for i, ax in enumerate(line):
            shares = kept_share(layer, model.inputs(x[:, i : i + 1]), which).numpy()
            for neuron in neurons:
                ax.plot(range(1, len(shares) + 1), shares[:, neuron], linewidth=1.2, label=f"neuron {neuron}")
            ax.set_title(f"{name}, sequence {i}", fontsize="small")
            ax.locator_params(axis="x", integer=True)
            ax.set_xlabel("time step")
        symbol = layer.cell.states[which]
        line[0].set_ylabel(f"∂{symbol}(t) / ∂{symbol}(t-1)")
        line[-1].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path)


def first_layer(model: SequenceModel, steps: int) -> RecurrentLayer:
    """Return the first layer of a model, prepared to run a sequence of `steps` steps by one call per step.

    The constant `length` of a cell that depends on the length of the sequence is set to `steps`.
    """
    layer = model.recurrent_layers()[0]
    if not layer.cell.streaming:
        # such a cell takes its constant `length` from its input, which has one step here
        layer.cell.get_buffer("length").fill_(steps)
    return layer


def memory_of(layer: RecurrentLayer) -> int:
    """Return the index in `Cell.states` of the state that plots show: c if the cell has one, else the first."""
    return layer.cell.states.index("c") if "c" in layer.cell.states else 0


def track_of(layer: RecurrentLayer, x: Tensor, which: int, start: State) -> Tensor:
    """Record one of a cell's states over a sequence of batch size 1.

    Args:
        layer: The layer.
        x: Sequence (T, 1, I).
        which: Index of the state in `Cell.states`.
        start: Initial state of the layer.

    Returns:
        The state before each step and after the last one (T + 1, H).
    """
    with torch.no_grad():
        states = [start[which][0]]
        state = start
        for t in range(len(x)):
            _, state, _ = layer(x[t : t + 1], state)
            states.append(state[which][0])
        return torch.stack(states).cpu()


def map_at(layer: RecurrentLayer, x: Tensor, t: int, which: int, neuron: int, grid: Array, start: State) -> Array:
    """Compute a neuron's state after one step as a function of its state before, with all other values fixed.

    Args:
        layer: The layer.
        x: Sequence (T, 1, I).
        t: Index of the step, from 0.
        which: Index of the state in `Cell.states`.
        neuron: Index of the neuron.
        grid: Values (N,) of this state of the neuron before the step.
        start: Initial state of the layer.

    Returns:
        Values (N,) of this state of the neuron after the step.
    """
    with torch.no_grad():
        state = start
        if t:
            _, state, _ = layer(x[:t], state)
        many = [s.expand(len(grid), -1).clone() for s in state]
        many[which][:, neuron] = torch.from_numpy(grid).to(x)
        _, after, _ = layer(x[t : t + 1].expand(-1, len(grid), -1), tuple(many))
    moved: Array = after[which][:, neuron].cpu().numpy()
    return moved


def kept_share(layer: RecurrentLayer, x: Tensor, which: int) -> Tensor:
    """Compute ∂s_t / ∂s_{t-1} of each neuron at each step, with all other values fixed.

    It is the forget gate f_t if c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t and no gate reads c.

    Args:
        layer: The layer.
        x: Sequence (T, 1, I).
        which: Index of the state s in `Cell.states`.

    Returns:
        Derivatives (T, H).
    """
    state = layer.initial_state(1, x)
    shares = []
    for t in range(len(x)):

        def moved(s: Tensor, t: int = t, state: State = state) -> Tensor:
            after: State
            _, after, _ = layer(x[t : t + 1], (*state[:which], s[None], *state[which + 1 :]))
            return after[which][0]

        # kernels compute one gradient at a time
        with python_loop(layer):
            jacobian: Tensor = torch.autograd.functional.jacobian(moved, state[which][0], vectorize=True)  # type: ignore[no-untyped-call]
        shares.append(jacobian.diagonal())
        with torch.no_grad():
            _, state, _ = layer(x[t : t + 1], state)
    return torch.stack(shares).detach().cpu()


def _frame(ax: Any, reach: float, title: str) -> None:
    """Set the title of a matplotlib plot and both axes' limits, -reach and reach, and draw the line y = x."""
    ax.plot([-reach, reach], [-reach, reach], color="gray", linewidth=0.8, linestyle="--")
    ax.set_title(title, fontsize="small")
    ax.set_aspect("equal")
    ax.set_xlim(-reach, reach)
    ax.set_ylim(-reach, reach)
    ax.tick_params(labelsize="x-small")


def _trail(ax: Any, track: Array) -> None:
    """Draw the trail of a cobweb diagram, from a rhombus at the first state to a circle at the last; see `cobweb`."""
    x = np.repeat(track, 2)
    ax.plot(x[:-1], x[1:], color="tab:blue", linewidth=1, linestyle=":")
    ax.plot(track[:1], track[:1], "D", color="tab:blue", markersize=5)
    ax.plot(track[-1:], track[-1:], "o", color="tab:blue", markersize=5)
