# SPDX-License-Identifier: Apache-2.0
"""Fused training kernels on a GPU: an autograd function with one launch forward and one backward.

Matrix products in the kernels are tf32 by default, like those of torch.nn.GRU. They are bfloat16 after
`torch.set_float32_matmul_precision("medium")`, and float32 if `torch.backends.cudnn.allow_tf32` is False. States and
sums are always float32. torch computes W x + b and the gradients of all weights by matrix products outside the kernels.
With TRITON_INTERPRET=1 in the environment, the same kernels run on the CPU, slowly.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.kernels import column
from edgernn.kernels.common import Saved, are_plain, check, check_first_derivative, refusal, with_whole_weights
from edgernn.kernels.describe_layer import describe_layer
from edgernn.kernels.gradients import input_grads
from edgernn.kernels.kernel_form import KernelForm, choose, constants, precision
from edgernn.kernels.layer_spec import SENT_H, LayerSpec
from edgernn.kernels.send import send
from edgernn.kernels.sequence import source
from edgernn.kernels.triton_source import load
from edgernn.layer_trace import LAST, Trace
from edgernn.program import ProgramError
from edgernn.rules import PerColumn

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer

_SPECS: dict[str, LayerSpec] = {}


def register(spec: LayerSpec) -> str:
    """Register the description of a layer (`LayerSpec`) for `Sequence`, and return its key.

    The op takes this key in place of the spec. The key is a string that depends on the spec alone, so that it is
    the same in every process.
    """
    key = f"{spec.name}-{hashlib.sha256(repr(spec).encode()).hexdigest()[:16]}"
    _SPECS[key] = spec
    return key


@cache
def kernels(key: str, resident: bool, held: int) -> ModuleType:
    """Generate and load the Python module with the Triton kernels of a layer.

    Args:
        key: Key of the layer's spec, from `register`.
        resident: True for the resident form of the kernels, in which the states stay in registers for all steps. False
            for the streamed form, in which they pass through memory.
        held: In the resident form, number of matrix products whose weights are read once and stay in shared memory.

    Returns:
        A module with the kernels `forward` and `backward`.
    """
    return load(source(_SPECS[key], resident, held))


def _form(spec: LayerSpec, precision: str, device: torch.device) -> KernelForm:
    if device.type != "cuda":
        return choose(spec, precision)
    properties: Any = torch.cuda.get_device_properties(device)
    return choose(spec, precision, properties.shared_memory_per_block_optin)


# smaller kernel forms, by (spec key, "forward" or "backward", precision), for kernels whose form from `choose`
# exceeded the device's resources
_SMALLER: dict[tuple[str, str, str], KernelForm] = {}


def _launch(
    key: str, direction: str, pointers: list[Tensor], T: int, B: int, slope: float, how: str, flags: dict[str, bool]
) -> None:
    from triton.runtime.errors import OutOfResources

    spec, place = _SPECS[key], (key, direction, how)
    on_device: Any = torch.cuda.device_of
    form = _SMALLER.get(place) or _form(spec, how, pointers[0].device)
    while True:
        options = constants(spec, form, how) | flags
        try:
            run = getattr(kernels(key, form.resident, form.held), direction)
            with on_device(pointers[0]):
                run[(-(-B // form.rows),)](*pointers, T, B, slope, num_warps=form.warps, num_stages=1, **options)
            return
        except OutOfResources:
            # the compiler's own use of shared memory is only known after compilation
            if not form.resident:
                raise
            form = _SMALLER[place] = replace(form, held=form.held - 1) if form.held > 1 else KernelForm(False)


def resources(layer: "RecurrentLayer") -> dict[str, Any]:
    """List the resources of the compiled kernels of a layer that has run forward and backward on a GPU, for reports.

    `form` is the kernels' form. `smaller` maps forward or backward to the form that replaced it, if it needed more
    shared memory than the GPU has. `forward` and `backward` are lists of dicts with the registers per thread `regs`,
    `spills` and `shared` memory in bytes of each compiled kernel.
    """
    unroller: Any = layer.unroller
    spec, key, how = unroller._spec, unroller._key, precision()
    form = _form(spec, how, next(layer.parameters()).device)
    smaller = {direction: _SMALLER.get((key, direction, how)) for direction in ("forward", "backward")}
    report: dict[str, Any] = {"form": str(form), "smaller": {way: str(f) for way, f in smaller.items() if f}}
    for direction, replaced in smaller.items():
        used = replaced or form
        kernel = getattr(kernels(key, used.resident, used.held), direction)
        # the interpreter on a CPU compiles nothing
        compiled = [k for cache in getattr(kernel, "device_caches", {}).values() for k in cache[0].values()]
        compiled = [k for k in compiled if ("*bf16" in k.src.signature.values()) == (how == "bf16")]
        report[direction] = [{"regs": k.n_regs, "spills": k.n_spills, "shared": k.metadata.shared} for k in compiled]
    return report


def _weights(spec: LayerSpec, named: Mapping[str, Tensor], precision: str) -> dict[str, Tensor]:
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    return {key: named[key].to(kind) for key in ("R", "C", "V") if key in named}


def _shapes(spec: LayerSpec, T: int, B: int, keep: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs of `Sequence`, as a dict from name to shape."""
    shapes: dict[str, tuple[int, ...]] = {f"s_{state}": (T + 1, B, spec.H) for state in spec.states}
    shapes |= {"p": (T, B, spec.P) if keep else (0,), "m": (T, B, spec.M)}
    shapes |= {f"all_{name}": (T + 1, B, spec.memory_width) for name in spec.memory}
    shapes |= {"evidence": (T, B, 1), SENT_H: (T + 1, B, spec.H)}
    return shapes | {"u": (T, B, spec.H), "scores": (B, spec.H)}


def _empty(spec: LayerSpec, T: int, B: int, keep: bool, like: Tensor) -> dict[str, Tensor]:
    """Allocate the outputs of `Sequence` on the device of `like`, as a dict from name to tensor."""
    shapes = _shapes(spec, T, B, keep)
    kinds = {"u": torch.bool}
    return {name: like.new_empty(shapes[name], dtype=kinds.get(name)) for name in spec.outputs}


def _sizes(spec: LayerSpec, named: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the number of steps T and the batch size B of `named`, a dict from name to input of `Sequence`."""
    T = next(named[name].shape[0] for name in ("a", "x", "e", "blend") if name in named)
    return T, named[f"s_{spec.states[0]}"].shape[0]


class Sequence(torch.autograd.Function):
    """Autograd function that runs a layer over a sequence by one launch of its Triton kernel.

    Its inputs are a `Saved` or None, the key of the layer's spec (`register`), the slope of the rule, and the tensors
    `LayerSpec.inputs`. The slope is the argument of `UpdateRule.likelihood`, whose gradient replaces that of the update
    mask u, which is 0 or 1. The outputs are the tensors `LayerSpec.outputs`. Without a backward pass, the
    pre-activations p among them are empty.
    """

    @staticmethod
    def forward(ctx: Any, saved: Saved | None, key: str, slope: float, *inputs: Tensor) -> tuple[Tensor, ...]:
        spec = _SPECS[key]
        if saved is not None and saved.y is not None:
            outputs = [tensor.detach() for tensor in saved.tensors]
        else:
            keep = saved is not None or any(ctx.needs_input_grad)
            outputs = _forward(inputs, key, keep, slope, saved is not None and saved.dry)
            if saved is not None:
                saved.tensors = outputs
        ctx.key, ctx.count, ctx.slope = key, len(inputs), slope
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *outputs)
        ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
        assert len(outputs) == len(spec.outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        check_first_derivative(grads)
        spec = _SPECS[ctx.key]
        tensors, outputs = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        by_name = dict(zip(spec.outputs, grads, strict=True))
        needed = [by_name[name] for name in spec.output_grads]
        return None, None, None, *_backward(tensors, outputs, needed, ctx.key, ctx.slope)


def _forward(inputs: Iterable[Tensor], key: str, keep: bool, slope: float, dry: bool) -> list[Tensor]:
    spec, how = _SPECS[key], precision()
    named = {name: tensor.contiguous() for name, tensor in zip(spec.inputs, inputs, strict=True)}
    T, B = _sizes(spec, named)
    outputs = _empty(spec, T, B, keep, next(iter(named.values())))
    if dry:
        return list(outputs.values())
    for name, start in spec.starts.items():
        outputs[name][0] = named[start]
    read = named | _weights(spec, named, how)
    if B:
        pointers = [*(read[name] for name in spec.forward_inputs), *outputs.values()]
        _launch(key, "forward", pointers, T, B, slope, how, {"KEEP": keep})
    return list(outputs.values())


def _backward(
    inputs: Iterable[Tensor], outputs: Iterable[Tensor], grads: Iterable[Tensor | None], key: str, slope: float
) -> list[Tensor]:
    """Compute the gradients of the inputs of `Sequence`, from those of the outputs in `LayerSpec.output_grads`."""
    spec, how = _SPECS[key], precision()
    named = {name: tensor.contiguous() for name, tensor in zip(spec.inputs, inputs, strict=True)}
    (T, B), H = _sizes(spec, named), spec.H
    saved = dict(zip(spec.outputs, outputs, strict=True))
    like = next(iter(named.values()))
    out_grads = {name: None if g is None else g.contiguous() for name, g in zip(spec.output_grads, grads, strict=True)}
    widths = {"d_p": spec.P, "d_x": spec.X, "d_e": spec.groups, "d_blend": H}
    outs: dict[str, Tensor] = {}
    for name in spec.gradients:
        if name in widths:
            outs[name] = like.new_empty(T, B, widths[name])
        elif name.startswith("sum_"):
            outs[name] = like.new_zeros(B, spec.length(spec.sums[name[4:]][1]))
        else:
            outs[name] = like.new_zeros(B, spec.memory_width if name.removeprefix("d_") in spec.memory else H)
    starts = {f"s_{name}": f"d_s_{name}" for name in spec.states}
    starts |= {f"all_{name}": f"d_{name}" for name in spec.neuron_memory}
    for state, name in starts.items():
        if (last := out_grads[state]) is not None:
            outs[name].copy_(last[T])
    read = {**named, **saved, **_weights(spec, named, how)}
    pointers = [read[name] for name in spec.backward_inputs]
    # the pointer of a missing gradient is a placeholder and is not read
    pointers += [like if g is None else g for g in out_grads.values()] + list(outs.values())
    if B:
        flags = {f"HAS_{name}": g is not None for name, g in out_grads.items()}
        _launch(key, "backward", pointers, T, B, slope, how, flags)
    return input_grads(spec, named, saved, outs, slope)


class GpuUnroller:
    """Runs all steps of one layer by one launch of a Triton kernel, on a GPU.

    A call returns the outputs, the final state and the trace of updates, as `RecurrentLayer.forward` does. It returns
    None if a tensor is not float32 or not on a GPU, so that the layer runs its own loop in torch.

    Args:
        layer: The layer.

    Attributes:
        name: "fused", the name of this implementation of the loop over time steps.

    Raises:
        UsageError: The kernels cannot run the layer.
    """

    name = "fused"

    def __init__(self, layer: "RecurrentLayer") -> None:
        self._spec = _spec(layer.unrolled)
        self._key = register(self._spec)

    def __call__(
        self, layer: "RecurrentLayer", x: Tensor, state: State, saved: Saved | None = None
    ) -> tuple[Tensor, State, Trace] | None:
        if not all(map(_runs, (x, *state))):
            return None
        check(layer, x, state)
        spec, cell, rule, count = self._spec, layer.cell, layer.rule, len(layer.cell.states)
        last = state[-1] if LAST in layer.widths else None
        inputs = layer.inputs(x, last)
        memory = state[count : count + len(rule.memory)]
        a, e = layer.projected(inputs, x, None)
        sent_x: Tensor | None = None
        if spec.threshold:
            assert isinstance(rule, PerColumn)
            theta, _ = rule.weights.values()
            dry = saved is not None and saved.dry
            sent_x = send(inputs.detach(), memory[0].detach(), theta.detach(), dry)
            a = cell.project(column.inputs_of_products(rule, inputs, memory[0], sent_x))
        u = rule.shares(x.shape[0], memory)
        blend = None if u is None else u.to(x.dtype)
        constants = layer.constants(x)
        values: dict[str, Tensor | None] = {**with_whole_weights(cell, constants), "a": a, "x": inputs, "e": e}
        values["blend"] = blend
        values |= {} if sent_x is None else {SENT_H: memory[1]}
        values |= {f"v_{name}": constants[name] for name, _ in spec.vectors}
        values |= {f"s_{name}": s for name, s in zip(cell.states, state, strict=False)}
        values |= zip(rule.memory, memory, strict=True)
        tensors = [
            _first(values.get(name), getattr(cell, name, None), getattr(rule, name, None)) for name in spec.inputs
        ]
        if not all(map(_runs, tensors)) or not are_plain(tensors, saved):
            return None
        outputs = Sequence.apply(saved, self._key, rule.slope, *tensors)  # type: ignore[no-untyped-call]
        results = dict(zip(spec.outputs, outputs, strict=True))
        states = [results[f"s_{name}"] for name in cell.states]
        if sent_x is None:
            after, trace = self._decisions(layer, e, memory, blend, results)
        else:
            sent = sent_x, results[SENT_H][1:].detach()
            after, trace = column.finish(layer, inputs, (state[0], states[0][1:]), memory, sent, constants)
        final = (*(s[-1] for s in states), *after, *([] if last is None else [x[-1]]))
        return states[0][1:], final, trace

    def _decisions(
        self, layer: "RecurrentLayer", e: Tensor, memory: State, blend: Tensor | None, results: Mapping[str, Tensor]
    ) -> tuple[State, Trace]:
        """Compute the rule's own states after the sequence and the trace, for a rule of any kind but COLUMN."""
        spec, rule = self._spec, layer.rule
        if spec.selects:
            u = results["u"]
            return (), Trace(u, rule.budget(u.to(e.dtype), None, layer.step_weights))
        if blend is not None:
            return rule.advanced(memory, len(e)), Trace(blend != 0, rule.budget(blend, None, layer.step_weights))
        if spec.rule is None:
            return (), Trace(None, e.new_zeros(()))
        states = tuple(results[f"s_{name}"][:-1] for name in layer.cell.states)
        memories = [results[f"all_{name}"] for name in spec.memory]
        decided = rule.decide(e, states, tuple(m[:-1] for m in memories))
        assert decided.u is not None
        updated = (decided.u != 0).expand(-1, -1, layer.cell.hidden_size)
        budget = rule.budget(decided.u.to(e.dtype), decided.likelihood, layer.step_weights)
        return tuple(m[-1] for m in memories), Trace(updated, budget)


def _spec(layer: "RecurrentLayer") -> LayerSpec:
    cell = layer.cell
    if find_spec("triton") is None:
        raise UsageError("the package triton, which compiles GPU kernels, is not installed; install it with pip")
    if why := refusal(layer):
        raise UsageError(why)
    if cell.norm is not None:
        raise UsageError(
            f"there is no kernel for {layer.kernel_name}: Triton kernels do not support the setting norm; leave it out"
        )
    try:
        spec = describe_layer(layer)
    except ProgramError as error:
        raise UsageError(f"there is no kernel for {layer.kernel_name}: {error}; change the cell") from None
    if not any(name in spec.inputs for name in ("a", "x", "e", "blend")):
        raise UsageError(
            f"there is no kernel for {layer.kernel_name}: no gate reads the input x; add a gate that reads x"
        )
    return spec


def _first(*candidates: Tensor | None) -> Tensor:
    return next(tensor for tensor in candidates if tensor is not None)


def _runs(tensor: Tensor) -> bool:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return tensor.dtype == torch.float32 and (tensor.is_cuda or (interpreted and tensor.device.type == "cpu"))
