# SPDX-License-Identifier: Apache-2.0
"""Sparse and low-rank R in the native ops. test_native_op.py repeats these tests for every instruction set.

A cell named "gru/4" has an R of rank 4.
"""

import ctypes
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch

from edgernn.cells import CELLS, COMPILED
from edgernn.cells.recurrent import BLOCK, BlockSparse
from edgernn.rules import RULES
from tests import oracle
from tests.native import (
    Inputs,
    assert_equal,
    assert_steps_equal_sequence,
    draw,
    draw_call,
    draw_clear_call,
    layer,
    library,
    oracle_result,
    output_names,
    sample,
    session,
)

RECURRENT = [cell for cell in CELLS if "R" in dict(layer(cell, "always", 33, 3).cell.named_parameters())]
WHOLE_RULES = [rule for rule in RULES if rule not in ("clockwork", "delta", "topk")]
LENGTHS = [(1, 1), (23, 1), (6, 3)]  # T, B


def sizes_of(weights: Inputs) -> tuple[int, int]:
    """Return H and I of cells whose W has I columns."""
    return weights["Q" if "Q" in weights else "R"].shape[1], weights["W"].shape[1]


def draw_sparse(cell: str, rule: str, hidden: int, inputs: int, density: float) -> Inputs:
    weights = draw(cell, rule, hidden, inputs)
    module = CELLS[cell](inputs, hidden, recurrent=BlockSparse(density))
    with torch.no_grad():
        module.R.copy_(torch.from_numpy(weights["R"]))
    module.threshold(hold=False)
    return weights | {"R": module.R.detach().numpy()}


def zeros_left_out(cell: str, weights: Inputs, hidden: int, inputs: int) -> int:
    """Return the zero columns that are skipped, if a quarter or more is zero: those of mid gates, then the others."""
    row = oracle.row_of(cell, inputs, hidden)
    parts = np.split(weights["R"], [row.mid_h * row.middle_size(inputs, hidden)])
    return sum(int((part == 0).sum()) for part in parts if 4 * (part == 0).sum() >= part.size)


SPARSE_CELLS = ["gru", "gru-before", "lstm", "lstm-peephole", "decaynet", "rnn", "eins", "ihc-lstm", "fastgrnn-split"]


@pytest.mark.parametrize(("hidden", "inputs"), [(5, 3), (33, 3), (100, 17), (128, 2)], ids=str)
@pytest.mark.parametrize("density", [0.1, 0.6, 0.9])
@pytest.mark.parametrize("rule", ["always", "skip"])
@pytest.mark.parametrize("cell", SPARSE_CELLS)
def test_sparse_weights_equal_oracle(cell: str, rule: str, density: float, hidden: int, inputs: int) -> None:
    weights = draw_sparse(cell, rule, hidden, inputs, density)
    run = session(cell, rule, weights, sizes=(hidden, inputs))
    for steps, batch in LENGTHS:
        feed, expected = draw_clear_call(cell, rule, weights, (*sizes_of(weights), steps, batch))
        if rule == "skip":
            expected.macs[:] -= (expected.updates > 0).sum(0) * zeros_left_out(cell, weights, hidden, inputs)
        assert_equal(cell, rule, run.run(None, feed), expected)


@pytest.mark.parametrize("hidden", [33, 128])
@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_zeros_of_a_sparse_matrix_are_not_multiplied(hidden: int, batch: int) -> None:
    weights = draw("gru", "always", hidden, 3)
    unread = np.arange(hidden) % 3 > 0
    weights["R"][:, unread] = 0
    feed = draw_call("gru", "always", hidden, 3, 4, batch)
    feed["h"][:, unread] = np.nan
    y, _ = session("gru", "always", weights).run(None, feed)
    assert np.isfinite(y[..., ~unread]).all()
    assert np.isnan(y[..., unread]).all()
    # with few zeros R is multiplied as a full matrix
    weights["R"][0, unread] = 1
    weights["R"][BLOCK, unread] = 1
    weights["R"][2 * BLOCK :, unread] = 1
    y, _ = session("gru", "always", weights).run(None, feed)
    assert np.isnan(y).all()


def test_a_matrix_of_zeros_is_nothing_to_multiply() -> None:
    weights = draw("gru-before", "skip", 33, 3)
    weights["R"][:] = 0
    feed = draw_call("gru-before", "skip", 33, 3, 5, 2)
    expected = oracle_result("gru-before", "skip", weights | feed)
    expected.macs[:] -= (expected.updates > 0).sum(0) * weights["R"].size
    assert_equal("gru-before", "skip", session("gru-before", "skip", weights).run(None, feed), expected)


@dataclass(frozen=True)
class LowRank(oracle.Row):
    """A row of the table of oracles whose R has `rank` columns; `rank` rows of Q are needed if any neuron changes.

    c: How many of the matrices that read the states are C.
    """

    rank: int = 0
    c: int = 0

    @property
    def keeps_sums(self):
        return False

    def row_macs(self, nx, nh, nm):
        return self.x * nx + (self.h - self.c) * self.rank + self.c * nh + self.m * nm

    def mid_macs(self, nx, nh):
        return self.mid_x * nx + self.mid_h * self.rank

    def step_macs(self, k, I, H):
        return super().step_macs(k, I, H) + (k > 0) * self.rank * H


def low_rank(
    monkeypatch: pytest.MonkeyPatch, cell: str, rule: str, rank: int, hidden: int, inputs: int
) -> tuple[str, Inputs]:
    """Return the name of the cell, registered in the oracle, and its weights."""
    name = f"{cell}/{rank}"
    row = oracle.row_of(cell, inputs, hidden)
    weights = draw(name, rule, hidden, inputs)
    weights["Q"] *= 2 * np.sqrt(hidden / rank)
    second = weights["C"].shape[0] // hidden if "C" in weights else 0
    low_rank_row = LowRank(**{f.name: getattr(row, f.name) for f in fields(row)}, rank=rank, c=second)
    monkeypatch.setitem(oracle.CELLS, name, low_rank_row)
    return name, weights


def low_rank_equals_oracle(
    monkeypatch: pytest.MonkeyPatch, cell: str, rule: str, rank: int, hidden: int, inputs: int
) -> None:
    name, weights = low_rank(monkeypatch, cell, rule, rank, hidden, inputs)
    run = session(name, rule, weights, sizes=(hidden, inputs))
    for steps, batch in LENGTHS:
        feed, expected = draw_clear_call(name, rule, weights, (*sizes_of(weights), steps, batch))
        if rule == "variable":
            # Q h reads the columns that are not masked
            expected.macs[:] += rank * expected.updates.sum(0)
        assert_equal(name, rule, run.run(None, feed), expected)


@pytest.mark.parametrize("rule", WHOLE_RULES)
@pytest.mark.parametrize("cell", RECURRENT)
def test_low_rank_equals_oracle(cell: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    low_rank_equals_oracle(monkeypatch, cell, rule, 4, 33, 3)


@pytest.mark.parametrize(
    ("rank", "hidden", "inputs"), [(1, 1, 2), (3, 5, 3), (1, 33, 17), (17, 16, 1), (33, 100, 5)], ids=str
)
@pytest.mark.parametrize("rule", ["always", "skip", "selective", "variable"])
@pytest.mark.parametrize("cell", ["gru", "gru-before", "lstm-peephole", "ihc-lstm"])
def test_low_rank_of_any_size_equals_oracle(
    cell: str, rule: str, rank: int, hidden: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    low_rank_equals_oracle(monkeypatch, cell, rule, rank, hidden, inputs)


@pytest.mark.parametrize("density", [0.2, None])
@pytest.mark.parametrize("rule", ["always", "skip", "selective", "variable"])
@pytest.mark.parametrize("cell", ["gru", "ihc-lstm", "lstm-peephole"])
def test_steps_with_carried_state_equal_whole_sequence(cell: str, rule: str, density: float | None) -> None:
    weights = draw(f"{cell}/5", rule, 33, 3) if density is None else draw_sparse(cell, rule, 33, 3, density)
    cell = f"{cell}/5" if density is None else cell
    run = session(cell, rule, weights)
    feed = draw_call(cell, rule, 33, 3, 19, 3)
    assert_steps_equal_sequence(run, layer(cell, rule, 33, 3).states, feed)


@pytest.mark.parametrize("weights_of", ["low rank", "sparse"])
@pytest.mark.parametrize("rule", ["always", "skip", "selective", "variable"])
@pytest.mark.parametrize("cell", ["rnn", "pru", "gru", "lstm", "ihc-lstm"])
def test_a_sample_has_the_same_bits_alone_and_in_any_batch(cell: str, rule: str, weights_of: str) -> None:
    weights = draw(f"{cell}/5", rule, 33, 3) if weights_of == "low rank" else draw_sparse(cell, rule, 33, 3, 0.2)
    name = f"{cell}/5" if weights_of == "low rank" else cell
    run, feed = session(name, rule, weights), draw_call(name, rule, 33, 3, 6, 9)
    whole = run.run(None, feed)
    for batch in (slice(0, 1), slice(2, 5), slice(4, 8)):
        part = {key: sample(key, value, batch) for key, value in feed.items()}
        np.testing.assert_array_equal(run.run(None, part)[0], whole[0][:, batch])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rule", WHOLE_RULES)
@pytest.mark.parametrize("cell", ["gru", "ihc-lstm"])
def test_no_number_in_one_sample_leaves_the_others_alone(cell: str, rule: str, value: float) -> None:
    weights = draw(f"{cell}/5", rule, 33, 3)
    feed = draw_call(f"{cell}/5", rule, 33, 3, 4, 3)
    run = session(f"{cell}/5", rule, weights)
    expected = run.run(None, feed)
    feed["h"][1, 32] = value
    for name, a, b in zip(output_names(f"{cell}/5", rule), run.run(None, feed), expected, strict=True):
        axis = 1 if name in ("Y", "updates") else 0
        np.testing.assert_array_equal(np.delete(a, 1, axis), np.delete(b, 1, axis))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_state_is_no_more_than_its_columns(value: float) -> None:
    """k = Q h is infinite and not NaN, so that the gates saturate, with or without padding."""
    weights = draw("rnn/3", "random", 33, 3)
    weights["rule_rate"][:] = 1
    weights["Q"][:] = 1
    feed = draw_call("rnn/3", "random", 33, 3, 1, 1)
    feed["h"][:] = value
    expected = np.sign(weights["R"].sum(1)) * np.sign(value)
    same = np.abs(np.sign(weights["R"]).sum(1)) == 3  # otherwise infinities of both signs are added
    (y, *_) = session("rnn/3", "random", weights).run(None, feed)
    assert same.any()
    np.testing.assert_array_equal(y[0, 0, same], expected[same])


BAD_WEIGHTS = {
    "rows of R": ("gru", "R", (14, 4), r"R: expected \(15, 4\) as W is \(15, 3\) and R is \(14, 4\), got \(14, 4\)"),
    "columns of R": ("gru", "R", (15, 0), r"R: expected \(3 \* H, rank\), got \(15, 0\)"),
    "rank of R": ("gru", "R", (15,), r"R: expected \(3 \* H, rank\), got \(15,\)"),
    "rows of Q": ("gru", "Q", (3, 5), r"Q: expected \(4, 5\) as W is \(15, 3\) and R is \(15, 4\), got \(3, 5\)"),
    "columns of Q": ("eins", "Q", (4, 3), r"Q: expected \(4, 5\) as W .* and V is \(20, 3\) and R is \(3, 4\), got"),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_bad_factors_are_refused_by_name(case: str, constant: bool) -> None:
    cell, name, shape, message = BAD_WEIGHTS[case]
    weights = draw(f"{cell}/4", "always", 5, 3)
    weights[name] = np.zeros(shape, np.float32)
    feed = draw_call(f"{cell}/4", "always", 5, 3, 2, 2)

    def build_and_run() -> None:
        run = session(f"{cell}/4", "always", weights, constant=constant)
        run.run(None, feed if constant else weights | feed)

    with pytest.raises(Exception, match=rf"edgernn: {cell}\+low-rank: {message}"):
        build_and_run()


def test_factors_given_at_run_equal_constant_ones() -> None:
    weights = draw("gru/4", "selective", 33, 3)
    feed = draw_call("gru/4", "selective", 33, 3, 5, 2)
    constant = session("gru/4", "selective", weights).run(None, feed)
    outputs = session("gru/4", "selective", weights, constant=False).run(None, weights | feed)
    for a, b in zip(constant, outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_compiled_cells_with_recurrent_weights_have_low_rank_kernels_under_the_rules_that_leave_them_whole() -> None:
    kernels = ctypes.CDLL(library()).edgernn_kernels
    kernels.restype = ctypes.c_char_p
    listed = {name for name in kernels().decode().split() if name.endswith("+low-rank")}
    needed = {
        layer(f"{cell}/2", rule, 33, 3).kernel_name for cell in RECURRENT if cell in COMPILED for rule in WHOLE_RULES
    }
    assert needed <= listed
    assert not any("clockwork" in name for name in listed)
