# SPDX-License-Identifier: Apache-2.0
"""User-defined cells for tests of fused training."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgernn.cells import CELLS, Cell, Gate, Gates, Vector
from edgernn.cells.base import State
from edgernn.surrogate import event


class Gru(CELLS["gru"]):
    """The built-in GRU under a name that the library does not know."""

    name = "my-gru"


class Memory(Cell):
    """An LSTM with a leak, a peephole of c in three gates, and softsign for tanh."""

    name = "my-memory"
    gates = (Gate("i", c=True), Gate("f", c=True), Gate("g"), Gate("o", c=True, bias=False))
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        c = torch.sigmoid(p.f) * c + torch.sigmoid(p.i) * F.softsign(p.g)
        return (torch.sigmoid(p.o) * torch.tanh(c), 0.9 * c)


class TwoStages(Cell):
    """A two-stage cell with m of size H, and vectors of every kind: mapped, not mapped and unread."""

    name = "my-stages"
    gates = (Gate("r", mid=True), Gate("z"), Gate("n", h=False, m=True), Gate("unread", h=False))
    vectors = {  # noqa: RUF012
        "slope": Vector("H", 0.5, F.softplus),
        "scale": Vector("1", 0.7, torch.tanh),
        "shift": Vector("H", 0.1),
        "spare": Vector("H", 1.0),
    }

    def mid(self, p: Gates, state: State) -> Tensor:
        return torch.sigmoid(p.slope * p.r) * state[0] + p.scale

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.lerp(h, torch.tanh(p.slope * p.n + p.shift) * p.scale, torch.sigmoid(p.z)),)


class InputStage(Cell):
    """A two-stage cell with m of size I, computed from x and a vector of that size."""

    name = "my-input-stage"
    gates = (Gate("d", mid=True), Gate("f", h=False, m=True), Gate("a"))
    vectors = {"rho": Vector("I", 0.3, torch.sigmoid), "tau": Vector("H", 1.5)}  # noqa: RUF012

    @property
    def mid_size(self) -> int:
        return self.input_size

    def mid(self, p: Gates, state: State) -> Tensor:
        return p.x * torch.sigmoid(p.d) + p.rho * torch.sin(p.x)

    def update(self, p: Gates, state: State) -> State:
        f = torch.sigmoid(p.tau * p.f)
        return (f * state[0] + (1 - f) * torch.tanh(p.a),)


class Highway(Cell):
    """A cell that reads x element by element, so I must be H, and whose second state is the previous output."""

    name = "my-highway"
    gates = (Gate("t"), Gate("n", h=False))
    states = ("h", "old")

    def update(self, p: Gates, state: State) -> State:
        t = torch.sigmoid(p.t)
        return (t * p.n.relu() + (1 - t) * p.x + 0.1 * state[1], state[0])


class LastInput(Cell):
    """A cell that reads the previous input, with five gates of the same terms, more than inference supports."""

    name = "my-last"
    gates = tuple(Gate(name) for name in "abcde")
    reads_last = True

    def update(self, p: Gates, state: State) -> State:
        mixed = torch.where(p.a > p.b, p.a * torch.sigmoid(p.c), p.b.clamp(-1, 1)) + (p.d * p.d + 0.1).sqrt()
        return (0.5 * state[0] + torch.tanh(mixed) * torch.exp(-p.e * p.e),)


class Derived(Cell):
    """A cell that derives further vectors from its own ones."""

    name = "my-derived"
    gates = (Gate("n"),)
    vectors = {"rate": Vector("H", 0.3), "gain": Vector("1", 2.0)}  # noqa: RUF012

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        return {**super().constants(x), "product": self.rate * self.gain, "half": self.gain / 2}

    def update(self, p: Gates, state: State) -> State:
        return (torch.tanh(p.n * p.half) + p.product * state[0],)


class Events(Cell):
    """A two-stage cell with steps in both stages, whose surrogate derivatives differ."""

    name = "my-events"
    gates = (Gate("r", mid=True), Gate("i"), Gate("n", h=False, m=True))
    vectors = {"level": Vector("H", 0.2)}  # noqa: RUF012
    states = ("s", "v")

    def mid(self, p: Gates, state: State) -> Tensor:
        return event(p.r, 0.5, 1.5) * state[0]

    def update(self, p: Gates, state: State) -> State:
        v = 0.8 * state[1] + torch.tanh(p.i + p.n) - 0.5 * state[0]
        return (event(v - p.level), v)


USER_CELLS = (Gru, Memory, TwoStages, InputStage, Highway, LastInput, Derived, Events)
