# SPDX-License-Identifier: Apache-2.0
"""What an update rule is: it decides at each step which neurons change."""

import abc
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError

# of a memory, a sample
SIZES = ("1", "H", "I")


@dataclass(frozen=True)
class Decision:
    """Of one step: u (B, H) in {0, 1} (or [0, 1] for a soft rule), None where it is all 1; what the budget sums instead
    of it; for a rule that masks what the cell sees, the factors (B, I) of x and (B, H) of the state; and the score that
    it was decided from, if any.
    """

    u: Tensor | None
    likelihood: Tensor | None = None
    masks: tuple[Tensor, Tensor] | None = None
    score: Tensor | None = None


class Kind(enum.Enum):
    """The scope of one decision of a rule."""

    TIME = enum.auto()
    """The step alone decides: u of a whole sequence is known before it begins."""
    NEURON = enum.auto()
    """Each neuron, or each group of `group_size` neighbours, decides from the input and its part of the last state."""
    SAMPLE = enum.auto()
    """One decision for the whole state of a sample, from the rule's memory."""

    @property
    def size(self) -> str:
        """How many decisions there are for a sample, "1" or "H"."""
        return "H" if self is Kind.NEURON else "1"


@dataclass(frozen=True)
class Memory:
    """A state of a rule: the value it starts from, and its size a sample, "1", "H" or "I".

    Kernels take memories that have the size of the kind's decisions. A rule with another one trains in the torch loop
    and runs as the portable function. Raises UsageError for any other size.
    """

    start: float
    size: str = "1"

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UsageError(f"size: expected one of {', '.join(SIZES)}, got {self.size!r}")


class StraightThrough(torch.autograd.Function):
    """`active` as numbers; the gradient goes to the likelihood, the same (straight-through)."""

    @staticmethod
    def forward(ctx: Any, active: Tensor, likelihood: Tensor) -> Tensor:
        return active.to(likelihood.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


class UpdateRule(nn.Module, abc.ABC):
    """state_t = u_t ⊙ new_t + (1 - u_t) ⊙ state_{t-1}, for every state of the cell.

    `kind` says what one decision covers. `implied`: names of layers leave the rule out.
    `can_skip` says whether u is ever 0. `masks`: the cell sees x and the states through factors of the rule.
    `tie`: a decision closer than this to its threshold may fall either way in float32 (see `margin`).
    `skips_zeros`: its kernels multiply only with the blocks of R that a sparse cell keeps.
    `memory`: the rule's own states, carried as the cell's are.
    `learns_start`: the cell's initial state is a parameter of the layer, and not zero.
    `group_size`: neighbouring neurons that share one decision; `score` then has a number a group, and its states are
    the means of groups. A rule with groups has no memory.
    A subclass is final. Its parameters and buffers are inputs of the op, by their names, in their order.

    A rule of the kinds NEURON and SAMPLE is its equations, from which the fused kernels follow too: u_t is 1 where
    `score` is above 0 (`inclusive`: or 0), and the gradient passes u_t as if it were `likelihood`. One with a memory
    also has `advance`, and may have `evidence` and `drive`, which make the memory after a step. A rule of the kind TIME
    has `shares`. All of these but `project` are point-wise.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    kind: ClassVar[Kind]
    implied: ClassVar[bool] = False
    can_skip: ClassVar[bool] = True
    inclusive: ClassVar[bool] = False
    masks: ClassVar[bool] = False
    skips_zeros: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-5
    memory: ClassVar[Mapping[str, Memory]] = {}
    learns_start: ClassVar[bool] = False
    # of the likelihood, and whether the budget sums that in place of the decisions
    slope: float = 1.0
    counts_likelihoods: bool = False
    # neighbouring neurons that share one decision of the kind NEURON
    group_size: int = 1

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size

    @property
    def groups(self) -> int:
        """Number of groups of neurons that share a decision; the last one may have fewer than `group_size`."""
        return -(-self.hidden_size // self.group_size)

    @property
    def widths(self) -> dict[str, int]:
        """The size of each memory a sample."""
        sizes = {"1": 1, "H": self.hidden_size, "I": self.input_size}
        return {name: sizes[memory.size] for name, memory in self.memory.items()}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The inputs of the op that belong to the rule."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def project(self, x: Tensor) -> Tensor:
        """The part of the decision that depends on the input alone, (T, B, I) to (T, B, E)."""
        return x.new_zeros(*x.shape[:-1], 0)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        """(B, H), or (B, 1) for the kind SAMPLE, from e (B, E), a row of project(x), the last state and the memory."""
        raise NotImplementedError(f"{self.name}: a rule of the kind {self.kind.name} that decides by no score")

    def likelihood(self, score: Tensor, slope: float) -> Tensor:
        """The differentiable stand-in for u in the backward pass."""
        return score

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        """Decide u (B, H), or (B, 1) for all neurons at once, from e (B, E), a row of project(x), and the last state."""
        score = self.score(e, self._group_means(state), memory)
        active = score >= 0 if self.inclusive else score > 0
        if not torch.is_grad_enabled():
            return Decision(self._spread(active), score=score)
        likelihood = self.likelihood(score, self.slope)
        u: Tensor = StraightThrough.apply(active, likelihood)  # type: ignore[no-untyped-call]
        return Decision(self._spread(u), self._spread(likelihood) if self.counts_likelihoods else None, score=score)

    def _group_means(self, state: State) -> State:
        """The states (B, groups) of which the neurons of a group have the mean."""
        size, missing = self.group_size, self.groups * self.group_size - self.hidden_size
        if size == 1:
            return state
        means = tuple(nn.functional.avg_pool1d(nn.functional.pad(s, (0, missing)), size, size) for s in state)
        if not missing:
            return means
        counts = torch.full_like(means[0][0], size)
        counts[-1] -= missing
        return tuple(mean * (size / counts) for mean in means)

    def _spread(self, decisions: Tensor) -> Tensor:
        """Decisions (B, groups) of groups as those of their neurons (B, H)."""
        if self.group_size == 1:
            return decisions
        return decisions.index_select(-1, torch.arange(self.hidden_size, device=decisions.device) // self.group_size)

    def shares(self, steps: int, memory: State) -> Tensor | None:
        """U (T, B, H) of the next steps of a rule of the kind TIME; None where u is 1 at all of them."""
        return None

    def initial_memory(self, batch: int, like: Tensor) -> State:
        return tuple(
            like.new_full((batch, width), memory.start)
            for memory, width in zip(self.memory.values(), self.widths.values(), strict=True)
        )

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        """The memory after a step, from the decision and the state that it led to."""
        if not memory:
            return memory
        assert decision.u is not None
        assert decision.score is not None
        evidence = self.evidence(state)
        if self.kind is Kind.SAMPLE:
            evidence = evidence.sum(-1, keepdim=True)
        return self.advance(decision.u.to(evidence.dtype), decision.score, memory, self.drive(evidence))

    def evidence(self, state: State) -> Tensor:
        """(B, H) from the state after a step: the second of its parts, or the first where there is no other.

        It is summed up over what a decision covers: over the neurons for the kind SAMPLE, over nothing for NEURON.
        """
        return state[1 if len(state) > 1 else 0]

    def drive(self, evidence: Tensor) -> Tensor:
        """What changes the memory, from the sum of the evidence; (B, 1) for the kind SAMPLE, constant while u is 0."""
        return evidence

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        """The memory after a step, from the decision, its score, the memory before it and the drive after it.

        All are (B, H) for the kind NEURON, and (B, 1) for the kind SAMPLE.
        """
        raise NotImplementedError(f"{self.name}: a rule of the kind {self.kind.name} whose memory never changes")

    def recurrent_mask(self) -> Tensor | None:
        """(H, H) of 0 and 1, by which the rule thins every gate's rows of R and C; None leaves them whole."""
        return None

    def executed_macs(self, cell: Cell, update_rate: float, busy_rate: float | None = None) -> float:
        """Multiply-adds of a step that skips what it can, the rule's own included.

        busy_rate: the share of steps at which any neuron changes; without it all, if update_rate, the share of neurons,
        is not 0. It matters where a change of one neuron takes more than its own rows.
        """
        mid, update = cell.macs()
        if self.skips_zeros:
            update -= cell.held_zeros()
        busy = self._busy(update_rate, busy_rate)
        return busy * mid + (busy if cell.couples else update_rate) * update + self.macs()

    def _busy(self, update_rate: float, busy_rate: float | None) -> float:
        return float(update_rate > 0) if busy_rate is None else busy_rate

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        """(B,): how far the closest decision is from turning over, so that a check can tell a tie from an error."""
        if self.kind is Kind.TIME:
            return torch.full((e.shape[0],), torch.inf, dtype=e.dtype)
        return self.score(e, self._group_means(state), memory).abs().amin(-1)

    def budget(self, decisions: Tensor, likelihoods: Tensor | None) -> Tensor:
        """What λ multiplies, from u and the likelihoods of all steps (T, B, H): the mean over B and H of Σ_t u_t.

        So λ weighs the updates of one neuron in one sequence; its effect grows with T and not with H.
        """
        return (decisions if likelihoods is None else likelihoods).mean((1, 2)).sum()

    def anneal(self, epoch: int) -> None:
        """Called before each epoch, counted from 0."""

    def force(self, rate: float) -> None:
        """Set the parameters so that about `rate` of the neurons change on standard normal input (for benchmarks)."""
        if rate != 1:
            raise UsageError(f"the rule {self.name} updates every neuron at every step, not {rate:g} of them")

    def macs(self) -> int:
        """Multiply-adds a step of the rule itself."""
        return sum(p.numel() for p in self.parameters() if p.ndim > 1)

    def flops_paper(self) -> float:
        """The rule's own operations a step in the convention of the SA-RNN paper."""
        return 0.0


class Timed(UpdateRule):
    """A rule that decides from the step alone, so that a whole sequence can be decided before it begins.

    A subclass gives `share`. The memory rule_t (B, 1) counts the steps.
    """

    kind = Kind.TIME
    memory: ClassVar[Mapping[str, Memory]] = {"rule_t": Memory(0)}

    @abc.abstractmethod
    def share(self, t: Tensor) -> Tensor:
        """U (..., H) at the steps t (..., 1)."""

    def shares(self, steps: int, memory: State) -> Tensor:
        t = memory[0] + torch.arange(steps, device=memory[0].device)[:, None, None]
        if t.requires_grad:
            return self.share(t)
        # most sequences of a batch meet the same t
        distinct, places = torch.unique(t.squeeze(-1), return_inverse=True)
        return self.share(distinct.unsqueeze(1))[places]

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        return Decision(self.share(memory[0]))

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        return (memory[0] + 1,)


def blend(u: Tensor | None, new: State, old: State) -> State:
    """The state after a decision."""
    if u is None:
        return new
    if u.dtype == torch.bool:
        return tuple(torch.where(u, n, o) for n, o in zip(new, old, strict=True))
    return tuple(torch.lerp(o, n, u) for n, o in zip(new, old, strict=True))
