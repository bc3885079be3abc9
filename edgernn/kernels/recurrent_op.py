# SPDX-License-Identifier: Apache-2.0
"""Choice of what runs a recurrent layer: its training kernels, or its loop over time steps; and `edgernn::recurrent`.

A plain call of a layer calls its kernels directly. Where a program is traced, as by torch.compile, torch.export and
FakeTensorMode, the layer becomes one node, the torch op `edgernn::recurrent`. Its kernel on any device calls the same
kernels or the same loop; a running program calls it past torch's dispatcher. Its backward pass uses the values that the
forward pass saved for the kernels; without kernels, it runs the layer again. torch.func, forward-mode differentiation
and torch.jit.trace go through the loop.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from edgernn.cells.base import State
from edgernn.errors import EdgernnError
from edgernn.kernels.common import PLAIN, Saved, check_first_derivative
from edgernn.layer_trace import Trace
from edgernn.rules import PerColumn
from edgernn.structure import structure

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer, Unroller

Result = tuple[Tensor, State, Trace]
# key of the metadata of a node of ONNX, whose value is the key of its layer
NODE_LAYER = "ai.edgernn.layer"
# beginning of the key of a layer whose forward pass keeps values for the backward kernels
_KEEPS = "fused"


def run(layer: "RecurrentLayer", x: Tensor, state: State) -> Result:
    """Run a layer over a sequence, on the kernels that are fastest for it; see `RecurrentLayer.forward`."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        # sums over time lose their small terms in 16 bits
        dtype = next(layer.parameters()).dtype
        with torch.autocast(kind, enabled=False):
            return run(layer, x.to(dtype), tuple(s.to(dtype) for s in state))
    if is_traced(x):
        # the op may not change running statistics, and reads parameters, not what hooks compute from them
        return layer.loop(x, state) if layer.cell.counts_steps or layer.has_hooks else _as_op(layer, x, state)
    if _needs_operators():
        return layer.loop(x, state)
    unroller = layer.unroller_on(kind)
    result = None if unroller is None else unroller(layer, x, state)
    return layer.loop(x, state) if result is None else result


def is_traced(x: Tensor) -> bool:
    """Return True where a call with x is traced to a program, or x is no plain tensor, so that only ops may read it."""
    return torch.compiler.is_compiling() or not _is_plain(x)


def _is_plain(x: Tensor) -> bool:
    return type(x) in PLAIN and _len_torch_dispatch_stack() == 0


def _needs_operators() -> bool:
    """Return True in transforms of torch.func and in torch.jit.trace, which read torch's operators alone."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or _get_tracing_state() is not None


class _Bound:
    """A layer with weights that are detached, and the places of these weights."""

    def __init__(self, layer: "RecurrentLayer", weights: list[Tensor]) -> None:
        self.layer, self.weights, self.places = layer, weights, _places(weights)

    def has(self, weights: Sequence[Tensor]) -> bool:
        """Return True if these weights are the same memory."""
        return all(map(Tensor.is_set_to, self.weights, weights))


def _recorded(layer: "RecurrentLayer") -> list[str]:
    """List the fields of a `Trace` that a layer may record besides the budget."""
    names = [] if layer.rule.is_dense() else ["decisions"]
    names += [] if layer.imputer is None else ["imputed", "imputation_loss"]
    return [*names, "sent_inputs"] if isinstance(layer.rule, PerColumn) else names


@dataclass
class _Known:
    """A layer that the op can run: `layer` has its structure without values of weights, `unrollers` its kernels.

    `keeping` is the implementation that saved values are for; None if the backward pass runs the layer again. `sources`
    are the layers with weights of this structure that still exist, each with what was bound to its weights, which
    `bindings` has by the address of the first weight. The first weight is at `first` among the op's tensors. The op
    returns y, the states, the budget, and the fields `recorded` of a `Trace`; every output takes time.
    """

    layer: "RecurrentLayer"
    names: list[str]
    keeping: "Unroller | None"
    unrollers: dict[str, "Unroller | None"] = field(default_factory=dict)
    sources: "WeakKeyDictionary[RecurrentLayer, _Bound | None]" = field(default_factory=WeakKeyDictionary)
    bindings: "WeakValueDictionary[int, _Bound]" = field(default_factory=WeakValueDictionary)
    first: int = field(init=False)
    recorded: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.recorded = 1 + len(self.layer.states), _recorded(self.layer)

    @property
    def outputs(self) -> int:
        """Number of outputs of the op, without those that are saved for the backward pass."""
        return self.first + 1 + len(self.recorded)

    def flat(self, result: Result) -> list[Tensor]:
        y, last, trace = result
        recorded = [getattr(trace, name) for name in self.recorded]
        return [y, *last, trace.budget, *(y.new_empty(0) if t is None else t for t in recorded)]

    def bind(self, weights: Sequence[Tensor]) -> "RecurrentLayer":
        """Return the layer with these weights."""
        layer: RecurrentLayer = _with_weights(self.layer, dict(zip(self.names, weights, strict=True)))
        return layer

    def bound(self, weights: Sequence[Tensor]) -> _Bound:
        """Return the layer with these weights, detached; the same at every call if the weights are a layer's own."""
        place = weights[0].data_ptr()
        bound = self.bindings.get(place)
        # a weight may have got another memory
        if bound is None or not bound.has(weights):
            detached = [weight.detach() for weight in weights]
            bound = _Bound(self.bind(detached), detached)
            for source in self.sources:
                first = attrgetter(self.names[0])(source)
                # a module may have been made without memory
                if type(first) in PLAIN and first.data_ptr() == place and bound.has([*_weights(source).values()]):
                    self.sources[source] = self.bindings[place] = bound
                    break
        return bound

    def run(self, layer: "RecurrentLayer", x: Tensor, state: State, saved: Saved | None) -> Result:
        unroller = self.keeping
        if saved is None:
            kind = x.device.type
            if kind not in self.unrollers:
                self.unrollers[kind] = self.keeping or layer.unroller_on(kind)
            unroller = self.unrollers[kind]
        result = None if unroller is None else unroller(layer, x, state, saved)
        return layer.loop(x, state) if result is None else result


_KNOWN: dict[str, _Known] = {}


def _set(layer: "RecurrentLayer", step_weights: Tensor | None, training: bool, slope: float) -> "RecurrentLayer":
    # past nn.Module's access to attributes, which takes longer than all else here
    values = vars(layer)
    values["step_weights"] = step_weights
    vars(values["_modules"]["rule"])["slope"] = slope
    return layer if values["training"] == training else layer.train(training)


def _places(tensors: Sequence[Tensor]) -> set[int]:
    return {*map(Tensor.data_ptr, tensors)}


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
        plain = all(type(t) in PLAIN for t in weights.values())
        unroller = layer.unroller_on(next(iter(weights.values())).device.type) if plain else None
        bound = _with_weights(layer, bare).train(layer.training)
        name = "loop" if unroller is None else unroller.name
        bound.step_weights, bound.own_unroller = None, "auto"
        same = structure(bound)
        bound.own_unroller = layer.own_unroller
    # a layer that cannot be compared has a key of its own
    text = f"{same!r}" if same is not None and layer.own_unroller == "auto" else f"{id(layer)} {len(_KNOWN)}"
    key = f"{name}:{layer.kernel_name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if key not in _KNOWN:
        _KNOWN[key] = _Known(bound, list(weights), unroller if name == _KEEPS else None)
    _KNOWN[key].sources.setdefault(layer, None)
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
    count, names = len(layer.states), _recorded(layer)
    last, budget, values = others[:count], others[count], others[count + 1 : count + 1 + len(names)]
    # a vector stands for None
    fields = {name: None if t.ndim == 1 else t for name, t in zip(names, values, strict=True)}
    return y, tuple(last), Trace(fields.pop("decisions", None), budget, **fields)


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


def _known(key: str) -> _Known:
    if key not in _KNOWN:
        raise EdgernnError(
            f"edgernn::recurrent: expected a layer that was traced in this process, got {key}; trace or export the "
            "module again here"
        )
    return _KNOWN[key]


def _separate(outputs: Sequence[Tensor], places: set[int]) -> list[Tensor]:
    """Return contiguous outputs that share no memory with inputs at these places or with each other, as ops must."""
    separate = []
    for output in outputs:
        tensor = (output.detach() if output.requires_grad else output).contiguous()
        place = tensor.data_ptr()
        # a view begins where its tensor does, or at an offset; tensors of no numbers have no memory
        if place and (place in places or tensor.storage_offset()):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            place = tensor.data_ptr()
        places.add(place)
        separate.append(tensor)
    return separate


_LIBRARY: Any = torch.library.Library("edgernn", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "recurrent(Tensor[] tensors, Tensor? step_weights, str layer, bool training, float slope, bool grad, bool keep) "
    "-> Tensor[]"
)
_LIBRARY.define(
    "recurrent_backward(Tensor[] tensors, Tensor y, Tensor[] saved, Tensor?[] grads, Tensor? step_weights, str layer, "
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
    known = _KNOWN.get(layer) or _known(layer)
    saved = Saved() if keep else None
    inputs, bound = tensors[: known.first], known.bound(tensors[known.first :])
    module = _set(bound.layer, step_weights, training, slope)
    if grad or torch.is_grad_enabled():
        with torch.set_grad_enabled(grad):
            x, *state = (t.detach() for t in inputs)
            result = known.run(module, x, tuple(state), saved)
    else:
        result = known.run(module, inputs[0], tuple(inputs[1:]), saved)
    outputs = [*known.flat(result), *saved.tensors] if saved else known.flat(result)
    return _separate(outputs, {*bound.places, *map(Tensor.data_ptr, inputs)})


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
    x, *others = (t.detach() for t in tensors)
    state = tuple(others[: known.first - 1])
    module = _set(known.bind(others[known.first - 1 :]), None, training, slope)
    one = x.new_empty((1, *x.shape[1:]))
    saved = Saved(dry=True)
    with torch.set_grad_enabled(grad):
        flat = known.flat(module.loop(one, state))
        if keep:
            known.run(module, x, state, saved)
    # outputs at all steps have three axes
    shapes = [(x.shape[0], *t.shape[1:]) if t.ndim == 3 else tuple(t.shape) for t in flat]
    outputs = [x.new_empty(shape, dtype=t.dtype) for shape, t in zip(shapes, flat, strict=True)]
    return [*outputs, *(t.new_empty(t.shape) for t in saved.tensors)]


def _backward(
    tensors: Sequence[Tensor],
    y: Tensor,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    step_weights: Tensor | None,
    layer: str,
    training: bool,
    slope: float,
    needed: Sequence[bool],
) -> list[Tensor]:
    known = _known(layer)
    leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, needed, strict=True)]
    values = Saved(y, list(saved)) if saved else None
    with torch.enable_grad():
        module = _set(known.bind(leaves[known.first :]), step_weights, training, slope)
        outputs = known.flat(known.run(module, leaves[0], tuple(leaves[1 : known.first]), values))
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
    return _separate(results, _places([*tensors, y, *saved, *(g for g in grads if g is not None)]))


def _fake_backward(tensors: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [t.new_empty(t.shape if need else (0,)) for t, need in zip(tensors, others[-1], strict=True)]


class _Function(torch.autograd.Function):
    """Gradients of the op `edgernn::recurrent`; `forward` has its arguments, the tensors last."""

    @staticmethod
    def forward(ctx: Any, step_weights: Tensor | None, arguments: tuple[Any, ...], *tensors: Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output = torch.ops.edgernn.recurrent.default(list(tensors), step_weights, *arguments)
        ctx.arguments = arguments[:3]
        ctx.count, ctx.outputs = len(tensors), _known(arguments[0]).outputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[0], step_weights, *output[ctx.outputs :])
        return tuple(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        check_first_derivative(grads)
        tensors, (y, step_weights, *saved) = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        needed, output_grads = list(ctx.needs_input_grad[2:]), list(grads[: ctx.outputs])
        op = torch.ops.edgernn.recurrent_backward.default
        gradients = op(list(tensors), y, saved, output_grads, step_weights, *ctx.arguments, needed)
        return None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True))


def _needs_gradients(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _dispatch(tensors: Sequence[Tensor], step_weights: Tensor | None, *arguments: Any) -> list[Tensor]:
    """Run the op with gradients if one is needed."""
    if _needs_gradients(tensors):
        return list(_Function.apply(step_weights, arguments, *tensors))  # type: ignore[no-untyped-call]
    with torch._C._AutoDispatchBelowAutograd():
        results: list[Tensor] = torch.ops.edgernn.recurrent.default(tensors, step_weights, *arguments)
    return results


def _shorten(op: Any, kernel: Callable[..., list[Tensor]]) -> None:
    """Let plain calls of an op go past torch's dispatcher, which takes longer than the op's other work."""
    dispatch = op._op

    def call(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
        plain = _is_plain(tensors[0]) and not _needs_operators() and not _needs_gradients(tensors)
        results: list[Tensor] = (kernel if plain else dispatch)(tensors, *arguments)
        return results

    op._op = call


for _name, _kernel, _shapes in (
    ("recurrent", _recurrent, _fake),
    ("recurrent_backward", _backward, _fake_backward),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"edgernn::{_name}", _shapes, lib=_LIBRARY)
    _shorten(getattr(torch.ops.edgernn, _name).default, _kernel)
_LIBRARY.impl("recurrent", _dispatch, "Autograd")
