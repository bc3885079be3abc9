# SPDX-License-Identifier: Apache-2.0
"""The reference of all layers in float64 NumPy: a cell of `oracle_cells` under a rule of `oracle_rules`, over time.

A new cell needs one row in CELLS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests import oracle_cells as cells
from tests.oracle_cells import Array, Parameters, State
from tests.oracle_paths import KernelPaths
from tests.oracle_rules import RULES, Always


@dataclass(frozen=True)
class Row:
    """A cell's step function and the sizes that its costs follow from.

    states: Number of states. x, h, m: Number of matrices with H rows that read x (or x_{t-1}), h or c, and m.
    middle: The size of m, I or H. mid_x, mid_h: Number of matrices with that many rows that read x and h to compute m,
    which is needed in full if any neuron changes. gate: The place of the update gate among the gates in W, R and b, and
    -1 if a neuron changes less where it is larger, else 1; only if the gate reads x and h alone.
    """

    step: Callable[[Parameters, Array, State], State]
    states: int
    x: int
    h: int = 0
    m: int = 0
    middle: Literal["I", "H"] = "I"
    mid_x: int = 0
    mid_h: int = 0
    reads_last: bool = False
    gate: tuple[int, int] | None = None

    def row_macs(self, nx: int, nh: int, nm: int) -> int:
        """Multiply-adds of one neuron in a step, if it reads nx columns of x, nh of each state and nm of m."""
        return self.x * nx + self.h * nh + self.m * nm

    def mid_macs(self, nx: int, nh: int) -> int:
        """Multiply-adds of one element of m in a step, if it reads nx columns of x and nh of h."""
        return self.mid_x * nx + self.mid_h * nh

    @property
    def keeps_sums(self) -> bool:
        """True if kernels may keep the products of h that m is made of."""
        return self.mid_h > 0

    def middle_size(self, I: int, H: int) -> int:
        return I if self.middle == "I" else H

    def step_macs(self, k: NDArray[np.int64], I: int, H: int) -> NDArray[np.int64]:
        """Multiply-adds of a step that changes k neurons."""
        M = self.middle_size(I, H)
        return k * self.row_macs(I, H, M) + (k > 0) * M * self.mid_macs(I, H)


CELLS = {
    "gru": Row(cells.gru, 1, x=3, h=3, gate=(1, -1)),
    "gru-before": Row(cells.gru_before, 1, x=2, h=1, m=1, middle="H", mid_x=1, mid_h=1, gate=(1, 1)),
    "lstm": Row(cells.lstm, 2, x=4, h=4),
    "lstm-peephole": Row(cells.lstm_peephole, 2, x=4, h=4 + 3),
    "decaynet": Row(cells.decaynet, 3, x=4, h=4),
    "sru": Row(cells.sru, 2, x=3),
    "t-lstm": Row(cells.t_lstm, 2, x=6, reads_last=True),
    "pru": Row(cells.pru, 1, x=2, h=2, gate=(1, -1)),
    "rnn": Row(cells.rnn, 1, x=1, h=1),
    "eins": Row(cells.eins, 2, x=0, m=4, mid_x=2, mid_h=1),
    "irc-gru": Row(cells.irc_gru, 1, x=1, m=2, mid_h=1),
    "irc-lstm": Row(cells.irc_lstm, 2, x=1, m=3, mid_h=1),
    "irc-sru": Row(cells.irc_sru, 2, x=1, m=2),
    "irc-t-lstm": Row(cells.irc_t_lstm, 2, x=1, m=2),
    "irc-fastgrnn": Row(cells.irc_fastgrnn, 1, x=1, m=1, mid_h=1),
    "ihc-lstm": Row(cells.ihc_lstm, 2, x=1, m=3, mid_x=1, mid_h=2),
    "fastgrnn": Row(cells.fastgrnn, 1, x=1, h=1),
    "fastgrnn-split": Row(cells.fastgrnn_split, 1, x=2, h=2, gate=(0, -1)),
    "mingru": Row(cells.mingru, 1, x=2),
    "minlstm": Row(cells.minlstm, 1, x=3),
    "lru": Row(cells.lru, 2, x=2),
    "egru": Row(cells.egru, 2, x=3, h=3),
}
# cells whose papers require I = H: the variants for other sizes
RESIZED = {
    "sru": replace(CELLS["sru"], x=3 + 1),
    "irc-sru": replace(CELLS["irc-sru"], x=1 + 1, mid_h=1),
    "irc-t-lstm": replace(CELLS["irc-t-lstm"], mid_h=1),
}


def row_of(cell: str, I: int, H: int) -> Row:
    return CELLS[cell] if I == H else RESIZED.get(cell, CELLS[cell])


@dataclass(frozen=True)
class Result:
    """The results of a sequence.

    y: (T, B, H). state, memory: The last states of the cell and of the rule. updates: (T, B). macs: (B,), as kernels
    execute them. margin: The smallest distance of a decision from its threshold. needed: macs (B,) that the updates
    need, with those of sums that delta computes in full.
    """

    y: Array
    state: State
    memory: State
    updates: NDArray[np.int64]
    macs: NDArray[np.int64]
    margin: float
    needed: NDArray[np.int64]


def run(
    cell: str | Row,
    rule: str,
    parameters: dict[str, Any],
    x: Any,
    state: Any,
    lanes: int = 1,
    weight_bits: int = 32,
    memory: Sequence[Any] = (),
) -> Result:
    """Run the sequence x (T, B, I) in float64.

    Args:
        cell: A name in CELLS, or any other row.
        rule: A name in RULES, with the number of neurons in a group after a slash if there are groups.
        parameters: By the names of the op's inputs.
        x: The input.
        state: The states of the layer. Only those of the cell and the last input are read.
        lanes: Number of neurons in a vector of the kernel whose `macs` are counted.
        weight_bits: Bits of that kernel's weights.
        memory: Memories of the rule to go on from. By default they start at their initial values.
    """
    p = {k: np.asarray(v, np.float64) for k, v in parameters.items()}
    x = np.asarray(x, np.float64)
    T, B, I = x.shape
    H = np.shape(state[0])[-1]
    row = cell if isinstance(cell, Row) else row_of(cell, I, H)
    last = np.asarray(state[-1], np.float64)
    state = tuple(np.asarray(s, np.float64) for s in state[: row.states])
    rule, _, group_size = rule.partition("/")
    decider = RULES[rule](p, B, I, H)
    if len(memory):
        decider.restore(tuple(np.asarray(m, np.float64) for m in memory))
    if group_size:
        decider.group_size = int(group_size)
    costs = decider.fit(row)
    p["T"] = np.array(T)
    mid_rows = {"R": row.mid_h * row.middle_size(I, H), "C": 0}
    p |= {name: _thinned(p[name], decider, mid_rows[name], H) for name in mid_rows if name in p}
    y, updates, margin = [], np.zeros((T, B), np.int64), np.inf
    macs, needed = np.zeros(B, np.int64), np.zeros(B, np.int64)
    # kernels compute W x of a chunk of steps at once, for all neurons, if most steps of the chunk before read it
    chunk, ahead, from_whole = -(-16 // B), False, np.zeros((T, B), np.int64)
    mid_ahead = False
    kernel_paths = KernelPaths(costs, I, H, lanes, weight_bits, decider.keeps_sums)
    for t in range(T):
        decider.see(np.concatenate([x[t], last], -1) if row.reads_last else x[t], state[0])
        u, closest = decider.decide(x[t], state)
        margin = min(margin, closest)
        x_mask, state_mask = decider.masks(x[t], state) or (1, 1)
        read = [x[t] * x_mask, last * x_mask] if row.reads_last else [x[t] * x_mask]
        before = state[0]
        new = row.step(p, *decider.send(np.concatenate(read, -1), tuple(s * state_mask for s in state)))
        state = tuple(_blend(u, n, s) for n, s in zip(new, state, strict=True))
        last = x[t]
        k = updates[t] = decider.count(u)
        needed += decider.step_macs(k, costs, I, H)
        if t % chunk == 0 and t > 0:
            ahead = 5 * from_whole[t - chunk : t].sum() > 3 * chunk * B * kernel_paths.padded
        computed = projected = np.zeros_like(k)
        if decider.blocks:
            computed, projected, from_whole[t] = kernel_paths.choose(u > 0, decider.blocks == "all")
        macs += decider.kernel_macs(np.maximum(k, computed), costs, I, H) - kernel_paths.unread(k, before)
        macs += np.where(ahead | (projected > 0), H - computed - projected, 0) * row.x * I
        if t % chunk == 0 and t > 0:
            mid_ahead = kernel_paths.projects_mid(updates[t - chunk : t])
        macs += np.where(mid_ahead & (k == 0), kernel_paths.mid_input, 0)
        decider.after(u, state)
        y.append(state[0])
    return Result(np.stack(y), state, decider.memory, updates, macs, margin, needed)


def _blend(u: Array | NDArray[np.bool_], new: Array, old: Array) -> Array:
    return np.where(u, new, old) if u.dtype == bool else u * new + (1 - u) * old


def _thinned(weight: Array, decider: Always, mid_rows: int, H: int) -> Array:
    """Apply the rule's mask to R or C; the rows of gates marked `mid` come first and are not masked."""
    mid, others = weight[:mid_rows], weight[mid_rows:]
    return np.concatenate([mid, *(decider.thin(others[i : i + H]) for i in range(0, len(others), H))])
