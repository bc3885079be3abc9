# SPDX-License-Identifier: Apache-2.0
"""The FLOPs printed in the SA-RNN paper (sarnn.md, Tables 1-4): those that follow from its convention, and errors.

`printed` is in units of 10^4, in Table 4 of 10^6. `skip` is the skip % printed beside it. Where the number does not
follow from that, `of` is the skip % that it does follow from, or None.
"""

from dataclasses import dataclass
from decimal import Decimal

import pytest
import torch

from edgernn.cells import Cell, Gate
from edgernn.costs import executed_macs, model_cost
from edgernn.model import SequenceModel
from tests.models import named_cost


@dataclass(frozen=True)
class Task:
    input_size: int
    hidden_size: int
    steps: int
    power: int


TASKS = {
    # the header of Table 1 says 10^5
    "seizures": Task(1, 50, 17, 4),
    "twitter": Task(77, 50, 15, 4),
    "yahoo": Task(1, 50, 25, 4),
    "adding": Task(2, 128, 500, 6),
}
FOLLOW = [
    ("seizures", "gru", "0", "25.7"),
    ("seizures", "cwrnn", "81", "1.6"),
    ("seizures", "phasedlstm", "69", "10.6"),
    ("seizures", "vcrnn", "66", "8.9"),
    ("seizures", "skiprnn", "82", "4.8"),
    ("seizures", "random", "76", "6.2"),
    ("seizures", "sarnn", "76", "6.4"),
    ("twitter", "gru", "0", "56.9"),
    ("twitter", "cwrnn", "81", "3.65"),
    ("twitter", "phasedlstm", "70", "22.8"),
    ("twitter", "vcrnn", "66", "19.7"),
    ("twitter", "skiprnn", "87", "7.5"),
    ("yahoo", "gru", "0", "37.9"),
    ("yahoo", "cwrnn", "81", "2.4"),
    ("yahoo", "phasedlstm", "70", "15.2"),
    ("yahoo", "vcrnn", "66", "13.1"),
    ("yahoo", "skiprnn", "88", "4.8"),
    ("yahoo", "random", "89", "4.2"),
    ("yahoo", "sarnn", "89", "4.4"),
    ("adding", "gru", "0.0", "49.7"),
    ("adding", "random", "90.0", "4.97"),
    ("adding", "sarnn", "25.2", "37.5"),
    ("adding", "sarnn", "49.6", "25.3"),
]
WRONG = [
    # each has the FLOPs of the other's skip %
    ("twitter", "random", "76", "13.1", "77"),
    ("twitter", "sarnn", "77", "25.2", "76"),
    # the rows are mislabelled: 25 and 50 % instead of 50 and 75 %
    ("adding", "random", "25.0", "24.9", "50.0"),
    ("adding", "random", "50.0", "12.4", "75.0"),
    ("adding", "skiprnn", "2.1", "44.8", None),
    ("adding", "skiprnn", "21.6", "39.6", None),
    ("adding", "sarnn", "90.0", "15.3", None),
]


def follows(task: str, method: str, skip: str, printed: str, power: int | None = None) -> bool:
    """Return True if the printed number, rounded or truncated, follows from a skip % that rounds to the printed one."""
    t = TASKS[task]
    cell, rule = ("gru", "random") if method == "random" else (method, None)

    def flops(skipped: Decimal) -> float:
        rate = float(1 - skipped / 100)
        return t.steps * named_cost(cell, rule, t.input_size, t.hidden_size, update_rate=rate).flops_paper

    def half_digit(number: str) -> Decimal:
        return Decimal(10) ** Decimal(number).as_tuple().exponent / 2

    slack = half_digit(skip) if Decimal(skip) else Decimal(0)
    unit = Decimal(10) ** (t.power if power is None else power)
    low, high = (Decimal(printed) + k * half_digit(printed) for k in (-1, 2))
    return flops(Decimal(skip) + slack) < high * unit and flops(Decimal(skip) - slack) >= low * unit


@pytest.mark.parametrize(("task", "method", "skip", "printed"), FOLLOW, ids="-".join)
def test_printed_flops_follow_from_the_convention(task, method, skip, printed):
    assert follows(task, method, skip, printed)


@pytest.mark.parametrize(("task", "method", "skip", "printed", "of"), WRONG, ids=["-".join(row[:3]) for row in WRONG])
def test_printed_flops_that_are_wrong(task, method, skip, printed, of):
    assert not follows(task, method, skip, printed)
    assert of is None or follows(task, method, of, printed)


@pytest.mark.parametrize("row", [row for row in FOLLOW if row[0] == "seizures"], ids="-".join)
def test_the_power_that_table_1_prints_is_wrong(row):
    assert not follows(*row, power=5)


def test_dense_cells_cost_what_the_convention_says():
    for cell, gates in (("rnn", 1), ("gru", 3), ("gru-before", 3), ("lstm", 4)):
        assert named_cost(cell, None, 77, 50).flops_paper == gates * 50 * (2 * (50 + 77) - 1)
    assert 15 * named_cost("gru", None, 77, 50).flops_paper == 569_250
    assert 25 * named_cost("gru", None, 1, 50).flops_paper == 378_750
    assert 17 * named_cost("gru", None, 1, 50).flops_paper == 257_550
    assert 500 * named_cost("gru", None, 2, 128).flops_paper == 49.728e6


def test_delta_multiplies_all_rows_by_the_share_of_h_that_is_sent():
    # 3 gates of 8 neurons, 3 inputs: 24 rows of 11 weights, each 11 products and 10 sums
    assert named_cost("gru", "delta", 3, 8).flops_paper == 24 * 21
    assert named_cost("gru", "delta", 3, 8, update_rate=0.25).flops_paper == 0.25 * 24 * 21 == 126
    assert named_cost("gru", "delta", 3, 8, update_rate=0.0).flops_paper == 0
    # C c counts like the others: the rows of i, f and o have 3 + 4 + 4 weights, those of g 3 + 4
    peephole = 0.5 * 4 * (3 * (2 * 11 - 1) + (2 * 7 - 1))
    assert named_cost("lstm-peephole", "delta", 3, 4, update_rate=0.5).flops_paper == peephole


@pytest.mark.parametrize(("theta_x", "columns"), [(0.0, 3), (10.0, 0)])
def test_delta_takes_the_share_of_h_and_not_that_of_x(theta_x, columns):
    torch.manual_seed(0)
    options = {"theta_x": theta_x, "theta_h": 0.0}
    model = SequenceModel("gru", 3, 8, rule="delta", rule_options=options).eval()
    with torch.no_grad():
        model(torch.randn(10, 1, 3))
    # all of h is sent at 9 of 10 steps, as h_0 = 0; x at all of them or at none
    assert model_cost(model, model.update_rate).flops_paper == pytest.approx(24 * 21 * 9 / 10)
    assert executed_macs(model) == pytest.approx(24 * columns + 24 * 8 * 9 / 10)


def test_topk_counts_the_update_gate_of_all_neurons():
    # z of all 8 neurons, and r and n of 2
    assert named_cost("gru", "topk", 3, 8, update_rate=0.25).flops_paper == 8 * 21 + 2 * 2 * 21 == 252
    # the gate alone
    assert named_cost("pru", "topk", 2, 4, update_rate=0.0).flops_paper == 4 * (2 * 6 - 1)


class Separate(Cell):
    """A cell with a gate that reads h alone and is no part of another gate."""

    name = "separate"
    gates = (Gate("a"), Gate("b", x=False))

    def update(self, p, state):
        return (torch.sigmoid(p.b) * torch.tanh(p.a),)


class LastInMid(Cell):
    """A cell of two stages, of which the first reads x_{t-1}, too."""

    name = "last-in-mid"
    reads_last = True
    gates = (Gate("r", mid=True), Gate("n", h=False, m=True))

    def mid(self, p, state):
        return torch.sigmoid(p.r) * state[0]

    def update(self, p, state):
        return (torch.tanh(p.n),)


@pytest.mark.parametrize("cell", [Separate, LastInMid])
def test_costs_of_a_cell_of_ones_own_are_those_of_its_matrices(cell):
    costs, own = named_cost(cell, None, 3, 8), cell(3, 8)
    assert own.W.shape[1] == 3 * (1 + own.reads_last)
    matrices = [getattr(own, name) for name in "WRV" if hasattr(own, name)]
    assert costs.macs == costs.macs_executed == sum(matrix.numel() for matrix in matrices)
    # each gate has 8 rows, and a row of n weights costs 2n - 1
    assert costs.flops_paper == 2 * costs.macs - 2 * 8


def test_own_costs_of_rules_follow_the_convention():
    D, V = 50, 77
    costs = {"random": 0, "clockwork": 0, "phased": 0, "skip": 2 * D - 1, "variable": 2 * (D + V) - 1}
    for rule, flops in costs.items():
        assert named_cost("gru", rule, V, D, update_rate=0.0).flops_paper == flops
    assert named_cost("gru", "selective", V, D, update_rate=0.0).flops_paper == D * (2 * V - 1) + 2 * D
