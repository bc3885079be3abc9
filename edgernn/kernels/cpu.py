# SPDX-License-Identifier: Apache-2.0
"""Fused training kernels on the CPU: one call of the native training library runs forward or backward of a sequence.

`Unrolled` is an autograd function, not a torch.library op, because the dispatch of a registered op with a gradient
takes longer than all other work of a step with small H and T. `recurrent_op` makes an op of the whole layer.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edgernn.cells import CELLS
from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.kernels import batch_norm, column
from edgernn.kernels.batch_norm import BatchNorms
from edgernn.kernels.common import Saved, are_plain, check, check_first_derivative, refusal, with_whole_weights
from edgernn.kernels.program_cell import describe_cell
from edgernn.kernels.training_library import ProgramCell, TrainCall, library
from edgernn.layer_trace import COUNT, LAST, Trace
from edgernn.libraries import TRAIN
from edgernn.program import ProgramError
from edgernn.rules import RULES, PerColumn, UpdateRule
from edgernn.rules.kinds.scored import Scored

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

# fields of EdgernnTrainCall for the inputs of `Unrolled` after x; vectors, rule weights, states and memories follow
_WEIGHTS = ("w", "r", "c", "v", "b", "u")


@dataclass(frozen=True)
class _Plan:
    """Description of one call of the autograd function `Unrolled`: all arguments that are not tensors with gradients.

    Attributes:
        program: A user-defined cell, loaded into the native library from its equations; None for a built-in cell.
        gates: Number of pre-activations of a step.
        sizes: Dict from the name of an integer field of `TrainCall`, such as "steps", to its value.
        middle: M, the size of the cell's intermediate vector m (`Cell.mid`); None for a cell without m.
        vectors: Number of parameter vectors (`Cell.vectors`) among the inputs of `Unrolled`.
        rule: The update rule, which decides which neurons change at a step.
        rule_weights: Number of weights of the rule among the inputs of `Unrolled`.
        memories: Number of the rule's own states (`UpdateRule.memory`) among the inputs of `Unrolled`.
        likelihoods: True if the penalty on updates (`UpdateRule.budget`) sums `UpdateRule.likelihood`, a differentiable
            measure of how likely an update is. False if it sums the update masks, which are 0 or 1.
        step_weights: Factors of the steps in the penalty on updates (T, B); None stands for 1.
        norms: Batch normalisations, whose gains and shift are the last inputs of `Unrolled`; None if there are none.
    """

    program: ProgramCell | None
    gates: int
    sizes: dict[str, int]
    middle: int | None
    vectors: int
    rule: UpdateRule
    rule_weights: int
    memories: int
    likelihoods: bool
    step_weights: Tensor | None = None
    norms: BatchNorms | None = None

    @property
    def products(self) -> int:
        """Number of matrix products of a step, such as W x, that are batch-normalised."""
        return 0 if self.norms is None else len(self.norms.products)

    def split(self, tensors: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
        """Split the inputs of `Unrolled`, or their gradients, before those of batch normalisations."""
        end = len(tensors) - (0 if self.norms is None else self.norms.count)
        return tensors[:end], tensors[end:]

    def memory_places(self, count: int) -> range:
        """Return the places of the rule's own initial states among all `count` inputs of `Unrolled`."""
        end = count - (0 if self.norms is None else self.norms.count)
        return range(end - self.memories, end)

    def call(self, keep: bool, tensors: Sequence[Tensor | None]) -> TrainCall:
        """Build the C structure of a call; `keep` stores the values that the backward pass needs."""
        program = None if self.program is None else self.program.address
        call = TrainCall(program, **self.sizes, keep=keep, threads=torch.get_num_threads(), slope=self.rule.slope)
        call.set_tensors(self.named(self.split(tensors)[0]))
        return call

    def allocate(self, keep: bool, named: Mapping[str, Any]) -> "_Values":
        """Allocate the values that a forward call computes; `keep` as in `call`, `named` as from the method `named`."""
        (T, B, _), H = named["x"].shape, self.sizes["hidden"]
        saved = T if keep else 1
        return _Values(
            torch.empty(saved if self.norms is None else 1, B, self.gates),
            None if self.middle is None else torch.empty(saved, B, self.middle),
            named["u"] if self.takes_mask else torch.empty(T, B, H),
            [torch.empty(T if s == 0 else saved, B, H) for s in range(len(named["start"]))],
            [torch.empty(T, *memory.shape) for memory in named["memory"]],
            [] if self.norms is None else self.norms.allocate(saved, B),
        )

    def restore(self, y: Tensor, saved: Sequence[Tensor], named: Mapping[str, Any]) -> "_Values":
        """Return the values of an earlier forward call from its output y and from those that `_Values.listed` gave."""
        values = iter(tensor.detach() for tensor in saved)
        p = next(values)
        m = None if self.middle is None else next(values)
        u = named["u"] if self.takes_mask else next(values)
        states = [y.detach(), *(next(values) for _ in named["start"][1:])]
        memories = [next(values) for _ in named["memory"]]
        return _Values(p, m, u, states, memories, list(values))

    @property
    def takes_mask(self) -> bool:
        """True if the update mask u is an input of the call or there is none; False if the call computes it."""
        return self.rule.schedules or isinstance(self.rule, PerColumn)

    def run(self, values: "_Values", keep: bool, tensors: Sequence[Tensor | None]) -> None:
        """Run all steps forward; `tensors` are the inputs of `Unrolled`, and `keep` as in `call`."""
        call = self.call(keep, tensors)
        call.set_tensors({"p": values.p, "m": values.m, "state": values.states, "u": values.u})
        call.set_tensors({"memories": values.memories})
        if self.norms is not None:
            norms = self.norms.describe(values.normalised, self.split(tensors)[1])
            call.norms = ctypes.addressof(norms)
        call.run(back=False)

    def named(self, tensors: Sequence[Tensor | None], suffix: str = "") -> dict[str, Any]:
        """Map the pointer fields of `TrainCall` to the first part of `split`, or to its gradients (`suffix` _grad)."""
        x, *others = tensors
        count = len(_WEIGHTS)
        params, rule_params = count + self.vectors, count + self.vectors + self.rule_weights
        places = (count, params, rule_params, len(others) - self.memories, len(others))
        lists = [others[first:end] for first, end in pairwise(places)]
        fields: dict[str, Any] = {"x": x, **dict(zip(_WEIGHTS, others, strict=False))}
        fields |= zip(("params", "rule_params", "start", "memory"), lists, strict=True)
        return {f"{name}{suffix}": value for name, value in fields.items()}


@dataclass(frozen=True)
class _Values:
    """Values that a forward call computes: pre-activations p, m, u, states, the rule's states and normalised products.

    Without a backward pass, they are those of the last step alone, but for u, the first state and the rule's states.
    """

    p: Tensor
    m: Tensor | None
    u: Tensor | None
    states: list[Tensor]
    memories: list[Tensor]
    normalised: list[Tensor]

    def listed(self, named: Mapping[str, Any]) -> list[Tensor]:
        """List the values other than the first state, the output y, and those that are inputs of the call."""
        mask = () if self.u is named["u"] else (self.u,)
        values = (self.p, self.m, *mask, *self.states[1:], *self.memories, *self.normalised)
        return [value for value in values if value is not None]


class Unrolled(torch.autograd.Function):
    """Autograd function that runs all steps of a layer by one call of the native training library.

    The first input is a `_Plan`. Then follow, in this order: x (T, B, columns of W); the cell's weights W, R, C, V and
    b; the update mask u (T, B, H) if the update rule knows it in advance (kind TIME: it depends on the step index
    alone), else None; the cell's parameter vectors; the rule's weights; the cell's initial states (B, H); the rule's
    own initial states; and the gains and the shift of the batch normalisations.

    The outputs are y (T, B, H) and the cell's final states (B, H). If the rule decides from the data, further outputs
    follow: the rule's own final states, the update mask u (T, B, H) and the penalty on updates (scalar). For the kind
    COLUMN, the values (T, B, columns of W) and (T, B, H) that matrix products read in place of x and h follow instead,
    without gradients.
    """

    @staticmethod
    def forward(ctx: Any, plan: _Plan, saved: Saved | None, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        contiguous = [None if t is None else t.contiguous() for t in inputs]
        keep = saved is not None or any(ctx.needs_input_grad)
        values, outputs = _forward(plan, saved, keep, contiguous)
        ctx.plan, ctx.count = plan, len(values.states)
        ctx.set_materialize_grads(False)
        tensors = (*values.states, *values.memories, *values.normalised, *contiguous)
        ctx.save_for_backward(values.p, values.m, values.u, *tensors)
        if isinstance(plan.rule, PerColumn):
            ctx.mark_non_differentiable(*values.memories)
        elif not plan.rule.schedules:
            ctx.mark_non_differentiable(values.u)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        check_first_derivative(grads)
        plan, count = ctx.plan, ctx.count
        p, m, u, *saved = ctx.saved_tensors
        places = (0, count, count + plan.memories, count + plan.memories + plan.products, len(saved))
        states, memories, normalised, inputs = (saved[first:end] for first, end in pairwise(places))
        y_grad, *last_grad = (None if g is None else g.contiguous() for g in grads[: 1 + count + plan.memories])
        last_grad, last_memory_grad = last_grad[:count], last_grad[count:]
        call = plan.call(True, inputs)
        decided = grads[1 + count + plan.memories :]
        if decided and decided[-1] is not None:
            # the budget is a sum over steps of the weighted mean decision at a step
            mean = decided[-1].item() / (call.batch * call.hidden)
            weights = torch.full((call.steps, call.batch), mean)
            if plan.step_weights is not None:
                weights *= plan.step_weights
            call.set_tensors({"decision_weights": weights})
        needed = ctx.needs_input_grad[2:]
        input_grads = [torch.empty_like(t) if need else None for t, need in zip(inputs, needed, strict=True)]
        columns = isinstance(plan.rule, PerColumn)
        keeps = isinstance(plan.rule, PerColumn) and not plan.rule.straight_through
        if keeps:
            # the kernels add the gradients of saved values here, step by step
            for at in plan.memory_places(len(inputs)):
                input_grads[at] = torch.zeros_like(inputs[at])
        call.set_tensors({"p": p, "m": m, "memories": memories, "u": u, "state": states})
        call.set_tensors({"y_grad": y_grad, "last_grad": last_grad, "last_memory_grad": last_memory_grad})
        tensor_grads, vector_grads = plan.split(input_grads)
        named_grads = plan.named(tensor_grads, "_grad")
        learns = columns and any(g is not None for g in named_grads["rule_params_grad"])
        sent_grads = [torch.empty_like(sent) for sent in memories] if learns or keeps else []
        call.set_tensors({**named_grads, "sent_grad": sent_grads})
        tensors, vectors = plan.split(inputs)
        if plan.norms is not None:
            norms = plan.norms.describe(normalised, vectors, vector_grads)
            call.norms = ctypes.addressof(norms)
        call.run(back=True)
        if learns:
            thresholds = column.threshold_grads(plan.rule.slope, plan.named(tensors), states[0], memories, sent_grads)
            for grad, threshold in zip(named_grads["rule_params_grad"], thresholds, strict=True):
                if grad is not None:
                    grad.copy_(threshold)
        return (None, None, *input_grads)


def _forward(
    plan: _Plan, saved: Saved | None, keep: bool, inputs: Sequence[Tensor | None]
) -> tuple[_Values, tuple[Tensor, ...]]:
    """Run all steps, unless their values are saved; return the values, and the outputs of `Unrolled`."""
    named = plan.named(plan.split(inputs)[0])
    restored = saved is not None and saved.y is not None
    if saved is not None and saved.y is not None:
        values = plan.restore(saved.y, saved.tensors, named)
    else:
        values = plan.allocate(keep, named)
        if saved is None or not saved.dry:
            plan.run(values, keep, inputs)
        if saved is not None:
            saved.tensors = values.listed(named)
    states, memories, u = values.states, values.memories, values.u
    last = tuple(s[-1].clone() for s in states)
    if plan.rule.schedules:
        return values, (states[0], *last)
    if isinstance(plan.rule, PerColumn):
        return values, (states[0], *last, *memories)
    assert u is not None
    likelihoods = None
    if plan.likelihoods and isinstance(plan.rule, Scored) and not restored:
        likelihoods = _likelihoods(plan.rule, named, memories, states[0])
    # of restored values, only the gradients count
    budget = u.new_zeros(()) if restored else plan.rule.budget(u, likelihoods, plan.step_weights)
    return values, (states[0], *last, *(memory[-1].clone() for memory in memories), u, budget)


def _likelihoods(rule: Scored, named: Mapping[str, Any], memories: Sequence[Tensor], y: Tensor) -> Tensor:
    """Compute the likelihoods of updates (T, B, H), or (T, B, 1) for one decision per sample, for the penalty."""
    e = rule.project(named["x"][..., : rule.input_size])
    before = tuple(torch.cat([m[None], after[:-1]]) for m, after in zip(named["memory"], memories, strict=True))
    state = (torch.cat([named["start"][0][None], y[:-1]]),)
    return rule.per_neuron(rule.likelihood(rule.group_scores(e, state, before), rule.slope))


class CpuUnroller:
    """Runs all steps of one layer by a single call of the native training library, on a CPU.

    A call returns the outputs, the final state and the trace of updates, as `RecurrentLayer.forward` does. It returns
    None in these cases, so that the layer runs its own loop in torch: a tensor that is not float32 or not on the
    CPU, an empty batch, and statistics that the library cannot compute (`batch_norm.has_statistics`).

    Args:
        layer: The layer.

    Attributes:
        name: "fused", the name of this implementation of the loop over time steps.

    Raises:
        UsageError: The kernels cannot run the layer.
    """

    name = "fused"

    def __init__(self, layer: "RecurrentLayer") -> None:
        loaded = library()
        if loaded is None:
            raise UsageError(
                f"the native library {TRAIN} is not installed or does not support this processor; install edgernn "
                "again, or use another processor"
            )
        layer = layer.unrolled
        if why := refusal(layer):
            raise UsageError(why)
        self._rule = _rule_number(loaded, layer.rule)
        if self._rule < 0:
            raise UsageError(
                f"there is no kernel for the rule {layer.rule.name} in the native library {TRAIN}; choose another rule"
            )
        cell = layer.cell
        if why := batch_norm.refusal(layer):
            raise UsageError(why)
        self.program: ProgramCell | None = None
        self._vectors = tuple(cell.vectors)
        self._cell = _number(loaded, cell)
        if self._cell < 0:
            if not layer.rule.runs_programs:
                raise UsageError(
                    f"there is no kernel for {layer.kernel_name}: the rule {layer.rule.name} has kernels for built-in "
                    "cells only; choose another rule"
                )
            if cell.norm is not None:
                raise UsageError(
                    f"there is no kernel for {layer.kernel_name}, a user-defined cell with a normalisation; leave out "
                    "the setting norm"
                )
            try:
                source, self._vectors = describe_cell(cell)
                self.program = ProgramCell(source)
            except (ProgramError, UsageError) as error:
                raise UsageError(f"there is no kernel for {layer.kernel_name}: {error}; change the cell") from None
        # a function of the cell and its sizes
        address = None if self.program is None else self.program.address
        sizes = {"cell": self._cell, "rule": self._rule, "input": cell.input_size, "hidden": cell.hidden_size}
        call = TrainCall(address, **sizes, steps=1, batch=1, group_size=1, threads=1)
        self._gates = int(loaded.edgernn_train_gates(ctypes.byref(call)))

    def __call__(
        self, layer: "RecurrentLayer", x: Tensor, state: State, saved: Saved | None = None
    ) -> tuple[Tensor, State, Trace] | None:
        cell, rule = layer.cell, layer.rule
        if not _native(x) or not all(map(_native, state)):
            return None
        check(layer, x, state)
        if x.shape[1] == 0:
            return None
        t = state[layer.states.index(COUNT)] if COUNT in layer.widths else None
        if t is not None and not batch_norm.has_statistics(cell, t):
            return None
        last = state[-1] if LAST in layer.widths else None
        constants = layer.constants(x)
        whole = with_whole_weights(cell, constants)
        weights = [whole.get(key, getattr(cell, key, None)) for key in ("W", "R", "C", "V", "b")]
        count = len(cell.states)
        memory = state[count : count + len(rule.memory)]
        u = rule.shares(x.shape[0], memory)
        u = None if u is None else u.to(x.dtype)
        weights.append(u)
        vectors = [constants[name] if name in constants else getattr(cell, name) for name in self._vectors]
        decides, sends = not rule.schedules, isinstance(rule, PerColumn)
        rule_weights = list(rule.weights.values()) if decides else []
        memories = memory[: column.SENT_COUNT] if sends else memory if decides else ()
        if isinstance(rule, PerColumn) and rule.straight_through:
            memories = tuple(m.detach() for m in memories)
        read = (*weights, *vectors, *rule_weights)
        if not all(t is None or _native(t) for t in read) or not are_plain((*state, *read), saved):
            return None
        (T, B, I), H = x.shape, cell.hidden_size
        sizes = {"cell": self._cell, "rule": self._rule, "steps": T, "batch": B, "input": I, "hidden": H}
        sizes |= {"group_size": rule.group_size, "detaches_state": rule.detaches_state}
        middle = cell.mid_size if weights[3] is not None else None
        # without a gradient the layer does not ask for likelihoods
        likelihoods = rule.counts_likelihoods and torch.is_grad_enabled()
        norms = None if t is None else BatchNorms.of(cell, int(t[0, 0]), T)
        counts = len(vectors), rule, len(rule_weights), len(memories)
        plan = _Plan(self.program, self._gates, sizes, middle, *counts, likelihoods, layer.step_weights, norms)
        inputs = layer.inputs(x, last)
        scales = [] if norms is None else batch_norm.vectors(cell)
        tensors = (inputs, *weights, *vectors, *rule_weights, *state[:count], *memories, *scales)
        if saved is None and not torch.is_grad_enabled():
            # an autograd function takes longer than the kernels at a step of one sequence
            y, *others = _forward(plan, None, False, [None if t is None else t.contiguous() for t in tensors])[1]
        else:
            y, *others = Unrolled.apply(plan, saved, *tensors)  # type: ignore[no-untyped-call]
        final = others[: count + len(memories)]
        if sends:
            after, trace = column.finish(layer, inputs, (state[0], y), memory, final[count:], constants)
            return y, (*final[:count], *after, *([] if last is None else [x[-1]])), trace
        budget = x.new_zeros(())
        if norms is not None and norms.learns and t is not None:
            norms.follow(cell, int(t[0, 0]))
        if decides:
            u, budget = others[len(final) :]
        else:
            final += rule.advanced(memory, T)
            budget = budget if u is None else rule.budget(u, None, layer.step_weights)
        # of restored values, only the gradients count
        decisions = None if u is None or (saved is not None and saved.y is not None) else u != 0
        counted = [] if t is None else [t + T]
        return y, (*final, *counted, *([] if last is None else [x[-1]])), Trace(decisions, budget)


def _number(loaded: ctypes.CDLL, cell: Cell) -> int:
    """Return the index of a built-in cell in the training library; negative for a cell that the library lacks."""
    if CELLS.get(cell.name) is not type(cell):
        return -1
    return int(loaded.edgernn_train_cell(cell.form.encode(), cell.biases))


def _rule_number(loaded: ctypes.CDLL, rule: UpdateRule) -> int:
    """Return the index of an update rule in the training library; negative for a rule that it does not have."""
    return int(loaded.edgernn_train_rule(rule.name.encode())) if RULES.get(rule.name) is type(rule) else -1


def _native(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"
