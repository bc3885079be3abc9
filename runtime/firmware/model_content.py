# SPDX-License-Identifier: Apache-2.0
"""Content of an exported model as C code needs it: sizes, cells, rules and weights as NumPy arrays."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.cell_table import OPTIONAL_BIAS, TERMS, CellTable
from edgernn.errors import UsageError
from edgernn.log_mel import SILENT, fft_size
from edgernn.runtime.firmware.equations import RuleTable, built_in_cell, built_in_rules
from edgernn.runtime.info import NORMALISATIONS, feature_size, frontend, step_samples
from edgernn.runtime.packed import PackedLayer, PackedModel
from edgernn.runtime.step_graph.builder import Builder, Tensor
from edgernn.runtime.step_graph.operators import joined, reshaped, sliced
from edgernn.runtime.step_graph.pack import PackedGraph
from edgernn.runtime.step_graph.rewrite import rewrite
from edgernn.runtime.step_graph.steps import Fft, Layer, Linear, Lookup, Operand, Recurrent, Step
from edgernn.runtime.step_graph.stored import store_matrices
from edgernn.runtime.step_graph.views import Kind, Value, View, dense
from edgernn.runtime.stepper import memory
from edgernn.runtime.weights import Weight
from edgernn.runtime.word_detection import NOT_WORDS, Detector, PostProcessing
from edgernn.weight_types import WEIGHT_TYPES, WeightType

Array = NDArray[Any]
_LOW_RANK = "low-rank"
# added to the variance of a normalisation in a residual block, as in edgernn/blocks.py
_EPSILON = 1e-5


@dataclass(frozen=True)
class LayerContent:
    """A layer: its cell and rule, its weights by name, and the initial values of its states.

    Attributes:
        name: Cell and update rule, such as gru+selective.
        cell: The cell.
        rule: The update rule.
        group_size: Number of adjacent neurons that the update rule updates or skips together.
        inputs: I, the size of the layer's input.
        hidden: H, the number of neurons.
        weights: Dict from name to weight: W, R, C and V, which multiply x, h, c and m (see `CellTable`), the bias b, Q
            (for low-rank R Q), the weights of the rule, and "vector 0", ... for the cell's parameter vectors.
    """

    name: str
    cell: CellTable
    rule: RuleTable
    group_size: int
    inputs: int
    hidden: int
    weights: dict[str, Weight]

    @property
    def middle(self) -> int:
        """M, the size of the cell's intermediate vector m (the result of `Cell.mid`): I or H."""
        return self.inputs if self.cell.mid_is_input else self.hidden


@dataclass(frozen=True)
class ModelContent:
    """Content of a model: sizes and steps.

    Attributes:
        inputs: Numbers of x; 1 for the index of a word.
        outputs: Numbers of y.
        vocabulary: Number of words, if x is the index of a word; else 0.
        is_audio: True if x is samples of audio.
        held_start: Numbers (inputs,) that replace a NaN in x before the first finite number; None for zeros.
        steps: The steps in their order.
        states: The values of all states.
        quantises: Linear maps quantise their input for int8 weights, as the native library does for step graphs; the
            linear maps of an exported stack multiply floats.
        about: Sentences about x and y of a file of another tool; else "".
        detector: Detector of the words of a model that reads audio and has names of its classes; else None.
    """

    inputs: int
    outputs: int
    vocabulary: int
    is_audio: bool
    held_start: NDArray[np.float32] | None
    steps: list[Step]
    states: list[Value]
    quantises: bool = False
    about: str = ""
    detector: Detector | None = None

    @property
    def layers(self) -> list[Recurrent]:
        return [step for step in self.steps if isinstance(step, Recurrent)]


def graph_content(graph: PackedGraph, weights: WeightType | None) -> ModelContent:
    """Return the content of a file of another tool, or of a network of one's own, with matrices of this type.

    Args:
        graph: The graph. Its matrices are rounded.
        weights: Storage type of the matrices. Default: that of the file.

    Returns:
        The content.

    Raises:
        EdgernnError: The native library, which checks the graph, is missing.
    """
    lowered = graph.lowered
    memory(graph.content.data)
    own: WeightType = next((known for known in WEIGHT_TYPES if known == graph.info.get("weights")), "float32")
    store_matrices(lowered.steps, weights or own, are_rounded=weights in (None, own))
    inputs, outputs = (sum(map(math.prod, shapes.values())) for shapes in (lowered.inputs, lowered.outputs))
    listed = (
        f"{letter} has, one after the other, {', '.join(f'{n} {s}' for n, s in shapes.items())}."
        for letter, shapes in (("x", lowered.inputs), ("y", lowered.outputs))
    )
    return ModelContent(inputs, outputs, 0, False, None, lowered.steps, lowered.states, True, " ".join(listed))


def stack_content(model: PackedModel, path: Path) -> ModelContent:
    """Return the content of an exported stack of layers as steps.

    Args:
        model: What a packed model has of the exported one.
        path: Path of the model's file, for error messages.

    Returns:
        The content.

    Raises:
        EdgernnError: The model is invalid, or the native library, which checks it, is missing.
        UsageError: A layer has an imputer or a normalisation.
    """
    # the library checks the model, so that what follows may trust its sizes
    memory(model.content())
    info, builder = model.info, Builder()
    width, states, settings = feature_size(info), list[Value](), frontend(info)
    inputs = info["model"]["input"]["size"] if settings else 1 if model.embedding else width
    x = dense(Value(Kind.INPUT, inputs), [inputs])
    if settings:
        x = _features(builder, x, width, iter(model.frontend), states)
    elif model.embedding:
        word, x = x, dense(builder.arena(width), [width])
        builder.add(Lookup(Operand(word.value, 0, []), Operand(x.value, 0, []), model.embedding[0]))
    if model.standardisation:
        mean, std = (weight.floats for weight in model.standardisation)
        (x,) = builder.compute(("div", ("sub", x, mean), std), shape=[width])
    for layer in model.layers:
        x = _add_layer(builder, layer, x, states, path)
    if model.head:
        x = _multiply(builder, x, model.head)
    outputs = x.size
    builder.store(x, dense(Value(Kind.OUTPUT, outputs), [outputs]))
    held_start = model.standardisation[0].floats if model.standardisation and not settings else None
    words = len(model.embedding[0].values) if model.embedding else 0
    steps, detector = rewrite(builder.steps), _detector(info, outputs)
    return ModelContent(inputs, outputs, words, bool(settings), held_start, steps, states, detector=detector)


def _detector(info: Mapping[str, Any], outputs: int) -> Detector | None:
    audio, classes = frontend(info), info.get("classes")
    if audio is None or type(classes) is not list or len(classes) != outputs:
        return None
    if not all(type(name) is str for name in classes) or set(classes) <= set(NOT_WORDS):
        return None
    return Detector(classes, step_samples(audio) / audio["sample_rate"], PostProcessing.stored(info))


def _multiply(builder: Builder, x: View, weights: Sequence[Weight]) -> View:
    matrix, bias = weights
    y = builder.multiply(x, matrix.floats, bias.floats)
    step = builder.steps[-1]
    assert isinstance(step, Linear)
    step.stored = matrix
    return y


def _add_layer(builder: Builder, layer: PackedLayer, x: View, states: list[Value], path: Path) -> View:
    """Add a layer and the residual block around it (edgernn/blocks.py); return what the next one reads."""
    pairs = [layer.block[k : k + 2] for k in range(0, len(layer.block), 2)]
    cell, rule, _ = parts_of(layer.name, layer.cell, path)
    count = len(layer.inputs) - (cell.states + len(rule.memories) + cell.reads_last)
    starts = [weight.floats for weight in layer.inputs[count:]]
    hidden = len(starts[0])
    if pairs and x.size != hidden:
        x = _multiply(builder, x, pairs.pop(0))
    u = x
    if pairs:
        x = _normalised(builder, x, *(weight.floats for weight in pairs.pop(0)))
    own = [Value(Kind.STATE, len(start), start) for start in starts]
    states += own
    source = builder.rows(x)
    builder.add(
        Recurrent(
            Layer(layer.name, layer.inputs[:count], layer.cell, layer.group_size),
            1,
            1,
            x.size,
            hidden,
            Operand(source.value, source.offset, []),
            None,
            [Operand(state, 0, []) for state in own],
            [state.size for state in own],
        )
    )
    h = dense(own[0], [hidden])
    if not pairs:
        return h
    branch = _multiply(builder, h, pairs[0])
    if len(pairs) > 1:
        gate = _multiply(builder, h, pairs[1])
        (y,) = builder.compute(("add", u, ("mul", branch, ("sigmoid", gate))), shape=[hidden])
    else:
        (y,) = builder.compute(("add", u, branch), shape=[hidden])
    return y


def _normalised(builder: Builder, x: View, scale: NDArray[np.float32], shift: NDArray[np.float32]) -> View:
    size = x.size
    mean = builder.reduce("sum", x, [0]).expanded([size])
    (centred, squares) = builder.compute(
        centre := ("sub", x, ("div", mean, float(size))), ("mul", centre, centre), shape=[size]
    )
    variance = ("div", builder.reduce("sum", squares, [0]), float(size))
    (factor,) = builder.compute(("div", 1.0, ("sqrt", ("add", variance, _EPSILON))), shape=[1])
    (y,) = builder.compute(("add", ("mul", ("mul", centred, factor.expanded([size])), scale), shift), shape=[size])
    return y


def _features(builder: Builder, x: View, width: int, tensors: Iterator[Weight], states: list[Value]) -> View:
    """Add a front end with these tensors of the packed file, and its states; return its `width` features."""
    settings, window, filters = (next(tensors).floats for _ in range(3))
    if filters.ndim == 1:
        filters = _filter_matrix(filters, next(tensors).floats, fft_size(len(window)) // 2 + 1)
    pcen = [next(tensors).floats for _ in range(3 * (NORMALISATIONS[int(settings[1])] == "pcen"))]
    states += [Value(Kind.STATE, len(start), start) for start in (weight.floats for weight in tensors)]
    bands, half = len(filters), filters.shape[1] - 1
    hops = width // bands
    hop = x.size // hops
    overlap = len(window) - hop
    signal = dense(builder.arena(overlap + x.size), [overlap + x.size])
    builder.store(x, signal.box([overlap], [x.size]))
    if overlap:
        heard = dense(states[0], [overlap])
        builder.store(heard, signal.box([0], [overlap]))
        builder.store(signal.box([x.size], [overlap]), heard)
    spectrum = builder.arena(hops * (2 * half + 2))
    builder.add(Fft(hops, Operand(signal.value, 0, [hop]), Operand(spectrum, 0, [2 * half + 2]), 2 * half, window))
    parts = dense(spectrum, [hops, 2, half + 1])
    re, im = (reshaped(builder, sliced(builder, parts, 1, k, 1), [hops, half + 1]) for k in (0, 1))
    (power,) = builder.compute(("add", ("mul", re, re), ("mul", im, im)), shape=[hops, half + 1])
    energies = builder.multiply(power, filters)
    rows = (reshaped(builder, sliced(builder, energies, 0, k, 1), [bands]) for k in range(hops))
    frames = [_frame(builder, energy, list(map(float, settings)), pcen, states) for energy in rows]
    return builder.view(joined(builder, frames, 0))


def _filter_matrix(weights: Array, ranges: Array, frequencies: int) -> Array:
    """Return the mel filters (bands, N/2 + 1) of their weights and ranges in a packed file."""
    filters = np.zeros((len(ranges), frequencies), np.float32)
    parts = np.split(weights, np.cumsum(ranges[:-1, 1]).astype(int))
    for row, (first, _), part in zip(filters, ranges.astype(int), parts, strict=True):
        row[first : first + len(part)] = part
    return filters


def _frame(
    builder: Builder, energy: Tensor, settings: Sequence[float], pcen: Sequence[Array], states: Sequence[Value]
) -> View:
    """Return the features of a hop with these energies of the bands."""
    energy_floor, kind, rise, fall = settings
    normalisation, bands = NORMALISATIONS[int(kind)], energy.shape[0]
    value: Any = energy if pcen else ("log", ("add", 1.0, ("div", energy, energy_floor)))
    if normalisation == "log":
        return builder.compute(value, shape=[bands])[0]
    followed = dense(states[-1], [bands])
    silent = SILENT * energy_floor if pcen else SILENT
    quiet = ("min", followed, silent)
    progress = ("div", quiet, silent)
    usual = rise if pcen else ("select", ("less", value, followed), fall, rise)
    share = ("max", ("sub", 1.0, ("mul", progress, progress)), usual)
    moved: Any = ("max", ("add", followed, ("mul", share, ("sub", value, followed))), quiet)
    result: Any = ("sub", value, moved)
    if pcen:
        alpha, delta, r = pcen
        gain = ("exp", ("mul", alpha, ("log", ("add", energy_floor, moved))))
        shifted = ("add", ("div", energy, gain), delta)
        result = ("sub", ("exp", ("mul", r, ("log", shifted))), delta**r)
    features, moved = builder.compute(result, moved, shape=[bands])
    builder.store(moved, followed)
    return features


def parts_of(name: str, attributes: Mapping[str, Any], path: Path) -> tuple[CellTable, RuleTable, bool]:
    """Return the cell and rule of a layer, and whether R is a product.

    Args:
        name: Name of the layer's kernel, such as gru+selective.
        attributes: Attributes of a user's own cell; empty for a built-in one.
        path: Path of the model's file, for the message.

    Returns:
        The tables of the cell and the rule, and True if the recurrent weights are low-rank.

    Raises:
        UsageError: The layer has an imputer or a normalisation.
    """
    parts, rules = name.split("+"), built_in_rules()
    low_rank = parts[-1] == _LOW_RANK
    parts = parts[:-1] if low_rank else parts
    dense = next(rule for rule in rules if rules[rule].dense)
    rule = rules[parts.pop() if parts[-1] in rules else dense]
    cell = CellTable.from_attributes(attributes) if attributes else built_in_cell(parts[0])
    if len(parts) > 1 or cell is None:
        raise UsageError(
            f"{path}: layer {name}: C code needs a layer without imputer and normalisation; run the model "
            "with the native library"
        )
    return cell, rule, low_rank


def layer_content(step: Recurrent, path: Path) -> LayerContent:
    """Return the content of a step's layer; raise UsageError for an imputer or a normalisation."""
    layer = step.layer
    cell, rule, low_rank = parts_of(layer.name, layer.cell, path)
    names = _weight_names(cell, low_rank) + list(rule.weights)
    if len(names) > len(layer.weights):
        # the biases of this cell are optional, and the model has none
        names.remove("b")
    by_name = dict(zip(names, layer.weights, strict=True))
    return LayerContent(layer.name, cell, rule, layer.group_size, step.inputs, step.outputs, by_name)


def _weight_names(cell: CellTable, low_rank: bool) -> list[str]:
    """Return the names of a cell's weights in the order in which an exported file has them."""
    names = [name for name, term in zip("WRCV", "xhcm", strict=True) if any(g & TERMS[term] for g in cell.gates)]
    if any(gate & (TERMS["bias"] | OPTIONAL_BIAS) for gate in cell.gates):
        names.append("b")
    vectors = [f"vector {i}" for i in range(len(cell.vectors))]
    learned = len(vectors) - cell.constants
    return names + vectors[:learned] + ["Q"] * low_rank + vectors[learned:]


def biased_gates(layer: LayerContent) -> list[int]:
    """Return the indices of a layer's gates that have a bias; a model may leave out optional biases."""
    cell = layer.cell
    if "b" not in layer.weights:
        return []
    always = [g for g, terms in enumerate(cell.gates) if terms & TERMS["bias"]]
    either = [g for g, terms in enumerate(cell.gates) if terms & (TERMS["bias"] | OPTIONAL_BIAS)]
    rows = sum(cell.rows(g, layer.hidden, layer.inputs) for g in either)
    return either if rows == len(layer.weights["b"].values) else always


def gate_rows(layer: LayerContent, name: str, term: int) -> dict[int, tuple[int, int]]:
    """Find the rows of each gate in a stacked weight of a layer.

    Args:
        layer: The layer.
        name: Name of the weight: W, R, C, V or b.
        term: Bit of the weight's term in `CellTable.gates`, such as that of x for W; ignored for b.

    Returns:
        Dict from the index of each gate that has rows in the weight to a pair: first row and number of rows.
    """
    gates = biased_gates(layer) if name == "b" else [g for g, terms in enumerate(layer.cell.gates) if terms & term]
    rows, first = {}, 0
    for gate in gates:
        count = layer.cell.rows(gate, layer.hidden, layer.inputs)
        rows[gate] = first, count
        first += count
    return rows
