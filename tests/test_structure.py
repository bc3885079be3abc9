# SPDX-License-Identifier: Apache-2.0
"""Layers that differ only in weight values share one traced function; all others have separate ones."""

import numpy as np
import pytest
import torch
from torch import nn

from edgernn.cells import CELLS, GRU
from edgernn.cells.recurrent import LowRank
from edgernn.export import layer_functions
from edgernn.export.layer_functions import layer_function
from edgernn.layer import RecurrentLayer
from edgernn.rules import Delta, Phased
from edgernn.structure import structure


class Doubled(GRU):
    def update(self, p, state):
        (h,) = super().update(p, state)
        return (2 * h,)


class Scaled(nn.Module):
    """An equation may read this attribute."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale


def test_values_of_weights_do_not_matter():
    assert structure(GRU(3, 5)) == structure(GRU(3, 5))
    assert structure(Phased(3, 5)) == structure(Phased(3, 5, open=0.1))
    assert structure(Delta(3, 5, theta_x=0.1)) == structure(Delta(3, 5, theta_x=0.2))


@pytest.mark.parametrize(
    "others",
    [
        (GRU(3, 5), GRU(3, 6), GRU(4, 5), GRU(3, 5).double(), GRU(3, 5, recurrent=LowRank(2)), Doubled(3, 5)),
        (CELLS["eins"](3, 5), CELLS["eins"](3, 5, a="x"), CELLS["eins"](3, 5).eval()),
        (Phased(3, 5, leak=0.1), Phased(3, 5, leak=0.2)),
        (Scaled(1), Scaled(1.0), Scaled(True), Scaled("1"), Scaled((1,)), Scaled([1]), Scaled({1: 1}), Scaled(None)),
        (Scaled(0.0), Scaled(-0.0), Scaled(float("nan")), Scaled(torch.tanh), Scaled(torch.sigmoid)),
        (nn.Sequential(Scaled(1)), nn.Sequential(Scaled(2)), nn.Sequential(Scaled(1), Scaled(1))),
    ],
    ids=["sizes and classes", "options", "rules", "types", "numbers", "parts"],
)
def test_what_may_change_the_function_matters(others):
    keys = [structure(module) for module in others]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("value", [torch.zeros(2), np.zeros(2), object()], ids=["tensor", "array", "object"])
def test_what_is_not_compared_by_value_has_no_key(value):
    assert structure(Scaled(value)) is None
    assert structure(nn.Sequential(Scaled([value]))) is None


def function_of(cell, seed=0):
    torch.manual_seed(seed)
    return layer_function(RecurrentLayer(cell(3, 5), Phased(3, 5)).eval(), "Recurrent").SerializeToString()


def test_a_function_is_that_of_its_own_layer():
    first = function_of(GRU)
    assert function_of(GRU, seed=1) == first
    assert function_of(Doubled) != first


def test_functions_of_one_size_and_of_any_size_share_a_trace(monkeypatch):
    layer = RecurrentLayer(GRU(3, 5), Phased(3, 5)).eval()
    first = layer_function(layer, "Recurrent")
    monkeypatch.delattr(layer_functions, "_trace")
    assert layer_function(layer, "Recurrent", any_size=True) != first
