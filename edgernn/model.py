# SPDX-License-Identifier: Apache-2.0
"""SequenceModel, a stack of recurrent layers with a linear output layer, and the base class of such networks."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgernn.extras import needed_by

with needed_by("edgernn.model"):
    import torch
    from torch import Tensor, nn

    from edgernn.blocks import ResidualBlock
    from edgernn.cells.base import Cell, State
    from edgernn.cells.norm import RecurrentBatchNorm
    from edgernn.config import AnyConfig, ModelConfig
    from edgernn.config_checks import check_effects, check_together
    from edgernn.dropout import check_weights, locked, masked, with_dropped_weights, words
    from edgernn.errors import UsageError
    from edgernn.frontends import LogMel
    from edgernn.heads import make_head
    from edgernn.layer import RecurrentLayer, Trace
    from edgernn.layer_trace import Recorder
    from edgernn.names import resolve_imputer
    from edgernn.padding import (
        check_lengths,
        checked_lengths,
        last_steps,
        present_steps,
        reversed_time,
        run_layer,
        without_padding,
    )
    from edgernn.rounded_weights import Rounding
    from edgernn.rules.base import UpdateRule


class RecurrentModel(Recorder, nn.Module):
    """Base class of networks with recurrent layers: the interface that training and cost reports use.

    The forward pass of a subclass must leave one record (`Trace`) per layer in `traces`, in the order of
    recurrent_layers(); `layer.joined` merges the records of a layer that read a sequence in several parts. Weights
    are not rounded unless a subclass sets `rounding`. Derive a new network from this class, not from another network.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traces, self.earlier = [], []
        self.rounding = Rounding()
        self._background: Tensor | None = None
        self._background_weight = 1.0

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """List the `RecurrentLayer` objects of the network, in the order of their registration as submodules."""
        return [module for module in self.modules() if isinstance(module, RecurrentLayer)]

    @contextmanager
    def marked(self, background: Tensor | None, weight: float = 1.0) -> Iterator[None]:
        """Mark input steps of a `SequenceModel` as background in the forward passes inside the block.

        Args:
            background: Mask (T, B), True at steps without an event. None marks no steps.
            weight: Factor of the marked steps in the penalty on updates.

        Yields:
            None, while the marks are set.
        """
        self._background, self._background_weight = background, weight
        try:
            yield
        finally:
            self._background, self._background_weight = None, 1.0

    def outputs(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run whole sequences, without their last states.

        Args:
            x: Input (T, B, I), or words (T, B).
            lengths: Number of steps of each sequence (B,), if they differ; later steps of x are padding.

        Returns:
            y, (B, O) or (T, B, O).

        Raises:
            UsageError: The network cannot run sequences of unequal lengths.
        """
        if lengths is not None:
            self.check_lengths()
        y: Tensor = self(x)[0]
        return y

    def check_lengths(self) -> None:
        """Raise UsageError if the network cannot run sequences of unequal lengths."""
        raise UsageError(
            f"lengths: expected sequences of one length for {type(self).__name__}, as only SequenceModel leaves "
            "padding out; cut them to one length"
        )

    @property
    def update_rate(self) -> float:
        """Mean share of neurons updated at a step of the last forward pass, 0 to 1; RuntimeError if there was none."""
        return self._rate([trace.decisions for trace in self.traces])

    @property
    def foreground(self) -> float:
        """Share of the steps of the last forward pass that are not marked as background (`marked`)."""
        marks = [trace.background for trace in self.traces if trace.background is not None]
        return 1 - float(marks[0].to(torch.float64).mean()) if marks else 1.0

    @property
    def foreground_rate(self) -> float:
        """Mean share of neurons updated at a step of the last forward pass, over the steps that are not background.

        Background steps are those that `marked` marks. The share is `update_rate` if no step is marked, and NaN if all
        are background.
        """
        return self._rate(
            [
                t.decisions if t.decisions is None or t.background is None else t.decisions[~t.background]
                for t in self.traces
            ]
        )

    def _rate(self, decisions: list[Tensor | None]) -> float:
        """Mean share of updated neurons over layers, weighted by size, from a mask per layer (None: all updated)."""
        rates = [1.0 if u is None else float(u.to(torch.float64).mean()) for u in decisions]
        if not rates:
            raise RuntimeError("update_rate: the model has not been run yet; call the model first")
        sizes = [layer.cell.hidden_size for layer in self.recurrent_layers()]
        return sum(rate * size for rate, size in zip(rates, sizes, strict=True)) / sum(sizes)

    @property
    def budget(self) -> Tensor:
        """Penalty on updates in the last forward pass, summed over layers; the loss contains it times λ (lambda)."""
        return torch.stack([t.budget for t in self.traces]).sum()

    @property
    def imputation_loss(self) -> Tensor | None:
        """Loss of the imputer's estimates in the last forward pass, or None if the model has no imputer."""
        losses = [trace.imputation_loss for trace in self.traces if trace.imputation_loss is not None]
        return torch.stack(losses).sum() if losses else None

    def rules(self) -> list[UpdateRule]:
        """List the update rules of the network."""
        return [layer.rule for layer in self.recurrent_layers()]

    def anneal(self, epoch: int) -> None:
        """Sharpen the surrogate gradients of the update rules. Training calls it before each epoch; the first is 0."""
        for rule in self.rules():
            rule.anneal(epoch)

    def prune(self, step: int, steps: int) -> None:
        """Prune block-sparse weights on a schedule; training calls this before each step.

        In the first third of the steps all weights are trained. In the second third, every 15 steps, all but the
        largest blocks are set to zero, but training may change them again. In the last third the zeros stay. This is
        the schedule of Kusupati et al. 2018, arXiv:1901.02358, whose code also holds the zeros between two prunings.

        Args:
            step: Index of the next training step, from 0.
            steps: Total number of training steps.
        """
        final = _final_pruning(steps)
        if step < steps // 3 or step > final or (step < final and step % 15):
            return
        for layer in self.recurrent_layers():
            if layer.cell.is_sparse:
                layer.cell.threshold(hold=step == final)

    def pruned(self, step: int, steps: int) -> bool:
        """True if pruning is complete after `step` of `steps` training steps, or no weights are block-sparse."""
        return step > _final_pruning(steps) or all(not layer.cell.is_sparse for layer in self.recurrent_layers())


def _final_pruning(steps: int) -> int:
    """Return the index (from 0) of the step before which `prune` prunes for the last time, out of `steps` steps."""
    return 2 * steps // 3


class ConfiguredModel(RecurrentModel):
    """Base class of networks that a configuration describes, whose input is standardised as (x - mean) / std.

    Attributes:
        config: The configuration.
        input_mean: Mean (I,) that is subtracted from the input.
        input_std: Standard deviation (I,) that the input is divided by.
    """

    config: AnyConfig
    input_mean: Tensor
    input_std: Tensor

    @property
    def input_size(self) -> int:
        return self.config.input.size

    @property
    def output_size(self) -> int | None:
        return self.config.head.size

    @property
    def vocabulary(self) -> int | None:
        return self.config.input.vocabulary

    @property
    def standardises(self) -> bool:
        return bool((self.input_mean != 0).any() or (self.input_std != 1).any())


class SequenceModel(ConfiguredModel):
    """Recurrent layers over a sequence, then a linear output layer (head) for the last step or for every step.

    model(x (T, B, I), state) returns y and the last state: y (B, O) with output="last", (T, B, O) with output="all".
    O is `output_size`; without a head it is `width`, the size of the last layer's output. The state is a flat tuple of
    tensors in the order of `state_names`. A state of a cell is (B, H); a state of an update rule may be (B, 1).

    model(x, state, lengths) runs sequences of unequal lengths (B,), from 1 to T: later steps of x are padding, which is
    not read. y (B, O) is then the output at each sequence's own last step, and the last state that after it; y (T, B,
    O) has no meaning in the padding. A backward cell starts at the last step of each sequence. Updates in the padding
    are neither counted nor penalised. `outputs` returns y alone, which is faster: all steps run at once.

    Example: SequenceModel("sarnn", 2, 128, 1, layers=2, rank=16). The settings are:

    layers: Number of layers.
    bidirectional: Each layer has a second cell, which reads the sequence backwards.
    last_size: Number of neurons in the last layer.
    mean, std: Statistics (I,) that standardise the input: (x - mean) / std.
    frontend: "logmel", log mel features of audio. x is then raw audio (T, B, I): each step gets the next
        I = stack * hop samples. mean and std (stack * bands,) standardise the features (`edgernn.frontends`).
    rank: Rank of low-rank recurrent weights (`LowRank`).
    density: Share of nonzero blocks in sparse recurrent weights (`BlockSparse`), which `prune` selects in training.
    norm: "layer" or "recurrent-batch". The latter has statistics per step, up to step norm_steps (`cells.norm`).
    block: "linear" or "gated", the residual block around each layer (`edgernn.blocks`).
    imputer: "gru-d" or "rits". x is then (T, B, 3F): F values with gaps, F masks, and F times since the
        last observation (`imputers`).
    vocabulary: Number of words. x is then (T, B) integers below it. The layers read rows of the embedding
        E (vocabulary, I), which starts as U(-0.1, 0.1).
    tied: The head's weight is E, so that O must be vocabulary and `width` must be I.
    weights: Type to which all matrices are rounded in forward passes, as in an exported file: "float32", "bfloat16" or
        "int8". Gradients are those of the parameters, which stay float32 (`rounded_weights.Rounding`).
    dropout_embedding, dropout_input, dropout_hidden, dropout_output: Dropout rates of words, of the first layer's
        input, between layers, and of the last layer's output; one mask for all steps (`edgernn.dropout`).
    weight_drop, weight_drop_input: DropConnect rates of the weights R and C, and of the weights W and V.
    mask_steps, mask_channels: Largest numbers of successive steps and channels of the first layer's input that are
        masked in each sequence (`dropout.masked`).

    Dropout and masks act in training mode only. With `block`, dropout_input and dropout_hidden act on the normalised
    inputs of the layers, not on the residual connections.
    Source of dropout, `tied` and `last_size`: Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language
    Models", 2017, https://arxiv.org/abs/1708.02182.

    Args:
        config: A ModelConfig, or the name or the class of a cell, as in `ModelConfig.of`.
        *sizes: I, H and O, unless config is a ModelConfig.
        **settings: Further arguments of `ModelConfig.of`, unless config is a ModelConfig.

    Attributes:
        config: The configuration.

    Raises:
        UsageError: An unknown name, a size below 1, a rate outside [0, 1), settings that exclude each other, or an x
            of another shape or dtype.
    """

    config: ModelConfig

    def __init__(self, config: ModelConfig | str | type[Cell] = "gru", *sizes: int | None, **settings: Any) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            config = ModelConfig.of(settings.pop("cell", config), *sizes, **settings)  # type: ignore[arg-type]
            check_effects(config)
        elif sizes or settings:
            raise UsageError("config: expected no further arguments with a ModelConfig; change its fields instead")
        check_together(config)
        self.config = config
        self.rounding = Rounding(config.weights)
        self.output = config.head.output
        self.directions = 2 if config.bidirectional else 1
        self.cell_type, self.rule_type = config.layer.types
        self.imputer_type = resolve_imputer(config.layer.cell.name, config.layer.imputer)
        self.frontend = None if config.frontend.name is None else LogMel(config.frontend)
        size, vocabulary = config.features, config.input.vocabulary
        self.embedding = None if vocabulary is None else nn.Embedding(vocabulary, size)
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        first = None if self.imputer_type is None else self.imputer_type(size, config.hidden_size)
        widths = [size] + [hidden * self.directions for hidden in config.sizes]
        has_block = config.block is not None
        self.layers = nn.ModuleList(
            config.layer.make(hidden if has_block else widths[i], hidden, None if i else first, i * self.directions + d)
            for i, hidden in enumerate(config.sizes)
            for d in range(self.directions)
        )
        self.blocks = nn.ModuleList(
            ResidualBlock(config.block, widths[i], hidden, self.rounding)
            for i, hidden in enumerate(config.sizes)
            if config.block
        )
        self.width = widths[-1]
        self.head = make_head(config, self.width, self.embedding)
        for name, numbers in (("input_mean", config.input.mean), ("input_std", config.input.std)):
            self.register_buffer(name, torch.tensor(numbers).expand(size).clone())
        for layer in self.recurrent_layers():
            check_weights(layer, config.dropout.weight)

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def last_size(self) -> int | None:
        return self.config.last_size

    @property
    def bidirectional(self) -> bool:
        return self.config.bidirectional

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """List the `RecurrentLayer` objects, first layer first; a bidirectional layer has two, forward first."""
        return list(self.layers)  # type: ignore[arg-type]

    def residual_blocks(self) -> list[ResidualBlock]:
        """List the residual blocks around the layers, first layer first; empty for a model without blocks."""
        return list(self.blocks)  # type: ignore[arg-type]

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's tensors in their order, such as layer0.h, or layer0.reverse.h for a backward cell."""
        names = [] if self.frontend is None else [f"frontend.{s}" for s in self.frontend.widths]
        for i in range(len(self.layers)):
            layer, direction = divmod(i, self.directions)
            names += [f"layer{layer}{'.reverse' * direction}.{s}" for s in self.recurrent_layers()[i].states]
        return tuple(names)

    @property
    def streaming(self) -> bool:
        """True if a sequence may be processed in parts, each starting from the last state of the part before."""
        return not self.bidirectional and all(layer.cell.streaming for layer in self.recurrent_layers())

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the initial states of `batch` sequences, the front end's first, in dtype and device of `like`."""
        heard = () if self.frontend is None else self.frontend.initial_state(batch, like)
        return (*heard, *(s for layer in self.recurrent_layers() for s in layer.initial_state(batch, like)))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, State]:
        y, last = self.recur(x, state, lengths)
        return self.decode(self.drop_output(y)), last

    def outputs(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.decode(self.drop_output(self.recur(x, None, lengths, needs_state=False)[0]))

    def decode(self, y: Tensor) -> Tensor:
        """Apply the output layer (head) to y (…, `width`), the result of recur(); without a head, return y itself."""
        if self.head is None:
            return y
        return nn.functional.linear(y, self.rounding.matrix(self.head.weight, self.training), self.head.bias)

    def recur(
        self,
        x: Tensor,
        state: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        needs_state: bool = True,
    ) -> tuple[Tensor, State]:
        """Run the recurrent layers without the output layer (head).

        Args:
            x: Input (T, B, I), or words (T, B).
            state: State to start from: one tensor for each of `state_names`, else UsageError. Default: `initial_state`.
            lengths: Number of steps of each sequence (B,), if they differ, as in the class docstring.
            needs_state: Return the last state. False is faster with `lengths`.

        Returns:
            Output of the last layer, (B, `width`) with output="last", else (T, B, `width`), and the last state, or an
            empty tuple without `needs_state`.

        Raises:
            UsageError: A state or lengths that do not fit; or lengths with `norm="recurrent-batch"` in training, or
                with a front end whose state is needed.
        """
        if state is not None and len(state) != len(self.state_names):
            expected = f"{len(self.state_names)} tensors {self.state_names}"
            raise UsageError(f"state: expected {expected}, got {len(state)} tensors; pass the last state, or None")
        y, heard, counts = self._inputs(x, state, lengths)
        if counts is not None:
            self.check_lengths()
            if self.frontend is not None and needs_state:
                raise UsageError(
                    "lengths: expected a model without an audio front end, whose last state is that after the padding; "
                    "call outputs(x, lengths), which returns no state"
                )
        if state is None:
            state = self.initial_state(y.shape[1], y)
        state, last = state[len(heard) :], list(heard)
        traces: list[Trace] = []
        layers = self.recurrent_layers()
        dropout = self.config.dropout
        if self.training:
            y = masked(y, dropout.steps, dropout.channels, None if counts is None else present_steps(counts, y))
        for i in range(0, len(layers), self.directions):
            block = self.residual_blocks()[i] if self.blocks else None
            u, y = (y, y) if block is None else block.enter(y)
            if self.training:
                y = locked(y, dropout.hidden if i else dropout.input)
            outputs, tops = [], []
            for direction, layer in enumerate(layers[i : i + self.directions]):
                layer_state, state = state[: len(layer.states)], state[len(layer.states) :]
                background, weights = self._steps(y, counts, bool(direction))
                rates = (dropout.weight, dropout.weight_input) if self.training else (0.0, 0.0)
                run = with_dropped_weights(layer, *rates, self.rounding.of(layer))
                out, final, trace = run_layer(
                    layer, run, y, layer_state, counts, weights, reverse=direction == 1, needs_state=needs_state
                )
                outputs.append(out)
                # the backward direction's final state, which has read the whole sequence, is at the first step
                tops.append(final[0])
                last += final
                traces.append(trace if background is None else dataclasses.replace(trace, background=background))
            if self.output == "last" and i + self.directions == len(layers):
                outputs, u = tops, last_steps(u, counts)
            y = outputs[0] if self.directions == 1 else torch.cat(outputs, -1)
            y = y if block is None else block.leave(u, y)
        self.record(traces)
        return y, tuple(last) if needs_state else ()

    def check_lengths(self) -> None:
        for layer in self.recurrent_layers():
            check_lengths(layer)
        if self.training and any(isinstance(module, RecurrentBatchNorm) for module in self.modules()):
            raise UsageError(
                "lengths: expected sequences of one length with norm=recurrent-batch, whose statistics of a batch "
                "would contain the padding; use norm=layer"
            )

    def _steps(self, y: Tensor, lengths: Tensor | None, reverse: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return the mask of background steps, and the weight (T, B) of every step in the penalty on updates.

        The steps are in the order in which the layer reads its input y (T, B, ...), backwards if `reverse`; with
        lengths, the mask has only the steps within them, as that of `Trace.only`. Both results are None if no steps are
        marked (`marked`).
        """
        background = self._background
        if background is None:
            return None, None
        if background.shape != y.shape[:2]:
            raise UsageError(f"background: expected shape (T, B) = {tuple(y.shape[:2])}, got {tuple(background.shape)}")
        background = reversed_time(background, lengths) if reverse else background
        weights = torch.where(background, self._background_weight, 1.0).to(y)
        return background if lengths is None else background[present_steps(lengths, y)].unsqueeze(1), weights

    def drop_output(self, y: Tensor) -> Tensor:
        """Apply output dropout to the result of recur(), in training mode only."""
        return locked(y, self.config.dropout.output) if self.training else y

    def inputs(self, x: Tensor) -> Tensor:
        """Validate x and return the first layer's input (T, B, I): embedded words, or standardised x or features."""
        return self._inputs(x, None, None)[0]

    def _check_tensor(self, x: object) -> None:
        if not isinstance(x, Tensor):
            raise UsageError(
                f"x: expected a torch.Tensor, got {type(x).__module__}.{type(x).__name__}; convert it with "
                "torch.as_tensor(x, dtype=torch.float32), or torch.int64 for word indices"
            )
        if x.device != self.input_mean.device:
            device = self.input_mean.device
            raise UsageError(
                f"x: expected a tensor on {device}, got one on {x.device}; move it with x.to({str(device)!r})"
            )

    def _check_numbers(self, x: Tensor) -> None:
        """Raise UsageError unless x has the shape (T, B, I) and a dtype that the weights can be computed with."""
        size = self.input_size if self.frontend is None else self.frontend.input_size
        if x.ndim != 3 or x.shape[-1] != size or x.shape[0] < 1:
            remedy = "; add the axis B with x.unsqueeze(1)" if x.ndim == 2 and x.shape[-1] == size else ""
            raise UsageError(f"x: expected shape (T >= 1, B, {size}), got {tuple(x.shape)}{remedy}")
        dtype = self.input_mean.dtype
        samples = self.frontend is not None and not x.is_floating_point()
        if x.dtype == torch.bool or samples or torch.promote_types(x.dtype, dtype) != dtype:
            remedy = ", and divide 16-bit samples by 32768" if samples else ""
            raise UsageError(f"x: expected {dtype}, got {x.dtype}; convert it with x.to({dtype}){remedy}")

    def _inputs(
        self, x: Tensor, state: State | None, lengths: Tensor | Sequence[int] | None
    ) -> tuple[Tensor, State, Tensor | None]:
        """Return the first layer's input, the front end's new state, and the checked lengths, from the whole state."""
        self._check_tensor(x)
        if self.embedding is None:
            self._check_numbers(x)
        counts = None if lengths is None else checked_lengths(lengths, x)
        if counts is not None:
            x = without_padding(x, counts)
        if self.embedding is None:
            heard: State = ()
            if self.frontend is not None:
                count = len(self.frontend.widths)
                x, heard = self.frontend(x, None if state is None else state[:count])
            # also for mean 0 and std 1, as a check for them would take longer
            return (x - self.input_mean) / self.input_std, heard, counts
        if x.ndim != 2 or x.numel() < 1 or x.is_floating_point() or x.dtype == torch.bool:
            raise UsageError(
                f"x: expected word indices (integers) of shape (T >= 1, B >= 1), got {x.dtype} {tuple(x.shape)}"
            )
        if not torch.compiler.is_compiling():
            low, high = (int(bound) for bound in x.aminmax())
            if low < 0 or high >= self.embedding.num_embeddings:
                expected = f"word indices from 0 to {self.embedding.num_embeddings - 1}"
                raise UsageError(f"x: expected {expected}, got numbers from {low} to {high}")
        embedded = nn.functional.embedding(x, self.rounding.matrix(self.embedding.weight, self.training))
        if self.training:
            embedded = words(embedded, x, self.embedding.num_embeddings, self.config.dropout.embedding)
        return embedded, (), counts
