# SPDX-License-Identifier: Apache-2.0
"""Description of a layer from which its Triton kernels are generated: gates, sizes, update rule and equations."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from edgernn.cells.base import Gate
from edgernn.kernels.pointwise import Pointwise

if TYPE_CHECKING:
    from edgernn.kernels.backward import BackwardSource
    from edgernn.kernels.forward import ForwardSource

# values of h that products read under a rule of the kind COLUMN: an input and an output of the torch op `sequence`
SENT_H = "sent_h"


@dataclass(frozen=True)
class Product:
    """One matrix-vector product of a step: the rows of a weight matrix that belong to a gate, times a vector.

    The vector is a state of the cell, or its intermediate vector m (result of `Cell.mid`), which has the size M.

    Attributes:
        key: Name of the weight matrix: "R" multiplies the first state, "C" the second state, "V" multiplies m.
        gate: Name of the gate.
        offset: Index of the gate's first row in the matrix.
        rows: Symbol of the number of rows, "H" or "M".
        columns: Symbol of the number of columns, "H" or "M".
        factor: Name of the vector in the kernel, such as "s_h" for the state h; "m" for the intermediate vector;
            `SENT_H` for the values that products read in place of h.
    """

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
    """Equations of an update rule, which decides which neurons change at a step, for the Triton kernels.

    A subclass for each kind of rule has the fragments of the kernels that depend on the kind (see the module `rule`).
    `PerColumn` has none: all neurons change under it (`LayerSpec.threshold`).

    Attributes:
        vectors: Pairs of name and size of the rule's weights that the equations read. The size is "H" for a weight with
            one value per neuron or group of neurons, and "1" for a weight with a single value.
        memory: Names of the rule's own states, which have one value per decision.
        inclusive: True if a neuron is updated where the rule's score (`Scored.score`) is 0 or more. False if the
            score must be above 0.
        maps: Triton functions generated from the methods of `Scored` that define the rule: `score` and
            `likelihood`, and `evidence`, `drive` and `advance` if the rule has own states. None for two kinds: under
            `Timed` the update mask u is an input of the kernel, `blend`. Under `ByGate` the neurons with the largest
            scores change; the only weight is their number.
        blend_grad: True if the gradient of the update mask `blend` is needed, because the rule has learned weights.
        group_size: Number of neighbouring neurons that share a decision.
        detaches_state: True if no gradient flows from a decision to the cell's states (`UpdateRule.detaches_state`).
        gate: Only under `ByGate`: name of the cell's update gate, whose pre-activations times `sign` are the scores.
        sign: 1 or -1, see `UpdateGate.sign`.
        per_sample: True if a decision is for the whole state of a sample.
        selects: True if a kernel of its own selects the neurons that change.
    """

    vectors: tuple[tuple[str, str], ...] = ()
    memory: tuple[str, ...] = ()
    inclusive: bool = False
    maps: tuple[Pointwise, ...] = ()
    blend_grad: bool = False
    group_size: int = 1
    detaches_state: bool = False
    gate: str = ""
    sign: int = 1
    per_sample: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    def map(self, method: str) -> Pointwise:
        """Return the Triton functions in `maps` for a method of the update rule, such as "score"."""
        return next(part for part in self.maps if part.name == f"rule_{method}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the kernel's inputs for the update rule, except the rule's own states.

        They are the rule's weights. The name "e" comes before them if the method `Scored.score` reads e, the part of
        the rule's score that depends on the layer's input x alone (`UpdateRule.project`).
        """
        reads_e = any(part.name == "rule_score" and "e" in part.arguments for part in self.maps)
        return (*(["e"] if reads_e else []), *(name for name, _ in self.vectors))

    @property
    def evidence_states(self) -> tuple[str, ...]:
        """Names of the cell states that the rule's method `evidence` reads.

        Empty if the rule has no states of its own, because `evidence` is then not used.
        """
        if not self.memory:
            return ()
        return tuple(a[2:] for a in self.map("evidence").arguments if a.startswith("s_"))

    def begin_step(self, kernel: "ForwardSource") -> None:
        """Append the part of a forward step before the products."""

    def select(self, kernel: "ForwardSource") -> None:
        """Append code that computes the update mask u of a tile of neurons."""

    def blend(self, new: str, old: str) -> str:
        """Return a Triton expression that blends a new state and an old one by the update mask."""
        return f"tl.where(u, {new}, {old})"

    def remember(self, kernel: "ForwardSource") -> None:
        """Append code that computes the rule's own states after the new states of a tile of neurons."""

    def end_step(self, kernel: "ForwardSource") -> None:
        """Append the part of a forward step after the new states."""

    def begin_step_back(self, kernel: "BackwardSource") -> None:
        """Append the part of a backward step before the gradients of the states."""

    def remember_back(self, kernel: "BackwardSource") -> None:
        """Append code that propagates gradients through the rule's own states after a tile of new states."""

    def blend_back(self, kernel: "BackwardSource") -> None:
        """Append code that propagates gradients through `blend` and `select`.

        The gradients of the blended states become those of the new states, of the old ones and of the update mask.
        """
        raise NotImplementedError(f"{type(self).__name__}: expected a method blend_back(); define it")

    def end_step_back(self, kernel: "BackwardSource") -> None:
        """Append the part of a backward step after the gradients of the states."""


@dataclass(frozen=True)
class LayerSpec:
    """Description of a layer that determines its Triton kernels: gates, sizes, update rule and equations.

    The kernels keep the pre-activations of all gates in one tensor p (T, B, P). Its P columns are one block for each
    gate. Gates with the term W x come first, in the order of the rows of W.

    Attributes:
        name: Names of the layer's cell and rule (`RecurrentLayer.kernel_name`).
        gates: Gates of the cell.
        states: Names of the cell's states, all of size H.
        H: Size of a state: the number of neurons.
        M: Size of the cell's intermediate vector m (`Cell.mid`).
        X: Number of columns of the input x: I, or 2I if the cell also reads the previous input.
        vectors: Pairs of name and size, "H", "M" or "1", of the cell's parameter vectors.
        biases: Names of the vectors with the biases of gates that do not read x: "bR" for gates whose first term is
            R h (h is the first state), "bC" for C c (c is the second state), "bV" for V m.
        update: Triton functions of `Cell.update`.
        mid: Triton functions of `Cell.mid`; None for cells without it.
        rule: Equations of the update rule; None for a rule that updates every neuron at every step.
        threshold: Only for a rule of the kind COLUMN, else "": name of its weight Θ_h. Products read the values
            `SENT_H` in place of h. At each step, these take over the values of h that differ from them by more than
            Θ_h.
        learns_threshold: True if the gradient of Θ_h is needed.
        straight_through: Only for a rule of the kind COLUMN: False if the gradient of a value that products keep
            reading goes to the step before, not to h (`PerColumn.straight_through`).
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
    threshold: str = ""
    learns_threshold: bool = False
    straight_through: bool = True

    def size(self, gate: Gate) -> str:
        return "M" if gate.mid else "H"

    def length(self, size: str) -> int:
        return {"H": self.H, "M": self.M, "U": self.groups, "1": 1}[size]

    @property
    def group_size(self) -> int:
        """Number of neighbouring neurons that share an update decision; 1 without groups or without a rule."""
        return self.rule.group_size if self.rule else 1

    @property
    def groups(self) -> int:
        return -(-self.H // self.group_size)

    @property
    def decision_size(self) -> str:
        """Symbol of the size of the vectors from which updates are decided.

        It is "U", the number of groups, if groups of neurons share decisions, else "H". The vectors are e, the part of
        the rule's score that depends on x alone (`UpdateRule.project`), and the rule's weights, except weights with a
        single value.
        """
        return "U" if self.group_size > 1 else "H"

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Dict from the name of a gate to the index of its first column in the pre-activations p (T, B, P)."""
        offsets, at = {}, 0
        for gate in sorted(self.gates, key=lambda g: not g.x):
            offsets[gate.name] = at
            at += self.length(self.size(gate))
        return offsets

    @property
    def A(self) -> int:
        """Number of columns of all gates with the term W x, which are the first columns of the pre-activations p."""
        return sum(self.length(self.size(g)) for g in self.gates if g.x)

    @property
    def P(self) -> int:
        return sum(self.length(self.size(g)) for g in self.gates)

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """Matrix-vector products of a step: first with R, then with C, then with V, each in the order of the gates."""
        products = []
        for key, term, columns, factor in (
            ("R", "h", "H", SENT_H if self.threshold else f"s_{self.states[0]}"),
            ("C", "c", "H", f"s_{self.states[min(1, len(self.states) - 1)]}"),
            ("V", "m", "M", "m"),
        ):
            at = 0
            for gate in self.gates:
                if getattr(gate, term):
                    products.append(Product(key, gate.name, at, self.size(gate), columns, factor))
                    at += self.length(self.size(gate))
        return tuple(products)

    def bias(self, gate: Gate) -> tuple[str, int] | None:
        """Return the place of a gate's bias: the name of a vector in `biases`, and the offset of the bias in it.

        Return None for a gate without a bias. Return None also for a gate with the term W x, because its bias is
        already in the kernel's input a = W x + b.
        """
        if gate.x or not gate.bias:
            return None
        return next(((f"b{p.key}", p.offset) for p in self.products if p.gate == gate.name), None)

    @property
    def reads_x(self) -> bool:
        return any("x" in part.arguments for part in (self.update, self.mid) if part is not None)

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the rule's own states (memories), which it carries from step to step."""
        return self.rule.memory if self.rule else ()

    @property
    def sample_memory(self) -> tuple[str, ...]:
        """Names of the rule's own states (memories) if they have one value per sample; else empty."""
        return self.memory if self.rule and self.rule.per_sample else ()

    @property
    def neuron_memory(self) -> tuple[str, ...]:
        """Names of the rule's own states (memories) if they have one value per neuron; else empty."""
        return () if self.rule and self.rule.per_sample else self.memory

    @property
    def memory_width(self) -> int:
        return self.H if self.neuron_memory else 1

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of the torch op `sequence`, in order.

        They are: the input part a = W x + b of the gates, the input x, the weights R, C and V, and the biases that are
        not part of a, each only if the layer needs it; the cell's parameter vectors v_NAME; the inputs of the update
        rule (`Rule.inputs`); the cell's initial states s_NAME; and the rule's own initial states. For a rule of the
        kind COLUMN, Θ_h and `SENT_H` before the first step come last.
        """
        keys = [key for key in ("R", "C", "V") if any(p.key == key for p in self.products)]
        rule = self.rule.inputs if self.rule else ()
        names = [*(["a"] if self.A else []), *(["x"] if self.reads_x else []), *keys, *self.biases]
        names += [*(f"v_{name}" for name, _ in self.vectors), *rule, *(f"s_{name}" for name in self.states)]
        return (*names, *self.memory, *([self.threshold, SENT_H] if self.threshold else []))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs of the torch op `sequence`, in order.

        They are: the cell's states before the first and after each step, s_NAME (T + 1, B, H); the pre-activations p
        (T, B, P), with P columns for all gates; m, the result of `Cell.mid`, (T, B, M) if the cell has it; and the
        rule's own states, all_NAME (T + 1, B, H). For a rule that makes one decision for a whole sample (kind SAMPLE),
        all_NAME is (T + 1, B, 1), and the sum of `Scored.evidence` over the neurons follows, (T, B, 1). For
        the kind COLUMN, `SENT_H` before the first and at each step, (T + 1, B, H), replaces all_NAME. A rule of the
        kind GATE has its update mask u (T, B, H), and a scratch buffer `scores` (B, H) for its update gate at one step.
        """
        names = [*(f"s_{name}" for name in self.states), "p"]
        names += ["m"] if self.mid else []
        names += [f"all_{name}" for name in self.memory] + (["evidence"] if self.sample_memory else [])
        return (*names, *([SENT_H] if self.threshold else []), *(["u", "scores"] if self.selects else []))

    @property
    def selects(self) -> bool:
        """True if the update rule takes the neurons with the largest scores (`ByGate`)."""
        return self.rule is not None and self.rule.selects

    @cached_property
    def starts(self) -> dict[str, str]:
        """Dict from each output of the torch op `sequence` that begins with an initial state to that state's input."""
        starts = {f"s_{name}": f"s_{name}" for name in self.states} | {f"all_{name}": name for name in self.memory}
        return starts | ({SENT_H: SENT_H} if self.threshold else {})

    @cached_property
    def forward_inputs(self) -> tuple[str, ...]:
        """Names of the inputs of the torch op `sequence` that the forward kernel reads, in order.

        It reads the initial states as the first entries of outputs.
        """
        return tuple(name for name in self.inputs if name not in self.starts.values())

    @cached_property
    def backward_inputs(self) -> tuple[str, ...]:
        """Names of the inputs and outputs of the torch op `sequence` that the backward kernel reads, in order."""
        unread = {"a", *self.biases, self.threshold, "m", "scores"} | ({SENT_H} if self.straight_through else set())
        return tuple(name for name in (*self.forward_inputs, *self.outputs) if name not in unread)

    @cached_property
    def sums(self) -> dict[str, tuple[str, str]]:
        """Description of the gradients of parameter vectors, which the backward kernel sums over the steps.

        If several Triton functions read a vector, each has a sum of its own, and the gradient is the total. The result
        is a dict from the name of a sum, FUNCTION_VECTOR, such as "update_alpha", to a pair: the name of the vector
        among the inputs of the torch op `sequence`, and the symbol of the sum's size, such as "H".
        """
        sizes = dict(self.vectors)
        sums: dict[str, tuple[str, str]] = {}
        for part in (self.mid, self.update):
            if part is not None:
                sums |= {
                    f"{part.name}_{v}": (f"v_{v}", "M" if part is self.mid else "H")
                    for v in part.arguments
                    if v in sizes
                }
        if self.rule is None:
            return sums
        for part in self.rule.maps:
            # of a decision per sample, only the evidence is per neuron
            size = "1" if self.rule.per_sample and part.name != "rule_evidence" else self.decision_size
            sums |= {f"{part.name}_{v}": (v, size) for v, _ in self.rule.vectors if v in part.arguments}
        return sums

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """Names of the outputs of the backward kernel, in order; parts that a model does not need are left out.

        - Gradients at every step: d_p (pre-activations), d_x (input), d_e (input part of the rule's score), d_blend
          (update mask).
        - Gradients of the initial states of the cell and of the rule: d_s_NAME and d_NAME, and of `SENT_H` before the
          first step (not `straight_through`).
        - d_u, a scratch buffer for the gradient of the update mask at one step, if groups of neurons share decisions.
        - sum_NAME, the gradient of a parameter vector, summed over the steps, for each NAME in `sums`.
        """
        names = ["d_p", *(["d_x"] if self.reads_x else []), *(["d_e"] if "e" in self.inputs else [])]
        names += ["d_blend"] if self.rule and self.rule.blend_grad else []
        names += [f"d_s_{name}" for name in self.states] + [f"d_{name}" for name in self.memory]
        names += [] if self.straight_through else [f"d_{SENT_H}"]
        names += ["d_u"] if self.group_size > 1 else []
        return (*names, *(f"sum_{name}" for name in self.sums))

    @cached_property
    def output_grads(self) -> tuple[str, ...]:
        """Names of the outputs of `sequence` whose gradients the backward kernel reads: the states of cell and rule."""
        return (*(f"s_{name}" for name in self.states), *(f"all_{name}" for name in self.memory))
