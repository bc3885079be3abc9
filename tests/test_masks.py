# SPDX-License-Identifier: Apache-2.0
"""Masks on the input of the first layer, in training."""

import pytest
import torch

import edgernn
from edgernn.dropout import masked
from edgernn.errors import UsageError


def test_masks_are_stretches_with_the_mean_of_their_sequence():
    torch.manual_seed(0)
    x = torch.randn(20, 100, 8)
    y = masked(x, 4, 3)
    changed = y != x
    assert changed.all(2).sum(0).max() == 4
    assert changed.all(0).sum(1).max() == 3
    means = x.mean((0, 2))
    for i in range(100):
        assert (y[:, i][changed[:, i]] == means[i]).all()
        for stretch in (changed[:, i].all(1), changed[:, i].all(0)):
            places = stretch.nonzero().flatten()
            assert not len(places) or places[-1] - places[0] + 1 == len(places)
    # every place is masked at times, those at the ends too
    assert changed.any(1).all()
    assert masked(x, 0, 0) is x
    assert masked(x, 100, 0).shape == x.shape


def test_a_model_masks_its_features_in_training_alone():
    torch.manual_seed(0)
    model = edgernn.SequenceModel("gru", 160, 8, 3, frontend="logmel", mask_steps=9, mask_channels=9)
    x = 0.1 * torch.randn(12, 2, 160)
    with torch.no_grad():
        assert not torch.equal(model(x)[0], model(x)[0])
        model.eval()
        assert torch.equal(model(x)[0], model(x)[0])


def test_masks_and_an_imputer_exclude_each_other():
    for name in ("mask_steps", "mask_channels"):
        with pytest.raises(UsageError, match="imputer: expected no vocabulary, dropout_input, mask_steps or"):
            edgernn.SequenceModel("rits", 6, 8, **{name: 2})
