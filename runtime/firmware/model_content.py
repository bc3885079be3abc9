# SPDX-License-Identifier: Apache-2.0
"""Content of an exported model as C code needs it: sizes, cells, rules and weights as NumPy arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgernn.cell_table import OPTIONAL_BIAS, TERMS, CellTable
from edgernn.errors import UsageError
from edgernn.runtime.firmware.equations import RuleTable, built_in_cell, built_in_rules
from edgernn.runtime.info import NORMALISATIONS, block, feature_size, frontend, layer_sizes
from edgernn.runtime.packed import PackedLayer, PackedModel
from edgernn.runtime.stepper import memory
from edgernn.runtime.weights import Weight

_LOW_RANK = "low-rank"


@dataclass(frozen=True)
class FrontendContent:
    """Audio front end of a model, which computes features from samples.

    Attributes:
        hop: Number of samples that a step reads.
        settings: Four numbers: the energy floor, the index of the normalisation in `NORMALISATIONS`, and the
            rates at which the noise floor follows the energy upwards and downwards. With PCEN, the third number is the
            smoothing rate of the energy, and the fourth is not used.
        window: Window of the FFT, one factor per sample.
        filters: Mel filters (bands, N/2 + 1), where N is the size of the FFT.
        pcen: Parameters alpha, delta and r of PCEN; empty for other normalisations.
        starts: Initial value of each state: earlier samples if windows overlap, and the value that the normalisation
            tracks per band, if any (the noise floor, or the smoothed energy of PCEN).
    """

    hop: int
    settings: NDArray[np.float32]
    window: NDArray[np.float32]
    filters: NDArray[np.float32]
    pcen: list[NDArray[np.float32]]
    starts: list[NDArray[np.float32]]

    @property
    def normalisation(self) -> str:
        return NORMALISATIONS[int(self.settings[1])]


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
        starts: Initial value of each state: states of the cell, states of the rule, and x_{t-1} if the cell reads it.
    """

    name: str
    cell: CellTable
    rule: RuleTable
    group_size: int
    inputs: int
    hidden: int
    weights: dict[str, Weight]
    starts: list[NDArray[np.float32]]

    @property
    def middle(self) -> int:
        """M, the size of the cell's intermediate vector m (the result of `Cell.mid`): I or H."""
        return self.inputs if self.cell.mid_is_input else self.hidden


@dataclass(frozen=True)
class ModelContent:
    """Content of an exported model: sizes, weights and layers.

    Attributes:
        inputs: I, the size of the first layer's input.
        outputs: O, the size of y.
        embedding: Embedding (words, I) of a model that reads words, or None.
        frontend: Front end, which computes features of audio, or None.
        mean: Mean (I,) to subtract from the input, or None.
        std: Standard deviation (I,) to divide the input by, or None.
        layers: Recurrent layers from the first to the last.
        head: W and b of the linear output layer, or None.
    """

    inputs: int
    outputs: int
    embedding: Weight | None
    frontend: FrontendContent | None
    mean: NDArray[np.float32] | None
    std: NDArray[np.float32] | None
    layers: list[LayerContent]
    head: tuple[Weight, Weight] | None


def model_content(model: PackedModel, path: Path) -> ModelContent:
    """Return the content of an exported model.

    Args:
        model: What a packed model has of the exported one.
        path: Path of the model's file, for error messages.

    Returns:
        The content as sizes, tables and NumPy arrays.

    Raises:
        EdgernnError: The model is invalid, or the native library, which checks it, is missing.
        UsageError: There is no C code for the model: it has residual blocks, or a layer with an imputer or a
            normalisation. The error names the layer.
    """
    # the library checks the model, so that what follows may trust its sizes
    memory(model.content())
    info, settings = model.info, frontend(model.info)
    if block(info) is not None:
        raise UsageError(
            f"{path}: C code needs a model without residual blocks, got one with blocks; run the model with the native "
            "library, or train it with block=none"
        )
    inputs = feature_size(info)
    stack: list[LayerContent] = []
    for layer in model.layers:
        stack.append(_layer(layer, stack[-1].hidden if stack else inputs, path))
    return ModelContent(
        inputs,
        info["model"]["head"]["size"] or layer_sizes(info)[-1],
        next(iter(model.embedding), None),
        _frontend(info["model"]["input"]["size"], iter(model.frontend)) if settings else None,
        model.standardisation[0].floats if model.standardisation else None,
        model.standardisation[1].floats if model.standardisation else None,
        stack,
        (model.head[0], model.head[1]) if model.head else None,
    )


def _frontend(hop: int, unread: Iterator[Weight]) -> FrontendContent:
    settings, window, filters = (next(unread).floats for _ in range(3))
    kind = NORMALISATIONS[int(settings[1])]
    pcen = [next(unread).floats for _ in range(3)] if kind == "pcen" else []
    states = (len(window) > hop) + (kind != "log")
    return FrontendContent(hop, settings, window, filters, pcen, [next(unread).floats for _ in range(states)])


def _parts_of(layer: PackedLayer, path: Path) -> tuple[CellTable, RuleTable, bool]:
    """Return the cell and rule of a layer, and whether R is a product; refuse an imputer or a normalisation."""
    parts, rules = layer.name.split("+"), built_in_rules()
    low_rank = parts[-1] == _LOW_RANK
    parts = parts[:-1] if low_rank else parts
    dense = next(rule for rule in rules if rules[rule].dense)
    rule = rules[parts.pop() if parts[-1] in rules else dense]
    cell = CellTable.from_attributes(layer.cell) if layer.cell else built_in_cell(parts[0])
    if len(parts) > 1 or cell is None:
        raise UsageError(
            f"{path}: layer {layer.name}: C code needs a layer without imputer and normalisation; run the model "
            "with the native library"
        )
    return cell, rule, low_rank


def _layer(layer: PackedLayer, inputs: int, path: Path) -> LayerContent:
    cell, rule, low_rank = _parts_of(layer, path)
    states = cell.states + len(rule.memories) + cell.reads_last
    weights = layer.inputs[: len(layer.inputs) - states]
    starts = [tensor.floats for tensor in layer.inputs[len(weights) :]]
    names = _weight_names(cell, low_rank) + list(rule.weights)
    if len(names) > len(weights):
        # the biases of this cell are optional, and the model has none
        names.remove("b")
    by_name = dict(zip(names, weights, strict=True))
    return LayerContent(layer.name, cell, rule, layer.group_size, inputs, len(starts[0]), by_name, starts)


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
