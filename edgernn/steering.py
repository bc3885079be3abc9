# SPDX-License-Identifier: Apache-2.0
"""Control of λ, the weight of the penalty on neuron updates in the loss, to reach a wanted share of skipped updates."""

import math
from dataclasses import dataclass

from edgernn.errors import UsageError
from edgernn.rules import RULES, UpdateRule

# largest distance from the wanted share of skipped updates, in percentage points, that counts as reached
TOLERANCE = 2.0
# integral gain: change of z per training step if the updated share is off by 1
_RATE = 0.5
# derivative gain: change of z for a change of 1 of the smoothed share; it damps oscillations
_DAMPING = 20.0
# weight of the past in the smoothed share
_SMOOTHING = 0.9
# λ at z = asinh(1) as a fraction of the first batch's loss divided by its budget
_SCALE = 1e-3
# bound of abs(z): abs(λ) is at most 11 times the first batch's loss divided by its budget
_BOUND = 10.0
# part of the training in which the wanted share moves from that of the first batch to the final one
_WARM_UP = 0.5


@dataclass
class SteeringState:
    """State of `Steering`, the controller of λ, the weight of the penalty on neuron updates; saved in checkpoints.

    Attributes:
        scale: Factor of λ, a small fraction of the first batch's loss divided by its penalty on updates.
        first_share: Share of neurons updated in the first batch.
        share: Exponential moving average of the share of neurons updated in the training batches.
        z: The controlled variable: λ = scale · sinh(z).
    """

    scale: float
    first_share: float
    share: float
    z: float = 0.0

    @property
    def weight(self) -> float:
        """λ, the weight of the penalty on neuron updates in the loss."""
        return self.scale * math.sinh(self.z)


class Steering:
    """Controller of λ, the weight of the penalty on neuron updates in the loss, by dual ascent.

    It adapts λ after each training step, so that the trained network skips a share `skip` of its neuron updates.

    z_k = z_{k-1} + 0.5·(s_k - w_k) + 20·(s̄_k - s̄_{k-1})        clipped to -10 ≤ z_k ≤ 10
    λ_k = scale·sinh(z_k)

    s_k is the share of the neurons that are updated in batch k, and s̄_k is its exponential moving average. w_k is the
    wanted share. It moves linearly from the share of the first batch to 1 - skip in the first half of the training (the
    warm-up). sinh grows exponentially, so λ crosses orders of magnitude in few steps. λ becomes negative, and rewards
    updates, if a network skips too much by itself. scale is a fraction of the first batch's loss divided by its penalty
    on updates. The control therefore does not depend on the size of the loss or the number of steps and neurons.

    Source: Platt, Barr, "Constrained Differential Optimization", NIPS 1987; damping as in Stooke, Achiam, Abbeel,
    "Responsive Safety in Reinforcement Learning by PID Lagrangian Methods", ICML 2020.

    Args:
        skip: Share of the neuron updates to skip, from 0 to 1.
        steps: Number of steps of the whole training.
        state: Saved state of the training that is resumed. None: a new training.
    """

    def __init__(self, skip: float, steps: int, state: SteeringState | None = None) -> None:
        self.skip, self.steps, self.state = skip, steps, state

    @property
    def weight(self) -> float:
        """λ, the weight of the penalty on neuron updates in the loss, at the next step; the first step has λ = 0."""
        return 0.0 if self.state is None else self.state.weight

    @property
    def skipped(self) -> float:
        """Percentage of skipped neuron updates, a moving average over training batches; 0 before the first step."""
        return 0.0 if self.state is None else 100 * (1 - self.state.share)

    def wanted(self, step: int) -> float:
        """Return the share of neurons, from 0 to 1, that the network should update per time step at this training step.

        `step` is the number of training steps done. In the warm-up, the first half of the training, the wanted share
        moves linearly from the share in the first batch to 1 - skip.
        """
        first = 1 - self.skip if self.state is None else self.state.first_share
        return first + (1 - self.skip - first) * min(1.0, step / (_WARM_UP * self.steps))

    def warm(self, step: int) -> bool:
        """Return True if the warm-up is over after `step` training steps.

        In the warm-up, the first half of the training, the wanted share of updated neurons still moves.
        """
        return step >= _WARM_UP * self.steps

    def follow(self, step: int, loss: float, budget: float, share: float) -> None:
        """Adapt λ, the weight of the penalty on neuron updates, after a training step.

        Args:
            step: Number of training steps done, including this one.
            loss: Loss of the batch.
            budget: Penalty on neuron updates in the batch (`RecurrentModel.budget`), before it is weighted by λ.
            share: Share of the neurons that were updated in the batch, from 0 to 1.
        """
        if self.state is None:
            scale = _SCALE * max(abs(loss), 1e-6) / max(budget, 1.0)
            self.state = SteeringState(scale, share, share)
            return
        state, before = self.state, self.state.share
        state.share = _SMOOTHING * before + (1 - _SMOOTHING) * share
        change = _RATE * (share - self.wanted(step)) + _DAMPING * (state.share - before)
        state.z = min(max(state.z + change, -_BOUND), _BOUND)

    def missed(self, skip_percent: float) -> float:
        """Return by how many points beyond TOLERANCE a percentage of skipped updates misses the wanted one."""
        return max(0.0, abs(skip_percent - 100 * self.skip) - TOLERANCE)

    def why_missed(self, skip_percent: float) -> str | None:
        """Explain in a sentence why a trained network does not skip the wanted share of its updates.

        `skip_percent` is the percentage that it skips on the validation data. The result is None if that is within
        TOLERANCE, or before the first training step.
        """
        if self.missed(skip_percent) == 0 or self.state is None:
            return None
        wanted, z = 100 * self.skip, self.state.z
        head = f"skip: expected {wanted:.4g} % of the updates skipped on the validation data, got {skip_percent:.1f} %"
        weight = f"the weight λ of the update budget ended at its bound, {self.weight:.3g}"
        if z >= _BOUND:
            return f"{head}: {weight}, and the rule cannot skip more on these data; set a smaller skip"
        if z <= -_BOUND:
            return f"{head}: {weight}, and the rule skips more by itself; set a larger skip"
        if abs(self.skipped - wanted) <= TOLERANCE:
            return (
                f"{head}: it is {self.skipped:.1f} % on the training batches; use more training data, or data that "
                "resemble the validation data"
            )
        return (
            f"{head}: the share was still changing, {self.skipped:.1f} % in the last of {self.steps} training steps; "
            "train longer, or use a larger batch_size if the share fluctuates"
        )


def check_steerable(setting: str, rule: type[UpdateRule]) -> None:
    """Raise UsageError if an update rule has no penalty on updates, so that a setting for this penalty has no effect.

    Args:
        setting: Name of the setting for the error message: skip or background.
        rule: Class of the update rule.
    """
    if not rule.steerable():
        names = ", ".join(sorted(name for name, other in RULES.items() if other.steerable()))
        raise UsageError(
            f"{setting}: expected an update rule with a penalty on updates, got {rule.name}, which has none; use "
            f"one of {names}"
        )
