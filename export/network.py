# SPDX-License-Identifier: Apache-2.0
"""Export of any torch module with recurrent layers, by torch.onnx.export and the functions of the layers."""

import copy
import inspect
import itertools
import json
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from edgernn import __version__
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.export.axes import name_axes
from edgernn.export.check import Check, check_numbers, recorded_margins
from edgernn.export.conditional import nodes_within, place_parts
from edgernn.export.graph import IR_VERSION, define_functions, describe_functions, fold, layer_functions
from edgernn.export.layer_functions import call_exporter, op_attributes
from edgernn.files import replacing
from edgernn.kernels.recurrent_op import NODE_LAYER, layer_of
from edgernn.layer import RecurrentLayer, python_loop
from edgernn.nn import CausalConv1d, Recurrent, RecurrentCell, convert
from edgernn.padding import UNKNOWN_STATES
from edgernn.rules.base import UpdateRule
from edgernn.runtime.interface import NEXT, next_values
from edgernn.runtime.library import DOMAIN, SCHEMA, library_path, no_native, onnxruntime, register
from edgernn.tolerance import TOLERANCE

# allowed error in terms of torch's own difference between float32 and float64: another order of sums rounds otherwise
_ROUNDING = 8
# relative change of the input from which the effect of rounding is measured, and by which ties are avoided
_CHANGE, _AWAY = 2.0**-23, 1e-3
_TRIES = 8
# name of an input or output in a trace, which no parameter has
_TRACED = "ai.edgernn.{}"


def export_network(
    module: nn.Module,
    path: Path,
    example: Any,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    dynamic_shapes: Any,
    metadata: Mapping[str, Any] | None,
    convert_layers: bool,
) -> list[Check]:
    """Write a module of torch as an ONNX file and check it against torch; see `edgernn.export.to_onnx`."""
    # torch takes arguments that are one object for one input
    arguments: tuple[Any, ...] = pytree.tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf,
        example if isinstance(example, tuple) else (example,),
    )
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if leaf is not None]
    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise UsageError("example: expected the tensors that the module is called with, got others; pass a tuple")
    if empty := [tuple(leaf.shape) for leaf in leaves if not leaf.numel()]:
        raise UsageError(
            f"example: expected tensors with no empty axis, got shape {empty[0]}; pass one sequence or more, and leave "
            "out a state that holds nothing, such as that of CausalConv1d with kernel_size=1"
        )
    converted = convert(module) if convert_layers else None
    network = copy.deepcopy(module) if converted is None else converted.module
    network.eval()
    fold([part for part in network.modules() if isinstance(part, RecurrentLayer)])
    check_numbers(network)
    results = repeated(network, arguments, type(module).__name__)
    names_in = _names("inputs", inputs, "x", len(leaves))
    names_out = _names("outputs", outputs, "y", len(results))
    _check_states(names_in, names_out, network)
    proto, layers, sizes = model_of(network, arguments, names_in, names_out, dynamic_shapes)
    info = {
        "version": __version__,
        "schema": SCHEMA,
        "network": type(module).__qualname__,
        "inputs": names_in,
        "outputs": names_out,
        "states": list(next_values(names_in, names_out)),
        "sizes": sizes,
        "parameters": sum(p.numel() for p in network.parameters()),
        "left": {} if converted is None else converted.left,
        **describe_functions(layer_functions(layers)),
        **(metadata or {}),
    }
    return write_checked(proto, info, path, network, arguments, names_in, names_out)


def model_of(
    network: nn.Module, arguments: tuple[Any, ...], inputs: list[str], outputs: list[str], dynamic_shapes: Any
) -> tuple[onnx.ModelProto, list[RecurrentLayer], dict[str, list[int | None]]]:
    """Trace a module to a model with the functions of its layers, whose variable axes have names.

    Args:
        network: The module.
        arguments: Example of its arguments.
        inputs: Names of the model's inputs, in the order of the tensors in `arguments`.
        outputs: Names of the model's outputs. NAME.next is the next value of the state NAME.
        dynamic_shapes: Variable axes, as for torch.export. Default, if None: all that the module allows.

    Returns:
        The model, its layers in the order of their nodes, and the limits of its axes, see `name_axes`.
    """
    program = _traced(network, arguments, inputs, outputs, dynamic_shapes)
    proto, layers = _completed(program)
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if leaf is not None]
    shapes = {name: leaf.shape for name, leaf in zip(inputs, leaves, strict=True)}
    fits = partial(_file_fits, network, proto, arguments, inputs, outputs)
    limits = name_axes(proto, program.exported_program, [*next_values(inputs, outputs)], shapes, fits)
    return proto, layers, limits


def write_checked(
    proto: onnx.ModelProto,
    info: dict[str, Any],
    path: Path,
    network: nn.Module,
    arguments: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
) -> list[Check]:
    """Write a model with the metadata `info`, unless it differs from `network` in torch on these arguments.

    Args:
        proto: The model.
        info: Metadata, with the names of the kernels.
        path: The file.
        network: The network that the model computes.
        arguments: Arguments of the network.
        inputs: Names of the model's inputs, in the order of the tensors in `arguments`.
        outputs: Names of the model's outputs, in the order of the tensors that the network returns.

    Returns:
        Results of the comparison, one per backend.

    Raises:
        EdgernnError: The outputs differ. No file is written.
    """
    helper.set_model_props(proto, {"edgernn": json.dumps(info, separators=(",", ":"))})
    onnx.checker.check_model(proto, full_check=True)
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        return _compare(network, temporary, arguments, inputs, outputs, info["kernels"])


def add_functions(program: Any) -> onnx.ModelProto:
    """Complete the result of torch.onnx.export for a module with layers of edgernn.

    torch.onnx.export writes a node `ai.edgernn::Recurrent` for each layer. This function adds the functions of standard
    ONNX operators that any ONNX Runtime runs in their place, and the attributes that the native library reads.

    Args:
        program: The ONNXProgram that torch.onnx.export returned, or its model_proto. The module must still exist.

    Returns:
        The complete model, for onnx.save.

    Raises:
        UsageError: The model has no layer of edgernn, or more than 16 kinds of them, or it reads another state than h
            at the ends of sequences of unequal lengths.
    """
    return _completed(program)[0]


def _completed(program: Any) -> tuple[onnx.ModelProto, list[RecurrentLayer]]:
    """Return the result of `add_functions`, and its layers in the order of their nodes."""
    proto = onnx.ModelProto()
    proto.CopyFrom(program if isinstance(program, onnx.ModelProto) else program.model_proto)
    has_parts = place_parts(proto.graph)
    if any(node.op_type == UNKNOWN_STATES.split("::")[1] for node in nodes_within(proto.graph)):
        raise UsageError(
            "lengths: expected outputs that read y and the state h alone, as a file has no other state, such as c, at "
            "the end of each sequence; leave out that state or the lengths"
        )
    known = [(node, p.value) for node in nodes_within(proto.graph) for p in node.metadata_props if p.key == NODE_LAYER]
    if not known and not has_parts:
        raise UsageError(
            "program: expected a module with a recurrent layer of edgernn, got none; convert the module first: "
            "edgernn.nn.convert(module).module"
        )
    layers = [layer_of(key) for _, key in known]
    functions = layer_functions(layers)
    for i, ((node, _), layer, function) in enumerate(zip(known, layers, functions, strict=True)):
        node.op_type, node.domain, node.name = function.name, DOMAIN, f"layer{i}"
        attributes = op_attributes(layer) | function.attributes
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        # numbers of updates and multiply-adds, which torch cannot return
        node.output[1] = node.output[2] = ""
    del proto.functions[:]
    proto.functions.extend(define_functions(dict.fromkeys(functions)))
    _strip(proto)
    return proto, layers


def _strip(proto: onnx.ModelProto) -> None:
    """Remove torch's notes on the origin of nodes, which newer files alone may have."""
    proto.ir_version = IR_VERSION
    proto.producer_name, proto.producer_version = "edgernn", __version__
    del proto.metadata_props[:], proto.graph.metadata_props[:], proto.graph.value_info[:]
    for part in (*nodes_within(proto.graph), *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del part.metadata_props[:]
    opsets = {entry.domain: entry.version for entry in proto.opset_import if entry.domain in ("", DOMAIN)}
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, v) for domain, v in ({DOMAIN: 1} | opsets).items())


def _names(kind: str, names: Sequence[str] | None, default: str, count: int) -> list[str]:
    """Return the names of a module's inputs or outputs, or raise UsageError if they do not fit."""
    if names is None:
        return [default] if count == 1 else [f"{default}{i}" for i in range(count)]
    if len(names) != count or len(set(names)) != count or not all(isinstance(name, str) and name for name in names):
        got = ", ".join(map(repr, names))
        raise UsageError(f"{kind}: expected {count} different names, one for each tensor, got {got}; pass as many")
    return list(names)


def repeated(network: nn.Module, arguments: tuple[Any, ...], title: str) -> list[Tensor]:
    """Return a module's outputs, or raise UsageError if a second call returns other numbers than the first."""
    results, again = (_values(network, arguments) for _ in range(2))
    if not all(np.array_equal(a.numpy(), b.numpy(), equal_nan=True) for a, b in zip(results, again, strict=True)):
        raise UsageError(
            f"module: expected the same outputs in two calls, got others of {title}, which keeps a state from call to "
            "call or draws random numbers; take the state as an argument, and return the next one"
        )
    return results


def _check_states(inputs: Sequence[str], outputs: Sequence[str], network: nn.Module) -> None:
    """Raise UsageError for a state that is not carried, and for a network that cannot run in parts."""
    if both := [name for name in outputs if name in inputs]:
        raise UsageError(f"outputs: expected other names than the inputs, got {', '.join(both)}; rename the output")
    ends = [name.removesuffix(NEXT) for name in outputs if name.endswith(NEXT)]
    lacking = [name for name in ends if name not in inputs]
    if lacking:
        raise UsageError(
            f"outputs: expected an input for each next state, got none named {', '.join(lacking)}; name the input of "
            "the state before"
        )
    if not ends:
        return
    for name, part in network.named_modules():
        title = f"{name or 'module'} ({type(part).__name__})"
        if isinstance(part, Recurrent) and part.bidirectional:
            raise UsageError(
                f"outputs: expected no state, as {title} reads the sequence in both directions, got {ends[0]}.next; "
                "leave out the states, or set bidirectional=False"
            )
        if isinstance(part, nn.Conv1d) and not isinstance(part, CausalConv1d) and part.kernel_size != (1,):
            raise UsageError(
                f"outputs: expected no state, as {title} reads steps of other calls, got {ends[0]}.next; use "
                "edgernn.nn.CausalConv1d, or leave out the states"
            )
        if isinstance(part, Recurrent | RecurrentCell):
            start = part.initial_state(1, next(part.parameters()))
            if any(bool(tensor.any()) for tensor in pytree.tree_leaves(start)):
                text = f"the first state of {title} is not zero, but sessions and packed models start states as zeros"
                warnings.warn(
                    f"{text}; give them its initial_state(...) in the first call", EdgernnWarning, stacklevel=4
                )


def _traced(
    network: nn.Module, arguments: tuple[Any, ...], inputs: list[str], outputs: list[str], dynamic_shapes: Any
) -> Any:
    """Trace a module by torch.onnx.export, with any size on every axis where the module allows it."""
    shapes = [dynamic_shapes]
    if dynamic_shapes is None:
        # a size 1 that the module broadcasts cannot vary
        shapes = [_variable_axes(network, arguments, least) for least in (0, 2)]
        shapes = shapes[: 1 + (shapes[0] != shapes[1])]
    for variable in shapes:
        try:
            program = call_exporter(
                network,
                arguments,
                input_names=[_TRACED.format(name) for name in inputs],
                output_names=[_TRACED.format(name) for name in outputs],
                dynamic_shapes=variable,
            )
            _rename(program.model.graph, [*inputs, *outputs])
            return program
        except torch.onnx.OnnxExporterError as error:
            failure = error
    cause: BaseException = failure
    while cause.__cause__ is not None and isinstance(cause, torch.onnx.OnnxExporterError):
        cause = cause.__cause__
    if isinstance(cause, EdgernnError):
        raise cause from None
    reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    if dynamic_shapes is not None:
        # raises its own error if the module is at fault
        _traced(network, arguments, inputs, outputs, None)
        raise UsageError(
            f"dynamic_shapes: expected axes of the example that the module lets vary, got others: {reason}; correct "
            "them, or leave dynamic_shapes out"
        ) from failure
    raise UsageError(
        f"module: {_place(network, cause)} cannot be exported: {reason}; use torch operators in place of "
        "Python branches and loops on values, such as torch.where"
    ) from failure


def _rename(graph: Any, names: Sequence[str]) -> None:
    """Give inputs and outputs their names, and others to the parameters and values of a graph that have the same."""
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph.all_nodes() for value in node.outputs]
    ours, taken = {_TRACED.format(name): name for name in names}, {value.name for value in values}
    for value in values:
        if value.name in ours:
            value.name = ours[value.name]
        elif value.name in names:
            value.name = next(new for i in itertools.count() if (new := f"{value.name}.{i}") not in taken)


def _place(network: nn.Module, error: BaseException) -> str:
    """Return the name and class of the innermost module whose code was running at an error, and the line."""
    place = type(network).__name__
    for frame, line in traceback.walk_tb(error.__traceback__):
        first = next(iter(frame.f_code.co_varnames), "")
        part = frame.f_locals.get(first)
        for name, module in network.named_modules() if frame.f_code.co_name == "forward" else ():
            if module is part:
                place = f"{name} ({type(part).__name__})" if name else type(part).__name__
                place += f", line {line} of {Path(frame.f_code.co_filename).name},"
    return place


def _variable_axes(network: nn.Module, arguments: tuple[Any, ...], least: int) -> tuple[Any, ...]:
    """Return dynamic shapes for torch.export: all axes of at least this size in the arguments."""
    auto: Any = torch.export.Dim.AUTO

    def axes(leaf: Any) -> dict[int, Any] | None:
        return {i: auto for i, size in enumerate(leaf.shape) if size >= least} if isinstance(leaf, Tensor) else None

    # arguments of *args become one tuple
    bound = inspect.signature(network.forward).bind(*arguments).arguments
    variable: tuple[Any, ...] = pytree.tree_map(axes, tuple(bound.values()))
    return variable


def _call(network: nn.Module, arguments: Any) -> Any:
    with torch.no_grad(), python_loop(network):
        return network(*arguments)


def _values(network: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(_call(network, arguments)) if leaf is not None]
    if others := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)]:
        raise UsageError(f"module: expected tensors as outputs, got {others[0]}; return torch.as_tensor of it")
    return [leaf.detach() for leaf in leaves]


def _changed(arguments: tuple[Any, ...], size: float, generator: torch.Generator) -> tuple[Any, ...]:
    """Return the arguments with random changes of this size, relative to their largest value."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.numel():
            return leaf
        scale = size * max(float(leaf.abs().max()), 1e-6)
        return leaf + scale * torch.randn(leaf.shape, generator=generator).to(leaf)

    changed: tuple[Any, ...] = pytree.tree_map(change, arguments)
    return changed


def _without_ties(network: nn.Module, arguments: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """Return arguments on which no decision of an update rule is so close to its threshold that rounding flips it."""
    rules = [part for part in network.modules() if isinstance(part, UpdateRule) and part.can_skip]
    if not rules:
        return arguments
    tried = arguments
    for _ in range(_TRIES):
        with recorded_margins(rules) as margins:
            _call(network, tried)
        if not margins or float(torch.cat([m.flatten() for m in margins]).min()) > 1:
            return tried
        tried = _changed(arguments, _AWAY, generator)
    # fewer decisions are less often near a threshold
    return tried


def _file_fits(
    network: nn.Module,
    proto: onnx.ModelProto,
    example: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    axes: Mapping[str, Sequence[int]],
    sizes: Sequence[int],
) -> bool:
    """Return True if a file computes what torch does where these axes have other sizes; default: 2 n + 1 to 1."""
    example = _without_ties(network, example, torch.Generator().manual_seed(0))
    leaves, spec = pytree.tree_flatten(example)
    named = zip(inputs, [leaf for leaf in leaves if leaf is not None], strict=True)
    (size,) = {leaf.shape[axis] for name, leaf in named for axis in axes.get(name, ())}
    content, largest = proto.SerializeToString(), 2 * size + 1
    for other in sizes or (largest, size + 1, 5, 3, 2, 1):
        names, places = iter(inputs), torch.arange(other) % size
        resized = [
            leaf if leaf is None else reduce(lambda y, i: y.index_select(i, places), axes.get(next(names), ()), leaf)
            for leaf in leaves
        ]
        arguments = spec.unflatten(resized)
        try:
            expected = _values(network, arguments)
        except Exception:  # whatever a module raises for sizes that it cannot have
            if other == largest:
                return False
            continue
        try:
            got = _run(content, False, arguments, inputs, outputs)
        except Exception:  # the classes of ONNX Runtime's exceptions have no common base
            return False
        for value, y in zip(got, expected, strict=True):
            if not _distance(value, y.numpy()) <= TOLERANCE * max(1.0, float(y.abs().max())):
                return False
    return True


def _run(
    model: str | bytes, native: bool, arguments: tuple[Any, ...], inputs: list[str], outputs: list[str]
) -> list[Any]:
    options = onnxruntime().SessionOptions()
    options.log_severity_level = 3 if native else 4
    if native:
        register(options, library_path())
    session = onnxruntime().InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # torch drops an input that has no effect
    read = {value.name for value in session.get_inputs()}
    feed = dict(zip(inputs, _arrays(arguments), strict=True))
    results: list[Any] = session.run(outputs, {name: value for name, value in feed.items() if name in read})
    return results


def _compare(
    network: nn.Module,
    path: Path,
    example: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    kernels: Sequence[str],
) -> list[Check]:
    """Compare a file with torch on the example, in stock ONNX Runtime and with the native library."""
    generator = torch.Generator().manual_seed(0)
    arguments = _without_ties(network, example, generator)
    expected = _values(network, arguments)
    exact = _exact(network, arguments, expected)
    # rounding of the same size as that of other orders of sums
    runs = [expected] + [_values(network, _changed(arguments, _CHANGE, generator)) for _ in range(2)]
    results = []
    backends = ["portable"] + (["native"] if no_native(kernels) is None else [])
    for backend in backends:
        got = _run(str(path), backend == "native", arguments, inputs, outputs)
        worst = 0.0
        for i, (name, value) in enumerate(zip(outputs, got, strict=True)):
            rounding = max((_distance(run[i].numpy(), exact[i].numpy()) for run in runs), default=0.0)
            scale = max(1.0, float(np.abs(exact[i].numpy()).max(initial=0.0)))
            allowed = max(TOLERANCE * scale, _ROUNDING * rounding)
            error = _distance(value, exact[i].numpy())
            # not >, so that NaN is an error
            if value.shape != tuple(exact[i].shape) or not error <= allowed:
                raise EdgernnError(
                    f"{backend}: {name} differs from torch in float64 by {error:.3g}, and torch in float32 by "
                    f"{rounding:.3g}, expected at most {allowed:.3g}; compare the module's parts, and leave out the "
                    "one that ONNX Runtime computes otherwise"
                )
            worst = max(worst, _distance(value, expected[i].numpy()))
        results.append(Check(backend, 0.0, worst, 0, 1, 0))
    return results


def _exact(network: nn.Module, arguments: tuple[Any, ...], expected: list[Tensor]) -> list[Tensor]:
    """Return the outputs in float64, or `expected` of a module that makes float32 tensors itself, as a start token."""
    try:
        return _values(copy.deepcopy(network).double(), _cast(arguments, torch.float64))
    except Exception:  # modules differ in what they raise for mixed dtypes
        return expected


def _cast(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    cast: tuple[Any, ...] = pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, arguments
    )
    return cast


def _arrays(arguments: tuple[Any, ...]) -> list[Any]:
    return [leaf.detach().numpy() for leaf in pytree.tree_leaves(arguments) if leaf is not None]


def _distance(a: Any, b: Any) -> float:
    """Return the largest absolute difference of two arrays; ∞ if their shapes differ."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max(initial=0.0))
