# SPDX-License-Identifier: Apache-2.0
"""Kinds of layers: the products, workspace and vectors of their C code."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from edgernn.runtime.firmware.equations import C, CellTable, H, M, RuleTable, X
from edgernn.runtime.firmware.packed_content import LayerContent, biased_gates
from edgernn.runtime.firmware.pointwise_c import identifier
from edgernn.runtime.firmware.weight_arrays import padded

# bound of quantised inputs, and of their products with int8 weights, as in runtime/csrc/cpu/low_precision.h
_MOST_INT16, _MOST_INT32 = 127 * 256 + 127, 2**31 - 1


@dataclass(frozen=True)
class GateProduct:
    """A product of weights with a vector, for one group of gates.

    Attributes:
        name: Name of the vector: x, last (x of the last step), h, c or m.
        weight: Name of the weight: W, R, C or V.
        term: Term of the gates.
        mid: True for the gates that `mid` reads.
        gates: Indices of the gates with the term.
    """

    name: str
    weight: str
    term: int
    mid: bool
    gates: tuple[int, ...]

    @property
    def field(self) -> str:
        """Name of the weights in the layer's record."""
        return f"mid_{self.name}" if self.mid else self.name


@dataclass(frozen=True)
class LayerKind:
    """Layers with the same code.

    Attributes:
        name: Cell and rule, such as gru+selective.
        number: Number of kinds before this one whose names give the same identifier.
        cell: The cell.
        rule: The rule.
        biased: True if any gate has a bias, for mid and for update.
        low_rank: True if R is a product.
        int8: True if the matrices have int8 weights.
        groups: True if groups of neurons share a decision.
    """

    name: str
    number: int
    cell: CellTable
    rule: RuleTable
    biased: tuple[bool, bool]
    low_rank: bool
    int8: bool
    groups: bool

    @property
    def identifier(self) -> str:
        return identifier(self.name) + (f"_{self.number + 1}" if self.number else "")

    @cached_property
    def products(self) -> tuple[GateProduct, ...]:
        """All products, those that `mid` reads first."""
        cell, listed = self.cell, []
        for mid in (True, False):
            for name, weight, term in (("x", "W", X), ("last", "W", X), ("h", "R", H), ("c", "C", C), ("m", "V", M)):
                gates = tuple(cell.with_term(term, mid=mid))
                if gates and (name != "last" or cell.reads_last):
                    listed.append(GateProduct(name, weight, term, mid, gates))
        return tuple(listed)

    @property
    def vectors(self) -> list[str]:
        """Names of the vectors that products read, each once, without m."""
        return [name for name in dict.fromkeys(product.name for product in self.products) if name != "m"]

    def columns(self, name: str) -> str:
        """Return the C expression of the number of columns of a vector."""
        recurrent = "rank" if self.low_rank else "hidden"
        sizes = {"x": "inputs", "last": "inputs", "h": recurrent, "c": "hidden", "m": "middle"}
        return f"layer->{sizes[name]}"

    @property
    def kept_apart(self) -> list[int]:
        """Indices of the states whose new values wait for the end of the step, as products still read the old ones."""
        if self.int8:
            return []
        read = {product.name for product in self.products if not product.mid}
        return [i for i, name in enumerate("hc") if name in read and not (i == 0 and self.low_rank)]

    @property
    def lists_neurons(self) -> bool:
        """True if a step updates some neurons, which the decision lists."""
        return self.rule.kind == "NEURON"

    @property
    def remembers(self) -> bool:
        return bool(self.rule.memories)


def kind_of(layer: LayerContent, number: int) -> LayerKind:
    """Return the kind of a layer."""
    gates, cell = set(biased_gates(layer)), layer.cell
    biased = (bool(gates & set(cell.group(mid=True))), bool(gates & set(cell.group(mid=False))))
    int8 = layer.weights["W"].scales is not None
    return LayerKind(layer.name, number, cell, layer.rule, biased, "Q" in layer.weights, int8, layer.group_size > 1)


def kind_key(layer: LayerContent) -> Hashable:
    """Return a key that layers with the same code share."""
    kind = kind_of(layer, 0)
    return kind.name, kind.cell, kind.biased, kind.int8, kind.groups


def quantised(kind: LayerKind) -> list[str]:
    """Return the names of the vectors that are quantised, if the weights are int8."""
    if not kind.int8:
        return []
    return kind.vectors + ["m"] * any(product.name == "m" for product in kind.products)


def depth(layer: LayerContent, vector: str) -> int:
    """Return the number of columns of the weights that multiply a vector: x, last, h, c or m."""
    recurrent = len(layer.weights["Q"].values) if "Q" in layer.weights else layer.hidden
    return {"x": layer.inputs, "last": layer.inputs, "h": recurrent, "c": layer.hidden, "m": layer.middle}[vector]


def largest_quantised(depth: int) -> int:
    """Return the largest magnitude of quantised inputs: a sum of `depth` products must be below 2^31."""
    return min(_MOST_INT16, _MOST_INT32 // (127 * max(depth, 1)))


@dataclass(frozen=True)
class Field:
    """A member of the model's state in C.

    Attributes:
        type: Type of an element.
        name: Name.
        count: Number of elements.
        comment: Meaning.
    """

    type: str
    name: str
    count: int
    comment: str


def workspace(layer: LayerContent, kind: LayerKind) -> list[Field]:
    """Return what a step of a layer writes besides its states; fields that it does not need have no elements."""
    rank = len(layer.weights["Q"].values) if kind.low_rank else 0
    fields = [
        Field("float", "next", len(kind.kept_apart) * layer.hidden, "new states"),
        Field("float", "middle", layer.middle * (kind.cell.mid is not None), "m"),
        Field("float", "low_rank", rank, "Q h"),
        Field("float", "scores", layer.hidden * (kind.lists_neurons and kind.remembers), "scores of the rule"),
    ]
    # these have whole words, as pairs of their numbers are read at once
    for vector in ("x", "last", "h", "c", "m"):
        count = padded(depth(layer, vector)) if vector in quantised(kind) else 0
        fields.append(Field("int16_t", f"quantised_{vector}", count, f"{vector}, quantised"))
    return [*fields, Field("uint16_t", "active", layer.hidden * kind.lists_neurons, "neurons to update")]
