# SPDX-License-Identifier: Apache-2.0
"""The kinds of rules that decide by the sign of a score: for each neuron (`PerNeuron`) or each sample (`PerSample`)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.rules.base import CellInputs, Decision, UpdateRule
from edgernn.rules.decision import StraightThrough


class Scored(UpdateRule):
    """Base class of rules that update where a score is above 0; derive rules from `PerNeuron` or `PerSample`.

    A rule defines `score` and `likelihood`, or overrides `decide`. u_t is 1 where the score is above 0, and has the
    gradient of the likelihood. With own states (`memory`), a rule also defines `advance`, which computes them after a
    step. The argument `drive` of `advance` is drive(evidence(the cell's new state)). `project` computes the part of the
    score that depends on x alone. Kernels are generated from the equations of `score`, `likelihood`, `advance`,
    `evidence` and `drive`, which must be point-wise.
    """

    schedules = False

    @classmethod
    def has_equations(cls) -> bool:
        return cls.score is not Scored.score

    @classmethod
    def steerable(cls) -> bool:
        return True

    @property
    def equation_memory(self) -> tuple[str, ...]:
        """Names of the rule's own states that its equations read and compute."""
        return tuple(self.memory)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Compute the score: a neuron is updated where it is above 0, or also where it is 0 if `inclusive`.

        Args:
            e: Input part of the score (B, E), one step of the result of `project`.
            state: States of the cell before the step.
            memory: The rule's own states before the step.

        Returns:
            The score (B, `groups`), by default (B, H), or (B, 1) for one decision per sample (`PerSample`).
        """
        raise NotImplementedError(f"{self.name}: a rule of the kind {self.kind} needs a method score(); define it")

    def likelihood(self, score: Tensor, slope: float) -> Tensor:
        """Compute the update likelihood, which replaces the mask u in the backward pass; `slope` is its steepness."""
        return score

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        score = self.group_scores(e, state, memory)
        active = score >= 0 if self.inclusive else score > 0
        if not torch.is_grad_enabled():
            return Decision(self.per_neuron(active), score=score)
        likelihood = self.likelihood(score, self.slope)
        u: Tensor = StraightThrough.apply(active, likelihood)  # type: ignore[no-untyped-call]
        return Decision(
            self.per_neuron(u), self.per_neuron(likelihood) if self.counts_likelihoods else None, score=score
        )

    def group_scores(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Compute `score` (B, `groups`) from the states of single neurons, as a step does; arguments as in `score`."""
        means = self.group_means(state)
        return self.score(e, tuple(s.detach() for s in means) if self.detaches_state else means, memory)

    def group_means(self, state: State) -> State:
        """Average each state (..., B, H) over the neurons that share an update decision, to (..., B, groups)."""
        size, missing = self.group_size, self.groups * self.group_size - self.hidden_size
        if size == 1:
            return state
        means = tuple(nn.functional.avg_pool1d(nn.functional.pad(s, (0, missing)), size, size) for s in state)
        if not missing:
            return means
        counts = means[0].new_full((self.groups,), size)
        counts[-1] -= missing
        return tuple(mean * (size / counts) for mean in means)

    def per_neuron(self, decisions: Tensor) -> Tensor:
        """Expand one value per group of neurons (..., B, groups) to one value per neuron (..., B, H)."""
        if self.group_size == 1:
            return decisions
        return decisions.index_select(-1, torch.arange(self.hidden_size, device=decisions.device) // self.group_size)

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        if not memory:
            return memory
        assert decision.u is not None
        assert decision.score is not None
        evidence = self.total(self.evidence(state))
        return self.advance(decision.u.to(evidence.dtype), decision.score, memory, self.drive(evidence))

    def total(self, evidence: Tensor) -> Tensor:
        """Combine the evidence of all neurons (B, H) to one value for each decision. Default: as it is."""
        return evidence

    def evidence(self, state: State) -> Tensor:
        """Compute the input (B, H) of `drive` from the cell's new states. Default: the second state, c, if any, else h.

        `PerSample` sums the result over the neurons before it calls `drive`.
        """
        return state[1 if len(state) > 1 else 0]

    def drive(self, evidence: Tensor) -> Tensor:
        """Compute the argument `drive` of `advance` from `evidence` alone; kernels keep it until the next update."""
        return evidence

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        """Compute the rule's memory (own states) after a step; tensors are (B, H), or (B, 1) under `PerSample`.

        Args:
            u: The decision, 1 or 0.
            score: Score that u follows from.
            memory: The rule's own states before the step.
            drive: Result of `drive` for the new state.

        Returns:
            The rule's new states.
        """
        raise NotImplementedError(f"{self.name}: a rule with own states (memory) needs a method advance(); define it")

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        return self.group_scores(e, state, memory).abs().amin(-1)


class PerNeuron(Scored):
    """The kind of rules with one decision for each neuron, or each group of `group_size` neurons.

    A decision depends on the input and on the neuron's own last state.
    """

    kind = "NEURON"
    memory_size = "H"


@dataclass(frozen=True)
class Pooled(Decision):
    """A decision with the sum (B, I) of the inputs that no update has read yet, for the next step."""

    unread: Tensor | None = None


class PerSample(Scored):
    """The kind of rules with one decision for the whole state of a sample, from the rule's own states (`Memory`).

    `pool` is the name of a weight n (1,), or "": if n > 0, the cell reads the sum of the inputs since the last update,
    divided by n, in place of x. The rule's last state, of size "I", is the sum of the inputs that no update has read
    yet; the equations neither read nor compute it.
    """

    kind = "SAMPLE"
    pool: ClassVar[str] = ""

    @property
    def equation_memory(self) -> tuple[str, ...]:
        return tuple(self.memory)[: -1 if self.pool else None]

    def step(self, cell: Cell, inputs: CellInputs, e: Tensor, memory: State) -> tuple[Decision, State]:
        if not self.pool:
            return super().step(cell, inputs, e, memory)
        n, unread = self.weights[self.pool], memory[-1]
        # a part without sizes in indices, so that layers of another I can share an ONNX function
        x, *last = torch.split(inputs.x, self.input_size, -1)
        total = unread + x
        x = torch.cat([torch.where(n > 0, total / n.clamp(min=1), x), *last], -1)
        decision, new = super().step(cell, inputs._replace(a=cell.project(x, inputs.t), x=x), e, memory[:-1])
        assert decision.u is not None
        kept = torch.where(decision.u > 0, torch.zeros_like(total), total)
        return Pooled(**vars(decision), unread=torch.where(n > 0, kept, unread)), new

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        if not isinstance(decision, Pooled):
            return super().remember(decision, state, memory)
        assert decision.unread is not None
        return (*super().remember(decision, state, memory[:-1]), decision.unread)

    def total(self, evidence: Tensor) -> Tensor:
        return evidence.sum(-1, keepdim=True)
