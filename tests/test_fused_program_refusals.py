# SPDX-License-Identifier: Apache-2.0
"""User-defined cells that train in the loop, and the errors of the native training library."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import edgernn
from edgernn.cells import Cell, Gate, Gates
from edgernn.cells.base import State
from edgernn.kernels import attach, training_library
from edgernn.kernels.program_cell import CellSource, ProgramNumbers, describe_cell, to_c
from tests.fused import fused, inputs, make, run, whole_loss
from tests.fused_cells import Gru, TwoStages

pytestmark = pytest.mark.usefixtures("training_library")


class Detached(Gru):
    def update(self, p: Gates, state: State) -> State:
        (h,) = super().update(p, state)
        return (h + state[0].detach(),)


class Summed(Gru):
    def update(self, p: Gates, state: State) -> State:
        return (torch.softmax(p.n, -1),)


class Projecting(Gru):
    def project(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return 2 * super().project(x, t)


class Stepping(Gru):
    def step(self, *values: Any) -> State:
        return (2 * super().step(*values)[0],)


class ManyGates(Cell):
    name = "my-many"
    gates = tuple(Gate(name) for name in "abcdefghi")

    def update(self, p: Gates, state: State) -> State:
        return (torch.tanh(p.a),)


class Long(Cell):
    name = "my-long"
    gates = (Gate("n"),)

    def update(self, p: Gates, state: State) -> State:
        h = p.n
        for i in range(200):
            h = torch.tanh(h + 0.01 * i)
        return (h,)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Detached, "there is no kernel for my-gru: update: the gradient in torch differs"),
        (Summed, "there is no kernel for my-gru: update: torch's _softmax is not supported"),
        (
            Projecting,
            r"there is no kernel for my-gru: a cell that overrides project\(\) cannot be translated to native code",
        ),
        (
            Stepping,
            r"there is no kernel for my-gru: a cell that overrides step\(\) cannot be translated to native code",
        ),
        (ManyGates, "there is no kernel for my-many: the native library needs at most 8 gates, got 9"),
        (Long, "there is no kernel for my-long: equations: expected at most 128 values"),
    ],
)
def test_cells_that_cannot_be_traced_are_left_to_the_loop(cell: type[Cell], message: str) -> None:
    model = edgernn.SequenceModel(cell, 3, 8)
    assert attach(model, "auto", "cpu") == "torch"
    with pytest.raises(edgernn.UsageError, match=message):
        attach(model, "fused", "cpu")


def test_a_gpus_kernels_leave_a_step_of_ones_own_to_the_loop() -> None:
    assert attach(edgernn.SequenceModel(Stepping, 3, 8), "auto", "cuda") == "torch"


def refusal(source: CellSource) -> str:
    with pytest.raises(edgernn.UsageError) as caught:
        training_library.ProgramCell(source)
    return str(caught.value)


# one gate with x and h, one state: h_t = p_0, so the gradient of p_0 is that of h
PLAIN = CellSource(
    (3,),
    (),
    (1, 0, 0, 0, 0),
    ProgramNumbers((1, 0, 0, 1, 0, 0)),
    ProgramNumbers((2, 0, 0, 2, 0, 64, 1, 0)),
)


def numbers(*ints: int, constants: Sequence[float] = ()) -> ProgramNumbers:
    return ProgramNumbers(ints, tuple(constants))


REFUSALS = {
    "no gates": ({"gates": ()}, "gates: expected 1 to 8 numbers, got 0"),
    "unknown term": ({"gates": (64,)}, "gates: expected numbers from 0 to 63, got 64"),
    "no x": ({"gates": (2,)}, "gates: no gate reads x, whose weights set I"),
    "c of one state": ({"gates": (33,)}, "gates: a gate reads c, which needs two states"),
    "too many vectors": ({"vectors": (0,) * 5}, "vectors: expected 0 to 4 numbers, got 5"),
    "short layout": ({"layout": (1, 0)}, "layout: expected 5 numbers, got 2"),
    "no update": ({"update": numbers()}, "update: expected four counts, got 0"),
    "update of another stage": ({"update": numbers(1, 0, 0, 1, 16, 0)}, "update: expected arguments that this stage"),
    "update that reads a gradient": (
        {"update": numbers(1, 0, 0, 1, 64, 0)},
        "update: expected arguments that this stage of the cell has, got 64",
    ),
    "no derivative": ({"update_back": numbers()}, "update_back: expected four counts, got 0"),
    "derivative of too few results": (
        {"update_back": numbers(2, 0, 0, 1, 0, 64, 1)},
        "update_back: expected 2 results, got 1",
    ),
    "derivative that reads a state that is not there": (
        {"update_back": numbers(2, 0, 0, 2, 49, 64, 1, 0)},
        "update_back: expected arguments that this stage of the cell has, got 49",
    ),
    "derivative that reads a gradient that is not there": (
        {"update_back": numbers(2, 0, 0, 2, 0, 65, 1, 0)},
        "update_back: expected arguments that this stage of the cell has, got 65",
    ),
    "unknown op": (
        {"update_back": numbers(2, 0, 1, 2, 0, 64, 21, 0, 0, 0, 2, 0)},
        "update_back: expected operation codes below 21, got 21",
    ),
    "value of its own": (
        {"update_back": numbers(2, 0, 1, 2, 0, 64, 6, 2, 0, 0, 2, 0)},
        "update_back: expected numbers of values below 2, got 2",
    ),
    "result beyond": (
        {"update_back": numbers(2, 0, 0, 2, 0, 64, 2, 0)},
        "update_back: expected numbers of values below 2, got 2",
    ),
    "constant NaN": (
        {"update_back": numbers(2, 1, 0, 2, 0, 64, 1, 0, constants=[float("nan")])},
        "update_back: expected finite constants",
    ),
    "too long": (
        {"update_back": numbers(2, 0, 511, 2, 0, 64, *(6, 0, 0, 0) * 511, 1, 0)},
        "update_back: expected at most 512 values, got 513",
    ),
    "too much at a time": (
        {
            # 300 values, all alive at the end
            "update_back": numbers(
                *(2, 0, 449, 2, 0, 64),
                *(number for i in range(300) for number in (6, i + 1, 0, 0)),
                *(number for i in range(149) for number in (19, 301 + i, 300 - 2 * i, 299 - 2 * i)),
                *(1, 450),
            )
        },
        "update_back: expected at most 256 constants and values at a time",
    ),
    "m that nothing reads": ({"mid": numbers(1, 0, 0, 1, 0, 0)}, "mid: no gate reads m"),
    "derivative of m that nothing reads": ({"mid_back": numbers(1, 0, 0, 1, 0, 0)}, "mid_back: no gate reads m"),
    "no derivative of m": (
        {"gates": (5, 17), "mid": numbers(1, 0, 0, 1, 1, 0)},
        "mid_back: expected four counts, got 0",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_cell_is_refused_with_a_sentence(case: str) -> None:
    change, message = REFUSALS[case]
    assert refusal(replace(PLAIN, **change)).startswith(f"no CPU kernel for the layer: {message}")


def test_plain_cell_is_taken() -> None:
    """The cases above differ from this cell only in the refused part."""
    assert training_library.ProgramCell(PLAIN).address is not None


def test_lists_that_are_none_are_refused() -> None:
    loaded = training_library.library()
    assert loaded is not None
    why = ctypes.create_string_buffer(200)
    structure = to_c(PLAIN)
    structure.gate_count = -1
    assert loaded.edgernn_train_new_cell(ctypes.byref(structure), why, 200) is None
    assert why.value == b"gates: expected a list, got -1 numbers"
    structure = to_c(PLAIN)
    structure.update.ints = None
    assert loaded.edgernn_train_new_cell(ctypes.byref(structure), why, 9) is None
    assert why.value == b"update: "


@pytest.mark.parametrize("seed", range(200))
def test_numbers_made_wrong_do_no_harm(seed: int) -> None:
    """After a change of any single number of a valid cell, it is refused with an error or runs."""
    rng = np.random.default_rng(seed)
    source, _ = describe_cell(TwoStages(3, 5))
    name = str(rng.choice(["gates", "vectors", "layout", "update", "update_back", "mid", "mid_back"]))
    value = getattr(source, name)
    ints = list(value.ints if isinstance(value, ProgramNumbers) else value)
    place = int(rng.integers(len(ints)))
    ints[place] = int(rng.choice([-1, 0, 1, 2, 5, 16, 33, 63, 127, 1 << 40, ints[place] + 1, ints[place] - 1]))
    changed = replace(value, ints=tuple(ints)) if isinstance(value, ProgramNumbers) else tuple(ints)
    try:
        program_cell = training_library.ProgramCell(replace(source, **{name: changed}))
    except edgernn.UsageError:
        return
    if name in ("gates", "vectors", "layout"):
        return  # its weights have other sizes
    layer = fused(make(TwoStages, "selective", 3, 5))
    layer.unroller.program = program_cell
    x, state = inputs(layer, 3, 2)
    y, last, _, _ = run(layer, x, state, whole_loss)
    assert (y.shape, last[0].shape) == ((3, 2, 5), (2, 5))
