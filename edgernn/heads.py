# SPDX-License-Identifier: Apache-2.0
"""The output layer (head) of a model: a linear layer, which may share its weight with the word embedding."""

import torch
from torch import Tensor, nn

from edgernn.config import ModelConfig
from edgernn.errors import UsageError


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


def make_head(config: ModelConfig, width: int, embedding: nn.Embedding | None) -> nn.Linear | TiedHead | None:
    """Create the output layer (head) of a model.

    Args:
        config: Configuration of the model.
        width: Size of the head's input, the output of the last layer.
        embedding: The model's word embedding, or None without a vocabulary.

    Returns:
        The head, with newly initialised weights, or None if the configuration has none.

    Raises:
        UsageError: The head is tied to the embedding, but there is no embedding or the sizes differ.
    """
    size, words = config.head.size, config.input.vocabulary
    if not config.head.tied:
        return None if size is None else nn.Linear(width, size)
    if embedding is None:
        raise UsageError(
            "tied: expected a vocabulary, whose embedding the head shares; set vocabulary, or leave out tied"
        )
    if size != words:
        raise UsageError(f"tied: expected output_size={words}, the size of the vocabulary, got {size}")
    if width != config.input.size:
        hint = "; leave out tied" if config.bidirectional else "; set hidden_size or, if layers > 1, last_size"
        expected = f"a last layer with {config.input.size} outputs, the width of the embedding"
        raise UsageError(f"tied: expected {expected}, got {width} outputs{hint}")
    return TiedHead(embedding)
