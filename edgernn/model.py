# SPDX-License-Identifier: Apache-2.0
"""A stack of recurrent layers and a linear head; and what it shares with any other network that has such layers."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.imputers import Imputer
from edgernn.layer import RecurrentLayer, Trace
from edgernn.names import resolve_imputer
from edgernn.rules.base import UpdateRule
from edgernn.spec import LayerSpec


class RecurrentModel(nn.Module):
    """A network with recurrent layers in it, and all that training and the cost of a run need to know of it.

    A subclass is final; its forward leaves one Trace a layer in `traces`, in the order of recurrent_layers(); `joined`
    makes one of a layer that ran in several parts.
    """

    traces: list[Trace]

    def __init__(self) -> None:
        super().__init__()
        self.traces = []

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """In the order in which they were made; in a stack one a layer and direction, forward before backward."""
        return [module for module in self.modules() if isinstance(module, RecurrentLayer)]

    @property
    def update_rate(self) -> float:
        """Fraction of neurons updated in the last forward."""
        rates = [1.0 if t.decisions is None else float(t.decisions.to(torch.float64).mean()) for t in self.traces]
        if not rates:
            raise RuntimeError("update_rate: the model has not been run yet")
        return sum(rates) / len(rates)

    @property
    def budget(self) -> Tensor:
        """What λ multiplies, summed over the cells, from the last forward (differentiable)."""
        return torch.stack([t.budget for t in self.traces]).sum()

    @property
    def imputation_loss(self) -> Tensor | None:
        """The loss of an imputer's estimates in the last forward (differentiable), where there is an imputer."""
        return self.traces[0].imputation_loss

    def anneal(self, epoch: int) -> None:
        """Called before each epoch of a training, counted from 0."""
        for layer in self.recurrent_layers():
            layer.rule.anneal(epoch)

    def prune(self, step: int, steps: int) -> None:
        """Called before each step of a training: sparse weights come in three parts of equal length.

        First all weights learn; then, every 15 steps, all but the largest blocks are set to zero and may grow again; at
        last the zeros are held. The schedule of Kusupati et al. 2018, arXiv:1901.02358.
        """
        held = -(-2 * steps // 3)
        if step < steps // 3 or step > held or (step < held and step % 15):
            return
        for layer in self.recurrent_layers():
            if layer.cell.density is not None:
                layer.cell.threshold(hold=step == held)


def joined(traces: list[Trace]) -> Trace:
    """The trace of a layer that ran over a sequence in parts: decisions one after the other, the sum of the budgets."""
    parts = [trace.decisions for trace in traces if trace.decisions is not None]
    return Trace(torch.cat(parts) if parts else None, torch.stack([trace.budget for trace in traces]).sum())


class SequenceModel(RecurrentModel):
    """Recurrent layers over a sequence, then a linear map of the last or of every output.

    model(x (T, B, I), state) returns y and the last state: y (B, O) with output="last", (T, B, O) with output="all";
    O is `output_size`, or the width of the stack where it is None (no head). The state is a flat tuple of
    tensors, (B, H) each and (B, 1) for a rule's memory, in the order of `state_names`.

    cell, rule: names (see `edgernn cells`) or classes; `rule` overrides what the cell's name implies.
    layers, bidirectional: a bidirectional layer has two cells, the second reads the sequence backwards.
    mean, std (I,): the input is standardised as (x - mean) / std first.
    cell_options, rule_options: passed to the cell's and the rule's constructor.
    rank: recurrent weights as products of this rank (`Cell.factorise`). density: the share of their blocks that stays
    (`Cell.sparsify`); `prune` leaves the others out, bit by bit. norm: "layer" or "recurrent-batch", with
    statistics for norm_steps steps (`Cell.normalise`).
    imputer: "gru-d" or "rits", before the first layer; x is then (T, B, 3F): values, masks, times (`imputers`).
    Raises UsageError for an unknown name, a size below 1, or a bidirectional model with an imputer.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        cell: str | type[Cell] = "gru",
        input_size: int = 1,
        hidden_size: int = 128,
        output_size: int | None = None,
        *,
        rule: str | type[UpdateRule] | None = None,
        layers: int = 1,
        bidirectional: bool = False,
        output: Literal["last", "all"] = "last",
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        cell_options: dict[str, Any] | None = None,
        rule_options: dict[str, Any] | None = None,
        rank: int | None = None,
        density: float | None = None,
        norm: str | None = None,
        norm_steps: int = 1000,
        imputer: str | type[Imputer] | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("layers", layers)):
            if size < 1:
                raise UsageError(f"{name}: expected at least 1, got {size}")
        if output_size is not None and output_size < 1:
            raise UsageError(f"output_size: expected at least 1 or None, got {output_size}")
        if output not in ("last", "all"):
            raise UsageError(f"output: expected 'last' or 'all', got {output!r}")
        spec = LayerSpec(cell, rule, cell_options, rule_options, rank, density, norm, norm_steps)
        self.cell_type, self.rule_type = spec.types
        self.imputer_type = resolve_imputer(cell, imputer)
        if self.imputer_type is not None and bidirectional:
            raise UsageError("bidirectional: an imputer needs times that run with its direction; use a model each way")
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size
        self.bidirectional, self.output = bidirectional, output
        self.directions = 2 if bidirectional else 1

        first = None if self.imputer_type is None else self.imputer_type(input_size, hidden_size)
        sizes = [input_size] + [hidden_size * self.directions] * (layers - 1)
        self.layers = nn.ModuleList(
            spec.make(size, hidden_size, None if i else first)
            for i, size in enumerate(sizes)
            for _ in range(self.directions)
        )
        width = hidden_size * self.directions
        self.head = None if output_size is None else nn.Linear(width, output_size)
        for name, value in (("input_mean", mean), ("input_std", std)):
            numbers = torch.as_tensor(value, dtype=torch.get_default_dtype())
            self.register_buffer(name, numbers.expand(input_size).clone())

    @property
    def state_names(self) -> tuple[str, ...]:
        """layer0.h and so on; the backward cell of a bidirectional layer is layer0.reverse.h."""
        names = []
        for i in range(len(self.layers)):
            layer, direction = divmod(i, self.directions)
            names += [f"layer{layer}{'.reverse' * direction}.{s}" for s in self.recurrent_layers()[i].states]
        return tuple(names)

    @property
    def streaming(self) -> bool:
        """Whether a sequence may be given in parts, with the state kept in between."""
        return not self.bidirectional and all(layer.cell.streaming for layer in self.recurrent_layers())

    @property
    def standardises(self) -> bool:
        return bool((self.input_mean != 0).any() or (self.input_std != 1).any())

    def initial_state(self, batch: int, like: Tensor) -> State:
        return tuple(s for layer in self.recurrent_layers() for s in layer.initial_state(batch, like))

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if x.ndim != 3 or x.shape[-1] != self.input_size or x.shape[0] < 1:
            raise UsageError(f"x: expected shape (T >= 1, B, {self.input_size}), got {tuple(x.shape)}")
        if state is None:
            state = self.initial_state(x.shape[1], x)
        if len(state) != len(self.state_names):
            raise UsageError(f"state: expected {len(self.state_names)} tensors {self.state_names}, got {len(state)}")
        if self.standardises:
            x = (x - self.input_mean) / self.input_std
        last: list[Tensor] = []
        self.traces = []
        layers = self.recurrent_layers()
        y = x
        tops: list[Tensor] = []
        for i in range(0, len(layers), self.directions):
            outputs, tops = [], []
            for direction, layer in enumerate(layers[i : i + self.directions]):
                own, state = state[: len(layer.states)], state[len(layer.states) :]
                out, final, trace = layer(y.flip(0) if direction else y, own)
                outputs.append(out.flip(0) if direction else out)
                # of the backward direction the last output is the one that has read the whole sequence
                tops.append(final[0])
                last += final
                self.traces.append(trace)
            y = outputs[0] if self.directions == 1 else torch.cat(outputs, -1)
        if self.output == "last":
            y = tops[0] if self.directions == 1 else torch.cat(tops, -1)
        return (y if self.head is None else self.head(y)), tuple(last)
