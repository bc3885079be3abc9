# SPDX-License-Identifier: Apache-2.0
"""Layers for networks of one's own: recurrent ones, a single step of one, causal convolutions, parts that skip steps.

A network of these layers is an ordinary torch module: it trains in one's own loop, and `edgernn.export.to_onnx` writes
it to a file. Recurrent layers run on the fused kernels by themselves, as in `edgernn train`; `Recurrent.backend` names
what runs a layer.
"""

import copy
import dataclasses
from collections.abc import Sequence
from itertools import islice
from typing import Any

from edgernn.extras import needed_by

with needed_by("edgernn.nn"):
    import torch
    from torch import Tensor, nn
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

    from edgernn.cells.base import Cell
    from edgernn.conditional import Conditional, conditionals
    from edgernn.config import LayerConfig
    from edgernn.convert import check_permanent, copy_weights, suffixes
    from edgernn.errors import UsageError
    from edgernn.kernels import why_loop
    from edgernn.layer import RecurrentLayer, Trace, check_tensor, python_loop
    from edgernn.layer_trace import Recorder
    from edgernn.model import RecurrentModel
    from edgernn.names import resolve
    from edgernn.padding import checked_lengths, run_layer, without_padding
    from edgernn.rules.base import UpdateRule
    from edgernn.settings import bind, build, fields_of, options_of, whole
    from edgernn.steering import Steering, SteeringState, check_steerable

__all__ = [
    "CausalConv1d",
    "Conditional",
    "Conversion",
    "Recurrent",
    "RecurrentCell",
    "Steer",
    "budget",
    "convert",
    "python_loop",
    "steer",
    "update_rate",
]

# what torch.nn returns as a state: one tensor, or a tuple of them
States = Tensor | tuple[Tensor, ...]


class _Recurrent(Recorder, nn.Module):
    """Recurrent layers of one cell and update rule, and the records of their calls.

    Args:
        cell: Name or class of the cell.
        rule: Name or class of the update rule, or None.
        sizes: I and H of each of the layers.
        **words: Options of the cell and of the rule, and settings of a layer.

    Attributes:
        layers: The layers of class `RecurrentLayer`, first layer first, each forward direction before its backward one.
        completes_state: True if a call may pass a state without the tensors of the rule, which then start anew, as at
            the first step. `convert` sets it, as a torch module has no rule. Otherwise such a state is refused: a
            network that drops the rule's tensors in the middle of a sequence computes other values.
    """

    layers: nn.ModuleList
    completes_state = False

    def __init__(
        self,
        cell: str | type[Cell],
        rule: str | type[UpdateRule] | None,
        sizes: Sequence[tuple[int, int]],
        **words: Any,
    ) -> None:
        super().__init__()
        cell_type, rule_type = resolve(cell, rule)
        options = {"cell": options_of(cell_type), "rule": options_of(rule_type)}
        values = bind(words, layer=fields_of(LayerConfig), **options)
        chosen = ({path[0]: value for path, value in values[part].items()} for part in options)
        config = build(LayerConfig, values["layer"]).named(cell, rule, *chosen)
        if config.imputer is not None:
            raise UsageError("cell: expected one without an imputer, which SequenceModel has; use SequenceModel for it")
        self.input_size, self.hidden_size = sizes[0]
        self.layers = nn.ModuleList(config.make(inputs, hidden) for inputs, hidden in sizes)
        self.traces, self.earlier = [], []

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """List the layers of class `RecurrentLayer`."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def backend(self) -> str:
        """Names of the implementations that run the layers: "fused" for kernels, "torch" for the loop in Python."""
        return ", ".join(sorted({layer.backend for layer in self.recurrent_layers()}))

    @property
    def why_loop(self) -> str | None:
        """Reason why a layer runs its loop in Python; None if kernels run all layers."""
        layers = self.recurrent_layers()
        reasons = (why_loop(layer, next(layer.parameters()).device.type) for layer in layers)
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def _stacked(self) -> int:
        return len(self.recurrent_layers()[0].cell.states)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's tensors: those of the cell, then the other ones of each layer, such as layer0.rule_x."""
        first, *_ = layers = self.recurrent_layers()
        others = [f"layer{i}.{name}" for i, layer in enumerate(layers) for name in layer.states[self._stacked :]]
        return (*first.cell.states, *others)

    def initial_state(self, batch: int, like: Tensor) -> States:
        """Return the state before the first step, in dtype and device of `like`; `forward` describes its layout."""
        return self._joined([layer.initial_state(batch, like) for layer in self.recurrent_layers()])

    def _joined(self, states: list[tuple[Tensor, ...]]) -> States:
        count = self._stacked
        stacked = [torch.stack(tensors) for tensors in zip(*(state[:count] for state in states), strict=True)]
        return _untupled((*stacked, *(tensor for state in states for tensor in state[count:])))

    def _checked(self, state: States, batch: int) -> tuple[Tensor, ...]:
        """Return the tensors of a state, with the initial ones of the rule if `completes_state` is set."""
        tensors = _tuple(state)
        for tensor in tensors:
            check_tensor("state", tensor, self)
        if self.completes_state and self._stacked <= len(tensors) < len(self.state_names):
            layers, count = self.recurrent_layers(), self._stacked
            others = iter(tensors[count:])
            tensors = tensors[:count]
            for layer in layers:
                memory = layer.rule.initial_memory(batch, tensors[0])
                tensors += (*memory, *islice(others, len(layer.states) - count - len(memory)))
            tensors += tuple(others)
        return tensors

    def _split(self, state: States, batch: int) -> list[tuple[Tensor, ...]]:
        layers, count = self.recurrent_layers(), self._stacked
        tensors = self._checked(state, batch)
        widths: list[tuple[int, ...]] = [(len(layers), batch, self.hidden_size)] * count
        widths += [(batch, width) for layer in layers for width in list(layer.widths.values())[count:]]
        got = [tuple(tensor.shape) for tensor in tensors]
        if got != widths:
            names = ", ".join(f"{name} {shape}" for name, shape in zip(self.state_names, widths, strict=True))
            raise UsageError(f"state: expected tensors {names}, got shapes {got}; pass the last state, or None")
        others = iter(tensors[count:])
        return [
            (*(tensor[i] for tensor in tensors[:count]), *(next(others) for _ in layer.states[count:]))
            for i, layer in enumerate(layers)
        ]


class Recurrent(_Recurrent):
    """Recurrent layers with any cell and update rule, called like torch.nn.GRU: `y, state = rnn(x, state)`.

    Args:
        cell: Name or class of the cell, such as "sarnn" or "lstm"; `edgernn cells` lists the names.
        input_size: I.
        hidden_size: H.
        num_layers: Number of layers.
        rule: Name or class of the update rule. Default: the one that the cell's name implies, else "always".
        bidirectional: Add a second cell to each layer, which reads the sequence backwards.
        batch_first: x and y are (B, T, ...) in place of (T, B, ...). States stay as they are.
        dropout: Rate at which outputs of every layer but the last are set to 0 in training.
        **settings: Options of the cell and of the rule, and the settings of a layer, such as rank=16 or norm="layer".

    Raises:
        UsageError: An unknown name or setting, or a value that is not valid.
    """

    def __init__(
        self,
        cell: str | type[Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        rule: str | type[UpdateRule] | None = None,
        bidirectional: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        **settings: Any,
    ) -> None:
        input_size, hidden_size = whole("input_size", input_size), whole("hidden_size", hidden_size)
        num_layers = whole("num_layers", num_layers)
        if not 0 <= dropout < 1:
            raise UsageError(f"dropout: expected at least 0 and below 1, got {dropout}; pass such a rate")
        directions = 2 if bidirectional else 1
        sizes = [(hidden_size * directions if i else input_size, hidden_size) for i in range(num_layers)]
        super().__init__(cell, rule, [size for size in sizes for _ in range(directions)], **settings)
        self.num_layers, self.bidirectional = num_layers, bidirectional
        self.batch_first, self.dropout = batch_first, dropout

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, batch_first={self.batch_first}, dropout={self.dropout}"

    def flatten_parameters(self) -> None:
        """Do nothing; a method of torch.nn.GRU."""

    def forward(
        self, x: Tensor | PackedSequence, state: States | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run all layers over sequences.

        Args:
            x: Input (T, B, I), or (B, T, I) with batch_first; (T, I) for one sequence; or a PackedSequence.
            state: State before the first step. Each state of the cell, such as h, is a tensor (layers · directions, B,
                H), as in torch.nn.GRU. Other ones, as those of the rule, follow for each layer as (B, width). Default:
                `initial_state`.
            lengths: Number of steps of each sequence (B,), if they differ. x at later steps is not read and the output
                there is 0. The returned state is that after each sequence's own last step. A file may read no other
                state than h of such a layer, and a compiled graph takes no layer with others.

        Returns:
            The output of the last layer (T, B, H · directions), in the layout of x, and the last state, in the layout
            of `state`: one tensor if there is only one, else a tuple in the order of `state_names`. The rule may have
            tensors in it: take h as `state[0]` and those of an LSTM as `h, c = state[:2]`, but pass the whole state on.

        Raises:
            UsageError: Shapes that do not fit, or lengths outside 1 to T.
        """
        if isinstance(x, PackedSequence):
            return self._packed(x, state)
        check_tensor("x", x, self)
        if x.ndim == 2 and lengths is None:
            batched = None if state is None else tuple(s.unsqueeze(-2) for s in _tuple(state))
            y, last = self.forward(x.unsqueeze(0 if self.batch_first else 1), batched)
            assert isinstance(y, Tensor)
            single = _untupled(tuple(s.squeeze(-2) for s in _tuple(last)))
            return y.squeeze(0 if self.batch_first else 1), single
        x = x.transpose(0, 1) if self.batch_first and x.ndim == 3 else x
        if x.ndim != 3 or x.shape[2] != self.input_size or not x.is_floating_point():
            axes = "B, T" if self.batch_first else "T, B"
            shape = tuple(x.transpose(0, 1).shape if self.batch_first and x.ndim == 3 else x.shape)
            raise UsageError(f"x: expected floats ({axes}, {self.input_size}), got {x.dtype} {shape}; reshape it")
        if x.shape[0] < 1:
            raise UsageError("x: expected at least one step, got none; pass a longer sequence")
        counts = None if lengths is None else checked_lengths(lengths, x)
        if counts is not None:
            x = without_padding(x, counts)
        layers, directions = self.recurrent_layers(), 2 if self.bidirectional else 1
        states = self._split(self.initial_state(x.shape[1], x) if state is None else state, x.shape[1])
        y, lasts, traces = x, [], []
        for i in range(0, len(layers), directions):
            if i and self.dropout:
                y = nn.functional.dropout(y, self.dropout, self.training)
            outputs = []
            for direction in range(directions):
                layer, start = layers[i + direction], states[i + direction]
                out, last, trace = run_layer(layer, layer, y, start, counts, reverse=direction == 1)
                outputs.append(out)
                lasts.append(last)
                traces.append(trace)
            y = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        self.record(traces)
        return y.transpose(0, 1) if self.batch_first else y, self._joined(lasts)

    def _packed(self, packed: PackedSequence, state: States | None) -> tuple[PackedSequence, States]:
        x, lengths = pad_packed_sequence(packed, batch_first=self.batch_first)
        # pad_packed_sequence returns the order before packing, that of the states
        y, last = self.forward(x, state, lengths)
        again = pack_padded_sequence(y, lengths, self.batch_first, enforce_sorted=packed.sorted_indices is None)  # type: ignore[arg-type]
        return again, last


class RecurrentCell(_Recurrent):
    """One step of a recurrent layer, called like torch.nn.GRUCell: `state = cell(x, state)`.

    Args:
        cell: Name or class of the cell, such as "sarnn" or "lstm"; `edgernn cells` lists the names.
        input_size: I.
        hidden_size: H.
        rule: Name or class of the update rule. Default: the one that the cell's name implies, else "always".
        **settings: Options of the cell and of the rule, and the settings of a layer, such as rank=16 or norm="layer".

    Attributes:
        most_calls: Largest number of calls in a training step whose records are kept.

    Raises:
        UsageError: An unknown name or setting, or a value that is not valid.
    """

    most_calls = 10_000

    def __init__(
        self,
        cell: str | type[Cell],
        input_size: int,
        hidden_size: int,
        *,
        rule: str | type[UpdateRule] | None = None,
        **settings: Any,
    ) -> None:
        sizes = whole("input_size", input_size), whole("hidden_size", hidden_size)
        super().__init__(cell, rule, [sizes], **settings)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def initial_state(self, batch: int, like: Tensor) -> States:
        """Return the state before the first step, in dtype and device of `like`."""
        (layer,) = self.recurrent_layers()
        return _untupled(layer.initial_state(batch, like))

    def forward(self, x: Tensor, state: States | None = None) -> States:
        """Compute the next state from the input x (B, I) or (I,) and the state before.

        The output is its first tensor, h (B, H). A state of several tensors, as c or those of the rule, is a tuple.
        """
        check_tensor("x", x, self)
        if x.ndim == 1:
            batched = None if state is None else tuple(s.unsqueeze(0) for s in _tuple(state))
            return _untupled(tuple(s.squeeze(0) for s in _tuple(self.forward(x.unsqueeze(0), batched))))
        if x.ndim != 2 or x.shape[1] != self.input_size or not x.is_floating_point():
            got = f"{x.dtype} {tuple(x.shape)}"
            raise UsageError(f"x: expected floats (B, {self.input_size}), got {got}; pass one step of each sequence")
        (layer,), batch = self.recurrent_layers(), x.shape[0]
        before = self._checked(self.initial_state(batch, x) if state is None else state, batch)
        widths = [(batch, width) for width in layer.widths.values()]
        if (shapes := [tuple(s.shape) for s in before]) != widths:
            raise UsageError(f"state: expected shapes {widths}, got {shapes}; pass the last state, or None")
        _, after, trace = layer(x.unsqueeze(0), before)
        self.record([trace])
        return _untupled(after)


class CausalConv1d(nn.Conv1d):
    """Convolution over time whose output at a step reads that step and earlier ones: `y, state = conv(x, state)`.

    y_t = b + Σ_k W_k x_{t - (K-1-k)·dilation}

    The state holds the last (K-1) · dilation inputs. Parts of a sequence, each with the state after the one before,
    give the output of the whole sequence.

    Args:
        in_channels: C, number of input channels.
        out_channels: Number of output channels.
        kernel_size: K, number of inputs that an output reads.
        dilation: Distance between these inputs.
        groups: Number of groups of channels that do not mix, as in torch.nn.Conv1d.
        bias: False for a convolution without b.

    Raises:
        UsageError: A size below 1, or channels that the groups do not divide.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        in_channels, out_channels = whole("in_channels", in_channels), whole("out_channels", out_channels)
        kernel_size, dilation = whole("kernel_size", kernel_size), whole("dilation", dilation)
        groups = whole("groups", groups)
        if in_channels % groups or out_channels % groups:
            raise UsageError(
                f"groups: expected a divisor of {in_channels} and {out_channels} channels, got {groups}; pass one"
            )
        super().__init__(in_channels, out_channels, kernel_size, dilation=dilation, groups=groups, bias=bias)

    @property
    def memory(self) -> int:
        """Number of steps in the state."""
        return (self.kernel_size[0] - 1) * self.dilation[0]

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        """Return the state before the first step, zeros (B, C, `memory`), in dtype and device of `like`."""
        return like.new_zeros(batch, self.in_channels, self.memory)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x (B, C, T) after the inputs in `state`; return y (B, out_channels, T) and the next state."""
        check_tensor("x", x, self)
        if x.ndim != 3 or x.shape[1] != self.in_channels:
            raise UsageError(f"x: expected shape (B, {self.in_channels}, T), got {tuple(x.shape)}; transpose it")
        if x.shape[2] < 1:
            raise UsageError("x: expected at least one step, got none; pass a longer sequence")
        state = self.initial_state(x.shape[0], x) if state is None else state
        check_tensor("state", state, self)
        if state.shape[1:] != (self.in_channels, self.memory) or state.shape[0] != x.shape[0]:
            expected = (x.shape[0], self.in_channels, self.memory)
            raise UsageError(
                f"state: expected shape {expected}, got {tuple(state.shape)}; pass the last state, or None"
            )
        joined = torch.cat([state, x], 2)
        return super().forward(joined), joined[:, :, joined.shape[2] - self.memory :]


# torch.nn's classes, and the cells that compute the same
_TORCH: dict[type[nn.Module], str] = {
    nn.RNN: "rnn",
    nn.GRU: "gru",
    nn.LSTM: "lstm",
    nn.RNNCell: "rnn",
    nn.GRUCell: "gru",
    nn.LSTMCell: "lstm",
}


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Result of `convert`.

    Attributes:
        module: A copy of the module, with layers of edgernn in place of those of torch.nn.
        replaced: Names of the replaced modules; "" for the module itself.
        left: Dict from the name of each recurrent module that is still one of torch to the reason.
    """

    module: nn.Module
    replaced: list[str]
    left: dict[str, str]


def convert(module: nn.Module, **settings: Any) -> Conversion:
    """Put `Recurrent` and `RecurrentCell` in place of nn.GRU, LSTM, RNN and their cells anywhere in a module.

    Weights are kept, and so are calls, outputs and states. A module that is used in several places stays one. Under a
    rule with states of its own, such as delta, these follow those of the cell in a returned state. In the network,
    `h, c = state` becomes `h, c = state[:2]`, and `h = state` of a GRU becomes `h = state[0]`; `h[-1]` without it is a
    state of the rule. A call may pass the states of the cell alone, as a network does that makes its first state: the
    rule then starts anew.

    Args:
        module: The module, which is not changed.
        **settings: Settings of the new layers, such as rule="delta". Default: the same outputs as before, within
            rounding.

    Returns:
        The converted copy, and what was replaced and left.

    Raises:
        UsageError: An unknown setting.
    """
    module = copy.deepcopy(module)
    replaced, left = [], {}
    known: dict[nn.Module, nn.Module] = {}
    for name, part in list(module.named_modules(remove_duplicate=False)):
        if not isinstance(part, nn.RNNBase | nn.RNNCellBase):
            continue
        if (reason := _not_convertible(part)) is not None:
            left[name] = reason
            continue
        replaced.append(name)
        if part not in known:
            known[part] = _converted(part, settings)
        if not name:
            return Conversion(known[part], replaced, left)
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, known[part])
    return Conversion(module, replaced, left)


def _not_convertible(module: nn.Module) -> str | None:
    """Return the reason why edgernn has no layer for a recurrent module of torch; None if it has one."""
    if type(module) not in _TORCH:
        kinds = f"{type(module).__module__}.{type(module).__qualname__}"
        return f"expected a class of torch.nn, got {kinds}, whose forward may differ"
    if getattr(module, "nonlinearity", "tanh") != "tanh":
        return "nonlinearity: expected tanh, got relu, which no cell of edgernn has"
    if getattr(module, "proj_size", 0):
        return f"proj_size: expected 0, got {module.proj_size}, a projection, which no cell of edgernn has"
    try:
        check_permanent(module)
    except UsageError as error:
        return str(error)
    return None


def _converted(module: Any, settings: dict[str, Any]) -> nn.Module:
    """Return the layer of edgernn with the weights of a recurrent module of torch."""
    cell, names = _TORCH[type(module)], [""]
    if isinstance(module, nn.RNNCellBase):
        new: _Recurrent = RecurrentCell(cell, module.input_size, module.hidden_size, **settings)
    else:
        new = Recurrent(
            cell,
            module.input_size,
            module.hidden_size,
            module.num_layers,
            bidirectional=module.bidirectional,
            batch_first=module.batch_first,
            dropout=module.dropout,
            **settings,
        )
        names = suffixes(module)
    like: Tensor = next(module.parameters())
    new.to(device=like.device, dtype=like.dtype)
    for layer, suffix in zip(new.recurrent_layers(), names, strict=True):
        copy_weights(layer.cell, module, suffix)
        layer.cell.W.requires_grad_(getattr(module, f"weight_ih{suffix}").requires_grad)
        layer.cell.R.requires_grad_(getattr(module, f"weight_hh{suffix}").requires_grad)
        # a module without biases has none to train
        layer.cell.b.requires_grad_(module.bias)
    new.completes_state = True
    return new.train(module.training)


def recurrent_modules(module: nn.Module) -> list[_Recurrent | RecurrentModel]:
    """List the outermost recurrent modules in a tree, each once."""
    if isinstance(module, _Recurrent | RecurrentModel):
        return [module]
    return list(dict.fromkeys(part for child in module.children() for part in recurrent_modules(child)))


def _counted(module: nn.Module) -> list[_Recurrent | RecurrentModel]:
    """List the recurrent modules in a tree, whose calls count from now on from the beginning of each forward pass."""
    parts = recurrent_modules(module)
    if module not in parts and _begin not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_begin)
    return parts


def begin_pass(module: nn.Module) -> None:
    """Forget the calls of recurrent layers before a forward pass of a network."""
    for part in (*recurrent_modules(module), *conditionals(module)):
        part.begin_pass()


def _begin(module: nn.Module, inputs: Any) -> None:
    if not torch.compiler.is_compiling():
        begin_pass(module)


def _traces(module: nn.Module) -> list[tuple[RecurrentLayer, Trace]]:
    """List the recurrent layers in a tree, with their records of the last forward pass."""
    parts = _counted(module)
    if not parts:
        raise UsageError("module: expected one with a recurrent layer of edgernn, got none; add edgernn.nn.Recurrent")
    called = [part for part in parts if part.traces]
    if not called:
        raise UsageError("module: expected a forward pass before, got none; call the module first")
    for part in called:
        part.end_step()
    return [pair for part in called for pair in zip(part.recurrent_layers(), part.calls(), strict=True)]


def budget(module: nn.Module) -> Tensor:
    """Compute the penalty on updates of a network's last forward pass, to add to the loss, times a weight.

    Every call of a layer counts, as of a RecurrentCell in a loop over steps. Calls outside a forward pass of `module`,
    and those of a layer that is itself the module, count since the weights last changed or a result was last read, at
    most 10,000 of a RecurrentCell and 8 of other modules.

    Args:
        module: The network.

    Returns:
        The mean number of updates of a neuron in a sequence, summed over the calls of the recurrent layers in `module`,
        and of runs of each part under `Conditional`; a scalar.

    Raises:
        UsageError: The module has no recurrent layer, or it has not been called yet.
    """
    traces = [trace for _, trace in _traces(module)]
    traces += [trace for part in conditionals(module) for trace in part.calls()]
    return torch.stack([trace.budget for trace in traces]).sum()


def update_rate(module: nn.Module) -> float:
    """Compute the mean share of neurons updated at a step of a network's last forward pass.

    Every call of a layer counts, as for `budget`.

    Args:
        module: The network.

    Returns:
        The share, from 0 to 1.

    Raises:
        UsageError: The module has no recurrent layer, or it has not been called yet.
    """
    updated, neurons = 0.0, 0
    for layer, trace in _traces(module):
        size, u = layer.cell.hidden_size, trace.decisions
        updated += size * (1.0 if u is None else float(u.to(torch.float64).mean()))
        neurons += size
    return updated / neurons


class Steer:
    """Adds the penalty on updates to a loss, with a weight λ that leads to a wanted share of skipped updates.

    Call it with the loss of each training step: `loss = steering(loss)`. `edgernn.steering.Steering` has the equations.

    Args:
        module: The network.
        skip: Share of the neuron updates to skip, from 0 to 1.
        steps: Number of training steps.

    Attributes:
        module: The network.
        step: Number of calls.
    """

    module: nn.Module
    step: int

    def __init__(self, module: nn.Module, skip: float, steps: int) -> None:
        if not 0 <= skip <= 1:
            raise UsageError(f"skip: expected a share from 0 to 1, got {skip}; pass 0.8 to skip 80 % of the updates")
        if steps < 1:
            raise UsageError(f"steps: expected the number of training steps, got {steps}; pass at least 1")
        rules = {type(part.rule) for part in module.modules() if isinstance(part, RecurrentLayer | Conditional)}
        for rule in rules if not any(rule.steerable() for rule in rules) else ():
            check_steerable("skip", rule)
        _counted(module)
        self.module, self.step = module, 0
        self._steering = Steering(skip, steps)

    @property
    def weight(self) -> float:
        """λ of the next call."""
        return self._steering.weight

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the loss plus λ times `budget(module)`, and adapt λ to the updates of the last forward pass."""
        penalty, weight = budget(self.module), self.weight
        self.step += 1
        self._steering.follow(self.step, float(loss.detach()), float(penalty.detach()), update_rate(self.module))
        return loss + weight * penalty

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs, for torch.save."""
        state = self._steering.state
        return {"step": self.step, "state": None if state is None else dataclasses.asdict(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        self.step = state["step"]
        self._steering.state = None if state["state"] is None else SteeringState(**state["state"])


def steer(module: nn.Module, skip: float = 0.8, *, steps: int) -> Steer:
    """Return a function that adds the penalty on updates to a loss, so that a network learns to skip updates.

    Args:
        module: The network.
        skip: Share of the neuron updates to skip, from 0 to 1.
        steps: Number of training steps.

    Returns:
        The function, for the loss of every training step: `loss = steering(loss)`.

    Raises:
        UsageError: A share outside 0 to 1, or no layer whose rule has a penalty on updates.
    """
    return Steer(module, skip, steps)


def _tuple(state: States) -> tuple[Tensor, ...]:
    return tuple(state) if isinstance(state, tuple | list) else (state,)


def _untupled(state: tuple[Tensor, ...]) -> States:
    return state[0] if len(state) == 1 else state
