# SPDX-License-Identifier: Apache-2.0
"""The optimiser ntasgd, which averages the weights of the last steps."""

import pytest
import torch

from edgernn.training.config import TrainConfig
from edgernn.training.optim import NTASGD, averaged, schedule, watch
from edgernn.training.tasks.base import Score


def test_average_is_the_mean_of_what_follows_the_switch():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    optimizer = NTASGD(layer.parameters(), lr=0.5, weight_decay=0.1)
    weights = []
    for step in range(7):
        if step == 3:
            optimizer.switch()
        optimizer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        weights.append(layer.weight.detach().clone())
        with averaged(optimizer):
            expected = torch.stack(weights[3:]).mean(0) if step >= 3 else weights[-1]
            torch.testing.assert_close(layer.weight.detach(), expected)
        assert torch.equal(layer.weight, weights[-1])


@pytest.mark.parametrize(
    ("values", "averages"),
    [
        ([9, 8, 7], False),
        # better than all evaluations but the last two before it
        ([9, 8, 7, 6, 7.5], False),
        ([9, 7, 6, 5, 8], True),
        ([9, 7, 7, 7], False),
        ([9, 8], False),
    ],
)
def test_non_monotone_trigger(values, averages):
    optimizer = NTASGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    watch(optimizer, TrainConfig.of(optimizer="ntasgd", nonmono=2), Score("perplexity", False), values)
    assert bool(optimizer.averages) == averages


def test_schedule_of_the_eins_paper():
    """30 epochs of SGD at 30, 100 epochs of averaging at 30, then 50."""
    config = TrainConfig.of(
        optimizer="ntasgd", lr=30.0, average_from=30, lr_hold=129, lr_decay=5 / 3, lr_decays=1, batch_size=20
    )
    optimizer = NTASGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    rates = {}
    for epoch in (0, 29, 30, 129, 130, 131, 499):
        schedule(optimizer, config, epoch, 0.5)
        rates[epoch] = 2 * optimizer.param_groups[0]["lr"], bool(optimizer.averages)
    assert rates == {
        0: (30, False),
        29: (30, False),
        30: (30, True),
        129: (30, True),
        **dict.fromkeys((130, 131, 499), (pytest.approx(50), True)),
    }
