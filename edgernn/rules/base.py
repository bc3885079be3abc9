# SPDX-License-Identifier: Apache-2.0
"""What an update rule is: it decides at each step which neurons change."""

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError


@dataclass(frozen=True)
class Decision:
    """Of one step: u (B, H) in {0, 1} (or [0, 1] for a soft rule), None where it is all 1; what the budget sums instead
    of it; and, for a rule that masks what the cell sees, the factors (B, I) of x and (B, H) of the state."""

    u: Tensor | None
    likelihood: Tensor | None = None
    masks: tuple[Tensor, Tensor] | None = None


class UpdateRule(nn.Module, abc.ABC):
    """state_t = u_t ⊙ new_t + (1 - u_t) ⊙ state_{t-1}, for every state of the cell.

    `prefix` begins the names of the ops: prefix + the cell's op. `can_skip` says whether u is ever 0.
    `tie`: a decision closer than this to its threshold may fall either way in float32 (see `margin`).
    `skips_zeros`: its kernels multiply only with the blocks of R that a sparse cell keeps.
    `memory`: the rule's own states, (B, 1) each, with the value that they start from; carried as the cell's are.
    `learns_start`: the cell's initial state is a parameter of the layer, and not zero.
    A subclass is final. Its parameters and buffers are inputs of the op, by their names.
    """

    name: ClassVar[str]
    prefix: ClassVar[str]
    paper: ClassVar[str] = ""
    can_skip: ClassVar[bool] = True
    skips_zeros: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-5
    memory: ClassVar[dict[str, float]] = {}
    learns_start: ClassVar[bool] = False

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size

    def project(self, x: Tensor) -> Tensor:
        """The part of the decision that depends on the input alone, (T, B, I) to (T, B, E)."""
        return x.new_zeros(*x.shape[:-1], 0)

    @abc.abstractmethod
    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        """u (B, H), or (B, 1) for all neurons at once, from e (B, E), a row of project(x), and the last state."""

    def initial_memory(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_full((batch, 1), value) for value in self.memory.values())

    def remember(self, u: Tensor | None, state: State, memory: State) -> State:
        """The memory after a step, from the decision and the state that it led to."""
        return memory

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
        return torch.full((e.shape[0],), torch.inf, dtype=e.dtype)

    def budget(self, decisions: Tensor, likelihoods: Tensor | None) -> Tensor:
        """What λ multiplies, from u and the likelihoods of all steps (T, B, H): the mean over B and H of Σ_t u_t.

        So λ weighs the updates of one neuron in one sequence; its effect grows with T and not with H.
        """
        return decisions.mean((1, 2)).sum()

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

    memory: ClassVar[dict[str, float]] = {"rule_t": 0.0}

    @abc.abstractmethod
    def share(self, t: Tensor) -> Tensor:
        """u (..., H) at the steps t (..., 1)."""

    def shares(self, steps: int, memory: State) -> Tensor:
        """u (T, B, H) of so many steps, from the memory before the first."""
        t = memory[0] + torch.arange(steps, device=memory[0].device)[:, None, None]
        if t.requires_grad:
            return self.share(t)
        # most sequences of a batch meet the same t
        distinct, places = torch.unique(t.squeeze(-1), return_inverse=True)
        return self.share(distinct.unsqueeze(1))[places]

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        return Decision(self.share(memory[0]))

    def remember(self, u: Tensor | None, state: State, memory: State) -> State:
        return (memory[0] + 1,)


def blend(u: Tensor | None, new: State, old: State) -> State:
    """The state after a decision."""
    if u is None:
        return new
    if u.dtype == torch.bool:
        return tuple(torch.where(u, n, o) for n, o in zip(new, old, strict=True))
    return tuple(torch.lerp(o, n, u) for n, o in zip(new, old, strict=True))
