# SPDX-License-Identifier: Apache-2.0
"""Base class of update rules, which select at each step the neurons of a recurrent layer that change."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.constants import Constants
from edgernn.errors import UsageError
from edgernn.rules.decision import Decision, Memory, Rates

__all__ = ["CellInputs", "Decision", "Memory", "UpdateRule", "blend"]

# largest share of changed neurons at which kernels reuse the last step's R h in `mid`, see `Cell.kept_macs`
KEPT_SHARE = 0.5


class CellInputs(NamedTuple):
    """Inputs of a step of a cell: the arguments of `Cell.step`, in their order.

    Attributes:
        a: W x + b of the cell's gates (B, rows of W).
        x: Input of the cell (B, I), or [x_t, x_{t-1}] (B, 2I) for a cell that reads both.
        state: States of the cell before the step, (B, H) each.
        constants: Result of `RecurrentLayer.constants`.
        t: Number of steps before this one (B, 1); None unless the cell counts steps.
    """

    a: Tensor
    x: Tensor
    state: State
    constants: dict[str, Tensor]
    t: Tensor | None


class UpdateRule(Constants):
    """Base class of update rules: state_t = u_t ⊙ new_t + (1 - u_t) ⊙ state_{t-1}, for every state of the cell.

    u_t is the update mask, 1 where a neuron changes, and new_t is the state that the cell computes. A rule belongs to a
    kind, the scope of one decision: derive it from the class of its kind, not from this class or from another rule.
    `Timed` decides by step index, `PerNeuron` for each neuron, `PerSample` for the whole state of a sample, `PerColumn`
    for each value of x and h, and `ByGate` for all neurons from the cell's update gate. A kind owns its step in torch.
    Parameters and buffers are inputs of the exported op, with their names and in their order.

    Args:
        input_size: I.
        hidden_size: H.

    Attributes:
        name: Name on the command line.
        paper: Paper that the rule is from.
        kind: Name of the kind, as in the native library's `RuleKind`.
        memory_size: Size of the states (`Memory`) that kernels of rules with equations support.
        by_hand: True if rules of this kind have no equations: kernels have the decisions of the library's own by hand.
        runs_programs: True if kernels run the kind's rules with a user's own cell, which they interpret.
        schedules: True if the step index alone determines the mask u, so that u is known before a sequence begins.
        projects_ahead: True if the terms of a step that depend on x alone are computed for all steps at once.
        can_skip: True if u may be 0.
        inclusive: True if u is also 1 where the score is 0.
        skips_zeros: True if the rule's kernels skip the zero blocks of block-sparse R.
        tie: Value of `margin` below which rounding in float32 may change a decision.
        memory: Dict from name to state of the rule. These states are carried along with those of the cell.
        keeps_start: True if the training setting `start`, which draws parameters at random, leaves those of the rule.
        learns_start: True if the cell's initial state is a parameter of the layer; it is zero otherwise.
        has_groups: True if the constructor has the option group_size.
        check_options: Options of the constructor for tests of gradients. With them u does not change steeply.
        slope: Slope of the likelihood, which `anneal` may change.
        counts_likelihoods: True if the penalty on updates sums likelihoods in place of decisions.
        group_size: Number of neighbouring neurons that share one decision. `PerNeuron.score` then has one value per
            group and reads the means of the groups' states. A rule with groups has no states of its own.
        detaches_state: True if the cell's states in `PerNeuron.score` are detached, so that no gradient flows from
            decisions to them.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    kind: ClassVar[str] = "TIME"
    memory_size: ClassVar[str] = "1"
    by_hand: ClassVar[bool] = False
    runs_programs: ClassVar[bool] = True
    schedules: ClassVar[bool] = True
    projects_ahead: ClassVar[bool] = True
    can_skip: ClassVar[bool] = True
    inclusive: ClassVar[bool] = False
    skips_zeros: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-5
    memory: ClassVar[Mapping[str, Memory]] = {}
    keeps_start: ClassVar[bool] = False
    learns_start: ClassVar[bool] = False
    has_groups: ClassVar[bool] = False
    check_options: ClassVar[Mapping[str, Any]] = {}
    slope: float = 1.0
    counts_likelihoods: bool = False
    group_size: int = 1
    detaches_state: bool = False

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self._columns, self._sums = input_size, 0
        self._weight_names: tuple[str, ...] = ()

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
        # parametrizations and hooks of torch store others in their place
        self._weight_names = tuple(self.weights)

    @classmethod
    def is_dense(cls) -> bool:
        """Return True if the rule updates all neurons at all steps. Names of layers and kernels omit such a rule."""
        return not cls.can_skip

    @classmethod
    def has_equations(cls) -> bool:
        """Return True if the rule defines `Scored.score`; kernels for training are generated from its equations."""
        return False

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
        return False

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
        names = self._weight_names or (*dict(self.named_parameters()), *dict(self.named_buffers()))
        return {name: attrgetter(name)(self) for name in names}

    def project(self, x: Tensor) -> Tensor:
        """Compute e (T, B, E), the part of `score` that depends on x (T, B, I) alone. A rule defines its size E."""
        return x.new_zeros(*x.shape[:-1], 0)

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        """Select the neurons that change at a step.

        Args:
            e: One step (B, E) of the result of `project`, the part of the decision that depends on x alone.
            state: States of the cell before the step.
            memory: The rule's own states before the step.

        Returns:
            The decision.
        """
        raise NotImplementedError(
            f"{self.name}: decide: expected a method of the rule or of its kind; derive the rule from one"
        )

    def step(self, cell: Cell, inputs: CellInputs, e: Tensor, memory: State) -> tuple[Decision, State]:
        """Select the neurons that change at a step, and compute the states of the cell after it.

        Args:
            cell: The cell.
            inputs: What the cell reads.
            e: One step (B, E) of the result of `project`.
            memory: The rule's own states before the step.

        Returns:
            The decision, and the new states of the cell.
        """
        decision = self.decide(e, inputs.state, memory)
        read = inputs
        if decision.masks is not None:
            x_mask, state_mask = decision.masks
            x = inputs.x * torch.cat([x_mask] * (1 + cell.reads_last), -1)
            state = tuple(s * state_mask for s in inputs.state)
            read = inputs._replace(a=cell.project(x, inputs.t), x=x, state=state)
        # a user's cell may override step()
        return decision, blend(decision.u, cell.step(*read), inputs.state)

    def shares(self, steps: int, memory: State) -> Tensor | None:
        """Return the mask u of the next `steps` steps (T, B, H), for a rule that decides by step index; None: all 1."""
        return None

    def updates(self, memory: State, steps: int) -> range | None:
        """Return the steps of the next `steps` at which all neurons of all sequences change; at all others none does.

        None if the rule does not know them before a sequence begins, or if sequences have different ones.
        """
        return None

    def read(self, x: Tensor, memory: State, updates: range) -> tuple[Tensor, State]:
        """Compute what the cell reads at the steps that update, and the rule's own states after the sequence.

        Args:
            x: Input of the layer (T, B, I).
            memory: The rule's own states before the sequence.
            updates: Result of `updates`, K steps.

        Returns:
            The inputs of the cell (K, B, I), and the states.
        """
        raise NotImplementedError(f"{self.name}: read: expected a method of a rule that defines updates(); define it")

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
        return memory

    def recurrent_mask(self) -> Tensor | None:
        """Return a 0/1 mask (H, H) that multiplies each gate's rows of R (weights of h) and C (of c); None: no mask."""
        return None

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        """Compute the multiply-adds per step of the cell and the rule, without the work that the rule skips.

        Args:
            cell: The cell.
            rates: How much of the work the steps need.

        Returns:
            The mean number of multiply-adds per step.
        """
        mid, update, columns = self.stages(cell)
        if self.skips_zeros:
            update -= cell.skipped_zeros()
        busy = rates.busy_steps
        if cell.couples or not rates.keeps_sums:
            columns = 0
        changed = rates.updates if rates.updates <= KEPT_SHARE * busy else busy
        first = busy * (mid - columns) + changed * columns
        return first + (busy if cell.couples else rates.updates) * update + self.macs()

    def stages(self, cell: Cell) -> tuple[int, int, int]:
        """Count the multiply-adds of a step before its neurons are selected, and those of the selected neurons.

        Args:
            cell: The cell.

        Returns:
            Multiply-adds of the first stage, which runs for all neurons; of the second; and those of the first that
            kernels keep from step to step, where they add only the columns of neurons that changed.
        """
        return (*cell.macs(), cell.kept_macs(False))

    def decision_flops(self, cell: Cell) -> int:
        """Count the operations of gates that all neurons compute to decide, as the SA-RNN paper counts them."""
        return 0

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Return by how much each sample's closest decision is off its threshold (B,); ∞ for a rule without thresholds.

        See `decide` for the arguments.
        """
        return torch.full((e.shape[0],), torch.inf, dtype=e.dtype)

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
