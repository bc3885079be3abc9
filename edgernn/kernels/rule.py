# SPDX-License-Identifier: Apache-2.0
"""The fragments of the Triton kernels that depend on the kind of a layer's update rule, forward and backward.

u is the mask of updated neurons. The rule's own states (memories) after a step are computed in three stages:
`Scored.evidence` reads the cell's new states, `Scored.drive` reads the evidence, and `Scored.advance` reads the drive.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgernn.kernels.layer_spec import Rule
from edgernn.kernels.pointwise import Pointwise

if TYPE_CHECKING:
    from edgernn.kernels.backward import BackwardSource
    from edgernn.kernels.forward import ForwardSource


@dataclass(frozen=True)
class TimeRule(Rule):
    """The kind `Timed`, whose update mask is the only input of the kernels: `blend`, which may be soft."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("blend",)

    def blend(self, new: str, old: str) -> str:
        return f"lerp({old}, {new}, blend)"

    def blend_back(self, kernel: "BackwardSource") -> None:
        kernel.grad_of_u()
        if self.blend_grad:
            kernel.store("by_u", "H", "d_blend")
        for state in kernel.spec.states:
            kernel.put(f"dn_{state} = blend * d_{state}", f"d_{state} = (1.0 - blend) * d_{state}")


@dataclass(frozen=True)
class GateRule(Rule):
    """The kind `ByGate`, which takes the neurons with the largest scores. The choice passes no gradient on."""

    selects: ClassVar[bool] = True

    def select(self, kernel: "ForwardSource") -> None:
        if kernel.resident:
            kernel.put(f"u = {largest(self, f'g_{self.gate}', 'h_mask')}")
            kernel.store("u", "H", "u")

    def blend_back(self, kernel: "BackwardSource") -> None:
        _divide_grads(kernel)


@dataclass(frozen=True)
class ScoredRule(Rule):
    """The kinds that update where a score is above 0."""

    def evidence(self, kernel: "ForwardSource") -> str:
        """Return a Triton expression for the evidence of a tile of neurons after its new states."""
        values = (f"n_{a[2:]}" if a.startswith("s_") else a for a in self.map("evidence").arguments)
        return f"rule_evidence({', '.join(values)})"

    def advance(self, kernel: "ForwardSource") -> None:
        """Append code that computes the rule's own states after a step from the variables evidence and u."""
        kernel.put(
            f"drive = rule_drive({', '.join(self.map('drive').arguments)})",
            "u = tl.where(u, 1.0, 0.0)",
            f"{', '.join(self.memory)} = rule_advance({', '.join(self.map('advance').arguments)})",
        )

    def find_evidence(self, kernel: "BackwardSource") -> None:
        """Append code that computes the variable evidence again in the backward pass, if it was not stored."""

    def memory_grads(self, kernel: "BackwardSource") -> None:
        """Append code that propagates gradients backwards through one step of the update rule's own states.

        The code reads the gradients with respect to the states after the step. It computes the gradients with respect
        to the states before the step, to the update mask u and to the result of `Scored.evidence`.
        """
        if not kernel.resident:
            kernel.read_memory()
        for name in kernel.spec.sample_memory:
            kernel.put(f"if HAS_all_{name}:", f"    to_{name} += y_{name}")
        kernel.decide(self)
        self.find_evidence(kernel)
        kernel.put(
            "changes = u", "u = tl.where(u, 1.0, 0.0)", f"drive = rule_drive({', '.join(self.map('drive').arguments)})"
        )
        _through(kernel, self.map("advance"), [f"to_{name}" for name in self.memory])
        for name in self.memory:
            kernel.put(f"before_{name} = {_grad_of(self.map('advance'), name)}")
        kernel.put(f"to_u = {_grad_of(self.map('advance'), 'u')}")
        _through(kernel, self.map("drive"), [_grad_of(self.map("advance"), "drive")])
        kernel.put(f"to_evidence = {_grad_of(self.map('drive'), 'evidence')}", "u = changes")

    def remember_back(self, kernel: "BackwardSource") -> None:
        if not self.memory:
            return
        part = self.map("evidence")
        _through(kernel, part, ["to_evidence"], _after_step(part))
        for state in self.evidence_states:
            kernel.put(f"d_{state} += {_grad_of(part, f's_{state}')}")

    def decision_grads(self, kernel: "BackwardSource", to_u: str) -> None:
        """Append code that propagates the gradient of the update mask u to the arguments of `Scored.score`.

        u is computed from the score. `to_u` is a Triton expression for the gradient of u.
        """
        score, likelihood = self.map("score"), self.map("likelihood")
        _through(kernel, likelihood, [to_u])
        to_score = _grad_of(likelihood, "score")
        if self.memory and "score" in self.map("advance").arguments:
            to_score += f" + {_grad_of(self.map('advance'), 'score')}"
        _through(kernel, score, [to_score], kernel.score_arguments(self))
        if "e" in score.arguments:
            kernel.store(_grad_of(score, "e"), kernel.spec.decision_size, "d_e")
        for name in self.memory:
            kernel.put(f"to_{name} = before_{name} + {_grad_of(score, name)}")


@dataclass(frozen=True)
class SampleRule(ScoredRule):
    """The kind `PerSample`, which decides before a step, and sums the evidence of the neurons for its states."""

    per_sample: ClassVar[bool] = True

    def begin_step(self, kernel: "ForwardSource") -> None:
        kernel.decide(self)
        kernel.put("evidence = tl.zeros((ROWS, 1), tl.float32)")

    def remember(self, kernel: "ForwardSource") -> None:
        if self.memory:
            kernel.put(f"evidence += tl.sum(tl.where(h_mask, {self.evidence(kernel)}, 0.0), 1, keep_dims=True)")

    def end_step(self, kernel: "ForwardSource") -> None:
        kernel.put("tl.store(evidence_ptr + at, evidence, live)")
        self.advance(kernel)
        for name in self.memory:
            kernel.put(f"tl.store(all_{name}_ptr + at + B, {name}, live)")

    def begin_step_back(self, kernel: "BackwardSource") -> None:
        self.memory_grads(kernel)

    def blend_back(self, kernel: "BackwardSource") -> None:
        kernel.grad_of_u()
        kernel.put("to_u += tl.sum(tl.where(h_mask, by_u, 0.0), 1, keep_dims=True)")
        _divide_grads(kernel)

    def end_step_back(self, kernel: "BackwardSource") -> None:
        self.decision_grads(kernel, "to_u")


@dataclass(frozen=True)
class NeuronRule(ScoredRule):
    """The kind `PerNeuron`."""

    def select(self, kernel: "ForwardSource") -> None:
        kernel.decide(self)

    def remember(self, kernel: "ForwardSource") -> None:
        if not self.memory:
            return
        kernel.put(f"evidence = {self.evidence(kernel)}")
        self.advance(kernel)
        for name in self.memory:
            kernel.put(f"{name} = tl.where(h_mask, {name}, 0.0)")
            kernel.store(name, "H", f"all_{name}", "(at + B)")

    def find_evidence(self, kernel: "BackwardSource") -> None:
        kernel.put(f"evidence = rule_evidence({', '.join(_after_step(self.map('evidence')))})")

    def remember_back(self, kernel: "BackwardSource") -> None:
        if self.memory:
            self.memory_grads(kernel)
        super().remember_back(kernel)

    def blend_back(self, kernel: "BackwardSource") -> None:
        kernel.grad_of_u()
        if not self.memory:
            kernel.decide(self)
        if self.group_size > 1:
            kernel.sum_over_groups()
        self.decision_grads(kernel, "by_u + to_u" if self.memory else "by_u")
        score = self.map("score")
        read = [state for state in kernel.spec.states if f"s_{state}" in score.arguments and not self.detaches_state]
        share = " * u_share" if self.group_size > 1 else ""
        _divide_grads(kernel, {state: f"{_grad_of(score, f's_{state}')}{share}" for state in read})


def largest(rule: Rule, gate: str, mask: str) -> str:
    """Return a Triton expression for the update mask u of a rule of the kind `ByGate`.

    `gate` is the name of a tile with all columns of the update gate's pre-activations, and `mask` that of the mask of
    columns that exist.
    """
    ((k, _),) = rule.vectors
    return f"largest({'-' if rule.sign < 0 else ''}{gate}, {mask}, {k})"


def _divide_grads(kernel: "BackwardSource", added: dict[str, str] | None = None) -> None:
    """Pass the gradient of a state to the new state where u is true, else to the old one, and add `added` to that."""
    for state in kernel.spec.states:
        kernel.put(f"dn_{state} = tl.where(u, d_{state}, 0.0)", f"d_{state} = tl.where(u, 0.0, d_{state})")
        if added and state in added:
            kernel.put(f"d_{state} += {added[state]}")


def _after_step(evidence: Pointwise) -> tuple[str, ...]:
    """Name the arguments of `Scored.evidence`: `s_h` is the state h before the step, and `after_h` the one after it."""
    return tuple(f"after_{a[2:]}" if a.startswith("s_") else a for a in evidence.arguments)


def _through(kernel: "BackwardSource", part: Pointwise, grads: list[str], values: tuple[str, ...] = ()) -> None:
    """Propagate gradients from the results of a method of the update rule to the method's arguments."""
    names = ", ".join(f"grad_{part.name}_{argument}" for argument in part.arguments)
    kernel.put(f"{names} = {part.name}_back({', '.join((*grads, *(values or part.arguments)))})")
    for argument in part.arguments:
        if (name := f"{part.name}_{argument}") in kernel.spec.sums:
            kernel.add(name, f"grad_{name}", kernel.spec.sums[name][1])


def _grad_of(part: Pointwise, argument: str) -> str:
    """Name the variable that `_through` assigns to the gradient of an argument; "0.0" if it is not read."""
    return f"grad_{part.name}_{argument}" if argument in part.arguments else "0.0"
