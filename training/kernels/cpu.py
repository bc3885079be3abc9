# SPDX-License-Identifier: Apache-2.0
"""A layer's whole sequence in one call of the native training library, forward and backward, on the CPU.

`Unrolled` is an autograd function and no op of torch.library: the dispatch of a registered op with a gradient was
measured at 250 to 400 µs a step of training, more than all else where H and T are small. torch.compile sees the Python
loop, as the export does.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import EdgernnError, UsageError
from edgernn.layer import LAST, RecurrentLayer, Trace
from edgernn.rules import Selective, Skip, Timed
from edgernn.runtime.library import TRAIN, library_missing, train_library
from edgernn.training.kernels.common import check, refusal

_MAX_PARAMS = _MAX_STATES = 4
_POINTER = ctypes.c_void_p
# the inputs between x and the cell's own vectors, which the states follow, by the names of EdgernnTrainCall
_WEIGHTS = ("w", "r", "c", "v", "b", "rule_w", "rule_b", "rule_d", "skip_w", "skip_b", "pressure", "share")


class _Call(ctypes.Structure):
    """EdgernnTrainCall of runtime/csrc/train/train.h, which says what each field is."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("cell", "steps", "batch", "input", "hidden", "threads", "keep")),
        *((name, _POINTER) for name in ("x", "w", "r", "c", "v", "b")),
        ("own", _POINTER * _MAX_PARAMS),
        ("start", _POINTER * _MAX_STATES),
        *((name, _POINTER) for name in ("rule_w", "rule_b", "rule_d", "skip_w", "skip_b", "pressure", "share")),
        *((name, ctypes.c_float) for name in ("slope", "decision_weight", "likelihood_weight")),
        *((name, _POINTER) for name in ("p", "m")),
        ("state", _POINTER * _MAX_STATES),
        *((name, _POINTER) for name in ("decisions", "pressures", "y_grad")),
        ("last_grad", _POINTER * _MAX_STATES),
        *((name, _POINTER) for name in ("pressures_grad", "x_grad", "w_grad", "r_grad", "c_grad", "v_grad", "b_grad")),
        ("own_grad", _POINTER * _MAX_PARAMS),
        ("start_grad", _POINTER * _MAX_STATES),
        *((name, _POINTER) for name in ("rule_w_grad", "rule_b_grad", "rule_d_grad")),
        *((name, _POINTER) for name in ("skip_w_grad", "skip_b_grad", "pressure_grad", "share_grad", "scratch")),
    ]

    def give(self, tensors: Mapping[str, Tensor | Sequence[Tensor | None] | None]) -> None:
        """Set fields to the memory of contiguous tensors, which must live as long as the call does."""
        for name, given in tensors.items():
            if isinstance(given, Tensor):
                setattr(self, name, given.data_ptr())
            elif given is not None:
                field = getattr(self, name)
                for i, tensor in enumerate(given):
                    field[i] = None if tensor is None else tensor.data_ptr()

    def run(self, back: bool) -> None:
        loaded = library()
        assert loaded is not None
        scratch = torch.empty(loaded.edgernn_train_scratch(ctypes.byref(self)), dtype=torch.uint8)
        self.scratch = scratch.data_ptr()
        (loaded.edgernn_train_backward if back else loaded.edgernn_train_forward)(ctypes.byref(self))


def train_library_path() -> Path | None:
    """The native training library; None where it was not built."""
    if library_missing():
        return None
    path = train_library()
    return path if path.is_file() else None


@cache
def library() -> ctypes.CDLL | None:
    """The training library's functions, or None where it is missing or no instruction set of it runs here.

    Raises EdgernnError for the library of another version.
    """
    path = train_library_path()
    if path is None:
        return None
    loaded = ctypes.CDLL(str(path))
    # a library without this function is older than it
    size = getattr(loaded, "edgernn_train_call_bytes", int)
    if size() != ctypes.sizeof(_Call):
        raise EdgernnError(f"{path} was built for another version of edgernn: install edgernn again")
    loaded.edgernn_train_isa.restype = ctypes.c_char_p
    loaded.edgernn_train_cell.argtypes, loaded.edgernn_train_cell.restype = [ctypes.c_char_p], ctypes.c_int64
    for count in (loaded.edgernn_train_scratch, loaded.edgernn_train_gates):
        count.argtypes, count.restype = [_POINTER], ctypes.c_int64
    for run in (loaded.edgernn_train_forward, loaded.edgernn_train_backward):
        run.argtypes, run.restype = [_POINTER], None
    return None if loaded.edgernn_train_isa() is None else loaded


@dataclass(frozen=True)
class _Plan:
    """What the function is told besides tensors: sizes by the names of the call, M where the cell has an m.

    own: how many vectors the cell has. slope, likelihoods: of the rule `selective`.
    """

    sizes: dict[str, int]
    middle: int | None
    own: int
    slope: float
    likelihoods: bool

    def call(self, keep: bool, given: Sequence[Tensor | None]) -> _Call:
        """A call with everything that forward and backward are both given."""
        call = _Call(**self.sizes, keep=keep, threads=torch.get_num_threads(), slope=self.slope)
        call.give(self.named(given))
        return call

    def named(self, given: Sequence[Tensor | None], suffix: str = "") -> dict[str, Any]:
        """The tensors of forward, or their gradients, by the names of the call."""
        x, *rest = given
        own, start = rest[len(_WEIGHTS) : len(_WEIGHTS) + self.own], rest[len(_WEIGHTS) + self.own :]
        tensors = {"x": x, **dict(zip(_WEIGHTS, rest, strict=False)), "own": own, "start": start}
        return {f"{name}{suffix}": tensor for name, tensor in tensors.items()}


class Unrolled(torch.autograd.Function):
    """All steps of a layer, from the inputs of its op: x (T, B, columns of W), the weights, and the states (B, H).

    Returns y (T, B, H), the last states, and where something is decided the last pressure (B, 1) or None, the decisions
    (T, B, H), or (T, B, 1) under the rule `skip`, and the budget.
    """

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [None if t is None else t.contiguous() for t in inputs]
        named = plan.named(given)
        # the budget may ask for the likelihoods of all steps where nothing asks for a gradient
        keep = plan.likelihoods or any(ctx.needs_input_grad)
        call = plan.call(keep, given)
        loaded = library()
        assert loaded is not None
        T, B, H = call.steps, call.batch, call.hidden
        kept = T if keep else 1
        states = [torch.empty(T if s == 0 else kept, B, H) for s in range(len(named["start"]))]
        p = torch.empty(kept, B, loaded.edgernn_train_gates(ctypes.byref(call)))
        m = None if plan.middle is None else torch.empty(kept, B, plan.middle)
        decisions = torch.empty(T, B, H, dtype=torch.bool) if call.rule_d else None
        pressures = torch.empty(T, B, 1) if call.skip_w else None
        call.give({"p": p, "m": m, "state": states, "decisions": decisions, "pressures": pressures})
        call.run(back=False)
        ctx.plan, ctx.count = plan, len(states)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, m, pressures, *states, *given)
        last = tuple(s[-1].clone() for s in states)
        if pressures is not None:
            decisions = torch.cat([named["pressure"][None], pressures[:-1]]) >= 0.5
        if decisions is None:
            return (states[0], *last)
        ctx.mark_non_differentiable(decisions)
        budget = _budget(plan, decisions, p, named, states[0])
        return (states[0], *last, None if pressures is None else pressures[-1].clone(), decisions, budget)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, ctx.count
        p, m, pressures, *rest = ctx.saved_tensors
        states, given = rest[:count], rest[count:]
        y_grad, *last_grad = (None if g is None else g.contiguous() for g in grads[: 1 + count])
        call = plan.call(True, given)
        decided = grads[1 + count :]
        if decided and decided[-1] is not None:
            # the budget is a sum over steps, and a mean over all that is decided at one
            weight = decided[-1].item() / (call.batch * (call.hidden if call.rule_d else 1))
            call.likelihood_weight, call.decision_weight = (weight, 0.0) if plan.likelihoods else (0.0, weight)
        pressures_grad = decided[0].contiguous() if decided and decided[0] is not None else None
        needed = ctx.needs_input_grad[1:]
        made = [torch.empty_like(t) if need else None for t, need in zip(given, needed, strict=True)]
        call.give({"p": p, "m": m, "pressures": pressures, "state": states})
        call.give({"y_grad": y_grad, "last_grad": last_grad, "pressures_grad": pressures_grad})
        call.give(plan.named(made, "_grad"))
        call.run(back=True)
        return (None, *made)


def _budget(plan: _Plan, decisions: Tensor, p: Tensor, named: Mapping[str, Any], y: Tensor) -> Tensor:
    """What the rule's `budget` makes of the decisions, or of the likelihoods."""
    size = decisions[0].numel()
    if not plan.likelihoods:
        return torch.count_nonzero(decisions).to(y.dtype) / size
    # the rule's part of p comes last
    v = p[..., -y.shape[-1] :] + named["rule_d"] * torch.cat([named["start"][0][None], y[:-1]])
    total: Tensor = v.mul_(plan.slope).add_(1).div_(2).clamp_(0, 1).sum()
    return total / size


class CpuUnroller:
    """Runs the steps of the layer that it is made for; leaves tensors other than float32 on the CPU to the layer.

    Raises UsageError for a layer that the kernels do not know.
    """

    name = "fused"

    def __init__(self, layer: RecurrentLayer) -> None:
        if why := why_not(layer):
            raise UsageError(why)
        loaded = library()
        assert loaded is not None
        self._cell = int(loaded.edgernn_train_cell(layer.cell.op.encode()))

    def __call__(self, layer: RecurrentLayer, x: Tensor, state: State) -> tuple[Tensor, State, Trace] | None:
        cell, rule = layer.cell, layer.rule
        if not _native(x) or not all(map(_native, state)) or torch.compiler.is_compiling():
            return None
        check(layer, x, state)
        if x.shape[1] == 0:
            return None
        last = state[-1] if LAST in layer.widths else None
        constants = layer.constants(x)
        weights = [constants.get(key, getattr(cell, key, None)) for key in ("W", "R", "C", "V", "b")]
        count = len(cell.states)
        weights += [rule.rule_W, rule.rule_b, rule.rule_d] if isinstance(rule, Selective) else [None] * 3
        weights += [rule.rule_w, rule.rule_b, state[count]] if isinstance(rule, Skip) else [None] * 3
        share = rule.shares(x.shape[0], state[count : count + 1]).to(x.dtype) if isinstance(rule, Timed) else None
        weights.append(share)
        own = [constants.get(name, getattr(cell, name)) for name in cell.own]
        if not all(t is None or _native(t) for t in (*weights, *own)):
            return None
        (T, B, I), H = x.shape, cell.hidden_size
        plan = _Plan(
            {"cell": self._cell, "steps": T, "batch": B, "input": I, "hidden": H},
            cell.mid_size if weights[3] is not None else None,
            len(own),
            rule.slope if isinstance(rule, Selective) else 0.0,
            # without a gradient the layer does not ask for likelihoods
            isinstance(rule, Selective) and rule.budget_of == "likelihoods" and torch.is_grad_enabled(),
        )
        inputs = layer.inputs(x, last)
        y, *rest = Unrolled.apply(plan, inputs, *weights, *own, *state[:count])  # type: ignore[no-untyped-call]
        final, decided = rest[:count], rest[count:]
        trace = Trace(None, x.new_zeros(()))
        if decided:
            pressure, decisions, budget = decided
            trace = Trace(decisions.expand(-1, -1, H), budget)
            final += [] if pressure is None else [pressure]
        elif share is not None:
            trace = Trace(share != 0, rule.budget(share, None))
            final.append(state[count] + T)
        return y, (*final, *([] if last is None else [x[-1]])), trace


def why_not(layer: RecurrentLayer) -> str | None:
    """Why the native training kernels cannot run a layer, or None where they can."""
    loaded = library()
    if loaded is None:
        return f"the native library {TRAIN} is not installed or does not run here"
    if why := refusal(layer):
        return why
    if loaded.edgernn_train_cell(layer.cell.op.encode()) < 0:
        return f"there is no kernel for {layer.cell.op}"
    return None


def _native(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"
