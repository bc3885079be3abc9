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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.cells import CELLS
from edgernn.cells.base import Cell, State
from edgernn.errors import EdgernnError, UsageError
from edgernn.layer import COUNT, LAST, RecurrentLayer, Trace
from edgernn.program import ProgramError
from edgernn.rules import RULES, Kind, UpdateRule
from edgernn.runtime.library import TRAIN, library_missing, train_library
from edgernn.training.kernels import batch_norm
from edgernn.training.kernels.batch_norm import BatchNorms
from edgernn.training.kernels.common import check, refusal
from edgernn.training.kernels.program_cell import CellSource, describe_cell, to_c

_MAX_PARAMS = _MAX_STATES = _MAX_MEMORIES = 4
_MAX_RULE_PARAMS = 5
_POINTER = ctypes.c_void_p
# the most that the library says of a cell that it refuses
_WHY_BYTES = 512
# the inputs between x and the vectors of cell and rule, which states and memories follow, by the names of
# EdgernnTrainCall
_WEIGHTS = ("w", "r", "c", "v", "b", "u")


class _Call(ctypes.Structure):
    """EdgernnTrainCall of runtime/csrc/train/edgernn_train.h, which says what each field is."""

    _fields_ = [
        ("program", _POINTER),
        *((name, ctypes.c_int64) for name in ("cell", "rule", "steps", "batch", "input", "hidden", "threads", "keep")),
        *((name, _POINTER) for name in ("x", "w", "r", "c", "v", "b")),
        ("params", _POINTER * _MAX_PARAMS),
        ("start", _POINTER * _MAX_STATES),
        ("rule_params", _POINTER * _MAX_RULE_PARAMS),
        ("memory", _POINTER * _MAX_MEMORIES),
        *((name, ctypes.c_float) for name in ("slope", "decision_weight")),
        *((name, _POINTER) for name in ("p", "m")),
        ("state", _POINTER * _MAX_STATES),
        ("memories", _POINTER * _MAX_MEMORIES),
        *((name, _POINTER) for name in ("u", "y_grad")),
        ("last_grad", _POINTER * _MAX_STATES),
        ("last_memory_grad", _POINTER * _MAX_MEMORIES),
        *((name, _POINTER) for name in ("x_grad", "w_grad", "r_grad", "c_grad", "v_grad", "b_grad")),
        ("params_grad", _POINTER * _MAX_PARAMS),
        ("start_grad", _POINTER * _MAX_STATES),
        ("rule_params_grad", _POINTER * _MAX_RULE_PARAMS),
        ("memory_grad", _POINTER * _MAX_MEMORIES),
        *((name, _POINTER) for name in ("u_grad", "scratch", "norms")),
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
    loaded.edgernn_train_cell.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    loaded.edgernn_train_rule.argtypes = [ctypes.c_char_p]
    for number in (loaded.edgernn_train_cell, loaded.edgernn_train_rule):
        number.restype = ctypes.c_int64
    loaded.edgernn_train_new_cell.argtypes = [_POINTER, ctypes.c_char_p, ctypes.c_int64]
    loaded.edgernn_train_new_cell.restype = _POINTER
    loaded.edgernn_train_free_cell.argtypes, loaded.edgernn_train_free_cell.restype = [_POINTER], None
    for count in (loaded.edgernn_train_scratch, loaded.edgernn_train_gates):
        count.argtypes, count.restype = [_POINTER], ctypes.c_int64
    for run in (loaded.edgernn_train_forward, loaded.edgernn_train_backward):
        run.argtypes, run.restype = [_POINTER], None
    return None if loaded.edgernn_train_isa() is None else loaded


class ProgramCell:
    """A user's own cell in the memory of the library, until this object is gone; copies are made anew.

    Raises UsageError, with the library's sentence, for a cell that it cannot run.
    """

    def __init__(self, source: CellSource) -> None:
        loaded = library()
        assert loaded is not None
        self.source, self._free = source, loaded.edgernn_train_free_cell
        why = ctypes.create_string_buffer(_WHY_BYTES)
        self.address: int | None = loaded.edgernn_train_new_cell(ctypes.byref(to_c(source)), why, len(why))
        if self.address is None:
            raise UsageError(why.value.decode())

    def __del__(self) -> None:
        if getattr(self, "address", None) is not None:
            self._free(self.address)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgramCell, (self.source,)


@dataclass(frozen=True)
class _Plan:
    """What the function is told besides tensors.

    program: a user's own cell, None for one of the library's. sizes: by the names of the call. middle: M where the cell
    has an m. vectors: how many the cell has. rule_weights, memories: how many the equations of the rule read.
    likelihoods: whether the budget sums these up, in place of decisions. norms: the normalisations, whose vectors come
    last among the tensors.
    """

    program: ProgramCell | None
    sizes: dict[str, int]
    middle: int | None
    vectors: int
    rule: UpdateRule
    rule_weights: int
    memories: int
    likelihoods: bool
    norms: BatchNorms | None = None

    @property
    def products(self) -> int:
        """How many products are normalised."""
        return 0 if self.norms is None else len(self.norms.products)

    def split(self, given: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
        """All tensors of forward, or their gradients, without the vectors of normalisations, and those."""
        end = len(given) - (0 if self.norms is None else self.norms.count)
        return given[:end], given[end:]

    def call(self, keep: bool, given: Sequence[Tensor | None]) -> _Call:
        """A call with everything that forward and backward are both given."""
        program = None if self.program is None else self.program.address
        call = _Call(program, **self.sizes, keep=keep, threads=torch.get_num_threads(), slope=self.rule.slope)
        call.give(self.named(self.split(given)[0]))
        return call

    def named(self, given: Sequence[Tensor | None], suffix: str = "") -> dict[str, Any]:
        """The tensors of forward, or their gradients, by the names of the call."""
        x, *rest = given
        count = len(_WEIGHTS)
        params, rule_params = count + self.vectors, count + self.vectors + self.rule_weights
        places = (count, params, rule_params, len(rest) - self.memories, len(rest))
        lists = [rest[first:end] for first, end in pairwise(places)]
        tensors: dict[str, Any] = {"x": x, **dict(zip(_WEIGHTS, rest, strict=False))}
        tensors |= zip(("params", "rule_params", "start", "memory"), lists, strict=True)
        return {f"{name}{suffix}": tensor for name, tensor in tensors.items()}


class Unrolled(torch.autograd.Function):
    """All steps of a layer, from the inputs of its op: x (T, B, columns of W), the weights, the states (B, H), and the
    memories that the rule's equations read.

    Returns y (T, B, H), the last states, and where the rule decides its last memories, u (T, B, H), and the budget.
    """

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [None if t is None else t.contiguous() for t in inputs]
        tensors, vectors = plan.split(given)
        named = plan.named(tensors)
        keep = any(ctx.needs_input_grad)
        call = plan.call(keep, given)
        loaded = library()
        assert loaded is not None
        T, B, H = call.steps, call.batch, call.hidden
        kept = T if keep else 1
        states = [torch.empty(T if s == 0 else kept, B, H) for s in range(len(named["start"]))]
        gates = loaded.edgernn_train_gates(ctypes.byref(call))
        p = torch.empty(kept if plan.norms is None else 1, B, gates)
        m = None if plan.middle is None else torch.empty(kept, B, plan.middle)
        decides = plan.rule.kind is not Kind.TIME
        u = torch.empty(T, B, H) if decides else named["u"]
        memories = [torch.empty(T, *memory.shape) for memory in named["memory"]]
        call.give({"p": p, "m": m, "state": states, "u": u, "memories": memories})
        normalised: list[Tensor] = []
        if plan.norms is not None:
            normalised = plan.norms.allocate(kept, B)
            norms = plan.norms.describe(normalised, vectors)
            call.norms = ctypes.addressof(norms)
        call.run(back=False)
        ctx.plan, ctx.count = plan, len(states)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, m, u, *states, *memories, *normalised, *given)
        last = tuple(s[-1].clone() for s in states)
        if not decides:
            return (states[0], *last)
        ctx.mark_non_differentiable(u)
        budget = plan.rule.budget(u, _likelihoods(plan.rule, named, memories, states[0]) if plan.likelihoods else None)
        return (states[0], *last, *(memory[-1].clone() for memory in memories), u, budget)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, ctx.count
        p, m, u, *rest = ctx.saved_tensors
        places = (0, count, count + plan.memories, count + plan.memories + plan.products, len(rest))
        states, memories, normalised, given = (rest[first:end] for first, end in pairwise(places))
        y_grad, *last_grad = (None if g is None else g.contiguous() for g in grads[: 1 + count + plan.memories])
        last_grad, last_memory_grad = last_grad[:count], last_grad[count:]
        call = plan.call(True, given)
        decided = grads[1 + count + plan.memories :]
        if decided and decided[-1] is not None:
            # the budget is a sum over steps, and a mean over all that is decided at one
            call.decision_weight = decided[-1].item() / (call.batch * call.hidden)
        needed = ctx.needs_input_grad[1:]
        made = [torch.empty_like(t) if need else None for t, need in zip(given, needed, strict=True)]
        call.give({"p": p, "m": m, "memories": memories, "u": u, "state": states})
        call.give({"y_grad": y_grad, "last_grad": last_grad, "last_memory_grad": last_memory_grad})
        made_tensors, made_vectors = plan.split(made)
        call.give(plan.named(made_tensors, "_grad"))
        if plan.norms is not None:
            norms = plan.norms.describe(normalised, plan.split(given)[1], made_vectors)
            call.norms = ctypes.addressof(norms)
        call.run(back=True)
        return (None, *made)


def _likelihoods(rule: UpdateRule, named: Mapping[str, Any], memories: Sequence[Tensor], y: Tensor) -> Tensor:
    """The likelihoods of all steps."""
    e = rule.project(named["x"][..., : rule.input_size])
    before = tuple(torch.cat([m[None], after[:-1]]) for m, after in zip(named["memory"], memories, strict=True))
    return rule.likelihood(rule.score(e, (torch.cat([named["start"][0][None], y[:-1]]),), before), rule.slope)


class CpuUnroller:
    """Runs the steps of the layer that it is made for; leaves tensors other than float32 on the CPU to the layer.

    Raises UsageError for a layer that the kernels do not know.
    """

    name = "fused"

    def __init__(self, layer: RecurrentLayer) -> None:
        loaded = library()
        if loaded is None:
            raise UsageError(f"the native library {TRAIN} is not installed or does not run here")
        if why := refusal(layer):
            raise UsageError(why)
        self._rule = _rule_number(loaded, layer.rule)
        if self._rule < 0:
            raise UsageError(f"there is no kernel for the rule {layer.rule.name}")
        cell = layer.cell
        if cell.recurrent.rank is not None:
            raise UsageError(f"there is no kernel for {layer.kind}")
        if why := batch_norm.refusal(layer):
            raise UsageError(why)
        self.program: ProgramCell | None = None
        self._vectors = tuple(cell.own)
        self._cell = _number(loaded, cell)
        if self._cell < 0:
            if cell.norm is not None:
                raise UsageError(f"there is no kernel for {layer.kind}, a cell of your own with a norm")
            try:
                source, self._vectors = describe_cell(cell)
                self.program = ProgramCell(source)
            except (ProgramError, UsageError) as error:
                raise UsageError(f"there is no kernel for {layer.kind}: {error}") from None

    def __call__(self, layer: RecurrentLayer, x: Tensor, state: State) -> tuple[Tensor, State, Trace] | None:
        cell, rule = layer.cell, layer.rule
        if not _native(x) or not all(map(_native, state)) or torch.compiler.is_compiling():
            return None
        check(layer, x, state)
        if x.shape[1] == 0:
            return None
        t = state[layer.states.index(COUNT)] if COUNT in layer.widths else None
        if t is not None and not batch_norm.has_statistics(cell, t):
            return None
        last = state[-1] if LAST in layer.widths else None
        constants = layer.constants(x)
        weights = [constants.get(key, getattr(cell, key, None)) for key in ("W", "R", "C", "V", "b")]
        count = len(cell.states)
        memory = state[count : count + len(rule.memory)]
        u = rule.shares(x.shape[0], memory)
        u = None if u is None else u.to(x.dtype)
        weights.append(u)
        vectors = [constants[name] if name in constants else getattr(cell, name) for name in self._vectors]
        decides = rule.kind is not Kind.TIME
        rule_weights = list(rule.weights.values()) if decides else []
        memories = memory if decides else ()
        if not all(t is None or _native(t) for t in (*weights, *vectors, *rule_weights)):
            return None
        (T, B, I), H = x.shape, cell.hidden_size
        sizes = {"cell": self._cell, "rule": self._rule, "steps": T, "batch": B, "input": I, "hidden": H}
        middle = cell.mid_size if weights[3] is not None else None
        # without a gradient the layer does not ask for likelihoods
        likelihoods = rule.counts_likelihoods and torch.is_grad_enabled()
        norms = None if t is None else BatchNorms.of(cell, int(t[0, 0]), T)
        counts = len(vectors), rule, len(rule_weights), len(memories)
        plan = _Plan(self.program, sizes, middle, *counts, likelihoods, norms)
        inputs = layer.inputs(x, last)
        scales = [] if norms is None else batch_norm.vectors(cell)
        tensors = (inputs, *weights, *vectors, *rule_weights, *state[:count], *memories, *scales)
        y, *rest = Unrolled.apply(plan, *tensors)  # type: ignore[no-untyped-call]
        final = rest[: count + len(memories)]
        trace = Trace(None, x.new_zeros(()))
        if norms is not None and norms.learns and t is not None:
            norms.follow(cell, int(t[0, 0]))
        if decides:
            u, budget = rest[len(final) :]
            trace = Trace(u != 0, budget)
        else:
            final += [steps + T for steps in memory]
            if u is not None:
                trace = Trace(u != 0, rule.budget(u, None))
        counted = [] if t is None else [t + T]
        return y, (*final, *counted, *([] if last is None else [x[-1]])), trace


def why_not(layer: RecurrentLayer) -> str | None:
    """Why the native training kernels cannot run a layer, or None where they can."""
    try:
        CpuUnroller(layer)
    except UsageError as error:
        return str(error)
    return None


def _number(loaded: ctypes.CDLL, cell: Cell) -> int:
    """What the library calls a cell of its own; negative for any other."""
    if CELLS.get(cell.name) is not type(cell):
        return -1
    return int(loaded.edgernn_train_cell(cell.form.encode(), cell.biases))


def _rule_number(loaded: ctypes.CDLL, rule: UpdateRule) -> int:
    """What the library calls a rule; negative where it has no kernel."""
    return int(loaded.edgernn_train_rule(rule.name.encode())) if RULES.get(rule.name) is type(rule) else -1


def _native(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"
