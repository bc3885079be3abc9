# SPDX-License-Identifier: Apache-2.0
"""What the C code of a layer consists of: its products, states and workspace."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from edgernn.runtime.firmware.equations import C, CellTable, Equation, H, M, RuleTable, X
from edgernn.runtime.firmware.packed_content import PackedLayer, biased_gates
from edgernn.runtime.firmware.pointwise_c import identifier

# bound of quantised inputs, and of their products with int8 weights, as in runtime/csrc/cpu/low_precision.h
_MOST_INT16, _MOST_INT32 = 127 * 256 + 127, 2**31 - 1


@dataclass(frozen=True)
class Product:
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
        number: Number of kinds with the same name before this one.
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

    @property
    def update(self) -> Equation:
        return self.cell.update

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """All products, those that `mid` reads first."""
        cell, listed = self.cell, []
        for mid in (True, False):
            for name, weight, term in (("x", "W", X), ("last", "W", X), ("h", "R", H), ("c", "C", C), ("m", "V", M)):
                gates = tuple(cell.with_term(term, mid=mid))
                if gates and (name != "last" or cell.reads_last):
                    listed.append(Product(name, weight, term, mid, gates))
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


def kind_of(layer: PackedLayer, number: int) -> LayerKind:
    """Return the kind of a layer."""
    gates, cell = set(biased_gates(layer)), layer.cell
    biased = (bool(gates & set(cell.group(mid=True))), bool(gates & set(cell.group(mid=False))))
    int8 = layer.weights["W"].scales is not None
    return LayerKind(layer.name, number, cell, layer.rule, biased, "Q" in layer.weights, int8, layer.group_size > 1)


def kind_key(layer: PackedLayer) -> Hashable:
    """Return a key that layers with the same code share."""
    kind = kind_of(layer, 0)
    return kind.name, kind.cell, kind.biased, kind.int8, kind.groups


def largest_quantised(depth: int) -> int:
    """Return the largest magnitude of quantised inputs: a sum of `depth` products must be below 2^31."""
    return min(_MOST_INT16, _MOST_INT32 // (127 * max(depth, 1)))
