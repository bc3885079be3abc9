# SPDX-License-Identifier: Apache-2.0
"""A stack of recurrent layers and a linear head."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace
from edgernn.names import resolve
from edgernn.rules.base import UpdateRule


class SequenceModel(nn.Module):
    """Recurrent layers over a sequence, then a linear map of the last or of every output.

    model(x (T, B, I), state) returns y and the last state: y (B, O) with output="last", (T, B, O) with output="all";
    O is `output_size`, or the width of the stack where it is None (no head). The state is a flat tuple of
    tensors, (B, H) each and (B, 1) for a rule's memory, in the order of `state_names`.

    cell, rule: names (see `edgernn cells`) or classes; `rule` overrides what the cell's name implies.
    layers, bidirectional: a bidirectional layer has two cells, the second reads the sequence backwards.
    mean, std (I,): the input is standardised as (x - mean) / std first.
    cell_options, rule_options: passed to the cell's and the rule's constructor.
    Raises UsageError for an unknown name or a size below 1.
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
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("layers", layers)):
            if size < 1:
                raise UsageError(f"{name}: expected at least 1, got {size}")
        if output_size is not None and output_size < 1:
            raise UsageError(f"output_size: expected at least 1 or None, got {output_size}")
        if output not in ("last", "all"):
            raise UsageError(f"output: expected 'last' or 'all', got {output!r}")
        self.cell_type, self.rule_type = resolve(cell, rule)
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size
        self.bidirectional, self.output = bidirectional, output
        self.directions = 2 if bidirectional else 1
        sizes = [input_size] + [hidden_size * self.directions] * (layers - 1)
        self.layers = nn.ModuleList(
            RecurrentLayer(
                self.cell_type(size, hidden_size, **(cell_options or {})),
                self.rule_type(size, hidden_size, **(rule_options or {})),
            )
            for size in sizes
            for _ in range(self.directions)
        )
        width = hidden_size * self.directions
        self.head = None if output_size is None else nn.Linear(width, output_size)
        for name, value in (("input_mean", mean), ("input_std", std)):
            numbers = torch.as_tensor(value, dtype=torch.get_default_dtype())
            self.register_buffer(name, numbers.expand(input_size).clone())
        self.traces: list[Trace] = []

    @property
    def state_names(self) -> tuple[str, ...]:
        """layer0.h and so on; the backward cell of a bidirectional layer is layer0.reverse.h."""
        names = []
        for i in range(len(self.layers)):
            layer, direction = divmod(i, self.directions)
            names += [f"layer{layer}{'.reverse' * direction}.{s}" for s in self.recurrent_layers()[i].states]
        return tuple(names)

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
        per_cell = len(layers[0].states)
        y = x
        for i in range(0, len(layers), self.directions):
            outputs = []
            for direction in range(self.directions):
                k = (i + direction) * per_cell
                out, final, trace = layers[i + direction](y.flip(0) if direction else y, state[k : k + per_cell])
                outputs.append(out.flip(0) if direction else out)
                last += final
                self.traces.append(trace)
            y = outputs[0] if self.directions == 1 else torch.cat(outputs, -1)
        if self.output == "last":
            # of the backward direction the last output is the one that has read the whole sequence
            tops = last[-per_cell * self.directions :: per_cell]
            y = tops[0] if self.directions == 1 else torch.cat(tops, -1)
        return (y if self.head is None else self.head(y)), tuple(last)

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

    def anneal(self, epoch: int) -> None:
        for layer in self.recurrent_layers():
            layer.rule.anneal(epoch)

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """One a layer and direction, forward before backward."""
        return list(self.layers)  # type: ignore[arg-type]
