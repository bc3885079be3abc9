# SPDX-License-Identifier: Apache-2.0
"""Output layer of a language model that shares its weight with the embedding."""

import torch
from torch import Tensor, nn


class TiedHead(nn.Module):
    """Parameters of a head y Eᵀ + b, (…, I) to (…, V), whose weight is the embedding E (V, I) of V words."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        # in a list, so that torch registers E as a parameter of the embedding only
        self._embedding = [embedding]
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    @property
    def weight(self) -> Tensor:
        return self._embedding[0].weight
