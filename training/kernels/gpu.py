# SPDX-License-Identifier: Apache-2.0
"""A layer's whole sequence in one launch each way, on a GPU: `edgernn::sequence`, an op of torch.library.

Products are tf32, as those of torch.nn.GRU are, unless torch is told otherwise: bfloat16 where
`torch.set_float32_matmul_precision("medium")` allows it, exact where `torch.backends.cudnn.allow_tf32` is False.
States and sums are float32 in any case. W x + b and the gradients of all weights are torch's own matrix products.
With TRITON_INTERPRET=1 in the environment the same kernels run on the CPU, slowly.
"""

import hashlib
import linecache
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.layer import LAST, RecurrentLayer, Trace
from edgernn.program import ProgramError
from edgernn.training.kernels.common import check, refusal
from edgernn.training.kernels.layout import Layout, make_layout
from edgernn.training.kernels.sequence import source
from edgernn.training.kernels.writer import padded

# weights that are read once lie in shared memory, beside what the compiler needs to move tiles about
_SPARE = 24 * 1024
# of an H100 and an H200
_SHARED = 227 * 1024


@dataclass(frozen=True)
class KernelForm:
    """How a layer's kernels are made: see `sequence`. warps: of 32 threads, a program."""

    resident: bool
    held: int = 0
    rows: int = 16
    block: int = 64
    block_k: int = 64
    warps: int = 8


def precision() -> str:
    """What products are made of: "bf16", "tf32" or, exactly, "ieee"."""
    if torch.get_float32_matmul_precision() == "medium":
        return "bf16"
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def choose(layout: Layout, precision: str, shared: int = _SHARED) -> KernelForm:
    """The form for so many bytes of shared memory.

    Exact products are not those of the tensor cores, and their tiles take many registers: small blocks suit them.
    """
    if precision == "ieee":
        return KernelForm(False, block=32, block_k=32)
    widths = {"H": padded(layout.H), "M": padded(layout.M)}
    tiles = [widths[p.rows] * widths[p.columns] * (2 if precision == "bf16" else 4) for p in layout.products]
    if max(widths.values()) > 256:
        return KernelForm(False)
    left = shared - _SPARE
    if sum(tiles) <= left:
        return KernelForm(True, held=len(tiles))
    if max(widths.values()) > 128:
        return KernelForm(False)
    # those that are read at every step need room for one of them
    held, left = 0, left - max(tiles)
    while left >= tiles[held]:
        left -= tiles[held]
        held += 1
    return KernelForm(True, held=held)


_LAYOUTS: dict[str, Layout] = {}


def register(layout: Layout) -> str:
    """A name by which the op finds a layout: the same in every process."""
    key = f"{layout.name}-{hashlib.sha256(repr(layout).encode()).hexdigest()[:16]}"
    _LAYOUTS[key] = layout
    return key


@cache
def kernels(key: str, resident: bool, held: int) -> ModuleType:
    """The compiled text of a layout's kernels."""
    text = source(_LAYOUTS[key], resident, held)
    name = f"edgernn_kernels_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    # triton reads the text of its functions by file and line
    file = f"{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def _form(layout: Layout, precision: str, device: torch.device) -> KernelForm:
    if device.type != "cuda":
        return choose(layout, precision)
    properties: Any = torch.cuda.get_device_properties(device)
    return choose(layout, precision, properties.shared_memory_per_block_optin)


def constants(layout: Layout, form: KernelForm, precision: str) -> dict[str, Any]:
    """What a kernel is compiled for."""
    # of bf16 products the factors say what they are
    how = "tf32" if precision == "bf16" else precision
    sizes = {"ROWS": form.rows, "BLOCK": form.block, "BLOCK_K": form.block_k}
    return {"H": layout.H, "M": layout.M, **sizes, "PRECISION": how}


# forms that a device had no room for are not tried twice: (layout, direction, precision)
_SMALLER: dict[tuple[str, str, str], KernelForm] = {}


def _launch(
    key: str, direction: str, pointers: Sequence[Tensor], T: int, B: int, slope: float, how: str, flags: dict[str, bool]
) -> None:
    from triton.runtime.errors import OutOfResources

    layout, place = _LAYOUTS[key], (key, direction, how)
    on_device: Any = torch.cuda.device_of
    form = _SMALLER.get(place) or _form(layout, how, pointers[0].device)
    while True:
        given = constants(layout, form, how) | flags
        try:
            run = getattr(kernels(key, form.resident, form.held), direction)
            with on_device(pointers[0]):
                run[(-(-B // form.rows),)](*pointers, T, B, slope, num_warps=form.warps, num_stages=1, **given)
            return
        except OutOfResources:
            # how much a compiler takes besides the weights is known once it is done
            if not form.resident:
                raise
            form = _SMALLER[place] = replace(form, held=form.held - 1) if form.held > 1 else KernelForm(False)


def _weights(layout: Layout, named: Mapping[str, Tensor], precision: str) -> dict[str, Tensor]:
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    return {key: named[key].to(kind) for key in ("R", "C", "V") if key in named}


def _shapes(layout: Layout, T: int, B: int, keep: bool) -> dict[str, tuple[int, ...]]:
    """Of what forward makes; without `keep` no p is kept."""
    shapes: dict[str, tuple[int, ...]] = {f"s_{state}": (T + 1, B, layout.H) for state in layout.states}
    shapes |= {"p": (T, B, layout.P) if keep else (0,), "m": (T, B, layout.M)}
    shapes |= {f"all_{name}": (T + 1, B, layout.memory_width) for name in layout.memory}
    return shapes | {"evidence": (T, B, 1)}


def _sizes(layout: Layout, named: Mapping[str, Tensor]) -> tuple[int, int]:
    """T and B; what is given at all steps says so, and of it every layout has something."""
    T = next(named[name].shape[0] for name in ("a", "x", "e", "share") if name in named)
    return T, named[f"s_{layout.states[0]}"].shape[0]


@torch.library.custom_op("edgernn::sequence", mutates_args=())
def sequence(given: Sequence[Tensor], key: str, keep: bool, slope: float) -> list[Tensor]:
    """All steps of the layer that `key` names, from Layout.inputs to Layout.made."""
    layout, how = _LAYOUTS[key], precision()
    named = {name: tensor.contiguous() for name, tensor in zip(layout.inputs, given, strict=True)}
    T, B = _sizes(layout, named)
    shapes = _shapes(layout, T, B, keep)
    like = given[0]
    made = {name: like.new_empty(shapes[name]) for name in layout.made}
    for state in layout.states:
        made[f"s_{state}"][0] = named[f"s_{state}"]
    for name in layout.memory:
        made[f"all_{name}"][0] = named[name]
    starts = {*made, *layout.memory}
    read = {name: tensor for name, tensor in named.items() if name not in starts} | _weights(layout, named, how)
    if B:
        _launch(key, "forward", [*read.values(), *made.values()], T, B, slope, how, {"KEEP": keep})
    return list(made.values())


@sequence.register_fake
def _(given: Sequence[Tensor], key: str, keep: bool, slope: float) -> list[Tensor]:
    layout = _LAYOUTS[key]
    shapes = _shapes(layout, *_sizes(layout, dict(zip(layout.inputs, given, strict=True))), keep)
    return [given[0].new_empty(shapes[name]) for name in layout.made]


@torch.library.custom_op("edgernn::sequence_backward", mutates_args=())
def sequence_backward(
    given: Sequence[Tensor],
    made: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    key: str,
    slope: float,
) -> list[Tensor]:
    """The gradients of Layout.inputs, from those of Layout.given."""
    layout, how = _LAYOUTS[key], precision()
    named = {name: tensor.contiguous() for name, tensor in zip(layout.inputs, given, strict=True)}
    (T, B), H = _sizes(layout, named), layout.H
    kept = dict(zip(layout.made, made, strict=True))
    like = given[0]
    found = {name: None if g is None else g.contiguous() for name, g in zip(layout.given, grads, strict=True)}
    widths = {"d_p": layout.P, "d_x": layout.X, "d_e": H, "d_share": H}
    outs: dict[str, Tensor] = {}
    for name in layout.gradients:
        if name in widths:
            outs[name] = like.new_empty(T, B, widths[name])
        elif name.startswith("sum_"):
            outs[name] = like.new_zeros(B, layout.length(layout.sums[name[4:]][1]))
        else:
            outs[name] = like.new_zeros(B, layout.memory_width if name.removeprefix("d_") in layout.memory else H)
    starts = {f"s_{name}": f"d_s_{name}" for name in layout.states}
    starts |= {f"all_{name}": f"d_{name}" for name in layout.neuron_memory}
    for state, name in starts.items():
        if (last := found[state]) is not None:
            outs[name].copy_(last[T])
    skipped = {"a", *layout.memory, *layout.biases, *(f"s_{state}" for state in layout.states)}
    read = {name: tensor for name, tensor in named.items() if name not in skipped} | _weights(layout, named, how)
    pointers = [*read.values(), *(tensor for name, tensor in kept.items() if name != "m")]
    # a gradient that is not given is not read
    pointers += [like if g is None else g for g in found.values()] + list(outs.values())
    if B:
        flags = {f"HAS_{name}": g is not None for name, g in found.items()}
        _launch(key, "backward", pointers, T, B, slope, how, flags)
    return _gradients(layout, named, kept, outs)


def _gradients(
    layout: Layout, named: Mapping[str, Tensor], kept: Mapping[str, Tensor], outs: Mapping[str, Tensor]
) -> list[Tensor]:
    """Of all inputs, from those of p and what else the kernel made: products over all steps, and sums over rows."""
    d_p = outs["d_p"].flatten(0, 1)
    sizes = {gate.name: layout.length(layout.size(gate)) for gate in layout.gates}

    def columns(gate: str) -> Tensor:
        return d_p[:, layout.offsets[gate] : layout.offsets[gate] + sizes[gate]]

    made: dict[str, Tensor] = {}
    for name in layout.inputs:
        if name == "a":
            made[name] = outs["d_p"][..., : layout.A].contiguous()
        elif name in ("R", "C", "V", *layout.biases):
            made[name] = torch.zeros_like(named[name])
        elif f"d_{name}" in outs:
            made[name] = outs[f"d_{name}"]
        else:
            sums = [outs[f"sum_{key}"] for key, (vector, _) in layout.sums.items() if vector == name]
            total = sum(s.sum() if named[name].numel() == 1 else s.sum(0) for s in sums)
            made[name] = (
                total.reshape(named[name].shape) if isinstance(total, Tensor) else torch.zeros_like(named[name])
            )
    for product in layout.products:
        factor = kept["m"] if product.factor == "m" else kept[product.factor][:-1]
        rows = slice(product.offset, product.offset + sizes[product.gate])
        torch.mm(columns(product.gate).T, factor.flatten(0, 1), out=made[product.key][rows])
    for gate in layout.gates:
        if (place := layout.bias(gate)) is not None:
            key, at = place
            made[key][at : at + sizes[gate.name]] = columns(gate.name).sum(0)
    return list(made.values())


@sequence_backward.register_fake
def _(
    given: Sequence[Tensor],
    made: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    key: str,
    slope: float,
) -> list[Tensor]:
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in given]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    given, ctx.key, _, ctx.slope = inputs
    ctx.count = len(given)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*given, *output)


def _differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    layout = _LAYOUTS[ctx.key]
    given, made = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    found = dict(zip(layout.made, grads, strict=True))
    asked = [found[name] for name in layout.given]
    back = sequence_backward(list(given), list(made), asked, ctx.key, ctx.slope)
    return back, None, None, None


sequence.register_autograd(_differentiate, setup_context=_keep_for_backward)


class GpuUnroller:
    """Runs the steps of the layer that it is made for; leaves tensors other than float32 on a GPU to the layer.

    Raises UsageError for a layer that the kernels do not know.
    """

    name = "fused"

    def __init__(self, layer: RecurrentLayer) -> None:
        self._layout = _layout(layer)
        self._key = register(self._layout)

    def __call__(self, layer: RecurrentLayer, x: Tensor, state: State) -> tuple[Tensor, State, Trace] | None:
        if not all(map(_runs, (x, *state))):
            return None
        check(layer, x, state)
        layout, cell, rule, count = self._layout, layer.cell, layer.rule, len(layer.cell.states)
        last = state[-1] if LAST in layer.widths else None
        inputs = layer.inputs(x, last)
        a, e = layer.projected(inputs, x, None)
        memory = state[count : count + len(rule.memory)]
        u = rule.shares(x.shape[0], memory)
        share = None if u is None else u.to(x.dtype)
        constants = layer.constants(x)
        values: dict[str, Tensor | None] = {**constants, "a": a, "x": inputs, "e": e, "share": share}
        values |= {f"v_{name}": constants[name] for name, _ in layout.vectors}
        values |= {f"s_{name}": s for name, s in zip(cell.states, state, strict=False)}
        values |= zip(rule.memory, memory, strict=True)
        given = [
            _first(values.get(name), getattr(cell, name, None), getattr(rule, name, None)) for name in layout.inputs
        ]
        if not all(map(_runs, given)):
            return None
        made = sequence(given, self._key, torch.is_grad_enabled(), rule.slope)
        found = dict(zip(layout.made, made, strict=True))
        states = [found[f"s_{name}"] for name in cell.states]
        final = [s[-1] for s in states]
        trace = Trace(None, x.new_zeros(()))
        if share is not None:
            trace = Trace(share != 0, rule.budget(share, None))
            final += [steps + x.shape[0] for steps in memory]
        elif rule.can_skip:
            memories = [found[f"all_{name}"] for name in layout.memory]
            decided = rule.decide(e, tuple(s[:-1] for s in states), tuple(m[:-1] for m in memories))
            assert decided.u is not None
            updated = (decided.u != 0).expand(-1, -1, cell.hidden_size)
            trace = Trace(updated, rule.budget(decided.u.to(x.dtype), decided.likelihood))
            final += [m[-1] for m in memories]
        return states[0][1:], (*final, *([] if last is None else [x[-1]])), trace


def _layout(layer: RecurrentLayer) -> Layout:
    """Raises UsageError, which says why, for a layer that the kernels cannot run."""
    cell = layer.cell
    if find_spec("triton") is None:
        raise UsageError("triton, which makes the kernels, is not installed")
    if why := refusal(layer):
        raise UsageError(why)
    if cell.norm is not None or cell.recurrent.rank is not None:
        raise UsageError(f"there is no kernel for {layer.kind}")
    try:
        layout = make_layout(layer)
    except ProgramError as error:
        raise UsageError(f"there is no kernel for {layer.kind}: {error}") from None
    if not any(name in layout.inputs for name in ("a", "x", "e", "share")):
        raise UsageError(f"there is no kernel for {layer.kind}, which reads no input")
    return layout


def _first(*found: Tensor | None) -> Tensor:
    return next(tensor for tensor in found if tensor is not None)


def _runs(tensor: Tensor) -> bool:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return tensor.dtype == torch.float32 and (tensor.is_cuda or (interpreted and tensor.device.type == "cpu"))
