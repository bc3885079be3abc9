# SPDX-License-Identifier: Apache-2.0
"""Recurrent layer: a cell that runs over a sequence, with an update rule that selects the neurons that change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.imputers import Imputer
from edgernn.kernels import fastest
from edgernn.kernels.common import Saved
from edgernn.kernels.recurrent_op import describe, is_traced, run
from edgernn.layer_trace import COUNT, LAST, Trace, joined
from edgernn.rules.always import Always
from edgernn.rules.base import CellInputs, Decision, UpdateRule
from edgernn.rules.decision import Rates

__all__ = ["COUNT", "LAST", "RecurrentLayer", "Step", "Trace", "Unroller", "joined", "python_loop"]


@dataclass(frozen=True)
class Step:
    """Result of one step of a layer.

    Attributes:
        state: New state of the layer. If `RecurrentLayer.shifts_input` is True, its last tensor, the previous input, is
            left out.
        decision: Decision of the update rule, with the mask of the updated neurons.
        imputed: With an imputer of F features: the input with missing values filled in, then the imputer's estimates
            of all values, (B, F) each. Without an imputer: empty.
    """

    state: State
    decision: Decision
    imputed: tuple[Tensor, ...] = ()


class Unroller(Protocol):
    """Type of a faster implementation of a layer's loop over time.

    It returns what `RecurrentLayer.forward` returns. If it does not support the layer's x and state, it returns None,
    and the Python loop runs instead. `saved`, if any, takes or has the values of its backward pass.
    """

    name: str

    def __call__(
        self, layer: "RecurrentLayer", x: Tensor, state: State, saved: Saved | None = None
    ) -> tuple[Tensor, State, Trace] | None: ...


class RecurrentLayer(nn.Module):
    """Runs one cell over a sequence in one direction; an update rule selects the neurons that change at each step.

    forward(x (T, B, I), state) returns y (T, B, H), the last state, and a Trace. The state is a tuple of tensors,
    in this order: the states of the cell, of the rule and of the imputer; the number of steps "t" (B, 1) if the cell
    depends on it; and the previous input "x_last" (B, I) if the cell reads it. `widths` is a dict from the names of
    these tensors to their sizes. Fused kernels (`unroller`) replace the loop over time for all tensors that they
    support, with the same results and gradients. The penalty on updates (`Trace.budget`) multiplies the updates of
    each step and sequence by `step_weights` (T, B), if set.
    """

    def __init__(self, cell: Cell, rule: UpdateRule, imputer: Imputer | None = None) -> None:
        super().__init__()
        self.cell, self.rule = cell, rule
        self.imputer = imputer
        self.own_unroller: Unroller | Literal["auto"] | None = "auto"
        self.step_weights: Tensor | None = None
        self._length: int | None = None
        rule.fit(cell)
        self.widths = dict.fromkeys(cell.states, cell.hidden_size) | rule.widths
        if imputer is not None:
            self.widths |= dict.fromkeys(imputer.memory, imputer.features)
        if cell.counts_steps:
            self.widths[COUNT] = 1
        if cell.reads_last:
            self.widths[LAST] = cell.input_size
        # where the rule knows the steps that update beforehand, this layer of the same cell runs them alone
        knows = type(rule).updates is not UpdateRule.updates and not (imputer or cell.counts_steps or cell.reads_last)
        self._updating = (RecurrentLayer(cell, Always(cell.input_size, cell.hidden_size)),) if knows else ()
        if rule.learns_start:
            self.start = nn.ParameterList(nn.Parameter(torch.randn(cell.hidden_size)) for _ in cell.states)

    @property
    def shifts_input(self) -> bool:
        """True if the cell also reads the previous input x_{t-1} and the layer has no imputer.

        The cell's inputs [x_t, x_{t-1}] are then formed for all steps at once, before the loop over time. An imputer
        computes the cell's input step by step instead.
        """
        return self.cell.reads_last and self.imputer is None

    @property
    def unrolled(self) -> "RecurrentLayer":
        """The layer whose steps an unroller runs: this one, or one that updates at each of its steps."""
        return self._updating[0] if self._updating else self

    @property
    def unroller(self) -> Unroller | None:
        """Implementation that runs the steps on the layer's device; None for the loop over time in Python.

        It is the fastest one unless another is set. Set None for the loop, which has second derivatives.
        """
        return self.unrolled.unroller_on(next(self.parameters()).device.type)

    @unroller.setter
    def unroller(self, unroller: Unroller | Literal["auto"] | None) -> None:
        for layer in (self, *self._updating):
            layer.own_unroller = unroller

    def unroller_on(self, device: str) -> Unroller | None:
        """Return the implementation that runs the steps on a type of device, such as "cuda"."""
        if self._updating:
            return None
        return fastest(self, device) if self.own_unroller == "auto" else self.own_unroller

    @property
    def backend(self) -> str:
        """Name of the implementation that runs the steps, such as "fused", or "torch" for the loop in Python."""
        return self.backend_on(next(self.parameters()).device.type)

    def backend_on(self, device: str) -> str:
        """Return the name of the implementation that runs the steps on a type of device, such as "cuda"."""
        unroller = self.unrolled.unroller_on(device)
        return "torch" if unroller is None else unroller.name

    def op_weights(self) -> dict[str, Tensor]:
        """Return the weights that the layer's ONNX op reads, by name, such as W: those of cell, rule and imputer."""
        parts = [part for part in (self.cell, self.rule, self.imputer) if part is not None]
        return {n: w for part in parts for n, w in (*part.named_parameters(), *part.named_buffers())}

    def op_key(self) -> str:
        """Return the name of this layer's structure in the torch op `edgernn::recurrent`."""
        return describe(self)

    # the mark of torch.compiler.assume_constant_result, which would import torch's compiler
    op_key._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @property
    def has_hooks(self) -> bool:
        """True if hooks of torch.nn.utils compute weights at each call, such as pruned ones."""
        return bool(self.cell._forward_pre_hooks or self.rule._forward_pre_hooks)

    @property
    def kernel_name(self) -> str:
        """Name of the layer's native kernel: its parts joined by "+", as in "gru-d+gru-before+selective".

        The parts are the imputer, the cell, the update rule, "low-rank" and the normalisation. A part that the layer
        does not have is left out, and so is the rule "always", which updates all neurons at every step.
        """
        return self.kernel_name_of(self.cell.form)

    def kernel_name_of(self, form: str) -> str:
        """Return the `kernel_name` with `form` in place of the cell's name, such as "*" for a custom cell."""
        cell = self.cell
        parts = [] if self.imputer is None else [self.imputer.name]
        parts += [form] if self.rule.is_dense() else [form, self.rule.name]
        parts += [] if cell.recurrent.rank is None else ["low-rank"]
        return "+".join(parts if cell.norm is None else [*parts, cell.norm.name])

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.widths)

    @property
    def input_size(self) -> int:
        """Size of the layer's input: I, or 3F with an imputer (F values, masks, and times since they were observed)."""
        return self.cell.input_size if self.imputer is None else 3 * self.imputer.features

    def initial_state(self, batch: int, like: Tensor) -> State:
        state = self.cell.zero_state(batch, like)
        if self.rule.learns_start:
            state = tuple(start.expand(batch, -1) for start in self.start)
        state = (*state, *self.rule.initial_memory(batch, like))
        return (*state, *(like.new_zeros(batch, width) for width in list(self.widths.values())[len(state) :]))

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        """Compute the tensors that all steps of x (T, B, I) share, such as masked weights; see `Cell.constants`."""
        if self._length is not None:
            x = x[:1].expand(self._length, -1, -1)
        mask = self.rule.recurrent_mask()
        return self.cell.constants(x) | ({} if mask is None else self.cell.thinned(mask))

    def inputs(self, x: Tensor, last: Tensor | None) -> Tensor:
        """Return the cell's inputs: x (T, B, I) if `last` is None, else [x_t, x_{t-1}] (T, B, 2I).

        `last` (B, I) is the input of the step before x[0].
        """
        if last is None:
            return x
        return torch.cat([x, torch.cat([last.unsqueeze(0), x[:-1]])], -1)

    def projected(self, inputs: Tensor, x: Tensor, t: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute for all steps at once the terms of the cell and of the rule that depend on the input alone.

        Args:
            inputs: Result of the method `inputs`.
            x: Input of the layer (T, B, I).
            t: Number of steps before the sequence (B, 1); None unless the cell counts steps.

        Returns:
            W x + b of the cell's gates (T, B, rows of W), and the result (T, B, E) of `UpdateRule.project`; the rule
            defines the size E. With an imputer, or with a rule such as delta (`PerColumn`), both are (T, B, 0),
            because the inputs of the products are known only step by step.
        """
        if self.imputer is not None or not self.rule.projects_ahead:
            empty = x.new_zeros(*x.shape[:-1], 0)
            return empty, empty
        return self.cell.project(inputs, t), self.rule.project(x)

    def step(self, a: Tensor, e: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]) -> Step:
        """Compute one step: decide which neurons change, compute the cell's new state, and blend it with the old state.

        Args:
            a: W x + b of the cell's gates (B, rows of W): one step of the first result of `projected`.
            e: Input part of the rule's decision (B, E): one step of the second result of `projected`.
            x: One step of the result of `inputs`.
            state: State of the layer before the step. If `shifts_input` is True, leave out its last tensor, the
                previous input.
            constants: Result of the method `constants`.

        Returns:
            The new state, the rule's decision and, with an imputer, the filled input and the imputer's estimates.
        """
        cells, rules = len(self.cell.states), len(self.rule.memory)
        old, memory = state[:cells], state[cells : cells + rules]
        further = dict(zip(self.states[cells + rules :], state[cells + rules :], strict=False))
        t = further.get(COUNT)
        imputed: tuple[Tensor, ...] = ()
        if self.imputer is not None:
            filled = self.imputer(x, old, tuple(further[name] for name in self.imputer.memory))
            further |= zip(self.imputer.memory, filled.memory, strict=True)
            x, old, imputed = filled.inputs, filled.state, (filled.x, *filled.estimates)
            e = self.rule.project(x)
            if LAST in further:
                x, further[LAST] = torch.cat([x, further[LAST]], -1), x
            a = self.cell.project(x, t)
        decision, new = self.rule.step(self.cell, CellInputs(a, x, old, constants, t), e, memory)
        if t is not None:
            further[COUNT] = t + 1
        return Step((*new, *self.rule.remember(decision, new, memory), *further.values()), decision, imputed)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State, Trace]:
        for part in (self.cell, self.rule) if self.has_hooks else ():
            # they compute weights from others, and the layer calls no part itself
            for hook in part._forward_pre_hooks.values():
                hook(part, ())
        state = self.initial_state(x.shape[1], x) if state is None else state
        if self._updating and not is_traced(x):
            updates = self.rule.updates(state[len(self.cell.states) :], len(x))
            if updates is not None:
                return self._run_updates(x, state, updates)
        return run(self, x, state)

    def loop(self, x: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        """Run all steps one by one in Python, as `forward` without kernels does."""
        last: State = ()
        constants, inputs = self.constants(x), self.inputs(x, state[-1] if self.shifts_input else None)
        a, e = self.projected(inputs, x, dict(zip(self.states, state, strict=True)).get(COUNT))
        if self.shifts_input:
            state, last = state[:-1], (x[-1],)
        y, steps = [], []
        for a_t, e_t, x_t in zip(a.unbind(0), e.unbind(0), inputs.unbind(0), strict=True):
            step = self.step(a_t, e_t, x_t, state, constants)
            state = step.state
            y.append(state[0])
            steps.append(step)
        return torch.stack(y), (*state, *last), self._trace(x, steps)

    def _run_updates(self, x: Tensor, state: State, updates: range) -> tuple[Tensor, State, Trace]:
        """Run the steps that update alone, and repeat the state in between."""
        cells, updated = len(self.cell.states), x.new_zeros(len(x), dtype=torch.bool)
        updated[updates.start :: updates.step] = True
        read, memory = self.rule.read(x, state[cells:], updates)
        new = state[:cells] if updates else with_zero_gradients(self, x, state[:cells])
        y = new[0][None]
        if updates:
            # a cell may read the number of all steps
            self.unrolled._length = len(x)
            changed, new, _ = self.unrolled(read, new)
            y = torch.cat([y, changed])
        u = updated[:, None, None].expand(*x.shape[:2], self.cell.hidden_size)
        budget = self.rule.budget(u.to(x.dtype), None, self.step_weights)
        return y[updated.cumsum(0)], (*new, *memory), Trace(u, budget)

    def _trace(self, x: Tensor, steps: list[Step]) -> Trace:
        imputed, loss = None, None
        if self.imputer is not None:
            imputed, *estimates = (torch.stack(parts) for parts in zip(*(s.imputed for s in steps), strict=True))
            loss = self.imputer.loss(x, tuple(estimates))
        u = [s.decision.u for s in steps if s.decision.u is not None]
        if not u:
            return Trace(None, x.new_zeros(()), imputed, loss)
        likelihoods = [s.decision.likelihood for s in steps if s.decision.likelihood is not None]
        decisions = torch.stack(u)
        likely = torch.stack(likelihoods) if likelihoods else None
        budget = self.rule.budget(decisions.to(x.dtype), likely, self.step_weights)
        updated = (decisions != 0).expand(-1, -1, self.cell.hidden_size)
        inputs = [s.decision.sent_inputs for s in steps if s.decision.sent_inputs is not None]
        return Trace(updated, budget, imputed, loss, sent_inputs=torch.stack(inputs) if inputs else None)

    def macs(self) -> int:
        """Count the multiply-adds of one step of the cell, the rule and the imputer, with nothing skipped."""
        return sum(self.cell.macs()) + self.rule.macs() + (0 if self.imputer is None else self.imputer.macs())

    def executed_macs(self, trace: Trace, keeps_sums: bool = True) -> float:
        """Count the multiply-adds of one step as `macs` does, without the work that the rule skipped in a forward pass.

        Args:
            trace: Record of the forward pass.
            keeps_sums: False if the weights are stored as bfloat16 or int8, see `edgernn.rules.decision.Rates`.

        Returns:
            The mean per step and sequence.
        """
        imputer = 0 if self.imputer is None else self.imputer.macs()
        updated, inputs = trace.decisions, trace.sent_inputs
        if updated is None:
            return self.rule.executed_macs(self.cell, Rates(1.0)) + imputer
        masks = (updated, updated.any(-1), updated if inputs is None else inputs)
        updates, busy, columns = (float(mask.to(torch.float64).mean()) for mask in masks)
        rates = Rates(updates, busy, columns, keeps_sums and self.imputer is None)
        return self.rule.executed_macs(self.cell, rates) + imputer


def with_zero_gradients(module: nn.Module, x: Tensor, state: State) -> State:
    """Return a state whose gradient to a module's parameters and to x is 0, as that of a state that steps only hold."""
    sources = [tensor for tensor in (x, *module.parameters()) if tensor.requires_grad]
    if not sources or not torch.is_grad_enabled():
        return state
    zero = torch.stack([tensor.flatten()[:0].sum() for tensor in sources]).sum()
    return tuple(s + zero for s in state)


def check_tensor(name: str, value: object, module: nn.Module) -> None:
    """Raise UsageError unless an argument is a tensor with the device and dtype of the module's weights."""
    if not isinstance(value, Tensor):
        got = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise UsageError(f"{name}: expected a torch.Tensor, got {got}; convert it with torch.as_tensor")
    if value.is_nested or value.layout != torch.strided:
        got = "a nested one" if value.is_nested else f"one with the layout {value.layout}"
        dense = "torch.nested.to_padded_tensor, and pass lengths" if value.is_nested else f"{name}.to_dense()"
        raise UsageError(f"{name}: expected a dense tensor, got {got}; convert it with {dense}")
    # a replica of torch.nn.DataParallel has no parameters
    like = next(module.parameters(), value)
    if value.device != like.device:
        raise UsageError(
            f"{name}: expected a tensor on {like.device}, got one on {value.device}; move it with "
            f"{name}.to({str(like.device)!r})"
        )
    # torch has no autocast for meta
    if value.dtype != like.dtype and (value.is_meta or not torch.is_autocast_enabled(value.device.type)):
        others = f", or the weights with module.to({value.dtype})" if value.is_floating_point() else ""
        raise UsageError(
            f"{name}: expected {like.dtype}, got {value.dtype}; convert it with {name}.to({like.dtype}){others}"
        )


@contextmanager
def python_loop(module: nn.Module) -> Iterator[None]:
    """Run all recurrent layers of a module step by step in Python within the `with` block, without fused kernels.

    Every step then calls the equations of the cell and the rule, and gradients have gradients.

    Args:
        module: The layer or the network.

    Yields:
        None, while the layers run their loops.
    """
    layers = [part for part in module.modules() if isinstance(part, RecurrentLayer)]
    before = [layer.own_unroller for layer in layers]
    try:
        for layer in layers:
            layer.unroller = None
        yield
    finally:
        for layer, unroller in zip(layers, before, strict=True):
            layer.unroller = unroller
