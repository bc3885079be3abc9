# SPDX-License-Identifier: Apache-2.0
"""Kinds of layers that share C code: which matrix-vector products and which workspace that code needs."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from edgernn.cell_table import TERMS, CellTable
from edgernn.runtime.firmware.equations import RuleTable
from edgernn.runtime.firmware.model_content import LayerContent, biased_gates
from edgernn.runtime.firmware.pointwise_c import LanesPrinter, identifier
from edgernn.runtime.firmware.weight_arrays import padded, type_of

# bound of quantised inputs, and of their products with int8 weights, as in runtime/csrc/cpu/low_precision.h
_MOST_INT16, _MOST_INT32 = 127 * 256 + 127, 2**31 - 1
_NARROW = 2  # inputs of which the weights are stored as floats
# vector of each product, its matrix, and the bit of the product in `CellTable.gates`
_PRODUCTS = (
    ("x", "W", TERMS["x"]),
    ("last", "W", TERMS["x"]),
    ("h", "R", TERMS["h"]),
    ("c", "C", TERMS["c"]),
    ("m", "V", TERMS["m"]),
)


@dataclass(frozen=True)
class GateProduct:
    """A matrix-vector product that is a term of several gates (pre-activations) of a cell.

    Attributes:
        name: Name of the vector: x, last (x of the previous step), h, c or m (the result of `Cell.mid`).
        weight: Name of the matrix: W for x and last, R for h, C for c, V for m.
        term: Bit that stands for the product in `CellTable.gates`, which has a sum of such bits for each gate.
        mid: True if the gates are among those that `Cell.mid` reads, False if they are among the others.
        gates: Indices of the gates that have the term.
    """

    name: str
    weight: str
    term: int
    mid: bool
    gates: tuple[int, ...]

    @property
    def field(self) -> str:
        """Name of the matrix in the layer's C struct: `name`, such as h, with the prefix mid_ if `mid` is True."""
        return f"mid_{self.name}" if self.mid else self.name


@dataclass(frozen=True)
class LayerKind:
    """Properties that all layers which share C code have in common; sizes and weights may differ.

    Attributes:
        name: Cell and rule, such as gru+selective.
        number: Number of earlier kinds in the model with the same C identifier; it makes the identifier unique.
        cell: The cell.
        rule: The update rule.
        biased: Two flags about gates whose sums are computed anew at each step: whether one that `Cell.mid` reads has a
            bias, and whether one that it does not read has a bias.
        low_rank: True if the recurrent weights are a product of two matrices, R Q.
        sums_biased: True if a gate whose sum is kept from step to step (`kept_gates`) has a bias.
        weights: Type of the matrices: float, bfloat16 or int8.
        groups: True if groups of neurons share an update decision.
        narrow: Number of inputs, if the weights of x and last are int8 and stored as floats, which take no more flash
            than bytes that are padded to four columns and their scale; else 0.
    """

    name: str
    number: int
    cell: CellTable
    rule: RuleTable
    biased: tuple[bool, bool]
    low_rank: bool
    sums_biased: bool
    weights: str
    groups: bool
    narrow: int = 0

    @property
    def int8(self) -> bool:
        return self.weights == "int8"

    @property
    def blocked(self) -> bool:
        """True if a step multiplies the weights of four neurons at a time: int8, and a rule that updates all of them.

        The bytes of two rows alternate, so an odd number of gates has pairs of neurons.
        """
        return self.int8 and not self.lists_neurons and not self.rule.keeps_sums

    @property
    def lanes(self) -> bool:
        """True if a step computes neighbouring neurons at once where the processor has vectors."""
        ops = {instruction.op for instruction in self.cell.update.instructions}
        return self.blocked and ops <= LanesPrinter.expressions.keys()

    @property
    def identifier(self) -> str:
        return identifier(self.name) + (f"_{self.number + 1}" if self.number else "")

    @cached_property
    def products(self) -> tuple[GateProduct, ...]:
        """Products of weight matrices with vectors that a step computes row by row, one row for each neuron.

        Products for gates that `Cell.mid` reads come first. Products with the vectors in `moving` are left out: their
        matrices are read column by column.
        """
        cell, listed = self.cell, []
        for mid in (True, False):
            for name, weight, term in _PRODUCTS:
                gates = tuple(g for g in cell.group(mid=mid) if cell.gates[g] & term)
                if gates and (name != "last" or cell.reads_last) and name not in self.moving:
                    listed.append(GateProduct(name, weight, term, mid, gates))
        return tuple(listed)

    def slots(self, *, mid: bool) -> list[int]:
        """Return the indices of the gates that `Cell.mid` reads, or of the others, in the order of their sums.

        The gates that read h come first, so that one call adds R h to all of them.
        """
        return sorted(self.cell.group(mid=mid), key=lambda gate: not self.cell.gates[gate] & TERMS["h"])

    @property
    def moving(self) -> dict[str, tuple[str, int]]:
        """Vectors whose products with matrices are corrected only for values that changed by more than a threshold.

        Under a rule of the kind COLUMN, such as delta, these are x, last (x of the previous step, if the cell reads it)
        and h. Other rules have none. The property is a dict from the name of a vector to a pair: the name of its
        matrix, and the bit that stands for the product in `CellTable.gates`.
        """
        if not self.rule.keeps_sums:
            return {}
        return {name: (weight, term) for name, weight, term in _PRODUCTS[:3] if name != "last" or self.cell.reads_last}

    @property
    def kept_gates(self) -> list[int]:
        """Indices of the gates whose sums W x + R h + b are kept for the next step, which only corrects them.

        A rule of the kind COLUMN, such as delta, keeps these sums. The list is empty for other rules.
        """
        return _kept_gates(self.cell, self.rule)

    def is_narrow(self, product: GateProduct) -> bool:
        """True if the weights of a product are stored as floats (`narrow`)."""
        return self.narrow > 0 and product.name in ("x", "last")

    @property
    def vectors(self) -> list[str]:
        """Names of the vectors that int8 weights of `products` multiply, such as x and h, each once, without m."""
        products = [product for product in self.products if not self.is_narrow(product)]
        return [name for name in dict.fromkeys(product.name for product in products) if name != "m"]

    def columns(self, name: str) -> str:
        """Return the C expression of the length of a vector that is multiplied by a weight matrix.

        `name` is x, last (x of the previous step), h (or Q h, if the recurrent weights are low-rank), c or m.
        """
        recurrent = "rank" if self.low_rank else "hidden"
        sizes = {"x": "inputs", "last": "inputs", "h": recurrent, "c": "hidden", "m": "middle"}
        return f"layer->{sizes[name]}"

    @property
    def kept_apart(self) -> list[int]:
        """Indices of the states whose new values are first written to a buffer.

        Neurons are computed one by one, and the dot products of later neurons still read the old states. With int8
        weights, the dot products read quantised copies of the states, so that no state needs a buffer.
        """
        if self.int8:
            return []
        read = {product.name for product in self.products if not product.mid}
        return [i for i, name in enumerate("hc") if name in read and not (i == 0 and self.low_rank)]

    @property
    def lists_neurons(self) -> bool:
        """True if the rule decides for each neuron, so that a step works on a list of neurons."""
        return self.rule.decides_per_neuron

    @property
    def remembers(self) -> bool:
        return bool(self.rule.memories)


def kind_of(layer: LayerContent, number: int) -> LayerKind:
    """Return the kind of a layer; `number` is the count of earlier kinds in the model with the same C identifier."""
    gates, cell = set(biased_gates(layer)), layer.cell
    kept = set(_kept_gates(cell, layer.rule))
    added = gates - kept
    groups = tuple(set(cell.group(mid=mid)) for mid in (True, False))
    biased = (bool(added & groups[0]), bool(added & groups[1]))
    low_rank, grouped = "Q" in layer.weights, layer.group_size > 1
    weights = type_of(layer.weights["W"])
    kind = LayerKind(layer.name, number, cell, layer.rule, biased, low_rank, bool(gates & kept), weights, grouped)
    # sums of blocks start from a bias, which may be 0
    if not kind.blocked:
        return kind
    narrow = layer.inputs if layer.inputs <= _NARROW else 0
    return replace(kind, biased=(bool(groups[0]), bool(groups[1])), narrow=narrow)


def _kept_gates(cell: CellTable, rule: RuleTable) -> list[int]:
    return [g for g, terms in enumerate(cell.gates) if terms & (TERMS["x"] | TERMS["h"]) and rule.keeps_sums]


def kind_key(layer: LayerContent) -> Hashable:
    """Return a dictionary key that is equal for layers with the same C code."""
    kind = kind_of(layer, 0)
    return kind.name, kind.cell, kind.biased, kind.sums_biased, kind.weights, kind.groups, kind.narrow


def quantised(kind: LayerKind) -> list[str]:
    """Return the names of the vectors that a step quantises for products with int8 weights; none for float32."""
    if not kind.int8:
        return []
    return kind.vectors + ["m"] * any(product.name == "m" for product in kind.products)


def depth(layer: LayerContent, vector: str) -> int:
    """Return the length of the vector that multiplies a weight matrix of a layer: the number of its columns.

    Args:
        layer: The layer.
        vector: Name of the vector: x, last (x of the previous step), h (Q h for low-rank weights R Q), c or m.

    Returns:
        The length.
    """
    recurrent = len(layer.weights["Q"].values) if "Q" in layer.weights else layer.hidden
    return {"x": layer.inputs, "last": layer.inputs, "h": recurrent, "c": layer.hidden, "m": layer.middle}[vector]


def largest_quantised(depth: int) -> int:
    """Return the largest magnitude of quantised inputs with which no int32 sum of products overflows.

    A sum has `depth` products of an int16 input and an int8 weight. The result is at most 127 * 257 = 32639, the bound
    that the native library has, too.
    """
    return min(_MOST_INT16, _MOST_INT32 // (127 * max(depth, 1)))


@dataclass(frozen=True)
class Field:
    """An array in the C struct of a model's state.

    Attributes:
        type: C type of an element.
        name: Name of the array.
        count: Number of elements; an array with 0 elements is left out of the struct.
        comment: Comment beside the array in the C code.
    """

    type: str
    name: str
    count: int
    comment: str


def workspace(layer: LayerContent, kind: LayerKind) -> list[Field]:
    """Return the temporary arrays that a step of a layer needs.

    The list has the same arrays in the same order for every layer. An array that the layer does not need has a count
    of 0.
    """
    rank = len(layer.weights["Q"].values) if kind.low_rank else 0
    fields = [
        Field("float", "next", len(kind.kept_apart) * layer.hidden, "new states"),
        Field("float", "middle", layer.middle * (kind.cell.mid is not None), "m"),
        Field("float", "low_rank", rank, "Q h"),
        Field("float", "scores", layer.hidden * (kind.lists_neurons and kind.remembers), "scores of the rule"),
    ]
    # padded to a multiple of 4, as products read two neighbouring 16-bit numbers at once
    for vector in ("x", "last", "h", "c", "m"):
        count = padded(depth(layer, vector)) if vector in quantised(kind) else 0
        fields.append(Field("int16_t", f"quantised_{vector}", count, f"{vector}, quantised"))
    return [*fields, Field("uint16_t", "active", layer.hidden * kind.lists_neurons, "neurons to update")]
