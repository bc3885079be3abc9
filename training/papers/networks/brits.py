# SPDX-License-Identifier: Apache-2.0
"""Bidirectional recurrent imputation (BRITS)."""

from typing import Any

import torch
from torch import Tensor

from edgernn.errors import UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.papers.gaps import backwards

_NO_IMPUTER = "imputer: expected gru-d or rits, got none; set imputer=rits, or use a cell that implies an imputer"


class BRITS(RecurrentModel):
    """Bidirectional recurrent imputation: two models that fill in missing values, one per direction of time.

    The input x (T, B, 3F) is built by `with_gaps` from a series of F features: their values, their observation masks,
    and the times since their last observations. The model `ahead` reads x; the model `behind` reads x reversed in time
    (`backwards`). model(x) returns two tensors: the outputs y (2, B, O) for O outputs per model, and the standardised
    values with imputed gaps (2, T, B, F), in the time order of x. Index 0 of their first axis is the result of `ahead`,
    index 1 that of `behind`. Callers average over this axis.

    `imputation_loss` is the sum of the imputation losses of both models. The paper's training loss has two
    more terms, which the caller computes from the results of model(x): the loss of the outputs of each model, and a
    consistency loss, which is 0.1 times the mean absolute difference between the two imputations.

    The arguments are those of `SequenceModel`. Both models are built with them, and share no weights. UsageError is
    raised if the arguments do not name an imputer, the layer that fills in missing values.

    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", NeurIPS 2018, section 4.2,
    https://arxiv.org/abs/1805.10572; appendix C.2 of the EINS paper.
    """

    def __init__(self, *config: Any, **settings: Any) -> None:
        super().__init__()
        self.ahead, self.behind = SequenceModel(*config, **settings), SequenceModel(*config, **settings)
        if self.ahead.imputer_type is None:
            raise UsageError(_NO_IMPUTER)
        self.rounding = self.behind.rounding = self.ahead.rounding

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ahead, _ = self.ahead(x)
        behind, _ = self.behind(backwards(x))
        self.traces = self.ahead.traces + self.behind.traces
        filled = filled_by(self.ahead), filled_by(self.behind).flip(0)
        return torch.stack([ahead, behind]), torch.stack(filled)


def filled_by(model: SequenceModel) -> Tensor:
    """Return the standardised values with imputed gaps (T, B, F) of the model's last forward pass, for F features.

    UsageError is raised for a model without an imputer.
    """
    imputed = model.traces[0].imputed
    if imputed is None:
        raise UsageError(_NO_IMPUTER)
    return imputed
