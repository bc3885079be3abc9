# SPDX-License-Identifier: Apache-2.0
"""Record of one forward pass of a recurrent layer, for losses and statistics, and the names of a layer's own states."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# name of the state with the previous input, for cells that read it
LAST = "x_last"
# name of the state with the number of steps, for cells that count them
COUNT = "t"


@dataclass(frozen=True)
class Trace:
    """Values that one forward pass of a layer records besides its output, for losses and statistics.

    Attributes:
        decisions: Mask of the updated neurons (T, B, H), or None if every neuron is updated at every step. A rule such
            as delta (`PerColumn`) updates every neuron, but keeps older values in products; the mask is then True
            where the products R h read the new value of h.
        budget: The penalty on updates, a scalar that training adds to the loss with the weight λ (setting lambda).
        imputed: The F features of the input (T, B, F) with missing values filled in, or None without an imputer.
        imputation_loss: Loss of the imputer, or None without an imputer.
        background: Mask (T, B), True at the steps that the task marks as background (no event), or None.
        sent_inputs: With a rule such as delta (`PerColumn`): mask (T, B, columns of W), True where the product
            W x reads the new value of x and not an older one. With any other rule: None.
    """

    decisions: Tensor | None
    budget: Tensor
    imputed: Tensor | None = None
    imputation_loss: Tensor | None = None
    background: Tensor | None = None
    sent_inputs: Tensor | None = None

    def only(self, steps: Tensor) -> "Trace":
        """Return the record of the steps that the mask `steps` (T, B) marks, as masks (number of steps, 1, ...)."""
        masks = {"decisions": self.decisions, "background": self.background, "sent_inputs": self.sent_inputs}
        return replace(self, **{n: mask[steps].unsqueeze(1) for n, mask in masks.items() if mask is not None})


def joined(traces: list[Trace]) -> Trace:
    """Merge the records (`Trace`) of a layer that ran over consecutive parts of a sequence.

    The merged record has the masks of all steps, and the sums of the penalties and of the imputer's losses. Its other
    fields are None.
    """
    decisions = [trace.decisions for trace in traces if trace.decisions is not None]
    sent = [trace.sent_inputs for trace in traces if trace.sent_inputs is not None]
    losses = [trace.imputation_loss for trace in traces if trace.imputation_loss is not None]
    return Trace(
        torch.cat(decisions) if decisions else None,
        torch.stack([trace.budget for trace in traces]).sum(),
        imputation_loss=torch.stack(losses).sum() if losses else None,
        sent_inputs=torch.cat(sent) if sent else None,
    )
