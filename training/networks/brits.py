# SPDX-License-Identifier: Apache-2.0
"""Bidirectional recurrent imputation (BRITS)."""

from typing import Any

import torch
from torch import Tensor

from edgernn.errors import UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.gaps import backwards

_NO_IMPUTER = "imputer: expected gru-d or rits, got none; set imputer=rits, or use a cell that implies an imputer"


class BRITS(RecurrentModel):
    """Bidirectional recurrent imputation: two models that fill in missing values, one per direction.

    model(x (T, B, 3F)) returns the outputs y (2, B, O) and the standardised values with imputed gaps (2, T, B, F), both
    in the time order of x. x is a result of `with_gaps` for F features. Index 0 comes from the model `ahead`, which
    reads x, and index 1 from the model `behind`, which reads backwards(x). Callers average over index 0 and 1. The
    imputation loss is the sum over both directions. The paper adds the losses of both outputs and a consistency loss,
    0.1 times the mean absolute difference of both imputations.

    The arguments are those of `SequenceModel`, for each of the two models, which share no weights. UsageError is raised
    for arguments without an imputer.

    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", NeurIPS 2018, section 4.2,
    https://arxiv.org/abs/1805.10572; appendix C.2 of the EINS paper.
    """

    def __init__(self, *config: Any, **settings: Any) -> None:
        super().__init__()
        self.ahead, self.behind = SequenceModel(*config, **settings), SequenceModel(*config, **settings)
        if self.ahead.imputer_type is None:
            raise UsageError(_NO_IMPUTER)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ahead, _ = self.ahead(x)
        behind, _ = self.behind(backwards(x))
        self.traces = self.ahead.traces + self.behind.traces
        filled = filled_by(self.ahead), filled_by(self.behind).flip(0)
        return torch.stack([ahead, behind]), torch.stack(filled)


def filled_by(model: SequenceModel) -> Tensor:
    """Return the standardised values with imputed gaps (T, B, F) of the model's last forward pass.

    UsageError is raised for a model without an imputer.
    """
    imputed = model.traces[0].imputed
    if imputed is None:
        raise UsageError(_NO_IMPUTER)
    return imputed
