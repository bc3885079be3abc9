# SPDX-License-Identifier: Apache-2.0
"""Generator of the Triton code for the backward pass of an update rule: through its update mask and its own states."""

from edgernn.kernels.layout import Rule
from edgernn.kernels.pointwise import Pointwise
from edgernn.kernels.writer import KernelSource


class RuleGradients(KernelSource):
    """Generator of the part of a layer's backward kernel that depends on the update rule.

    Most methods append Triton code, and their docstrings say what this code does. u is the mask of updated neurons. The
    rule's own states (memories) after a step are computed in three stages: `UpdateRule.evidence` reads the cell's new
    states, `UpdateRule.drive` reads the evidence, and `UpdateRule.advance` reads the drive.
    """

    def memory_grads(self, rule: Rule) -> None:
        """Append code that propagates gradients backwards through one step of the update rule's own states.

        The code reads the gradients with respect to the states after the step. It computes the gradients with respect
        to the states before the step, to the update mask u and to the result of `UpdateRule.evidence`.
        """
        if not self.resident:
            self.read_memory()
        for name in self.layout.sample_memory:
            self.put(f"if HAS_all_{name}:", f"    to_{name} += y_{name}")
        self.decide(rule)
        if rule.kind == "NEURON":
            self.put(f"evidence = rule_evidence({', '.join(self.after_step(rule.map('evidence')))})")
        self.put(
            "changes = u", "u = tl.where(u, 1.0, 0.0)", f"drive = rule_drive({', '.join(rule.map('drive').arguments)})"
        )
        self.through(rule.map("advance"), [f"to_{name}" for name in rule.memory])
        for name in rule.memory:
            self.put(f"before_{name} = {self.grad_of(rule.map('advance'), name)}")
        self.put(f"to_u = {self.grad_of(rule.map('advance'), 'u')}")
        self.through(rule.map("drive"), [self.grad_of(rule.map("advance"), "drive")])
        self.put(f"to_evidence = {self.grad_of(rule.map('drive'), 'evidence')}", "u = changes")

    def evidence_grads(self, rule: Rule) -> None:
        """Propagate the gradient of the result of `UpdateRule.evidence` to the cell's new states, which it reads."""
        part = rule.map("evidence")
        self.through(part, ["to_evidence"], self.after_step(part))
        for state in rule.evidence_states:
            self.put(f"d_{state} += {self.grad_of(part, f's_{state}')}")

    @staticmethod
    def after_step(evidence: Pointwise) -> tuple[str, ...]:
        """Return the names of the variables that the generated code passes to the function for `UpdateRule.evidence`.

        `UpdateRule.evidence` reads the cell's states after a step. In the generated code, `s_h` is the state h before
        the step and `after_h` the one after it. The argument `s_h` therefore gets the variable `after_h`. Any other
        argument gets the variable of its own name.
        """
        return tuple(f"after_{a[2:]}" if a.startswith("s_") else a for a in evidence.arguments)

    def decision_grads(self, rule: Rule, to_u: str) -> None:
        """Append code that propagates the gradient of the update mask u to the arguments of `UpdateRule.score`.

        u is computed from the score. `to_u` is a Triton expression for the gradient of u.
        """
        self.through(rule.map("likelihood"), [to_u])
        to_score = self.grad_of(rule.map("likelihood"), "score")
        if rule.memory and "score" in rule.map("advance").arguments:
            to_score += f" + {self.grad_of(rule.map('advance'), 'score')}"
        self.through(rule.map("score"), [to_score], self.score_arguments(rule))
        if "e" in rule.map("score").arguments:
            self.store(self.grad_of(rule.map("score"), "e"), self.layout.decision_size, "d_e")
        for name in rule.memory:
            self.put(f"to_{name} = before_{name} + {self.grad_of(rule.map('score'), name)}")

    def through(self, part: Pointwise, grads: list[str], values: tuple[str, ...] = ()) -> None:
        """Propagate gradients from the results of a method of the update rule to the method's arguments.

        The gradients of the rule's weights are added to their sums over the steps.

        Args:
            part: Triton functions of the method.
            grads: Triton expressions for the gradients of the results.
            values: Triton expressions for the arguments. Default: variables with the names of the arguments.
        """
        names = ", ".join(f"grad_{part.name}_{argument}" for argument in part.arguments)
        self.put(f"{names} = {part.name}_back({', '.join((*grads, *(values or part.arguments)))})")
        for argument in part.arguments:
            if (name := f"{part.name}_{argument}") in self.layout.sums:
                self.add(name, f"grad_{name}", self.layout.sums[name][1])

    @staticmethod
    def grad_of(part: Pointwise, argument: str) -> str:
        """Return the name of the variable, in the generated code, for the gradient of an argument of a rule's method.

        The code that `through` generates assigns this variable. Return "0.0" if the method does not read the argument.
        """
        return f"grad_{part.name}_{argument}" if argument in part.arguments else "0.0"

    def read_memory(self) -> None:
        """Append code that loads the values of the update rule's own states from before the step.

        If these states have one value per sample, the forward pass has summed the results of `UpdateRule.evidence` over
        the neurons at each step. The code also loads this sum. If the loss reads these states directly, the code also
        loads the gradients of the loss with respect to them.
        """
        for name in self.layout.neuron_memory:
            self.load(name, "H", f"all_{name}")
        for name in self.layout.sample_memory:
            self.put(
                f"{name} = tl.load(all_{name}_ptr + at, live, 0.0)",
                f"if HAS_all_{name}:",
                f"    y_{name} = tl.load(y_all_{name}_ptr + at + B, live, 0.0)",
            )
        if self.layout.sample_memory:
            self.put("evidence = tl.load(evidence_ptr + at, live, 0.0)")

    def rule_grads(self) -> None:
        """Propagate gradients through one step's blend of states: u · new + (1 - u) · old.

        u is the mask of updated neurons, `new` are the states that the cell computes, and `old` the states before the
        step. The gradients of the blended states become those of new, old and u.
        """
        layout, states = self.layout, self.layout.states
        rule = layout.rule
        if rule is None:
            for state in states:
                self.put(f"dn_{state} = d_{state}", f"d_{state} = tl.zeros_like(d_{state})")
            return
        if rule.has_grad:
            self.grad_of_u()
        new, old = "tl.where(u, d_{0}, 0.0)", "tl.where(u, 0.0, d_{0})"
        if rule.kind == "NEURON":
            if not rule.memory:
                self.decide(rule)
            if rule.group_size > 1:
                self._sum_over_groups()
            self.decision_grads(rule, "by_u + to_u" if rule.memory else "by_u")
        elif rule.kind == "SAMPLE":
            self.put("to_u += tl.sum(tl.where(h_mask, by_u, 0.0), 1, keep_dims=True)")
        elif rule.kind == "TIME":
            new, old = "blend * d_{0}", "(1.0 - blend) * d_{0}"
            if rule.blend_grad:
                self.store("by_u", "H", "d_blend")
        for state in states:
            self.put(f"dn_{state} = {new.format(state)}", f"d_{state} = {old.format(state)}")
            reads = rule.kind == "NEURON" and f"s_{state}" in rule.map("score").arguments
            if reads and not rule.detaches_state:
                share = " * u_share" if rule.group_size > 1 else ""
                self.put(f"d_{state} += {self.grad_of(rule.map('score'), f's_{state}')}{share}")

    def grad_of_u(self) -> None:
        """Compute the variable by_u, the gradient of the update mask u, from the gradients of the states."""
        states = self.layout.states
        new_states = ", ".join(f"n_{state}" for state in states)
        self.put(f"{new_states} = update({self.arguments(self.layout.update)})")
        self.put("by_u = " + " + ".join(f"d_{s} * (n_{s} - s_{s})" for s in states))

    def _sum_over_groups(self) -> None:
        """Replace by_u, the gradient of the update mask u, by its sum over each group of neurons that share u."""
        if self.resident and self.loads_groups:
            self.store("by_u", "H", "d_u", "row")
            self.put("tl.debug_barrier()")
        self.put("by_u = tl.where(h_mask, by_u, 0.0)", f"by_u = {self.group_sums('by_u', 'd_u_ptr + row * H')}")
        if self.resident and self.loads_groups:
            # the next step must not overwrite it before all threads have loaded it
            self.put("tl.debug_barrier()")

    def add(self, name: str, value: str, size: str = "H") -> None:
        """Add the Triton expression `value` to the variable sum_NAME, a gradient that is summed over the steps.

        `size` is the symbol of the gradient's size. The sum is in registers if the size is "1" or the kernel has the
        resident form (states in registers), else in memory.
        """
        if self.resident or size == "1":
            self.put(f"sum_{name} += {value}")
            return
        self.load(f"sum_{name}", size, f"sum_{name}", "row")
        self.put(f"sum_{name} += {value}")
        self.store(f"sum_{name}", size, f"sum_{name}", "row")
