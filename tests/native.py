# SPDX-License-Identifier: Apache-2.0
"""Single-node models for the native library, and their results from the oracle."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from edgernn.cell_program import cell_program
from edgernn.cells import CELLS, COMPILED, EINS, Cell, ForgetBias
from edgernn.cells.recurrent import DENSE, LowRank
from edgernn.export.layer_functions import layer_weights, op_attributes
from edgernn.layer import LAST, RecurrentLayer
from edgernn.rules import RULES
from edgernn.runtime import library_path
from edgernn.runtime.library import instruction_set, register
from tests import oracle
from tests.pairs import PAIRS
from tests.tolerances import FLOAT32

Inputs = dict[str, np.ndarray]

# options of a cell that change its gates
VARIANTS: dict[str, Callable[[int, int], Cell]] = {
    "eins-from-x": partial(EINS, a="x"),
    "eins-from-x-forget": partial(EINS, a="x", forget_bias=1.0),
    **{
        f"{name}-forget": partial(cell, forget_bias=1.0) for name, cell in CELLS.items() if issubclass(cell, ForgetBias)
    },
}
OPS = [*PAIRS, *product(VARIANTS, ("always", "selective"))]
# options of rules such that some neurons are updated and some are not, and soft gates are exact to float32
OPTIONS = {"phased": {"open": 0.4}, "variable": {"sharpness": 0.7, "epsilon": 0.01}, "random": {"seed": 7}}
# float32 and float64 may decide differently where a score is closer than this to its threshold
MARGIN = 1e-6
# states that the oracle does not return: the last input, and the sums that delta keeps, which follow from the others
NOT_IN_ORACLE = (LAST, "rule_p")


def library() -> str:
    return os.environ.get("EDGERNN_LIBRARY") or library_path()


def in_use() -> str:
    """The instruction set in use."""
    isa = ctypes.CDLL(library()).edgernn_isa
    isa.restype = ctypes.c_char_p
    return str(isa().decode())


@cache
def layer(cell: str, rule: str, hidden: int, inputs: int) -> RecurrentLayer:
    """Make a layer; a cell named "gru/4" has an R of rank 4, a rule named "selective/4" has groups of 4 neurons."""
    name, _, rank = cell.partition("/")
    rule, _, group_size = rule.partition("/")
    with torch.random.fork_rng():
        torch.manual_seed(hidden + inputs)
        recurrent = LowRank(int(rank)) if rank else DENSE
        instance = (VARIANTS.get(name) or CELLS[name])(inputs, hidden, recurrent=recurrent)
        options = {"group_size": int(group_size)} if group_size else OPTIONS.get(rule, {})
        return RecurrentLayer(instance, RULES[rule](inputs, hidden, **options)).eval()


def oracle_result(cell: str, rule: str, inputs: Inputs, weight_bits: int = 32) -> oracle.Result:
    hidden = inputs[layer(cell.partition("/")[0], "always", 5, 3).states[0]].shape[1]
    module = layer(cell, rule, hidden, inputs["X"].shape[2])
    row = oracle.row_of(module.cell.name if cell in VARIANTS else cell, inputs["X"].shape[2], hidden)
    if module.cell.variant == "from-x":
        row = replace(row, x=1, m=3)
    with np.errstate(invalid="ignore", over="ignore"):
        return oracle.run(
            row,
            rule,
            inputs,
            inputs["X"],
            [inputs[s] for s in module.states],
            lanes(),
            weight_bits,
        )


@cache
def lanes() -> int:
    """Return the number of neurons in a vector of the instruction set in use."""
    return {"baseline": 4, "native": 4, "avx2": 8}.get(str(instruction_set()), 16)


def draw(cell: str, rule: str, hidden: int, inputs: int, seed: int = 0) -> Inputs:
    """Draw contractive weights, with constants unchanged, by name in the order of the op's inputs."""
    rng = np.random.default_rng((seed, hidden, inputs))
    module = layer(cell, rule, hidden, inputs)
    learned = {name.split(".")[-1] for name, _ in module.named_parameters()} - {"rule_tau", "rule_s"}
    scale = 0.5 / np.sqrt(hidden)
    weights = {}
    for name, value in layer_weights(module).items():
        drawn = rng.standard_normal(value.shape) * scale
        weights[name] = (drawn if name in learned else value.detach().numpy()).astype(np.float32)
    if rule == "skip":
        # waits of one to about ten steps, different for each sample
        weights["rule_w"] *= 8
        weights["rule_b"] -= 2
    return weights


def draw_call(cell: str, rule: str, hidden: int, inputs: int, steps: int, batch: int, seed: int = 0) -> Inputs:
    """Draw X and the states; the rule's memories have their initial values."""
    rng = np.random.default_rng((seed, hidden, inputs, steps, batch))
    module = layer(cell, rule, hidden, inputs)
    feed = {"X": rng.standard_normal((steps, batch, inputs)).astype(np.float32)}
    for name, width in module.widths.items():
        start = module.rule.memory.get(name)
        drawn = rng.standard_normal((batch, width)) * 0.5
        feed[name] = (drawn if start is None else np.full((batch, width), start.start)).astype(np.float32)
    return feed


def product_of(weights: Inputs) -> Inputs:
    return weights | {"R": weights["R"].astype(np.float64) @ weights["Q"]} if "Q" in weights else weights


def draw_clear_call(
    cell: str, rule: str, weights: Inputs, sizes: tuple[int, int, int, int]
) -> tuple[Inputs, oracle.Result]:
    """Draw a call of sizes H, I, T and B without near-ties, and return it with the oracle's results."""
    for seed in range(20):
        feed = draw_call(cell, rule, *sizes, seed)
        expected = oracle_result(cell, rule, product_of(weights) | feed)
        if expected.margin > MARGIN:
            return feed, expected
    raise AssertionError("no draw without a near-tie")


def output_names(cell: str, rule: str) -> list[str]:
    states = [f"{name}_out" for name in layer(cell, rule, 5, 3).states]
    return ["Y", *states, *(["updates", "macs"] if RULES[rule.partition("/")[0]].can_skip else [])]


def session(
    cell: str,
    rule: str,
    weights: Inputs,
    constant: bool = True,
    outputs: list[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    sizes: tuple[int, int] = (5, 3),
    counts: bool = False,
    threads: int = 1,
) -> ort.InferenceSession:
    """Make a session of a single-node model.

    Args:
        cell, rule: The layer.
        weights: By name, as `draw` returns them.
        constant: Store the weights as initializers; otherwise they are inputs.
        outputs: Names of the outputs, all by default; "" omits an output.
        attributes: Replace or extend those of the layer; None omits an attribute.
        sizes: H, I, for cells whose gates depend on them.
        counts: Also return updates and macs of a rule that never skips.
        threads: Number of threads of the session.
    """
    module = layer(cell, rule, *sizes)
    known = [*output_names(cell, rule), *(["updates", "macs"] if counts else [])]
    outputs = known if outputs is None else outputs
    expected = dict(zip(known, outputs, strict=False))
    places = ["Y", "updates", "macs", *(f"{name}_out" for name in module.states)]
    return node_session(
        weights,
        [*module.states],
        [expected.get(name, "") for name in places],
        _attributes(module) | dict(attributes or {}),
        constant=constant,
        ordered=outputs,
        threads=threads,
    )


def _attributes(module: RecurrentLayer) -> dict[str, Any]:
    """Return the attributes of a layer's node, with the equations of a cell without compiled kernels."""
    return op_attributes(module) | ({} if module.cell.name in COMPILED else cell_program(module.cell).attributes())


def node_session(
    weights: Inputs,
    states: list[str],
    outputs: list[str],
    attributes: Mapping[str, Any],
    constant: bool = True,
    ordered: list[str] | None = None,
    threads: int = 1,
) -> ort.InferenceSession:
    """Make a session of one node with the inputs X, weights and states; attributes that are None are omitted.

    ordered: The outputs in the order in which the session returns them.
    """
    present = {name: value for name, value in attributes.items() if value is not None}
    names = ["X", *weights, *states]
    node = helper.make_node("Recurrent", names, outputs, domain="ai.edgernn", **present)
    free = [n for n in names if not (constant and n in weights)]
    integers = ("updates", "macs")
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in free],
        [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n in integers else TensorProto.FLOAT, None)
            for n in ordered or outputs
            if n
        ],
        [numpy_helper.from_array(a, n) for n, a in weights.items()] if constant else [],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.edgernn", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    register(options, library(), threads)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_equal(
    cell: str, rule: str, got: list[np.ndarray], want: oracle.Result, rtol: float = 0, atol: float | None = None
) -> None:
    """Compare all outputs with the oracle, except the states in NOT_IN_ORACLE."""
    names = ["Y", *layer(cell, rule, 5, 3).states]
    outputs = [a for name, a in zip(names, got[: len(names)], strict=True) if name not in NOT_IN_ORACLE]
    # kept sums round once more at each step
    atol = atol or (2 * FLOAT32 if rule == "delta" else FLOAT32)
    for a, b in zip(outputs, [want.y, *want.state, *want.memory], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    if RULES[rule.partition("/")[0]].can_skip:
        np.testing.assert_array_equal(got[-2], want.updates)
        np.testing.assert_array_equal(got[-1], want.macs)


def assert_steps_equal_sequence(
    run: ort.InferenceSession, states: Sequence[str], feed: Inputs, length: int = 1
) -> None:
    """Assert that calls of some steps each, with the states carried over, return the bits of a call of all steps."""
    whole = run.run(None, feed)
    carried = [feed[name] for name in states]
    for first in range(0, len(feed["X"]), length):
        part = {"X": feed["X"][first : first + length], **dict(zip(states, carried, strict=True))}
        got = run.run(None, part)
        np.testing.assert_array_equal(got[0], whole[0][first : first + length])
        carried = got[1 : 1 + len(states)]
    for a, b in zip(carried, whole[1:], strict=False):
        np.testing.assert_array_equal(a, b)


def sample(name: str, array: np.ndarray, batch: slice) -> np.ndarray:
    """Return the part of an input or output of the op that belongs to some samples of its batch."""
    return array[:, batch] if name in ("X", "Y", "updates") else array[batch]


def assert_batch_equals_samples(run: ort.InferenceSession, names: Sequence[str], feed: Inputs) -> None:
    """Assert that each sample alone has the outputs, called `names`, that it has in the batch."""
    whole = run.run(None, feed)
    for b in range(feed["X"].shape[1]):
        one = slice(b, b + 1)
        alone = run.run(None, {name: sample(name, a, one) for name, a in feed.items()})
        for name, a, part in zip(names, whole, alone, strict=True):
            # samples share the decision whether W x is computed for several steps at once
            if name != "macs":
                np.testing.assert_allclose(part, sample(name, a, one), rtol=0, atol=FLOAT32)
