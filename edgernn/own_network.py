# SPDX-License-Identifier: Apache-2.0
"""A network of one's own behind the interface of a model, so that training, export and reports take it like others.

The class of the network is a torch.nn.Module with at least one recurrent layer. Its constructor gets the settings of
the user and, if it has arguments of these names, `input_size`, `output_size` and `vocabulary` from the task. Its
forward(x (T, B, I)) returns y (B, O), or (T, B, O) with an output at every step. A network that runs step by step has a
second argument `state`, None at first, and returns (y, state).
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from edgernn.cell_files import described, line_of
from edgernn.cells.base import State
from edgernn.conditional import conditionals
from edgernn.config import NetworkConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.frontends import LogMel
from edgernn.layer import RecurrentLayer, Trace, python_loop
from edgernn.model import ConfiguredModel
from edgernn.nn import begin_pass, convert, recurrent_modules
from edgernn.rounded_weights import Rounding, matrices
from edgernn.rules.base import UpdateRule
from edgernn.state_layout import StateLayout

# names of constructor arguments that the task sets
FROM_TASK = ("input_size", "output_size", "vocabulary")
# most steps on which a network is tried before its training
_TRIED = 32
# relative difference in float64 from which two halves of a sequence do not give what the whole gives
_APART = 1e-6
# the same in float32, whose rounding differs with the number of steps
_APART_FLOAT32 = 1e-4


class OwnNetwork(ConfiguredModel):
    """Front end and standardisation of the input, then a network of one's own.

    model(x (T, B, I), state) returns y, (B, O) or (T, B, O), and the last state: tensors (B, n). Words are x (T, B).

    Args:
        config: The configuration, with the class of the network.

    Attributes:
        network: The network, with layers of edgernn in place of nn.GRU, nn.LSTM and nn.RNN.
        output: "last" for y (B, O), "all" for y (T, B, O).
        config: The configuration.

    Raises:
        UsageError: An argument of the constructor is missing or wrong, the network has no recurrent layer, or its state
            cannot be carried.
        EdgernnError: The constructor fails.
    """

    network: nn.Module
    output: str
    config: NetworkConfig

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config, self.output, self.rounding = config, config.head.output, Rounding(config.weights)
        self.frontend = None if config.frontend.name is None else LogMel(config.frontend)
        self.network = convert(_constructed(config)).module
        _check_random_tensors(self.network, config)
        if any(map(is_lazy, self.network.parameters())):
            raise UsageError(
                f"{config.title}: expected layers of known sizes, got one that finds its size in forward(), such as "
                "nn.LazyLinear; give its sizes"
            )
        for name, numbers in (("input_mean", config.input.mean), ("input_std", config.input.std)):
            self.register_buffer(name, torch.tensor(numbers).expand(config.features).clone())
        if not self.recurrent_layers():
            raise UsageError(
                f"{config.title}: expected a recurrent layer of edgernn, got none; add edgernn.nn.Recurrent"
            )
        if config.weights != "float32" and any(layer.cell.is_sparse for layer in self.recurrent_layers()):
            raise UsageError(
                f"weights: expected float32 for a network with block-sparse weights, got {config.weights}; use float32"
            )
        self._layout = self._find_layout() if "state" in _arguments(self.network.forward) else None

    @property
    def streaming(self) -> bool:
        """True if a sequence may be processed in parts, each starting from the last state of the part before."""
        return self._layout is not None

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's tensors in their order: those of the front end, then state0, state1, ..."""
        if self._layout is None:
            return ()
        heard = () if self.frontend is None else tuple(f"frontend.{s}" for s in self.frontend.widths)
        return (*heard, *(f"state{i}" for i in range(sum(0 not in shape for shape in self._layout.shapes))))

    @property
    def rule_kind(self) -> str | None:
        """Kind of the rules that skip (`UpdateRule.kind`), or None without one kind."""
        kinds = {rule.kind for rule in self.rules() if rule.can_skip}
        return kinds.pop() if len(kinds) == 1 else None

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """List the `RecurrentLayer` objects of the network."""
        return [layer for part in recurrent_modules(self.network) for layer in part.recurrent_layers()]

    def rules(self) -> list[UpdateRule]:
        """List the update rules of the layers, and of parts that run at some steps only."""
        return [*super().rules(), *(part.rule for part in conditionals(self.network))]

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the initial states of `batch` sequences, the front end's first, in dtype and device of `like`."""
        if self._layout is None:
            return ()
        heard = () if self.frontend is None else self.frontend.initial_state(batch, like)
        return (*heard, *self._layout.initial_state(self.network, batch, like))

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        steps, batch = x.shape[:2]
        heard: State = ()
        before = state
        if self.frontend is not None:
            count = len(self.frontend.widths)
            x, heard = self.frontend(x, None if state is None else state[:count])
            before = None if state is None else state[count:]
        if self.vocabulary is None:
            x = (x - self.input_mean) / self.input_std
        parts = recurrent_modules(self.network)
        begin_pass(self.network)
        y, last = self._called(x, before)
        expected = ((steps,) if self.output == "all" else ()) + (batch, self.output_size)
        if not isinstance(y, Tensor) or y.shape != expected:
            axes = "(T, B, O)" if self.output == "all" else "(B, O)"
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            remedy = (
                "return an output for every step" if self.output == "all" else "return one output for each sequence"
            )
            raise UsageError(
                f"{self.config.title}: forward: expected y of shape {axes} = {expected}, got {got}; {remedy}"
            )
        if not all(part.traces for part in parts):
            raise UsageError(
                f"{self.config.title}: forward: expected a call of each recurrent layer, got none of one; remove it"
            )
        traces = [trace for part in parts for trace in part.calls()]
        if self._background is not None:
            traces = [_marked(trace, self._background) for trace in traces]
        # the penalty of parts that run at some steps, which are no layers, counts in the first layer's
        penalties = [trace.budget for part in conditionals(self.network) for trace in part.calls()]
        if penalties:
            traces[0] = replace(traces[0], budget=torch.stack([traces[0].budget, *penalties]).sum())
        self.record(traces)
        return y, (*heard, *last) if self._layout is not None else ()

    def _called(self, x: Tensor, state: State | None) -> tuple[Any, State]:
        """Call the network; return what should be y, and the state as (B, n)."""
        if self._layout is None:
            result = self._run(x)
            return result[0] if isinstance(result, tuple) else result, ()
        nested = None if state is None else self._layout.nested(state, self.input_mean, x.shape[1])
        y, last = self._split(self._run(x, state=nested))
        return y, self._layout.flat(last)

    def _run(self, x: Tensor, **state: Any) -> Any:
        if self.rounding.weights == "float32":
            return self.network(x, **state)
        values = {
            name: self.rounding.matrix(weight.flatten(1), self.training).view_as(weight)
            for name, weight in self.stored().items()
        }
        return torch.func.functional_call(self.network, values, (x,), state)

    def stored(self) -> dict[str, nn.Parameter]:
        """Return the parameters that a file stores in its type of weights, as a dict by name in the network.

        They are those of two axes of recurrent layers, and the weights of linear maps, embeddings and convolutions.
        """
        kinds = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        maps: list[Any] = [module for module in self.network.modules() if isinstance(module, kinds)]
        recurrent = [parameter for layer in self.recurrent_layers() for parameter in matrices(layer).values()]
        chosen = {id(parameter) for parameter in [*recurrent, *(module.weight for module in maps)]}
        return {name: weight for name, weight in self.network.named_parameters() if id(weight) in chosen}

    def _split(self, result: Any) -> tuple[Any, Any]:
        """Return y and the nested state that a network with the argument state has returned."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"{self.config.title}: forward: expected (y, state), as it has the argument state, got "
                f"{type(result).__name__}; return both, or leave out the argument state"
            )
        return result

    def with_rules(self, rules: Sequence[UpdateRule]) -> "OwnNetwork":
        """Return a copy with other update rules, one for each of `recurrent_layers`, and the same cells.

        The network may go on passing a state of the cell alone to a layer: the rule's own states then start anew.
        """
        network, remaining = copy.deepcopy(self), iter(rules)
        for part in recurrent_modules(network.network):
            layers = [RecurrentLayer(layer.cell, next(remaining)) for layer in part.recurrent_layers()]
            part.layers, part.completes_state = nn.ModuleList(layers), True
        network.train(self.training)
        if network._layout is not None:
            network._layout = network._find_layout()
        return network

    @torch.no_grad()
    def _find_layout(self) -> StateLayout:
        """Find the layout of the state from runs of one step with two and with three sequences."""
        states = []
        for batch in (2, 3):
            shape = (1, batch) if self.vocabulary is not None else (1, batch, self.config.features)
            x = torch.zeros(shape, dtype=torch.int64 if self.vocabulary is not None else torch.float32)
            states.append(self._split(self._guarded(partial(self.network, x)))[1])
        return StateLayout.of(states, f"{self.config.title}: forward")

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call the network in evaluation mode, without its errors: each becomes a sentence."""
        was_training = self.training
        self.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), python_loop(self):
                return call()
        except EdgernnError:
            raise
        except Exception as error:
            kind = type(self.network)
            rule = next((layer.rule.name for layer in self.recurrent_layers() if layer.rule.memory), None)
            remedy = (
                "correct the file"
                if rule is None
                else f"the state of a layer has the tensors of the rule {rule} after those of the cell: pass on all of "
                "them, and read the first ones, as in h, c, *others = state"
            )
            raise EdgernnError(
                f"{self.config.title}: forward fails: {line_of(kind, error)}{described(error)}; {remedy}"
            ) from error
        finally:
            self.train(was_training)

    def check(self, x: Tensor) -> None:
        """Try the network on sequences x (T, B, I), or words (T, B), before its training.

        EdgernnError is raised if forward() fails, and UsageError if its outputs have another shape or no gradient, or
        change with the other sequences of a batch or if a sequence is run in two parts.
        """
        x = x[:_TRIED]
        y, _ = self._guarded(torch.enable_grad()(partial(self, x)))
        if not y.requires_grad:
            raise UsageError(
                f"{self.config.title}: forward: expected y with a gradient, got one without; leave out torch.no_grad() "
                "and detach()"
            )
        apart, allowed = self._measured(OwnNetwork._mixed, x)
        if not apart <= allowed:
            raise UsageError(
                f"{self.config.title}: forward: expected outputs for a sequence that do not depend on others of its "
                f"batch, got {apart:.2g} apart; x is (T, B, I), as for batch_first=False"
            )
        if self._layout is None:
            return
        apart, allowed = self._measured(OwnNetwork._apart, x)
        # not >, so that NaN is an error
        if not apart <= allowed:
            remedy = "carry every state, and start from zeros or from the method initial_state(batch, like)"
            raise UsageError(
                f"{self.config.title}: state: expected the same outputs in two parts of a sequence as in the whole, "
                f"got {apart:.2g} apart; {remedy}, or leave out the argument state"
            )

    def _measured(self, difference: Callable[["OwnNetwork", Tensor], float], x: Tensor) -> tuple[float, float]:
        """Return a difference of outputs in float64, where rounding changes no decisions, and the allowed one."""
        try:
            return difference(copy.deepcopy(self).double(), x.double() if x.is_floating_point() else x), _APART
        except EdgernnError:
            # a network may make float32 tensors itself, as one_hot(x).float(); what else is wrong is raised again
            return difference(copy.deepcopy(self), x), _APART_FLOAT32

    def _mixed(self, x: Tensor) -> float:
        """Return the difference of outputs for the last sequence beside others from those beside copies of itself."""
        axis = 1 if self.output == "all" else 0
        batches = (x, x[:, -1:].expand_as(x).clone())
        y, copies = (self._guarded(partial(self.eval(), batch))[0].select(axis, -1) for batch in batches)
        return float((y - copies).abs().max()) / max(1.0, float(y.abs().max()))

    def _apart(self, x: Tensor) -> float:
        """Return the difference of the outputs in two parts of x from those of the whole, relative if above 1."""
        like, half = self.input_mean, max(1, len(x) // 2)
        whole, _ = self._guarded(partial(self.eval(), x))
        parts, state = [], self.initial_state(x.shape[1], like)
        for part in (x[:half], x[half:]):
            if len(part):
                y, state = self._guarded(partial(self, part, state))
                parts.append(y)
        joined = torch.cat(parts) if self.output == "all" else parts[-1]
        return float((joined - whole).abs().max()) / max(1.0, float(whole.abs().max()))


def _unsaved(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network's modules that its state dict leaves out, by name."""
    saved = {id(tensor) for tensor in (*network.parameters(), *network.state_dict(keep_vars=True).values())}
    return {
        f"{prefix}.{name}".lstrip("."): value
        for prefix, module in network.named_modules()
        for name, value in (*vars(module).items(), *module.named_buffers(recurse=False))
        if isinstance(value, Tensor) and id(value) not in saved
    }


def _check_random_tensors(network: nn.Module, config: NetworkConfig) -> None:
    """Raise UsageError for tensors outside of the state dict that another construction draws anew."""
    tensors = _unsaved(network)
    if not tensors:
        return
    with torch.random.fork_rng(devices=[]):
        again = _unsaved(convert(_constructed(config)).module)
    for name, tensor in tensors.items():
        if name not in again or not torch.equal(tensor, again[name]):
            raise UsageError(
                f"{config.title}: {name}: expected a tensor of the state dict, as each construction draws another one, "
                f"got one that is not saved; use self.register_buffer({name.rpartition('.')[2]!r}, ...)"
            )


def _marked(trace: Trace, background: Tensor) -> Trace:
    """Return the record of a layer with the background steps (T, B) of the input, also if the layer has fewer steps."""
    if trace.decisions is not None:
        steps, batch = trace.decisions.shape[:2]
        if batch != background.shape[1]:
            return trace
        background = background[torch.arange(steps, device=background.device) * len(background) // steps]
    return replace(trace, background=background)


def _arguments(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(call).parameters)


def _constructed(config: NetworkConfig) -> nn.Module:
    kind = config.name
    assert isinstance(kind, type)
    arguments = _arguments(kind)
    task = {"input_size": config.features, "output_size": config.head.size, "vocabulary": config.input.vocabulary}
    values = {name: value for name, value in task.items() if name in arguments} | config.options
    for name, parameter in arguments.items():
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and name not in values:
            raise UsageError(
                f"{config.title}: {name}: expected a value, as the constructor has no default for it; add {name}=VALUE "
                "(its annotation must be int, float, bool or str)"
            )
    try:
        return kind(**values)
    except EdgernnError:
        raise
    except Exception as error:
        raise EdgernnError(
            f"{config.title}: the constructor fails: {line_of(kind, error)}{described(error)}; correct the file, or "
            "the settings"
        ) from error
