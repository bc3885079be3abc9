# SPDX-License-Identifier: Apache-2.0
"""The rule of the dynamic gated RNN, under which the neurons change whose update gates let in most of the new value."""

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.rules.base import Decision
from edgernn.rules.kinds.gate import ByGate

# limit of k: it is stored as float32, which is exact for whole numbers below it
_NEURONS = 2**24


class TopK(ByGate):
    """Top-k updates: at each step k neurons change, those whose update gates take the largest share of the new value.

    u_{t,j} = 1 where s_{t,j} is one of the k largest values of s_t (B, H), else 0

    s is a score from the pre-activation p of the cell's update gate. In `gru-before`, a neuron takes the share σ(p) of
    its new value, and s = p. In `gru` and `pru`, it takes 1 - σ(p), and s = -p. In `fastgrnn-split`, it takes
    σ(zeta) (1 - σ(p)) + σ(nu), which has the same order as in `gru`, and s = -p. Of equal scores, the one with the
    lower index wins. NaN counts as the smallest score. In a batch, each sequence has its own k neurons.
    A step computes the update gate of all neurons, and the other gates of k neurons only, so that its work is bounded.
    Cells whose class sets no `update_gate` are refused. `mingru`, `minlstm` and `egru` have such a gate, but do not
    declare it: no kernel computes it before their other gates.
    Options: k, from 1 to H; by default half of the neurons, rounded up. The buffer rule_k (1,) holds it.
    The gradient passes through the new values of the k neurons, and through the kept states of all others. The choice
    itself has no gradient. There is no penalty on updates, as their number is fixed.
    Source: Cheng et al., "Dynamic Gated Recurrent Neural Network for Compute-efficient Speech Enhancement",
    Interspeech 2024, https://arxiv.org/abs/2408.12425; the paper's D-GRU is this rule with the cell `gru`.
    """

    name = "topk"
    paper = "Cheng et al. 2024, arXiv:2408.12425"

    rule_k: Tensor

    def __init__(self, input_size: int, hidden_size: int, k: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        k = -(-hidden_size // 2) if k is None else k
        if not 1 <= k <= hidden_size:
            raise UsageError(f"k: expected from 1 to {hidden_size}, the number of neurons, got {k}")
        if hidden_size >= _NEURONS:
            raise UsageError(f"hidden_size: expected below {_NEURONS} with the rule {self.name}, got {hidden_size}")
        self.register_constant("rule_k", [float(k)])

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        scores = _without_nan(e)
        threshold = self._largest(scores, 0)
        above, equal = scores > threshold, scores == threshold
        places = self.rule_k.to(torch.int64) - above.sum(-1, keepdim=True)
        return Decision(above | (equal & (equal.cumsum(-1) <= places)))

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        """Return by how much the k-th largest score is above the next one, (B,); ∞ if all neurons change."""
        if int(self.rule_k) == self.hidden_size:
            return torch.full((e.shape[0],), torch.inf, dtype=e.dtype)
        scores = _without_nan(e)
        distance = self._largest(scores, 0) - self._largest(scores, 1)
        return distance.squeeze(-1)

    def _largest(self, scores: Tensor, after: int) -> Tensor:
        """Return the (k + `after`)-th largest of each row of the scores (B, H), as (B, 1)."""
        ordered = torch.topk(scores, self.hidden_size).values
        return ordered.index_select(-1, self.rule_k.to(torch.int64) - 1 + after)

    @torch.no_grad()
    def force(self, rate: float) -> None:
        if rate == 0:
            raise UsageError(
                f"skip: expected below 1 with the rule {self.name}, which updates at least one neuron at every step, "
                "got 1"
            )
        self.rule_k.fill_(max(1, round(rate * self.hidden_size)))


def _without_nan(scores: Tensor) -> Tensor:
    return torch.where(scores.isnan(), -torch.inf, scores)
