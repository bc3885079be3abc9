# SPDX-License-Identifier: Apache-2.0
"""Two models with an imputer, one a direction."""

from typing import Any

import torch
from torch import Tensor

from edgernn.errors import UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.gaps import backwards


class BRITS(RecurrentModel):
    """Bidirectional recurrent imputation: what is missing is filled from before and from after.

    model(x (T, B, 3F)) returns y (2, B, O) and x without gaps (2, T, B, F), standardised: the answers of `ahead`, which
    reads x, and those of `behind`, which reads backwards(x). Both in the order of x. Who uses them takes their mean.
    The arguments are those of each of the two SequenceModels, which share no weight.
    The imputation loss is the sum of both; the paper adds a consistency loss, 0.1 times the mean of the distance of
    both, and the losses of both answers.
    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", NeurIPS 2018, section 4.2,
    https://arxiv.org/abs/1805.10572; appendix C.2 of the EINS paper.
    Raises UsageError where the arguments name no imputer.
    """

    def __init__(self, *config: Any, **settings: Any) -> None:
        super().__init__()
        self.ahead, self.behind = SequenceModel(*config, **settings), SequenceModel(*config, **settings)
        if self.ahead.imputer_type is None:
            raise UsageError("imputer: expected gru-d or rits, got none")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ahead, _ = self.ahead(x)
        behind, _ = self.behind(backwards(x))
        self.traces = self.ahead.traces + self.behind.traces
        filled = filled_by(self.ahead), filled_by(self.behind).flip(0)
        return torch.stack([ahead, behind]), torch.stack(filled)


def filled_by(model: SequenceModel) -> Tensor:
    """X without gaps (T, B, F), standardised, from the last forward of a model with an imputer."""
    imputed = model.traces[0].imputed
    if imputed is None:
        raise UsageError("imputer: expected gru-d or rits, got none")
    return imputed
