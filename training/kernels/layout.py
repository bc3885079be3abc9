# SPDX-License-Identifier: Apache-2.0
"""What the Triton kernels of a layer depend on: the tables of its cell, its sizes, its rule, its equations as text."""

from dataclasses import dataclass
from functools import cached_property

import torch

from edgernn.cell_program import GATE, INPUT, STATE, VECTOR, trace_equations
from edgernn.cells.base import Gate
from edgernn.layer import RecurrentLayer
from edgernn.rule_program import trace_rule
from edgernn.rules import Kind, UpdateRule
from edgernn.training.kernels.pointwise import Pointwise, print_map


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
class Rule:
    """A rule's equations.

    maps: score and likelihood of the kinds NEURON and SAMPLE; evidence, drive and advance of those with a `memory`,
    which has the size of the kind's decisions. A rule of the kind TIME has none: its u is given as `share`, and
    share_grad says whether the gradient of that is asked for.
    vectors: names and sizes, "H" or "1", of the weights that the equations read.
    """

    kind: Kind
    vectors: tuple[tuple[str, str], ...] = ()
    memory: tuple[str, ...] = ()
    inclusive: bool = False
    maps: tuple[Pointwise, ...] = ()
    share_grad: bool = False

    def map(self, method: str) -> Pointwise:
        """The translation of a method of the rule."""
        return next(part for part in self.maps if part.name == f"rule_{method}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the op is given for it at all steps, and its weights."""
        if self.kind is Kind.TIME:
            return ("share",)
        return (*(["e"] if "e" in self.map("score").arguments else []), *(name for name, _ in self.vectors))

    @property
    def evidence_states(self) -> tuple[str, ...]:
        """The states that the evidence is read from."""
        if not self.memory:
            return ()
        return tuple(a[2:] for a in self.map("evidence").arguments if a.startswith("s_"))


@dataclass(frozen=True)
class Layout:
    """What the kernels of a layer depend on.

    H, M, X: sizes of a state, of m, and of the columns of x. vectors: names and sizes, "H", "M" or "1", of the cell's
    own. biases: of gates without x, "bR" and so on. rule: the equations of the rule, None where u is 1 at every step.
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
    rule: "Rule | None"

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
    def memory(self) -> tuple[str, ...]:
        """The rule's memories."""
        return self.rule.memory if self.rule else ()

    @property
    def sample_memory(self) -> tuple[str, ...]:
        """Those of one number a sample."""
        return self.memory if self.rule and self.rule.kind is Kind.SAMPLE else ()

    @property
    def neuron_memory(self) -> tuple[str, ...]:
        """Those of one number a neuron."""
        return self.memory if self.rule and self.rule.kind is Kind.NEURON else ()

    @property
    def memory_width(self) -> int:
        return self.H if self.neuron_memory else 1

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What the op is given, in order."""
        keys = [key for key in ("R", "C", "V") if any(p.key == key for p in self.products)]
        rule = self.rule.inputs if self.rule else ()
        names = [*(["a"] if self.A else []), *(["x"] if self.reads_x else []), *keys, *self.biases]
        names += [*(f"v_{name}" for name, _ in self.vectors), *rule, *(f"s_{name}" for name in self.states)]
        return (*names, *self.memory)

    @cached_property
    def made(self) -> tuple[str, ...]:
        """What forward makes: all states (T + 1, B, H), p, m, the memories (T + 1, B, H or 1), the summed evidence."""
        names = [*(f"s_{name}" for name in self.states), "p"]
        names += ["m"] if self.mid else []
        return (*names, *(f"all_{name}" for name in self.memory), *(["evidence"] if self.sample_memory else []))

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
        if self.rule is None:
            return found
        for part in self.rule.maps:
            # only the evidence of the kind SAMPLE is one of neurons
            sample = self.rule.kind is Kind.SAMPLE
            size = "1" if sample and part.name != "rule_evidence" else "H"
            found |= {f"{part.name}_{v}": (v, size) for v, _ in self.rule.vectors if v in part.arguments}
        return found

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """What backward makes: of p, x, e and shares at every step, of states and memories before the first, sums."""
        names = ["d_p", *(["d_x"] if self.reads_x else []), *(["d_e"] if "e" in self.inputs else [])]
        names += ["d_share"] if self.rule and self.rule.share_grad else []
        names += [f"d_s_{name}" for name in self.states] + [f"d_{name}" for name in self.memory]
        return (*names, *(f"sum_{name}" for name in self.sums))

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Gradients that backward may be given: of what forward made."""
        return (*(f"s_{name}" for name in self.states), *(f"all_{name}" for name in self.memory))


def make_layout(layer: RecurrentLayer) -> Layout:
    """What the kernels of a layer depend on; raises ProgramError where a cell's equations have no program."""
    cell, rule = layer.cell, layer.rule
    with torch.no_grad():
        equations = trace_equations(cell, differentiable=True)
        constants = layer.constants(next(cell.parameters()).new_zeros(1, 1, cell.input_size))
    names = {GATE + i: gate.name for i, gate in enumerate(cell.gates)} | {INPUT: "x"}
    names |= {VECTOR + i: name for i, name in enumerate(equations.vectors)}
    names |= {STATE + i: f"s_{state}" for i, state in enumerate(cell.states)}
    update = print_map("update", equations.update, names)
    mid = None if equations.mid is None else print_map("mid", equations.mid, names)

    def size(name: str) -> str:
        return "1" if equations.vectors[name] == 1 else "M" if mid is not None and name in mid.arguments else "H"

    used = {*update.arguments, *(mid.arguments if mid is not None else ())}
    return Layout(
        layer.kind,
        cell.gates,
        cell.states,
        cell.hidden_size,
        cell.mid_size,
        cell.input_size * (1 + cell.reads_last),
        tuple((name, size(name)) for name in equations.vectors if name in used),
        tuple(key for key in ("bR", "bC", "bV") if key in constants),
        update,
        mid,
        _make_rule(rule, cell.states) if rule.can_skip else None,
    )


def _make_rule(rule: UpdateRule, states: tuple[str, ...]) -> Rule:
    """The equations of a rule; raises ProgramError where they have no program."""
    if rule.kind is Kind.TIME:
        return Rule(rule.kind, share_grad=any(p.requires_grad for p in rule.parameters()))
    equations = trace_rule(rule, states)
    maps = [print_map(f"rule_{method}", program, equations.names) for method, program in equations.programs.items()]
    used = {name for part in maps for name in part.arguments}
    vectors = tuple((name, size) for name, size in equations.weights.items() if name in used)
    return Rule(rule.kind, vectors, tuple(rule.memory), rule.inclusive, tuple(maps))
