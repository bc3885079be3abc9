# SPDX-License-Identifier: Apache-2.0
"""Choice of what runs a recurrent layer: its training kernels, or its loop over time steps; and `edgernn::recurrent`.

A plain call of a layer calls its kernels directly. Where a program is traced, as by torch.compile, torch.export and
FakeTensorMode, the layer becomes one node, the torch op `edgernn::recurrent`. Its kernel on any device calls the same
kernels or the same loop. Its backward pass uses the values that the forward pass kept for the kernels; without
kernels, it runs the layer again. torch.func and forward-mode differentiation go through the loop.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from edgernn.cells.base import State
from edgernn.errors import EdgernnError
from edgernn.kernels.common import Kept
from edgernn.layer_trace import Trace
from edgernn.structure import structure

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer, Unroller

Result = tuple[Tensor, State, Trace]
# types of tensors that kernels can read; others, such as fake tensors, are for the dispatcher
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)
# key of the metadata of a node of ONNX, whose value is the key of its layer
NODE_LAYER = "ai.edgernn.layer"
# beginning of the key of a layer whose forward pass keeps values for the backward kernels
_KEEPS = "fused"


def run(layer: "RecurrentLayer", x: Tensor, state: State) -> Result:
    """Run a layer over a sequence, on the kernels that are fastest for it; see `RecurrentLayer.forward`."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        # sums over time lose their small terms in 16 bits
        dtype = next(layer.parameters()).dtype
        with torch.autocast(kind, enabled=False):
            return run(layer, x.to(dtype), tuple(s.to(dtype) for s in state))
    if is_traced(x):
        # the op may not change running statistics
        return layer.loop(x, state) if layer.cell.counts_steps else _as_op(layer, x, state)
    if _is_transformed():
        return layer.loop(x, state)
    unroller = layer.unroller_on(kind)
    result = None if unroller is None else unroller(layer, x, state)
    return layer.loop(x, state) if result is None else result


def is_traced(x: Tensor) -> bool:
    """Return True where a call with x is traced to a program, or x is no plain tensor, so that only ops may read it."""
    return torch.compiler.is_compiling() or type(x) not in _PLAIN or torch._C._len_torch_dispatch_stack() > 0


def _is_transformed() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


@dataclass(frozen=True)
class _Known:
    """A layer that the op can run: `layer` has its structure without values of weights, `unrollers` its kernels.

    `keeping` is the implementation that kept values are for; None if the backward pass runs the layer again. `sources`
    are the layers with weights of this structure that still exist.
    """

    layer: "RecurrentLayer"
    names: list[str]
    keeping: "Unroller | None"
    unrollers: dict[str, "Unroller | None"] = field(default_factory=dict)
    sources: "WeakSet[RecurrentLayer]" = field(default_factory=WeakSet)

    def bind(
        self, tensors: Sequence[Tensor], step_weights: Tensor | None, training: bool, slope: float
    ) -> tuple["RecurrentLayer", Tensor, State]:
        """Return the layer with the weights among the op's `tensors`, its input x and its initial state."""
        x, first = tensors[0], 1 + len(self.layer.states)
        layer: RecurrentLayer = _with_weights(self.layer, dict(zip(self.names, tensors[first:], strict=True)))
        if self.layer.training != training:
            layer.train(training)
        # past nn.Module.__setattr__, which takes longer than all else here
        vars(layer)["step_weights"] = step_weights
        vars(layer.rule)["slope"] = slope
        return layer, x, tuple(tensors[1:first])

    def run(self, layer: "RecurrentLayer", x: Tensor, state: State, kept: Kept | None) -> Result:
        unroller = self.keeping
        if kept is None:
            kind = x.device.type
            if kind not in self.unrollers:
                self.unrollers[kind] = self.keeping or layer.unroller_on(kind)
            unroller = self.unrollers[kind]
        result = None if unroller is None else unroller(layer, x, state, kept)
        return layer.loop(x, state) if result is None else result


_KNOWN: dict[str, _Known] = {}


def _with_weights(module: Any, tensors: dict[str, Tensor], prefix: str = "") -> Any:
    """Return a module that shares everything with `module` but its parameters and buffers, which are `tensors`."""
    clone = object.__new__(type(module))
    vars(clone).update(vars(module))
    for kind in ("_parameters", "_buffers"):
        here = vars(module)[kind]
        vars(clone)[kind] = {n: None if t is None else tensors[prefix + n] for n, t in here.items()}
    vars(clone)["_modules"] = {
        n: None if part is None else _with_weights(part, tensors, f"{prefix}{n}.")
        for n, part in module._modules.items()
    }
    return clone


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(layer.named_parameters(remove_duplicate=False)),
        **dict(layer.named_buffers(remove_duplicate=False)),
    }


def describe(layer: "RecurrentLayer") -> str:
    """Make a layer known to the op `edgernn::recurrent`; return its key, the same for layers of the same structure."""
    weights = _weights(layer)
    with _disable_current_modes():
        bare = {
            name: torch.empty(tuple(t.shape), dtype=t.dtype, device="meta").requires_grad_(t.requires_grad)
            for name, t in weights.items()
        }
        # weights without values, as in torch.export, cannot be read to build kernels
        plain = all(type(t) in _PLAIN for t in weights.values())
        unroller = layer.unroller_on(next(iter(weights.values())).device.type) if plain else None
        bound = _with_weights(layer, bare).train(layer.training)
        name = "loop" if unroller is None else unroller.name
        bound.step_weights, bound.own_unroller = None, "auto"
        same = structure(bound)
        bound.own_unroller = layer.own_unroller
    # a layer that cannot be compared has a key of its own
    text = f"{same!r}" if same is not None and layer.own_unroller == "auto" else f"{id(layer)} {len(_KNOWN)}"
    key = f"{name}:{layer.kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if key not in _KNOWN:
        _KNOWN[key] = _Known(bound, list(weights), unroller if name == _KEEPS else None)
    _KNOWN[key].sources.add(layer)
    return key


def layer_of(key: str) -> "RecurrentLayer":
    """Return a layer of the structure that a key from `describe` names; or raise EdgernnError if all are gone."""
    layer = next(iter(_known(key).sources), None)
    if layer is None:
        raise EdgernnError(f"edgernn::recurrent: expected the module of the layer {key}, which is gone; keep it")
    return layer


def _as_op(layer: "RecurrentLayer", x: Tensor, state: State) -> Result:
    if torch.onnx.is_in_onnx_export():
        return _as_node(layer, x, state)
    key = layer.op_key()
    tensors = [x, *state, *_weights(layer).values()]
    grad = torch.is_grad_enabled()
    keep = grad and key.startswith(_KEEPS) and not torch.compiler.is_exporting()
    op = torch.ops.edgernn.recurrent.default
    y, *others = op(tensors, layer.step_weights, key, layer.training, float(layer.rule.slope), grad, keep)
    count = len(layer.states)
    budget, *optional = others[count : count + 5]
    decisions, imputed, loss, sent = (None if t.ndim == 1 else t for t in optional)
    return y, tuple(others[:count]), Trace(decisions, budget, imputed, loss, sent_inputs=sent)


def _as_node(layer: "RecurrentLayer", x: Tensor, state: State) -> Result:
    """Return the results of the node of ONNX that stands for a layer in torch.onnx.export."""
    shapes = [(*x.shape[:2], layer.cell.hidden_size), x.shape[:2], x.shape[1:2], *(s.shape for s in state)]
    y, _, _, *last = torch.onnx.ops.symbolic_multi_out(
        "ai.edgernn::Recurrent",
        (x, *layer.op_weights().values(), *state),
        dtypes=(torch.float32, torch.int64, torch.int64, *(torch.float32 for _ in state)),
        shapes=shapes,
        version=1,
        metadata_props={NODE_LAYER: layer.op_key()},
    )
    return y, tuple(last), Trace(None, x.new_zeros(()))


def _flat(result: Result) -> list[Tensor]:
    """Return the tensors of a result in the order of the op's outputs; an empty vector stands for None."""
    y, last, trace = result
    optional = (trace.decisions, trace.imputed, trace.imputation_loss, trace.sent_inputs)
    return [y, *last, trace.budget, *(y.new_empty(0) if t is None else t for t in optional)]


def _known(key: str) -> _Known:
    if key not in _KNOWN:
        raise EdgernnError(
            f"edgernn::recurrent: expected a layer that was traced in this process, got {key}; trace or export the "
            "module again here"
        )
    return _KNOWN[key]


def _separate(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous outputs that share no memory with the inputs or with each other, as ops must."""
    taken = {t.untyped_storage().data_ptr() for t in inputs}
    separate = []
    for output in outputs:
        tensor = output.detach().contiguous()
        place = tensor.untyped_storage().data_ptr()
        if tensor.storage_offset() or place in taken:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            place = tensor.untyped_storage().data_ptr()
        taken.add(place)
        separate.append(tensor)
    return separate


_LIBRARY: Any = torch.library.Library("edgernn", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "recurrent(Tensor[] tensors, Tensor? step_weights, str layer, bool training, float slope, bool grad, bool keep) "
    "-> Tensor[]"
)
_LIBRARY.define(
    "recurrent_backward(Tensor[] tensors, Tensor y, Tensor[] kept, Tensor?[] grads, Tensor? step_weights, str layer, "
    "bool training, float slope, bool[] needed) -> Tensor[]"
)


def _recurrent(
    tensors: Sequence[Tensor],
    step_weights: Tensor | None,
    layer: str,
    training: bool,
    slope: float,
    grad: bool,
    keep: bool,
) -> list[Tensor]:
    """Run a layer over a sequence; `tensors` are x (T, B, I), the initial state, parameters and buffers."""
    known = _known(layer)
    kept = Kept() if keep else None
    with torch.set_grad_enabled(grad):
        result = known.run(*known.bind([t.detach() for t in tensors], step_weights, training, slope), kept)
    return _separate([*_flat(result), *(kept.tensors if kept else ())], tensors)


def _fake(
    tensors: Sequence[Tensor],
    step_weights: Tensor | None,
    layer: str,
    training: bool,
    slope: float,
    grad: bool,
    keep: bool,
) -> list[Tensor]:
    known = _known(layer)
    module, x, state = known.bind([t.detach() for t in tensors], None, training, slope)
    one = x.new_empty((1, *x.shape[1:]))
    kept = Kept(dry=True)
    with torch.set_grad_enabled(grad):
        flat = _flat(module.loop(one, state))
        if keep:
            known.run(module, x, state, kept)
    # outputs at all steps have three axes
    shapes = [(x.shape[0], *t.shape[1:]) if t.ndim == 3 else tuple(t.shape) for t in flat]
    outputs = [x.new_empty(shape, dtype=t.dtype) for shape, t in zip(shapes, flat, strict=True)]
    return [*outputs, *(t.new_empty(t.shape) for t in kept.tensors)]


def _backward(
    tensors: Sequence[Tensor],
    y: Tensor,
    kept: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    step_weights: Tensor | None,
    layer: str,
    training: bool,
    slope: float,
    needed: Sequence[bool],
) -> list[Tensor]:
    """Compute the gradients of `edgernn::recurrent`."""
    known = _known(layer)
    leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, needed, strict=True)]
    values = Kept(y, list(kept)) if kept else None
    with torch.enable_grad():
        outputs = _flat(known.run(*known.bind(leaves, step_weights, training, slope), values))
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = iter(
            torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
            if pairs and wanted
            else [None] * len(wanted)
        )
    results = []
    for leaf in leaves:
        grad = next(gradients) if leaf.requires_grad else leaf.new_empty(0)
        results.append(torch.zeros_like(leaf) if grad is None else grad)
    return _separate(results, [*tensors, y, *kept, *(g for g in grads if g is not None)])


def _fake_backward(tensors: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [t.new_empty(t.shape if need else (0,)) for t, need in zip(tensors, others[-1], strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, step_weights, ctx.layer, ctx.training, ctx.slope, _, _ = inputs
    ctx.count, ctx.outputs = len(tensors), len(_known(ctx.layer).layer.states) + 6
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0], step_weights, *output[ctx.outputs :])


def _differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    tensors, (y, step_weights, *kept) = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    needed = list(ctx.needs_input_grad[0])
    op = torch.ops.edgernn.recurrent_backward.default
    output_grads = list(grads[: ctx.outputs])
    gradients = op(list(tensors), y, kept, output_grads, step_weights, ctx.layer, ctx.training, ctx.slope, needed)
    return [g if need else None for g, need in zip(gradients, needed, strict=True)], *[None] * 6


for _name, _kernel, _shapes in (
    ("recurrent", _recurrent, _fake),
    ("recurrent_backward", _backward, _fake_backward),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"edgernn::{_name}", _shapes, lib=_LIBRARY)
torch.library.register_autograd("edgernn::recurrent", _differentiate, setup_context=_save, lib=_LIBRARY)
