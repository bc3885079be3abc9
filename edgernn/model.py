# SPDX-License-Identifier: Apache-2.0
"""A stack of recurrent layers and a linear head; and what it shares with any other network that has such layers."""

from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.config import ModelConfig
from edgernn.dropout import check_weights, locked, with_dropped_weights, words
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace
from edgernn.names import resolve_imputer


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
        sizes = [layer.cell.hidden_size for layer in self.recurrent_layers()]
        return sum(rate * size for rate, size in zip(rates, sizes, strict=True)) / sum(sizes)

    @property
    def budget(self) -> Tensor:
        """What λ multiplies, summed over the cells, from the last forward (differentiable)."""
        return torch.stack([t.budget for t in self.traces]).sum()

    @property
    def imputation_loss(self) -> Tensor | None:
        """The loss of the imputers' estimates in the last forward (differentiable), where there is an imputer."""
        losses = [trace.imputation_loss for trace in self.traces if trace.imputation_loss is not None]
        return torch.stack(losses).sum() if losses else None

    def anneal(self, epoch: int) -> None:
        """Called before each epoch of a training, counted from 0."""
        for layer in self.recurrent_layers():
            layer.rule.anneal(epoch)

    def prune(self, step: int, steps: int) -> None:
        """Called before each step of a training: sparse weights come in three parts of equal length.

        First all weights learn; then, every 15 steps, all but the largest blocks are set to zero and may grow again; at
        last the zeros are held. The schedule of Kusupati et al. 2018, arXiv:1901.02358.
        """
        held = _held(steps)
        if step < steps // 3 or step > held or (step < held and step % 15):
            return
        for layer in self.recurrent_layers():
            if layer.cell.is_sparse:
                layer.cell.threshold(hold=step == held)

    def pruned(self, step: int, steps: int) -> bool:
        """Whether after so many steps of a training no weight is still to be set to zero."""
        return step > _held(steps) or all(not layer.cell.is_sparse for layer in self.recurrent_layers())


def _held(steps: int) -> int:
    """The step of a training before which zeros are held; there is one in the shortest, too."""
    return 2 * steps // 3


def joined(traces: list[Trace]) -> Trace:
    """The trace of a layer that ran over a sequence in parts: decisions one after the other, the sum of the budgets."""
    parts = [trace.decisions for trace in traces if trace.decisions is not None]
    return Trace(torch.cat(parts) if parts else None, torch.stack([trace.budget for trace in traces]).sum())


def _check_together(config: ModelConfig) -> None:
    """Raises UsageError for settings that do not go together."""
    words, imputes = config.input.vocabulary is not None, config.layer.imputer is not None
    if config.last_size is not None and config.layers == 1:
        raise UsageError("last_size: expected at least 2 layers; the size of a single one is hidden_size")
    if words and (set(config.input.mean), set(config.input.std)) != ({0.0}, {1.0}):
        raise UsageError("mean, std: words of a vocabulary cannot be standardised")
    if imputes and config.bidirectional:
        raise UsageError("bidirectional: an imputer needs times that run with its direction; use a model each way")
    if config.dropout.embedding and not words:
        raise UsageError("dropout_embedding: expected a vocabulary, whose words are left out")
    if imputes and (words or config.dropout.input):
        raise UsageError("imputer: its input is values, masks and times, expected no vocabulary or dropout_input")


class TiedHead(nn.Module):
    """y (…, I) to y Eᵀ + b (…, V): a linear head whose weight is the embedding's E (V, I), which it does not own."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        # in a list, so that torch sees E once: as the embedding's
        self._embedding = [embedding]
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    @property
    def weight(self) -> Tensor:
        return self._embedding[0].weight

    def forward(self, y: Tensor) -> Tensor:
        return nn.functional.linear(y, self.weight, self.bias)


class SequenceModel(RecurrentModel):
    """Recurrent layers over a sequence, then a linear map of the last or of every output.

    model(x (T, B, I), state) returns y and the last state: y (B, O) with output="last", (T, B, O) with output="all";
    O is `output_size`, or `width`, that of the last layer's output, where it is None (no head). The state is a flat
    tuple of tensors, (B, H) each, for a rule's memory also (B, 1), in the order of `state_names`.

    The argument is a ModelConfig, or the arguments of `ModelConfig.of`: the cell's name and sizes, then settings by
    their short names, as in SequenceModel("sarnn", 2, 128, 1, layers=2, rank=16).

    layers, bidirectional: a bidirectional layer has two cells, the second reads the sequence backwards.
    mean, std (I,): the input is standardised as (x - mean) / std first.
    rank: recurrent weights as products of this rank (`LowRank`). density: the share of their blocks that stays
    (`BlockSparse`); `prune` leaves the others out, bit by bit. norm: "layer" or "recurrent-batch", with
    statistics for norm_steps steps (`cells.norm`).
    imputer: "gru-d" or "rits", before the first layer; x is then (T, B, 3F): values, masks, times (`imputers`).
    vocabulary: x is then (T, B) whole numbers below it, and the layers read their rows of a learned matrix E
    (vocabulary, I), which starts as U(-0.1, 0.1). tied: the head's weight is E, so O is vocabulary and `width` is I.

    In training mode alone, at these rates (`edgernn.dropout`): dropout_embedding leaves out words, dropout_input,
    dropout_hidden and dropout_output entries of the first layer's input, of what lies between two layers and of the
    last layer's output, one choice for all steps; weight_drop leaves out weights of R and C, weight_drop_input of W
    and V.
    Source of these, of `tied` and of `last_size`: Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language
    Models", 2017, https://arxiv.org/abs/1708.02182.

    Raises UsageError for an unknown name, a size below 1, a rate outside [0, 1), a bidirectional model with an imputer,
    arguments that do not go together, and an x of another shape or kind.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(self, config: ModelConfig | str | type[Cell] = "gru", *sizes: int | None, **settings: Any) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            config = ModelConfig.of(settings.pop("cell", config), *sizes, **settings)  # type: ignore[arg-type]
        elif sizes or settings:
            raise UsageError("config: expected no further arguments beside a ModelConfig")
        _check_together(config)
        self.config = config
        self.output = config.head.output
        self.directions = 2 if config.bidirectional else 1
        self.cell_type, self.rule_type = config.layer.types
        self.imputer_type = resolve_imputer(config.layer.cell.name, config.layer.imputer)
        size, vocabulary = config.input.size, config.input.vocabulary
        self.embedding = None if vocabulary is None else nn.Embedding(vocabulary, size)
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        first = None if self.imputer_type is None else self.imputer_type(size, config.hidden_size)
        widths = [size] + [hidden * self.directions for hidden in config.sizes]
        self.layers = nn.ModuleList(
            config.layer.make(widths[i], hidden, None if i else first)
            for i, hidden in enumerate(config.sizes)
            for _ in range(self.directions)
        )
        self.width = widths[-1]
        self.head = self._head()
        for name, numbers in (("input_mean", config.input.mean), ("input_std", config.input.std)):
            self.register_buffer(name, torch.tensor(numbers).expand(size).clone())
        for layer in self.recurrent_layers():
            check_weights(layer, config.dropout.weight)

    def _head(self) -> nn.Linear | TiedHead | None:
        size, words = self.config.head.size, self.config.input.vocabulary
        if not self.config.head.tied:
            return None if size is None else nn.Linear(self.width, size)
        if self.embedding is None:
            raise UsageError("tied: expected a vocabulary, whose embedding the head shares")
        if size != words:
            raise UsageError(f"tied: expected output_size={words}, the vocabulary, got {size}")
        if self.width != self.config.input.size:
            hint = "" if self.config.bidirectional else "; hidden_size or, of several layers, last_size sets it"
            wanted = f"a last layer as wide as the embedding, {self.config.input.size}"
            raise UsageError(f"tied: expected {wanted}, got {self.width}{hint}")
        return TiedHead(self.embedding)

    @property
    def input_size(self) -> int:
        return self.config.input.size

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def last_size(self) -> int | None:
        return self.config.last_size

    @property
    def output_size(self) -> int | None:
        return self.config.head.size

    @property
    def vocabulary(self) -> int | None:
        return self.config.input.vocabulary

    @property
    def bidirectional(self) -> bool:
        return self.config.bidirectional

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """One a layer and direction, forward before backward."""
        return list(self.layers)  # type: ignore[arg-type]

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
        y, last = self.recur(x, state)
        y = self.drop_output(y)
        return (y if self.head is None else self.head(y)), last

    def recur(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The recurrent layers alone: their last output, (B, `width`) or (T, B, `width`), and the last state."""
        y = self.inputs(x)
        if state is None:
            state = self.initial_state(y.shape[1], y)
        if len(state) != len(self.state_names):
            raise UsageError(f"state: expected {len(self.state_names)} tensors {self.state_names}, got {len(state)}")
        last: list[Tensor] = []
        self.traces = []
        layers = self.recurrent_layers()
        dropout = self.config.dropout
        tops: list[Tensor] = []
        for i in range(0, len(layers), self.directions):
            if self.training:
                y = locked(y, dropout.hidden if i else dropout.input)
            outputs, tops = [], []
            for direction, layer in enumerate(layers[i : i + self.directions]):
                own, state = state[: len(layer.states)], state[len(layer.states) :]
                run = with_dropped_weights(layer, dropout.weight, dropout.weight_input) if self.training else layer
                out, final, trace = run(y.flip(0) if direction else y, own)
                outputs.append(out.flip(0) if direction else out)
                # of the backward direction the last output is the one that has read the whole sequence
                tops.append(final[0])
                last += final
                self.traces.append(trace)
            y = outputs[0] if self.directions == 1 else torch.cat(outputs, -1)
        if self.output == "last":
            y = tops[0] if self.directions == 1 else torch.cat(tops, -1)
        return y, tuple(last)

    def drop_output(self, y: Tensor) -> Tensor:
        """What recur() gives, as the head reads it in this mode."""
        return locked(y, self.config.dropout.output) if self.training else y

    def inputs(self, x: Tensor) -> Tensor:
        """What the first layer reads (T, B, I): the rows of E that x (T, B) names, or x standardised."""
        if self.embedding is None:
            if x.ndim != 3 or x.shape[-1] != self.input_size or x.shape[0] < 1:
                raise UsageError(f"x: expected shape (T >= 1, B, {self.input_size}), got {tuple(x.shape)}")
            # to ask whether it changes anything would take longer
            return (x - self.input_mean) / self.input_std
        if x.ndim != 2 or x.numel() < 1 or x.is_floating_point() or x.dtype == torch.bool:
            raise UsageError(f"x: expected whole numbers of shape (T >= 1, B >= 1), got {x.dtype} {tuple(x.shape)}")
        low, high = (int(bound) for bound in x.aminmax())
        if low < 0 or high >= self.embedding.num_embeddings:
            expected = f"words from 0 to {self.embedding.num_embeddings - 1}"
            raise UsageError(f"x: expected {expected}, got numbers from {low} to {high}")
        embedded: Tensor = self.embedding(x)
        if self.training:
            embedded = words(embedded, x, self.embedding.num_embeddings, self.config.dropout.embedding)
        return embedded
