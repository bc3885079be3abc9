# SPDX-License-Identifier: Apache-2.0
"""Packs ONNX files of any tool, and those of networks of one's own, as step graphs."""

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.runtime.graph_facts import kernel_of
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.graph_states import axes_of, fix_inputs, inputs_of, named_states, pair_states
from edgernn.runtime.interface import next_values
from edgernn.runtime.library import DOMAIN, PORTABLE
from edgernn.runtime.step_graph.content import Content, encode
from edgernn.runtime.step_graph.frontend_dft import transform_fast
from edgernn.runtime.step_graph.lowering import Lowered
from edgernn.runtime.step_graph.plan import plan
from edgernn.runtime.step_graph.stored import store_matrices
from edgernn.runtime.weights import check_memory, most_numbers

Array = NDArray[Any]
# constants of a network in which some layers skip and others cannot: the work of the latter in a step
DENSE_WORK = "dense.updates", "dense.macs"
# outputs of a model of edgernn that a packed one counts by itself
_COUNTS = "updates", "macs"


@dataclass(frozen=True)
class PackedGraph:
    """A file that was packed as a step graph.

    Attributes:
        content: The packed file.
        lowered: Its steps, inputs, outputs and states.
        states: For each input of the file that is a state, the output with its next value.
        info: Metadata of a network of one's own; empty for the file of another tool.
    """

    content: Content
    lowered: Lowered
    states: dict[str, str]
    info: dict[str, Any]

    @property
    def report(self) -> dict[str, Any]:
        """JSON-compatible costs of a step: `steps`, `operations` (number of each kind) and `macs`, and its inputs."""
        return {
            "steps": len(self.content.names),
            "operations": dict(Counter(self.content.names)),
            "macs": self.content.macs,
            "inputs": {name: list(shape) for name, shape in self.lowered.inputs.items()},
            "outputs": {name: list(shape) for name, shape in self.lowered.outputs.items()},
        }


def work_text(report: Mapping[str, Any]) -> str:
    """Format the work of a step in a report of `PackedGraph`."""
    kinds = ", ".join(f"{count} {name}" for name, count in report["operations"].items())
    return f"{report['macs']:,} multiply-adds a step in {report['steps']} operations ({kinds})"


def is_graph(model: onnx.ModelProto) -> bool:
    """Return True for a model that is packed as a step graph.

    It is of another tool, a network of one's own, or has a layer without a kernel, whose steps are its functions.
    """
    is_other = not any(entry.key == "edgernn" for entry in model.metadata_props)
    return is_other or "network" in _metadata(model) or any(map(_has_no_kernel, model.functions))


def _has_no_kernel(function: onnx.FunctionProto) -> bool:
    # a name that is not UTF-8 is bytes
    return function.domain == DOMAIN and str(function.name).startswith(PORTABLE)


def _refuse_skipping(model: onnx.ModelProto, path: Path) -> None:
    """Raise UsageError for a layer without a kernel whose rule skips, as steps of its functions would skip nothing."""
    for node in model.graph.node:
        rule = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "rule"), "always")
        if node.domain == DOMAIN and str(node.op_type).startswith(PORTABLE) and rule != "always":
            raise UsageError(
                f"{path}: layer {kernel_of(node, path)}: expected a layer with a kernel, or one without a rule that "
                "skips, got neither; run the file in ONNX Runtime"
            )


def _metadata(model: onnx.ModelProto) -> dict[str, Any]:
    text = next((entry.value for entry in model.metadata_props if entry.key == "edgernn"), "{}")
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def pack_graph(
    model: onnx.ModelProto,
    path: Path,
    size: int,
    options: GraphOptions = PLAIN,
) -> PackedGraph:
    """Pack a model as a step graph. A call of the model is a step; variable axes have length 1.

    Args:
        model: The model. It is not changed.
        path: Path of its file, for error messages.
        size: Size of the file in bytes, which limits the memory of the weights.
        options: What the user says of the file.

    Returns:
        The packed file, and what it costs.

    Raises:
        UsageError: The model has a node, an input or an output that no step computes, or it has no state but an axis
            of time. The message names it.
        EdgernnError: The model is invalid.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    info = _metadata(copy)
    if info.get("streaming") is False:
        raise UsageError(
            f"{path}: expected a model that runs step by step, got one that needs whole sequences; use `edgernn run`"
        )
    fix_inputs(copy, options.values, options.shapes, path)
    _refuse_skipping(copy, path)
    copy = _inlined(copy, path)
    transform_fast(copy)
    # an output without a shape may be the next value of a state
    inferred = _inferred(copy) if any(map(_has_no_shape, copy.graph.output)) else copy
    named = options.states
    if named is None and "network" in info:
        named = next_values(inputs_of(inferred.graph), [value.name for value in inferred.graph.output])
    listed = pair_states(inferred.graph) if named is None else named_states(inferred.graph, named, path)
    states = {state.input: state.output for state in listed}
    inputs = inputs_of(copy.graph)
    for name, value in inputs.items():
        variable = [axis for axis in axes_of(value)[1:] if isinstance(axis, str)]
        if variable and not states:
            raise UsageError(
                f"{path}: input {name}: expected states, or axes of fixed lengths, got the axis {variable[0]} and no "
                f"state; give the file its states with: edgernn stream {path}, or fix the lengths with --shape"
            )
    # sessions of both backends restore the states of a network of one's own
    starts, most = _starts(info, states, path), most_numbers(size)
    lowered = plan(copy, path, states, starts, whole=bool(info), most=most, fixed=options.values)
    packed = {*states.values(), *lowered.outputs, *(_COUNTS if info else ())}
    if left := [v.name for v in copy.graph.output if v.name not in packed]:
        text = f"{path}: not packed: {', '.join(left)}, as outputs are float32; export the model with floats to have it"
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    if options.weights is not None:
        store_matrices(lowered.steps, options.weights)
    content = encode(lowered, *_dense_work(copy, path))
    check_memory(len(content.data), size, path)
    return PackedGraph(content, lowered, states, info)


def _dense_work(model: onnx.ModelProto, path: Path) -> tuple[int, int]:
    """Return the updates and multiply-adds of a step in layers that cannot skip, if others do; else zeros."""
    known = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in DENSE_WORK}
    if len(known) < len(DENSE_WORK):
        return 0, 0
    updates, macs = (onnx.numpy_helper.to_array(known[name]) for name in DENSE_WORK)
    for name, number in (("updates", updates), ("macs", macs)):
        if number.size != 1 or number.dtype.kind != "i" or not 0 <= number.item() < 1 << 32:
            raise EdgernnError(f"{path}: dense.{name}: expected one count below 2^32; export the model again")
    return int(updates.item()), int(macs.item())


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the shapes of its values; the model itself if it is damaged, which its nodes will show."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # the classes of onnx's errors have no common base
        return model


def _has_no_shape(value: onnx.ValueInfoProto) -> bool:
    return not value.type.tensor_type.HasField("shape")


def _inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return a model without functions, except those that define nodes with a kernel of edgernn."""
    others = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN or _has_no_kernel(f)]
    try:
        return onnx.inliner.inline_selected_functions(model, others) if others else model
    except Exception as error:  # the classes of onnx's errors have no common base
        text = str(error).partition("\n")[0]
        raise EdgernnError(
            f"{path}: expected functions that can be put in place, got an error: {text:.200}; export the model again"
        ) from None


def _starts(info: Mapping[str, Any], states: Mapping[str, str], path: Path) -> dict[str, Array]:
    """Return the initial values of states in the metadata of a network of one's own."""
    listed = info.get("initial_state", {})
    try:
        return {name: np.array(numbers, np.float32) for name, numbers in listed.items() if name in states}
    except (AttributeError, TypeError, ValueError):
        raise EdgernnError(
            f"{path}: value initial_state in its edgernn metadata: expected lists of numbers; export the model again"
        ) from None
