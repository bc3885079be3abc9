# SPDX-License-Identifier: Apache-2.0
"""The rule of delta networks, under which products read only the values that changed by more than a threshold."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.decision import Decision, Memory, Rates, StraightThrough
from edgernn.rules.kinds.column import PerColumn, Sending


class ThresholdGradient(torch.autograd.Function):
    """Identity of `result`, with the surrogate gradient of a threshold Θ that it depends on.

    `result` is a sum of m ⊙ factor and terms that do not depend on Θ. The mask m is 1 where |factor| > Θ. The gradient
    passes on to `result` unchanged. `threshold_grad` computes that of Θ.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, factor, theta, ctx.slope = inputs
        ctx.save_for_backward(factor, theta)

    @staticmethod
    def forward(result: Tensor, factor: Tensor, theta: Tensor, slope: float) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor, None]:
        factor, theta = ctx.saved_tensors
        return grads[0], None, threshold_grad(grads[0], factor, theta, ctx.slope), None


def threshold_grad(grad: Tensor, factor: Tensor, theta: Tensor, slope: float) -> Tensor:
    """Compute the surrogate gradient of a threshold Θ through m ⊙ factor, where the mask m is 1 where |factor| > Θ.

    The mask has the derivative of a sigmoid: m ≈ σ(s (|factor| - Θ)), so that ∂m/∂Θ = -s σ (1 - σ).

    Args:
        grad: Gradient of m ⊙ factor (..., N).
        factor: Changes of x or h, or their magnitudes (..., N).
        theta: Θ (1,).
        slope: s.

    Returns:
        The gradient of Θ (1,).
    """
    likelihood = torch.sigmoid(slope * (factor.abs() - theta))
    return (grad * factor * likelihood * (likelihood - 1)).sum_to_size(theta.shape) * slope


class Delta(PerColumn):
    """Delta updates: products keep reading the old value of x or h until it has changed by more than a threshold.

    x̂_t = x_t where |x_t - x̂_{t-1}| > Θ_x, else x̂_{t-1}
    ĥ_t = h_{t-1} where |h_{t-1} - ĥ_{t-1}| > Θ_h, else ĥ_{t-1}          x̂_0 = ĥ_0 = 0
    p_t = p_{t-1} + W (x̂_t - x̂_{t-1}) + R (ĥ_t - ĥ_{t-1})                that is, W x̂_t + R ĥ_t + b

    Products read x̂ and ĥ in place of x and h. A value of x or h is sent when x̂ or ĥ takes it over. All neurons
    change at every step, but only the columns of W and R whose value is sent are read: `selective` skips rows, delta
    skips columns. Products of other matrices (C c and V m), in cells that have them, are computed in full: the cells
    of the paper have none. Point-wise terms read x and h themselves. For a cell that also reads x_{t-1}, x above is
    [x_t, x_{t-1}], and W has a column for each value.
    States: rule_x = x̂ (B, columns of W), rule_h = ĥ (B, H), rule_p = p (B, P), the pre-activations of the P rows of
    gates that read x or h, and rule_age (B, 1), the number of steps since p was last computed in full, as
    W x̂ + R ĥ + b. To keep rounding errors small, the full computation runs at the first step and at each 256th step.
    Kernels also run it when a value of x or h changes by more than 1,024.
    Options: theta_x = Θ_x and theta_h = Θ_h, at least 0, in the buffers rule_theta_x and rule_theta_h (1,).
    The gradients of x̂_t and ĥ_t go to x_t and h_{t-1} (straight-through). With straight_through=false, the gradient of
    a value that is not sent goes to x̂_{t-1} or ĥ_{t-1} instead. Straight-through gradients may overflow after hundreds
    of steps, because they treat every value as sent. The penalty is the L1 cost of the paper: the sum over t of
    |ĥ_t - ĥ_{t-1}|, averaged over B and H, times λ (setting lambda). A value counts as updated if it is sent anew.
    With learn_thresholds=true, rule_theta_x and rule_theta_h are parameters, which start as theta_x and theta_h. Let Δ
    be h_{t-1} - ĥ_{t-1}, and m the mask of |Δ| > Θ_h. Then ĥ_t is ĥ_{t-1} + m ⊙ Δ, and its cost is m ⊙ |Δ|. Gradients
    to Θ_h take m for a sigmoid with the slope s (option slope), and Δ and ĥ_{t-1} for constants:

    m ≈ σ(s (|Δ| - Θ_h))
    ∂ĥ_t / ∂Θ_h = -s σ (1 - σ) ⊙ Δ                                       in products
    ∂(m ⊙ |Δ|) / ∂Θ_h = -s σ (1 - σ) ⊙ |Δ|                               in the penalty

    The same holds for x and Θ_x. The penalty then also has the cost of x, the sum over t and the columns of W of
    |x̂_t - x̂_{t-1}|, averaged over B and divided by H: a change costs the same in W and in R. Training sets a threshold
    below 0 to 0 after each step. Exported files have the thresholds as constants.
    Source: Neil et al., "Delta Networks for Optimized Recurrent Network Computation", ICML 2017,
    https://arxiv.org/abs/1612.05571; kernels as in Gao et al., "EdgeDRNN", 2020, https://arxiv.org/abs/1912.12193.
    EdgeDRNN calls this rule with the cell `gru` DeltaGRU. Learned thresholds are not from these papers.
    """

    name = "delta"
    paper = "Neil et al. 2016, arXiv:1612.05571"
    # thresholds start as the options say
    keeps_start = True
    period = 256
    largest_change = 1024.0
    memory: ClassVar[Mapping[str, Memory]] = {
        "rule_x": Memory(0, "W"),
        "rule_h": Memory(0, "H"),
        "rule_age": Memory(0),
        "rule_p": Memory(0, "P"),
    }
    # with thresholds of 0 the straight-through gradient is that of the cell
    check_options: ClassVar[Mapping[str, Any]] = {"theta_x": 0.0, "theta_h": 0.0}

    rule_theta_x: Tensor
    rule_theta_h: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        theta_x: float = 0.1,
        theta_h: float = 0.1,
        learn_thresholds: bool = False,
        slope: float = 5.0,
        straight_through: bool = True,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.straight_through = straight_through
        if not 0 < slope < math.inf:
            raise UsageError(f"slope: expected a finite number above 0, got {slope}")
        self.slope, self.learns_thresholds = slope, learn_thresholds
        for name, theta in (("theta_x", theta_x), ("theta_h", theta_h)):
            if not 0 <= theta < math.inf:
                raise UsageError(f"{name}: expected a finite number of at least 0, got {theta}")
            if learn_thresholds:
                self.register_parameter(f"rule_{name}", nn.Parameter(torch.tensor([float(theta)])))
            else:
                self.register_constant(f"rule_{name}", [float(theta)])

    def decide(self, e: Tensor, state: State, memory: State) -> Sending:
        x, sent_inputs = self._send(e, memory[0], self.rule_theta_x)
        h, sent = self._send(state[0], memory[1], self.rule_theta_h)
        costs, read = (h - memory[1]).abs(), None
        if self.learns_thresholds and torch.is_grad_enabled():
            change_x, change_h = (e - memory[0]).detach(), (state[0] - memory[1]).detach()
            read = (
                self._with_threshold_grad(x, change_x, self.rule_theta_x),
                self._with_threshold_grad(h, change_h, self.rule_theta_h),
            )
            costs = self._with_threshold_grad(costs, change_h.abs(), self.rule_theta_h)
            costs_x = self._with_threshold_grad((x - memory[0]).abs(), change_x.abs(), self.rule_theta_x)
            # the penalty averages over neurons
            costs = costs + costs_x.sum(-1, keepdim=True) / self.hidden_size
        return Sending(sent, costs, sent_inputs=sent_inputs, sent=(x, h), read=read)

    def _send(self, value: Tensor, last: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return `value` where |value - last| > theta and `last` elsewhere, and the mask of |value - last| > theta."""
        moved = (value - last).abs() > theta
        sent = torch.where(moved, value, last)
        if self.straight_through and torch.is_grad_enabled():
            sent = StraightThrough.apply(sent, value)  # type: ignore[no-untyped-call]
        return sent, moved

    def _with_threshold_grad(self, result: Tensor, factor: Tensor, theta: Tensor) -> Tensor:
        same: Tensor = ThresholdGradient.apply(result, factor, theta, self.slope)  # type: ignore[no-untyped-call]
        return same

    def remedy(self) -> str | None:
        return "set straight_through=false" if self.straight_through else None

    def remember(self, decision: Decision, state: State, memory: State) -> State:
        assert isinstance(decision, Sending)
        assert decision.sums is not None
        age = memory[2] + 1
        return (*decision.sent, torch.where(age < self.period, age, 0), decision.sums)

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        distances = []
        for value, last, theta in (
            (e, memory[0], self.rule_theta_x),
            (state[0], memory[1], self.rule_theta_h),
        ):
            moved = (value - last).abs()
            # whether a change of almost 0 is sent makes no difference
            distances.append(torch.where((moved == 0) & (theta == 0), torch.inf, (moved - theta).abs()))
        return torch.cat(distances, -1).amin(-1)

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        input_rate = rates.updates if rates.inputs is None else rates.inputs
        columns = dict(cell.named_parameters(recurse=False))
        inputs, states = (
            0 if weight is None else weight.numel()
            for weight in (columns.get("W"), columns.get("R" if cell.recurrent.rank is None else "Q"))
        )
        return sum(cell.macs()) - (1 - input_rate) * inputs - (1 - rates.updates) * states

    @torch.no_grad()
    def constrain(self) -> None:
        for theta in self.parameters():
            theta.clamp_(min=0)

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # `random_model` then searches thresholds for other rates, as they depend on the cell
        theta = -1.0 if rate == 1 else 1 - rate if rate else 1e30
        self.rule_theta_x.fill_(theta)
        self.rule_theta_h.fill_(theta)
