# SPDX-License-Identifier: Apache-2.0
"""Functions of standard ONNX operators for layers, traced from torch, so that equations are written only once.

A layer has two parts. The operations for all steps at once (input projections, constants) become nodes of the function.
One step becomes the body of a Scan. A trace takes a second; much of this time is a fixed cost of torch.onnx.export. One
call therefore traces both parts, and layers that differ only in the values of their weights share a trace.
"""

import io
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from edgernn.errors import EdgernnError
from edgernn.export.translations import TRANSLATIONS
from edgernn.layer import COUNT, LAST, RecurrentLayer
from edgernn.runtime.graph_queries import nodes_for
from edgernn.runtime.library import DOMAIN, SCHEMA
from edgernn.structure import structure

OPSET = 20
# index of the input that is a list of sizes, for these operators
_SIZES = {"Split": 1, "ConstantOfShape": 0, "Expand": 1}
# cache of traced graphs, by the structure of the layer; the oldest entries are evicted
_CACHE: dict[Hashable, onnx.GraphProto] = {}
_CACHE_SIZE = 64


def _sequence_states(layer: RecurrentLayer) -> list[str]:
    """Return the names of the states (step count, previous input) that are read before the loop over the steps."""
    return [name for name in layer.states if name == COUNT or (name == LAST and layer.shifts_input)]


class _Sequence(nn.Module):
    """The part of a layer that does not depend on other steps and runs for all steps at once, such as W x."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(_sequence_states(self.layer), states, strict=True))
        inputs = self.layer.inputs(x, named.get(LAST))
        projections = self.layer.projected(inputs, x, named.get(COUNT))
        return *projections, inputs, *self.layer.constants(x).values()


class _Step(nn.Module):
    """One step of a layer: returns the next states and, if the update rule can skip neurons, how many it updated."""

    def __init__(self, layer: RecurrentLayer, constants: Sequence[str]) -> None:
        super().__init__()
        self.layer = layer
        self.constants = list(constants)

    def forward(self, a: Tensor, e: Tensor, x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        states = len(values) - len(self.constants)
        constants = dict(zip(self.constants, values[states:], strict=True))
        step = self.layer.step(a, e, x, values[:states], constants)
        decision = step.decision
        if decision.u is None:
            return step.state
        return *step.state, (decision.u != 0).expand(-1, self.layer.cell.hidden_size).sum(-1)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a dict from name to weight: a module's parameters, then its buffers."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class _Parts(nn.Module):
    """Both parts of a layer in one module, for tracing: the operations for all steps at once, and one step."""

    def __init__(self, layer: RecurrentLayer, constants: Sequence[str]) -> None:
        super().__init__()
        # the same attribute name as in the parts, so that parameters are called layer.cell.W and so on
        self.layer = layer
        self.constants = list(constants)

    def forward(self, x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        first = len(_sequence_states(self.layer))
        return *_Sequence(self.layer)(x, *values[:first]), *_Step(self.layer, self.constants)(*values[first:])


class _Functional(nn.Module):
    """Wrapper that takes a module's weights as arguments, so that they become inputs of the traced graph."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # in a list, so that torch does not register the parameters with this module
        self.module = [module]
        self.names = list(weights_of(module))

    def forward(self, parameters: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        named = dict(zip(self.names, parameters, strict=True))
        return torch.func.functional_call(self.module[0], named, tuple(inputs))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch.onnx.export prints within a `with` block: warnings, and the graph of a trace that failed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def call_exporter(module: nn.Module | torch.export.ExportedProgram, arguments: tuple[Any, ...], **words: Any) -> Any:
    """Call torch.onnx.export quietly, with the opset and the translations of all files of edgernn.

    Args:
        module: The module, or what `torch.export.export` captured of it.
        arguments: Its positional arguments.
        **words: Further arguments of torch.onnx.export: names and dynamic shapes.

    Returns:
        The ONNXProgram, or None.

    Raises:
        OnnxExporterError: The module cannot be exported.
    """
    with torch.no_grad(), _quiet():
        return torch.onnx.export(
            module,
            arguments,
            opset_version=OPSET,
            dynamo=True,
            optimize=True,
            verbose=False,
            custom_translation_table=TRANSLATIONS,
            **words,
        )


def _captured(module: nn.Module, arguments: tuple[Any, ...], shapes: Any) -> torch.export.ExportedProgram:
    """Capture a module for torch.onnx.export; leave out traces, half of the time, that decompose nothing in it."""
    variable = pytree.tree_map(lambda axis: torch.export.Dim.DYNAMIC if isinstance(axis, str) else axis, shapes)
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            module, arguments, dynamic_shapes=variable, prefer_deferred_runtime_asserts_over_guards=True
        )
    operators = {node.target for node in program.graph.nodes if node.op == "call_function"}
    changes = any(getattr(operator, "_schema", None) and operator._schema.is_mutable for operator in operators)
    decompose = program.run_decompositions

    def decompose_if_needed(table: Mapping[Any, Any]) -> torch.export.ExportedProgram:
        return decompose(dict(table)) if changes or operators & table.keys() else program

    program.run_decompositions = decompose_if_needed
    return program


def _trace(module: nn.Module, inputs: dict[str, Tensor], axes: Sequence[dict[int, str]]) -> onnx.GraphProto:
    """Trace a module to an ONNX graph that reads its weights and `inputs`; `axes` names each input's dynamic axes."""
    functional = _Functional(module)
    parameters = [p.detach() for p in weights_of(module).values()]
    arguments = parameters, list(inputs.values())
    shapes = [None] * len(parameters), list(axes)
    names = [*functional.names, *inputs]
    try:
        program = call_exporter(_captured(functional, arguments, shapes), arguments, input_names=names)
    except Exception:
        # the exporter has other ways to capture a module, and a reason why none succeeds
        program = None
    if program is None:
        try:
            program = call_exporter(functional, arguments, input_names=names, dynamic_shapes=shapes)
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise EdgernnError(
                f"a layer cannot be exported ({reason}); use other torch operators in its cell or rule, such as "
                "torch.where in place of a branch"
            ) from error
    if program is None:
        raise EdgernnError("torch.onnx.export could not trace a layer; use other torch operators in its cell or rule")
    model = program.model_proto
    if model.functions or any(o.domain not in ("", "ai.onnx") for o in model.opset_import if o.domain):
        raise EdgernnError("a layer needs non-standard ONNX operators; use other torch operators in its cell or rule")
    for node in model.graph.node:
        # names, docs and metadata hold the tracer's stack traces
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
    model.graph.ClearField("value_info")
    return model.graph


def _nodes(
    graph: onnx.GraphProto, rename: Callable[[str], str], layer: RecurrentLayer, any_size: bool
) -> list[onnx.NodeProto]:
    """Return copies of a graph's nodes with all values renamed; initialisers become Constant nodes, which come first.

    They are the nodes of the layer's ONNX function. Traced shapes have I and H as constants. If I != H, the nodes
    compute I at run time, so that layers with another I can call the function; so do they with H if `any_size`. An
    imputer prevents this, as no other layer calls the function of a layer with an imputer. A size of 1 stays a
    constant, as shapes have ones of other meaning.
    """
    nodes = []
    cell = layer.cell
    names = {cell.input_size: "size.I", cell.hidden_size: "size.H"}
    varying = {cell.input_size} if layer.imputer is None and cell.input_size != cell.hidden_size else set()
    varying |= {cell.hidden_size} if any_size else set()
    names.pop(1, None)
    varying.discard(1)
    sizes = {n for node in graph.node for k, n in enumerate(node.input) if k == _SIZES.get(node.op_type)}
    others = {n for node in graph.node for k, n in enumerate(node.input) if k != _SIZES.get(node.op_type)}
    dynamic = set()
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in sizes and not varying.isdisjoint(values.ravel().tolist()):
            parts = []
            for i, number in enumerate(values.tolist()):
                parts.append(names.get(number, f"{rename(tensor.name)}.{i}"))
                if number not in names:
                    nodes.append(helper.make_node("Constant", [], parts[-1:], value_ints=[number]))
            nodes.append(helper.make_node("Concat", parts, [f"{rename(tensor.name)}.sizes"], axis=0))
            dynamic.add(tensor.name)
            # the tracer merges equal constants, so that other inputs may use the same tensor as a number
            if tensor.name not in others:
                continue
        value = onnx.TensorProto()
        value.CopyFrom(tensor)
        value.ClearField("name")
        nodes.append(helper.make_node("Constant", [], [rename(tensor.name)], value=value))
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise EdgernnError(f"a layer with control flow (ONNX {node.op_type}) cannot be exported; use torch.where")
        copy.ClearField("input")
        copy.ClearField("output")
        for k, name in enumerate(node.input):
            is_dynamic = name in dynamic and k == _SIZES.get(node.op_type)
            copy.input.append(f"{rename(name)}.sizes" if is_dynamic else rename(name))
        copy.output.extend(rename(name) for name in node.output)
        nodes.append(copy)
    return nodes


def _named(known: dict[str, str], prefix: str) -> Callable[[str], str]:
    """Return a function that renames: a name in `known` to its value there, others to `prefix`.N with a unique N."""
    names = {"": ""} | known

    def rename(name: str) -> str:
        return names.setdefault(name, f"{prefix}.{len(names)}")

    return rename


def _size_nodes(state: str) -> list[onnx.NodeProto]:
    """Return nodes that compute I and H, as the values size.I and size.H, from X (T, B, I) and a state (B, H)."""
    return [
        helper.make_node("Shape", ["X"], ["size.I"], start=2, end=3),
        helper.make_node("Shape", [state], ["size.H"], start=1, end=2),
    ]


def _parts(layer: RecurrentLayer) -> dict[str, nn.Module]:
    return {name: part for name, part in layer.named_children() if name in ("cell", "rule", "imputer")}


def layer_weights(layer: RecurrentLayer) -> dict[str, Tensor]:
    """Return a dict from the name of each weight input of a layer's ONNX op, such as W, to the weight."""
    return layer.op_weights()


def op_inputs(layer: RecurrentLayer) -> list[str]:
    """Return the names of the inputs of a layer's ONNX op: X, the weights of cell, rule and imputer, and the states."""
    return ["X", *layer.op_weights(), *layer.states]


def op_outputs(layer: RecurrentLayer) -> list[str]:
    """Return the names of a layer's ONNX outputs: Y, updates (updated neurons), macs (multiply-adds), last states."""
    return ["Y", "updates", "macs", *(f"{s}_next" for s in layer.states)]


def op_attributes(layer: RecurrentLayer) -> dict[str, Any]:
    """Return the attributes of a layer's ONNX node: cell, rule, options, `schema` (op version), macs of one step."""
    cell, imputer = layer.cell, layer.imputer
    parts = {
        "cell": cell.form,
        "rule": layer.rule.name,
        "imputer": None if imputer is None else imputer.name,
        "rank": cell.recurrent.rank,
        "norm": None if cell.norm is None else cell.norm.name,
        "group_size": layer.rule.group_size if layer.rule.group_size > 1 else None,
    }
    return {"schema": SCHEMA, "macs": layer.macs(), **{name: part for name, part in parts.items() if part is not None}}


def _outer_names(layer: RecurrentLayer) -> dict[str, str]:
    """Return a dict from a weight's name in the traced module, such as layer.cell.W, to the ONNX op's input, W."""
    return {f"layer.{name}.{n}": n for name, part in _parts(layer).items() for n in weights_of(part)}


def _traced(layer: RecurrentLayer) -> tuple[onnx.GraphProto, onnx.GraphProto, list[str]]:
    """Return a graph for all steps at once, a graph of one step, and the constants of all steps."""
    # besides weights, _Sequence reads X and outside.STATE; _Step reads projections a, e, x, STATE and constant.NAME
    like = next(layer.parameters())
    x = like.new_zeros(3, 2, layer.input_size)
    outside = {f"outside.{name}": like.new_zeros(2, layer.widths[name]) for name in _sequence_states(layer)}
    with torch.no_grad():
        state = dict(zip(layer.states, layer.initial_state(2, x), strict=True))
        read = layer.inputs(x, state.pop(LAST) if layer.shifts_input else None)
        a, e = (part[0] for part in layer.projected(read, x, state.get(COUNT)))
        constants = layer.constants(x)
    step = {"a": a, "e": e, "x": read[0], **state, **{f"constant.{name}": value for name, value in constants.items()}}
    axes: list[Any] = [{0: "T", 1: "B"}, *[{0: "B"}] * (len(outside) + 3 + len(state)), *[None] * len(constants)]
    key = layer.shifts_input, *map(structure, _parts(layer).values())
    if None not in key and key in _CACHE:
        graph = _CACHE[key]
    else:
        graph = _trace(_Parts(layer, list(constants)), {"X": x, **outside, **step}, axes)
        if None not in key:
            if len(_CACHE) >= _CACHE_SIZE:
                del _CACHE[next(iter(_CACHE))]
            _CACHE[key] = graph
    first = 3 + len(constants)
    return _ending_in(graph, graph.output[:first]), _ending_in(graph, graph.output[first:]), list(constants)


def _ending_in(graph: onnx.GraphProto, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
    """Return the part of a graph that computes `outputs`: only the nodes and initialisers that they need."""
    nodes = nodes_for(graph.node, [output.name for output in outputs])
    read = {name for node in nodes for name in node.input} | {output.name for output in outputs}
    part = onnx.GraphProto(node=nodes, output=outputs)
    part.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
    return part


def _scan(layer: RecurrentLayer, step: onnx.GraphProto, constants: list[str], any_size: bool) -> onnx.NodeProto:
    """Build the Scan node with `step` as body, which reads the weights and `constants` (names) of the outer graph."""
    cell = layer.cell
    state = {name: width for name, width in layer.widths.items() if name != LAST or not layer.shifts_input}
    inputs = ["a", "e", "x", *state, *(f"constant.{name}" for name in constants)]
    known = _outer_names(layer) | {name: f"step.{name}" for name in inputs}
    known |= {f"constant.{name}": f"seq.{name}" for name in constants}
    rename = _named(known, "step")
    body = _nodes(step, rename, layer, any_size)
    used = {name for node in body for name in node.input}
    scanned = {"a": "seq.a", "e": "seq.e", "x": "seq.inputs"}
    scanned = {name: source for name, source in scanned.items() if f"step.{name}" in used}
    results = [rename(output.name) for output in step.output]
    next_states, counts = results[: len(state)], results[len(state) :]
    # Identity nodes, as a value may be an output of the body only once, and not also an input
    ends = [f"step.{s}_next" for s in state]
    body += [helper.make_node("Identity", [v], [e]) for v, e in zip(next_states, ends, strict=True)]
    body.append(helper.make_node("Identity", [next_states[0]], ["step.Y"]))

    def info(name: str, *shape: int | None, kind: int = onnx.TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape or None)

    # layers of another I share the function
    varying = {name for name, memory in layer.rule.memory.items() if memory.size not in ("1", "H")}
    sized = (*state.items(), ("Y", cell.hidden_size))
    widths = [None if any_size or name in varying else width for name, width in sized]
    scan_inputs = [info(f"step.{name}") for name in (*state, *scanned)]
    scan_outputs = [info(name, None, width) for name, width in zip((*ends, "step.Y"), widths, strict=True)]
    scan_outputs += [info(name, None, kind=onnx.TensorProto.INT64) for name in counts]
    outputs = [f"{s}_next" for s in state] + ["Y"] + (["updates"] if counts else [])
    return helper.make_node(
        "Scan",
        [*state, *scanned.values()],
        outputs,
        num_scan_inputs=len(scanned),
        body=helper.make_graph(body, "step", scan_inputs, scan_outputs),
    )


def _dense_macs() -> list[onnx.NodeProto]:
    """Return nodes that compute the multiply-adds (B,) of T full steps: standard ONNX operators skip no neuron."""
    per_step = helper.make_node("Constant", [], ["macs.step"])
    per_step.attribute.append(onnx.AttributeProto(name="value_int", ref_attr_name="macs", type=onnx.AttributeProto.INT))
    return [
        per_step,
        helper.make_node("Shape", ["X"], ["macs.T"], start=0, end=1),
        helper.make_node("Shape", ["X"], ["macs.B"], start=1, end=2),
        helper.make_node("Mul", ["macs.T", "macs.step"], ["macs.all"]),
        helper.make_node("Expand", ["macs.all", "macs.B"], ["macs"]),
    ]


def _nothing_to_count() -> list[onnx.NodeProto]:
    """Return nodes for the outputs `updates` (0, 0) and `macs` (0,), which are empty for a rule that never skips."""
    empty = ((name, np.empty((0,) * axes, np.int64)) for name, axes in (("updates", 2), ("macs", 1)))
    return [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(value)) for n, value in empty]


def layer_function(
    layer: RecurrentLayer, name: str, attributes: Iterable[str] = (), any_size: bool = False
) -> onnx.FunctionProto:
    """Create the function of standard ONNX operators that computes a layer and is stored in the model.

    Args:
        layer: The layer.
        name: Name of the function.
        attributes: Names of further attributes of the nodes that call it, besides the keys of `op_attributes`.
        any_size: True for a function that layers of any H can call, False for this layer's H only.

    Returns:
        The ONNX function, in the domain ai.edgernn.
    """
    return helper.make_function(
        DOMAIN,
        name,
        op_inputs(layer),
        op_outputs(layer),
        _function_nodes(layer, any_size),
        [helper.make_opsetid("", OPSET)],
        attributes=[*op_attributes(layer), *attributes],
    )


def why_not_exported(layer: RecurrentLayer) -> str | None:
    """Return why a layer cannot be exported, such as random numbers or a branch on values in its cell, or None."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = torch.rand(3, 2, layer.input_size)
        first, second = (layer(x)[0] for _ in range(2))
    if not torch.equal(first, second):
        return "two runs on the same inputs differ, as it draws random numbers"
    try:
        layer_function(layer, layer.kernel_name)
    except EdgernnError as error:
        return str(error)
    return None


def _function_nodes(layer: RecurrentLayer, any_size: bool) -> list[onnx.NodeProto]:
    sequence, step, constants = _traced(layer)
    outputs = ["seq.a", "seq.e", "seq.inputs", *(f"seq.{name}" for name in constants)]
    names = dict(zip((o.name for o in sequence.output), outputs, strict=True))
    names |= _outer_names(layer) | {"X": "X"} | {f"outside.{name}": name for name in _sequence_states(layer)}
    nodes = _size_nodes(layer.cell.states[0])
    nodes += _nodes(sequence, _named(names, "seq"), layer, any_size)
    if layer.shifts_input:
        nodes.append(helper.make_node("Constant", [], ["last.index"], value_int=-1))
        nodes.append(helper.make_node("Gather", ["X", "last.index"], [f"{LAST}_next"], axis=0))
    nodes.append(_scan(layer, step, constants, any_size))
    nodes += _dense_macs() if layer.rule.can_skip else _nothing_to_count()
    return nodes_for(nodes, op_outputs(layer))
