# SPDX-License-Identifier: Apache-2.0
"""What the Triton kernels of a layer depend on: the tables of its cell, its sizes, its rule, its equations as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from edgernn.cells.base import Gate, Gates
from edgernn.layer import RecurrentLayer
from edgernn.rules import Timed
from edgernn.training.kernels.pointwise import Pointwise, UntranslatedError, translate


@dataclass(frozen=True)
class Product:
    """A gate's rows of one weight: `offset` the first of them; factor: the state that they multiply, or m."""

    key: str
    gate: str
    offset: int
    rows: str
    columns: str
    factor: str

    @property
    def name(self) -> str:
        return f"{self.key}_{self.gate}"


@dataclass(frozen=True)
class Layout:
    """What the kernels of a layer depend on.

    H, M, X: sizes of a state, of m, and of the columns of x. vectors: names and sizes, "H", "M" or "1", of the cell's
    own. biases: of gates without x, "bR" and so on. rule: "always", "selective", "skip" or "timed", a rule whose shares
    are given; share_grad: whether their gradient is asked for.
    Pre-activations p (T, B, P) have the gates with x first, in the order of W.
    """

    name: str
    gates: tuple[Gate, ...]
    states: tuple[str, ...]
    H: int
    M: int
    X: int
    vectors: tuple[tuple[str, str], ...]
    biases: tuple[str, ...]
    update: Pointwise
    mid: Pointwise | None
    rule: str
    share_grad: bool = False

    def size(self, gate: Gate) -> str:
        return "M" if gate.mid else "H"

    def length(self, size: str) -> int:
        return {"H": self.H, "M": self.M, "1": 1}[size]

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each gate begins in p."""
        found, at = {}, 0
        for gate in sorted(self.gates, key=lambda g: not g.x):
            found[gate.name] = at
            at += self.length(self.size(gate))
        return found

    @property
    def A(self) -> int:
        """Columns of p that have a part of x."""
        return sum(self.length(self.size(g)) for g in self.gates if g.x)

    @property
    def P(self) -> int:
        return sum(self.length(self.size(g)) for g in self.gates)

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """In the order in which a step needs them."""
        found = []
        for key, term, columns, factor in (
            ("R", "h", "H", f"s_{self.states[0]}"),
            ("C", "c", "H", f"s_{self.states[min(1, len(self.states) - 1)]}"),
            ("V", "m", "M", "m"),
        ):
            at = 0
            for gate in self.gates:
                if getattr(gate, term):
                    found.append(Product(key, gate.name, at, self.size(gate), columns, factor))
                    at += self.length(self.size(gate))
        return tuple(found)

    def bias(self, gate: Gate) -> tuple[str, int] | None:
        """The vector and the place in it of the bias of a gate without x: it comes with the gate's first term."""
        if gate.x or not gate.bias:
            return None
        return next(((f"b{p.key}", p.offset) for p in self.products if p.gate == gate.name), None)

    @property
    def reads_x(self) -> bool:
        return any("x" in part.arguments for part in (self.update, self.mid) if part is not None)

    @property
    def read(self) -> str:
        """The state that the rule `skip` reads."""
        return self.states[1 if len(self.states) > 1 else 0]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What the op is given, in order."""
        keys = [key for key in ("R", "C", "V") if any(p.key == key for p in self.products)]
        rule = {"always": [], "selective": ["e", "rule_d"], "skip": ["rule_w", "rule_b"], "timed": ["share"]}[self.rule]
        names = [*(["a"] if self.A else []), *(["x"] if self.reads_x else []), *keys, *self.biases]
        names += [f"v_{name}" for name, _ in self.vectors] + rule + [f"s_{name}" for name in self.states]
        return (*names, *(["pressure"] if self.rule == "skip" else []))

    @cached_property
    def made(self) -> tuple[str, ...]:
        """What forward makes: all states (T + 1, B, H), p, m, and the pressures (T + 1, B) with their growths."""
        names = [*(f"s_{name}" for name in self.states), "p"]
        names += ["m"] if self.mid else []
        return (*names, *(["pressures", "growths"] if self.rule == "skip" else []))

    @cached_property
    def sums(self) -> dict[str, tuple[str, str]]:
        """Gradients that are summed up over time for each row: input, size; by name."""
        sizes = dict(self.vectors)
        found: dict[str, tuple[str, str]] = {}
        for part in (self.mid, self.update):
            if part is not None:
                found |= {
                    f"{part.name}_{v}": (f"v_{v}", "M" if part is self.mid else "H")
                    for v in part.arguments
                    if v in sizes
                }
        if self.rule == "selective":
            found["rule_d"] = ("rule_d", "H")
        if self.rule == "skip":
            found |= {"rule_w": ("rule_w", "H"), "rule_b": ("rule_b", "1")}
        return found

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """What backward makes: of p, x, e and shares at every step, the states' own (B, H), the pressure's, sums."""
        names = ["d_p", *(["d_x"] if self.reads_x else []), *(["d_e"] if self.rule == "selective" else [])]
        names += ["d_share"] if self.share_grad else []
        names += [f"d_s_{name}" for name in self.states] + (["d_pressure"] if self.rule == "skip" else [])
        return (*names, *(f"sum_{name}" for name in self.sums))

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Gradients that backward may be given: of what forward made."""
        return (*(f"s_{name}" for name in self.states), *(["pressures"] if self.rule == "skip" else []))


def make_layout(layer: RecurrentLayer) -> Layout:
    """What the kernels of a layer depend on; raises UntranslatedError where a cell's equations cannot be translated."""
    cell, rule = layer.cell, layer.rule
    H, I, M = cell.hidden_size, cell.input_size, cell.mid_size
    X = I * (1 + cell.reads_last)
    with torch.no_grad():
        constants = layer.constants(cell.b.new_zeros(1, 1, I) if hasattr(cell, "b") else torch.zeros(1, 1, I))
    weights = ("R", "C", "V", "bR", "bC", "bV")
    vectors = {name: value.numel() for name, value in constants.items() if name not in weights}
    # widths of tiles that stand for H, M and X: sizes that differ are not to be mixed
    places = {size: 3 + i for i, size in enumerate(dict.fromkeys((H, M, X)))}

    def part(name: str, size: int, gates: Sequence[str]) -> Pointwise:
        given = dict.fromkeys(gates, size) | {"x": X}
        given |= {v: size if n == 1 else n for v, n in vectors.items() if n in (1, size)}
        given |= {f"s_{state}": H for state in cell.states}

        def function(values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            states = tuple(values[f"s_{state}"] for state in cell.states)
            p = Gates({key: value for key, value in values.items() if not key.startswith("s_") or key in gates})
            return (cell.mid(p, states),) if name == "mid" else cell.update(p, states)

        return translate(name, function, {key: places[n] for key, n in given.items()}, places[size])

    mids = [gate.name for gate in cell.gates if gate.mid]
    mid = part("mid", M, mids) if any(gate.m for gate in cell.gates) else None
    if mid is None and mids:
        raise UntranslatedError("a gate feeds mid, which nothing reads")
    update = part("update", H, [gate.name for gate in cell.gates if not gate.mid])

    def size(name: str) -> str:
        return "1" if vectors[name] == 1 else "M" if mid is not None and name in mid.arguments else "H"

    used = {*update.arguments, *(mid.arguments if mid is not None else ())}
    return Layout(
        layer.op,
        cell.gates,
        cell.states,
        H,
        M,
        X,
        tuple((name, size(name)) for name in vectors if name in used),
        tuple(key for key in ("bR", "bC", "bV") if key in constants),
        update,
        mid,
        "timed" if isinstance(rule, Timed) else rule.name,
        isinstance(rule, Timed) and any(p.requires_grad for p in rule.parameters()),
    )
