# SPDX-License-Identifier: Apache-2.0
"""A part of a network that runs at some steps only, and what stands for it in a trace to ONNX."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, check_tensor, with_zero_gradients
from edgernn.layer_trace import Recorder, Trace
from edgernn.names import resolve
from edgernn.rules.base import CellInputs, Decision, UpdateRule
from edgernn.rules.kinds.scored import PerSample
from edgernn.settings import bind, options_of, whole
from edgernn.state_layout import StateLayout

# key of the metadata of a node of ONNX, whose value is the key of its part
NODE_PART = "ai.edgernn.part"
# attributes of a module with the records of its calls
_RECORDS = ("traces", "earlier", "most_calls", "_mark")
_PARTS: "WeakValueDictionary[str, Conditional]" = WeakValueDictionary()


class Conditional(Recorder, nn.Module):
    """Part of a network that runs at the steps that an update rule chooses, and holds its output between.

    u_t = 1 at the steps that the rule chooses for a sequence, else 0
    (y_t, s_t) = part(x_t, s_{t-1}) where u_t = 1, else (y_{t-1}, s_{t-1})      y before the first such step is 0

    It is called as y, state = conditional(x, state), with x (T, B, I) and y (T, B, O). The rule `periodic` runs the
    part at every n-th step, on the mean of the last n inputs or on the last one; `skip` learns when to run it, where y
    stands for the state of a cell. In a file the part is the branch of an If, which runs if any sequence needs it. In
    training, a part under the rule `periodic` runs at its own steps alone, and under another rule at all of them.

    Args:
        part: Module that is called as y = part(x); or as y, state = part(x, state) if its forward() has the argument
            state, None at first. x is (T, B, I) with any number of steps. A state that does not start at 0 needs the
            method initial_state(batch, like).
        input_size: I.
        output_size: O.
        rule: Name or class of an update rule of the kind `PerSample`.
        **options: Options of the rule, such as period=3.

    Attributes:
        part: The module.
        rule: The update rule.

    Raises:
        UsageError: The rule is of another kind, or an option is not valid.
    """

    part: nn.Module
    rule: UpdateRule

    def __init__(
        self,
        part: nn.Module,
        input_size: int,
        output_size: int,
        rule: str | type[UpdateRule] = "periodic",
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(part, nn.Module):
            got = getattr(part, "__name__", type(part).__name__)
            raise UsageError(f"part: expected a torch.nn.Module, got {got}; write one whose forward() calls it")
        input_size, output_size = whole("input_size", input_size), whole("output_size", output_size)
        # the rule does not depend on the cell
        _, rule_type = resolve("gru", rule)
        if not issubclass(rule_type, PerSample):
            raise UsageError(
                f"rule: expected one with a decision for all neurons, such as periodic or skip, got {rule_type.name}; "
                "choose one of the kind PerSample"
            )
        values = bind(options, rule=options_of(rule_type))["rule"]
        self.part, self.input_size, self.output_size = part, input_size, output_size
        self.rule = rule_type(input_size, output_size, **{path[0]: value for path, value in values.items()})
        self.traces, self.earlier = [], []
        self._known: tuple[Any, StateLayout] | None = None

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}"

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """Return an empty list: the layers of the part have records of their own."""
        return []

    @property
    def share(self) -> float:
        """Share of the steps at which the part ran in the last call; UsageError if there was none."""
        if not self.traces:
            raise UsageError("share: expected a forward pass before, got none; call the module first")
        (trace,) = self.traces
        assert trace.decisions is not None
        return float(trace.decisions.to(torch.float64).mean())

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the state before the first step, in dtype and device of `like`: tensors (B, n).

        They are the states of the rule, the output that is held (B, O), and the states of the part.
        """
        held = (like.new_zeros(batch, self.output_size), *self._part_state(batch, like))
        return (*self.rule.initial_memory(batch, like), *held)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run the part over sequences x (T, B, I) after `state`; return y (T, B, O) and the last state.

        Under autocast the part alone runs in 16 bits, and y and the state have the dtype of the weights.
        """
        check_tensor("x", x, self)
        if x.ndim != 3 or x.shape[2] != self.input_size or not x.shape[0] or not x.is_floating_point():
            got = f"{x.dtype} {tuple(x.shape)}"
            raise UsageError(f"x: expected floats (T, B, {self.input_size}) with a step or more, got {got}; reshape it")
        # counts of steps and sums of inputs lose their small terms in 16 bits
        x = x.to(next(self.parameters(), x).dtype)
        first = self.initial_state(x.shape[1], x)
        state = first if state is None else state
        tensors = state if isinstance(state, tuple | list) else (state,)
        for tensor in tensors:
            check_tensor("state", tensor, self)
        shapes = [tuple(tensor.shape) for tensor in first]
        if (sizes := [tuple(tensor.shape) for tensor in tensors]) != shapes:
            raise UsageError(f"state: expected shapes {shapes}, got {sizes}; pass the last state, or None")
        state = tuple(tensor.to(x.dtype) for tensor in tensors)
        if torch.onnx.is_in_onnx_export():
            return self._as_node(x, state)
        if torch.compiler.is_compiling():
            return self._run(x, state)[:2]
        with self._own_records() as records:
            for part in records:
                part.begin_pass()
            y, state, trace = self._run(x, state)
            calls = [part.calls() for part in records]
        assert trace.decisions is not None
        for part, traces in zip(records, calls, strict=True):
            pairs = zip(traces or _empty(part, x), _widths(part), strict=True)
            part.record([_masked(call, width, trace.decisions) for call, width in pairs])
        self.record([trace])
        return y, state

    @contextmanager
    def _own_records(self) -> Iterator[list[Recorder]]:
        records: list[Recorder] = [part for part in self.part.modules() if isinstance(part, Recorder)]
        before = [{name: vars(part)[name] for name in _RECORDS if name in vars(part)} for part in records]
        try:
            yield records
        finally:
            for part, values in zip(records, before, strict=True):
                for name in _RECORDS:
                    vars(part).pop(name, None)
                vars(part).update(values)

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        count, steps = len(self.rule.memory), len(x)
        updates = None if torch.compiler.is_compiling() else self.rule.updates(state[:count], steps)
        if updates is not None:
            read, memory = self.rule.read(x, state[:count], updates)
            y, *kept = state[count:] if updates else with_zero_gradients(self, x, state[count:])
            y = y[None]
            if updates:
                new, *kept = self._call(read, tuple(kept))
                y = torch.cat([y, new])
            chosen = x.new_zeros(steps, dtype=torch.bool)
            chosen[updates.start :: updates.step] = True
            y = y[chosen.cumsum(0)]
            u = chosen[:, None, None].expand(steps, x.shape[1], 1)
            trace = Trace(u, self.rule.budget(u.to(x.dtype), None))
            return y, (*memory, y[-1], *kept), trace
        outputs: list[Tensor] = []
        decisions: list[Decision] = []
        # torch has no autocast for meta
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            projected = self.rule.project(x)
        for row, e in zip(x.unbind(0), projected.unbind(0), strict=True):
            decision, state = self.step(row, e, state)
            outputs.append(state[count])
            decisions.append(decision)
        u = torch.stack([decision.u for decision in decisions if decision.u is not None])
        likelihoods = [decision.likelihood for decision in decisions if decision.likelihood is not None]
        penalty = self.rule.budget(u.to(x.dtype), torch.stack(likelihoods) if likelihoods else None)
        return torch.stack(outputs), state, Trace(u != 0, penalty)

    def step(self, x: Tensor, e: Tensor, state: State) -> tuple[Decision, State]:
        """Compute one step.

        Args:
            x: The input (B, I).
            e: One step of what the rule's `project` returns.
            state: The state before the step.

        Returns:
            The decision, and the next state.
        """
        count = len(self.rule.memory)
        inputs = CellInputs(x, x, state[count:], {}, None)
        cell: Any = _PartCell(self)
        decision, new = self.rule.step(cell, inputs, e, state[:count])
        return decision, (*self.rule.remember(decision, new[:1], state[:count]), *new)

    def _part_state(self, batch: int, like: Tensor) -> State:
        layout = self._layout(like)
        return () if layout is None else layout.initial_state(self.part, batch, like)

    def _layout(self, like: Tensor) -> StateLayout | None:
        """Return the layout of the part's state; None if it has none."""
        if "state" not in inspect.signature(self.part.forward).parameters:
            return None
        # another rule gives a layer other states
        layers = [layer for layer in self.part.modules() if isinstance(layer, RecurrentLayer)]
        key = [*map(id, self.part.modules())], [layer.widths for layer in layers]
        if self._known is None or self._known[0] != key:
            self._known = key, self._find_layout(like)
        return self._known[1]

    @torch.no_grad()
    def _find_layout(self, like: Tensor) -> StateLayout:
        """Find the layout of the part's state from runs of one step with two and with three sequences."""
        was_training, states = self.part.training, []
        self.part.eval()
        try:
            with self._own_records(), torch.random.fork_rng(devices=[]):
                for batch in (2, 3):
                    states.append(_pair(self.part(like.new_zeros(1, batch, self.input_size)))[1])
        finally:
            self.part.train(was_training)
        return StateLayout.of(states, "part")

    def _call(self, x: Tensor, kept: State) -> State:
        """Run the part over x (K, B, I); return its output (K, B, O) and its states (B, n)."""
        layout = self._layout(x)
        after: State = ()
        if layout is None:
            y = self.part(x)
        else:
            y, last = _pair(self.part(x, layout.nested(kept, x, x.shape[1])))
            after = layout.flat(last)
        expected = (*x.shape[:2], self.output_size)
        if not isinstance(y, Tensor) or tuple(y.shape) != expected:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise UsageError(
                f"part: expected y of shape (T, B, O) = {expected}, got {got}; return that, and name the argument of a "
                "state `state`"
            )
        # 16 bits under autocast
        return (y.to(x.dtype), *(tensor.to(x.dtype) for tensor in after))

    def _as_node(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the results of the node of ONNX that stands for the part in torch.onnx.export."""
        key = str(id(self))
        _PARTS[key] = self
        for part in self.part.modules():
            if isinstance(part, Recorder):
                part.record(_empty(part, x))
        y, *last = torch.onnx.ops.symbolic_multi_out(
            "ai.edgernn::Conditional",
            (x, *state),
            dtypes=[x.dtype] * (1 + len(state)),
            shapes=[(*x.shape[:2], self.output_size), *(tensor.shape for tensor in state)],
            version=1,
            metadata_props={NODE_PART: key},
        )
        return y, tuple(last)


class _PartCell:
    """A part as the cell of an update rule's step; its states are y and those of the part."""

    reads_last = False

    def __init__(self, conditional: Conditional) -> None:
        self._call = conditional._call

    def project(self, x: Tensor, t: Tensor | None) -> Tensor:
        return x

    def step(self, a: Tensor, x: Tensor, state: State, constants: dict[str, Tensor], t: Tensor | None) -> State:
        y, *after = self._call(x[None], state[1:])
        return (y[0], *after)


def conditionals(module: nn.Module) -> list[Conditional]:
    """List the parts in a tree of modules that run at some steps only, each once."""
    return [part for part in module.modules() if isinstance(part, Conditional)]


def conditional_of(key: str) -> Conditional:
    """Return the part that the metadata of a node name."""
    return _PARTS[key]


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(
            f"part: expected (y, state), as it has the argument state, got {type(result).__name__}; return both, or "
            "leave out the argument state"
        )
    return result


def _widths(part: Recorder) -> list[int]:
    """Return the numbers of decisions of the records of a module: H of each layer, or 1 of a part within a part."""
    return [layer.cell.hidden_size for layer in part.recurrent_layers()] or [1]


def _empty(part: Recorder, x: Tensor) -> list[Trace]:
    return [Trace(None, x.new_zeros(())) for _ in _widths(part)]


def _masked(trace: Trace, width: int, u: Tensor) -> Trace:
    """Return the record of a layer of a part that ran where u (T, B, 1) says so, over all steps."""
    decisions, mask = trace.decisions, u.expand(-1, -1, width)
    if decisions is None:
        return Trace(mask, trace.budget)
    if decisions.shape == mask.shape:
        return Trace(decisions & mask, trace.budget)
    count = int(u[:, 0].sum())
    # the part ran at these steps alone, the same ones of all sequences
    if decisions.shape[0] == count and decisions.shape[1:] == mask.shape[1:]:
        spread = torch.zeros_like(mask)
        spread[u[:, 0, 0]] = decisions
        return Trace(spread, trace.budget)
    return trace
