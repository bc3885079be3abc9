# SPDX-License-Identifier: Apache-2.0
"""The kind of rules that decide for all neurons of a sample together, from the cell's update gate (`ByGate`)."""

from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.rules.base import CellInputs, Decision, UpdateRule, blend


class ByGate(UpdateRule):
    """The kind of rules with one decision for all neurons of a sample, from the scores of the cell's update gate.

    `decide` gets the result (B, H) of `UpdateGate.scores` in place of e.
    """

    kind = "GATE"
    by_hand = True
    schedules = False
    runs_programs = False

    @classmethod
    def refusal(cls, cell: Cell | type[Cell]) -> str | None:
        if cell.update_gate is not None:
            return None
        from edgernn.cells import CELLS

        names = ", ".join(name for name, known in CELLS.items() if known.update_gate is not None)
        return (
            f"rule: expected a cell with an update gate for the rule {cls.name}, got {cell.name}, which declares none; "
            f"use one of {names}, or another rule"
        )

    def fit(self, cell: Cell) -> None:
        super().fit(cell)
        if cell.update_gate is not None:
            cell.update_gate.find(cell.gates)

    def step(self, cell: Cell, inputs: CellInputs, e: Tensor, memory: State) -> tuple[Decision, State]:
        a, x, state, constants, t = inputs
        assert cell.update_gate is not None
        sums = cell.sums(a, state[0], constants, t)
        decision = self.decide(cell.update_gate.scores(sums), state, memory)
        return decision, blend(decision.u, cell.finish(sums, x, state, constants, t), state)

    def stages(self, cell: Cell) -> tuple[int, int, int]:
        # the update gate is computed for all neurons, and kernels keep its R h too
        mid, update = cell.macs()
        gate = sum(cell.update_gate_macs())
        return mid + gate, update - gate, cell.kept_macs(True)

    def decision_flops(self, cell: Cell) -> int:
        return 2 * sum(cell.update_gate_macs()) - cell.hidden_size
