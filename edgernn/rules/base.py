# SPDX-License-Identifier: Apache-2.0
"""Base class of update rules, which select at each step the neurons of a recurrent layer that change."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.decision import Decision, Kind, Memory

__all__ = ["Decision", "Kind", "Memory", "StraightThrough", "UpdateRule", "blend"]

# largest share of changed neurons at which kernels reuse the last step's R h in `mid`, see `Cell.kept_macs`
KEPT_SHARE = 0.5


class StraightThrough(torch.autograd.Function):
    """Straight-through estimator: returns the mask `active` as floats, and passes its gradient to `likelihood`."""

    @staticmethod
    def forward(ctx: Any, active: Tensor, likelihood: Tensor) -> Tensor:
        return active.to(likelihood.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


class UpdateRule(nn.Module, abc.ABC):
    """Base class of update rules: state_t = u_t ⊙ new_t + (1 - u_t) ⊙ state_{t-1}, for every state of the cell.

    u_t is the update mask, 1 where a neuron changes, and new_t is the state that the cell computes. A rule that decides
    by step index (`Kind.TIME`) defines `shares`, which returns u. Any other rule overrides `decide`, or defines `score`
    and `likelihood`: u_t is then 1 where the score is above 0, and has the gradient of the likelihood. With own states
    (`memory`), it also defines `advance`, which computes them after a step. The argument `drive` of `advance` is
    drive(evidence(the cell's new state)). `project` computes the part of the score that depends on x alone. Kernels are
    generated from the equations of `score`, `likelihood`, `advance`, `evidence` and `drive`, which must be point-wise.
    Parameters and buffers are inputs of the exported op, with their names and in their order. Derive a rule from this
    class or `Timed`, not from another rule.

    Args:
        input_size: I.
        hidden_size: H.

    Attributes:
        name: Name on the command line.
        paper: Paper that the rule is from.
        kind: Scope of one decision.
        can_skip: True if u may be 0.
        inclusive: True if u is also 1 where the score is 0.
        skips_zeros: True if the rule's kernels skip the zero blocks of block-sparse R.
        tie: Value of `margin` below which rounding in float32 may change a decision.
        memory: Dict from name to state of the rule. These states are carried along with those of the cell.
        keeps_start: True if the training setting `start`, which draws parameters at random, leaves those of the rule.
        learns_start: True if the cell's initial state is a parameter of the layer; it is zero otherwise.
        has_groups: True if the constructor has the option group_size.
        check_options: Options of the constructor for tests of gradients. With them u does not change steeply.
        period: Only for rules that decide per value of x and h (`Kind.COLUMN`): number of steps after which kernels
            compute pre-activations in full. At other steps they add the effects of changed values.
        largest_change: Change of a value of x or h above which these kernels compute pre-activations in full at once.
        slope: Slope of the likelihood, which `anneal` may change.
        counts_likelihoods: True if the penalty on updates sums likelihoods in place of decisions.
        group_size: Number of neighbouring neurons that share one decision of the kind NEURON. `score` then has one
            value per group and reads the means of the groups' states. A rule with groups has no states of its own.
        detaches_state: True if the cell's states in `score` are detached, so that no gradient flows from decisions to
            them. Only for the kind NEURON.
        straight_through: Only for the kind COLUMN: True if the gradient of a value that products read goes to the
            current value of x or h even where products keep reading an old one.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    kind: ClassVar[Kind]
    can_skip: ClassVar[bool] = True
    inclusive: ClassVar[bool] = False
    skips_zeros: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-5
    memory: ClassVar[Mapping[str, Memory]] = {}
    keeps_start: ClassVar[bool] = False
    learns_start: ClassVar[bool] = False
    has_groups: ClassVar[bool] = False
    check_options: ClassVar[Mapping[str, Any]] = {}
    period: ClassVar[int] = 0
    largest_change: ClassVar[float] = 0.0
    slope: float = 1.0
    counts_likelihoods: bool = False
    group_size: int = 1
    detaches_state: bool = False
    straight_through: bool = True

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self._columns, self._sums = input_size, 0

    @classmethod
    def refusal(cls, cell: Cell | type[Cell]) -> str | None:
        """Return the reason why a cell cannot run under this rule, or None if it can.

        A class of cells says nothing about the storage of the recurrent weights, which is checked for a cell only.
        """
        masks = cls.recurrent_mask is not UpdateRule.recurrent_mask
        if masks and isinstance(cell, Cell) and cell.recurrent.rank is not None:
            return f"rank: expected none with the rule {cls.name}, which masks recurrent weights; leave out rank"
        return None

    def fit(self, cell: Cell) -> None:
        """Store the sizes "W" and "P" of a `Memory`: the number of columns of W, and the number of pre-activations.

        A cell that cannot run under the rule raises UsageError.
        """
        reason = self.refusal(cell)
        if reason is not None:
            raise UsageError(reason)
        self._columns, self._sums = cell.input_size * (1 + cell.reads_last), cell.sum_size

    @classmethod
    def is_dense(cls) -> bool:
        """Return True if the rule updates all neurons at all steps. Names of layers and kernels omit such a rule."""
        return cls.kind is Kind.TIME and not cls.can_skip

    @classmethod
    def has_equations(cls) -> bool:
        """Return True if the rule defines `score`. Kernels for training are generated from its equations then."""
        return cls.score is not UpdateRule.score

    @classmethod
    def training_options(cls, seed: int, *, steered: bool) -> dict[str, Any]:
        """Return defaults of those options of the rule's constructor that depend on the training.

        Args:
            seed: Seed of the training.
            steered: True if the training adapts λ, the weight of the penalty on updates in the loss, to reach a share
                of skipped updates (setting skip).

        Returns:
            Dict from option to its default.
        """
        return {}

    @classmethod
    def steerable(cls) -> bool:
        """Return True if training can reach a wanted share of skipped updates by adjusting λ, the penalty's weight."""
        return cls.kind is not Kind.TIME

    @property
    def groups(self) -> int:
        """Number of groups of neurons, ⌈H / group_size⌉, that share a decision; the last group may be smaller."""
        return -(-self.hidden_size // self.group_size)

    @property
    def widths(self) -> dict[str, int]:
        """Dict from the name of each state of the rule (memory) to its number of values for each sample."""
        sizes = {"1": 1, "H": self.hidden_size, "I": self.input_size, "W": self._columns, "P": self._sums}
        return {name: sizes[memory.size] for name, memory in self.memory.items()}

    @property
    def weights(self) -> dict[str, Tensor]:
        """Dict from name to parameter or constant of the rule; all of them are inputs of the exported ONNX op."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def project(self, x: Tensor) -> Tensor:
        """Compute e (T, B, E), the part of `score` that depends on x (T, B, I) alone. A rule defines its size E."""
        return x.new_zeros(*x.shape[:-1], 0)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Compute the score: a neuron is updated where it is above 0, or also where it is 0 if `inclusive`.

        Args:
            e: Input part of the score (B, E), one step of the result of `project`.
            state: States of the cell before the step.
            memory: The rule's own states before the step.

        Returns:
            The score (B, `groups`), by default (B, H), or (B, 1) for one decision per sample (`Kind.SAMPLE`).
        """
        raise NotImplementedError(f"{self.name}: a rule of the kind {self.kind.name} needs a method score(); define it")

    def likelihood(self, score: Tensor, slope: float) -> Tensor:
        """Compute the update likelihood, which replaces the mask u in the backward pass; `slope` is its steepness."""
        return score

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        """Select the neurons that change at a step.

        Args:
            e: One step (B, E) of the result of `project`, the part of the score that depends on x alone. It is x itself
                for a rule that decides per value of x and h (`Kind.COLUMN`), and the result (B, H) of
                `UpdateGate.scores` for a rule that decides from the cell's update gate (`Kind.GATE`).
            state: States of the cell before the step.
            memory: The rule's own states before the step.

        Returns:
            The decision.
        """
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

    def shares(self, steps: int, memory: State) -> Tensor | None:
        """Return the mask u of the next `steps` steps (T, B, H), for a rule that decides by step index; None: all 1."""
        return None

    def advanced(self, memory: State, steps: int) -> State:
        """Return the rule's own states `steps` steps after `memory`, for a rule that decides by step index alone."""
        return memory

    def initial_memory(self, batch: int, like: Tensor) -> State:
        return tuple(
            like.new_full((batch, width), memory.start)
            for memory, width in zip(self.memory.values(), self.widths.values(), strict=True)
        )

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        """Compute the rule's own states after a step from its decision, the cell's new `state` and the old `memory`."""
        if not memory:
            return memory
        assert decision.u is not None
        assert decision.score is not None
        evidence = self.evidence(state)
        if self.kind is Kind.SAMPLE:
            evidence = evidence.sum(-1, keepdim=True)
        return self.advance(decision.u.to(evidence.dtype), decision.score, memory, self.drive(evidence))

    def evidence(self, state: State) -> Tensor:
        """Compute the input (B, H) of `drive` from the cell's new states. Default: the second state, c, if any, else h.

        For the kind SAMPLE, `remember` sums the result over the neurons before it calls `drive`.
        """
        return state[1 if len(state) > 1 else 0]

    def drive(self, evidence: Tensor) -> Tensor:
        """Compute the argument `drive` of `advance` from `evidence` alone; kernels keep it until the next update."""
        return evidence

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        """Compute the rule's memory (own states) after a step; tensors are (B, H), or (B, 1) for the kind SAMPLE.

        Args:
            u: The decision, 1 or 0.
            score: Score that u follows from.
            memory: The rule's own states before the step.
            drive: Result of `drive` for the new state.

        Returns:
            The rule's new states.
        """
        raise NotImplementedError(f"{self.name}: a rule with own states (memory) needs a method advance(); define it")

    def recurrent_mask(self) -> Tensor | None:
        """Return a 0/1 mask (H, H) that multiplies each gate's rows of R (weights of h) and C (of c); None: no mask."""
        return None

    def executed_macs(
        self,
        cell: Cell,
        update_rate: float,
        busy_rate: float | None = None,
        input_rate: float | None = None,
        *,
        keeps_sums: bool = True,
    ) -> float:
        """Compute the multiply-adds per step of the cell and the rule, without the work that the rule skips.

        Args:
            cell: The cell.
            update_rate: Mean share of the neurons that change at a step.
            busy_rate: Share of the steps at which any neuron changes. All other steps also skip the work that neurons
                share. Default: 1, or 0 if update_rate is 0.
            input_rate: Only for the rule delta: share of the columns of W that products read. Default: update_rate,
                which is the share of the columns of R there.
            keeps_sums: False if kernels compute all products R h anew at each step: if an imputer decays h between
                steps, or the weights are stored as bfloat16 or int8.

        Returns:
            The mean number of multiply-adds per step.
        """
        mid, update = cell.macs()
        if self.skips_zeros:
            update -= cell.skipped_zeros()
        busy = self._busy(update_rate, busy_rate)
        # the kernels keep R h of the gates that `mid` reads, and add only the columns of neurons that changed
        columns = cell.kept_macs(self.kind is Kind.GATE)
        if self.kind is Kind.GATE:
            # and so they do with the update gate, which they compute for all neurons
            gate = sum(cell.update_gate_macs())
            mid, update = mid + gate, update - gate
        if cell.couples or not keeps_sums:
            columns = 0
        changed = update_rate if update_rate <= KEPT_SHARE * busy else busy
        first = busy * (mid - columns) + changed * columns
        return first + (busy if cell.couples else update_rate) * update + self.macs()

    def _busy(self, update_rate: float, busy_rate: float | None) -> float:
        return float(update_rate > 0) if busy_rate is None else busy_rate

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Return the smallest |score| (B,) over a sample's decisions; ∞ for a rule of the kind TIME, without scores.

        It says how far the score is from the threshold at which a decision flips. See `score` for the arguments.
        """
        if self.kind is Kind.TIME:
            return torch.full((e.shape[0],), torch.inf, dtype=e.dtype)
        return self.group_scores(e, state, memory).abs().amin(-1)

    def budget(self, decisions: Tensor, likelihoods: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Compute the penalty on updates, the mean over B and H of Σ_t w_t u_t; λ (setting lambda) is its weight.

        It counts the updates of one neuron in one sequence, so that its effect grows with T but not with H.

        Args:
            decisions: Update masks u of all steps (T, B, H).
            likelihoods: Values to sum in place of u (T, B, H), if any.
            weights: Factors w of the steps (T, B). Default: 1.

        Returns:
            The penalty (scalar).
        """
        values = decisions if likelihoods is None else likelihoods
        return (values if weights is None else values * weights.unsqueeze(-1)).mean((1, 2)).sum()

    def remedy(self) -> str | None:
        """Return what may help a training that diverges under this rule, as part of a sentence; None: nothing known."""
        return None

    def anneal(self, epoch: int) -> None:
        """Adapt the rule, such as the slope of its surrogate gradient, before each training epoch, counted from 0."""

    def constrain(self) -> None:
        """Move parameters in place to the closest valid values; training calls this after each optimiser step."""

    def force(self, rate: float) -> None:
        """Set the rule's parameters so that it updates about the share `rate` of the neurons per step, for benchmarks.

        The share holds for standard normal input. Raise UsageError for a rate that the rule cannot reach.
        """
        if rate != 1:
            raise UsageError(
                f"skip: expected 0 with the rule {self.name}, which updates every neuron at every step, got "
                f"{1 - rate:g}; choose another rule"
            )

    def macs(self) -> int:
        """Count the multiply-adds per step of the rule's own equations."""
        return sum(p.numel() for p in self.parameters() if p.ndim > 1)

    def flops_paper(self) -> float:
        """Count the operations per step of the rule's own equations, in the convention of the SA-RNN paper."""
        return 0.0


def blend(u: Tensor | None, new: State, old: State) -> State:
    """Return u ⊙ new + (1 - u) ⊙ old for each state. The mask u is (B, H) or (B, 1); None stands for 1."""
    if u is None:
        return new
    if u.dtype == torch.bool:
        return tuple(torch.where(u, n, o) for n, o in zip(new, old, strict=True))
    return tuple(torch.lerp(o, n, u) for n, o in zip(new, old, strict=True))
