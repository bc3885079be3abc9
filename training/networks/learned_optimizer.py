# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that trains other networks."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.config import LayerConfig
from edgernn.errors import UsageError, nearest
from edgernn.model import RecurrentModel, joined
from edgernn.training.networks.optimisees import Optimisee

# e^-p is the least size whose logarithm is told apart
_P = 10.0


def log_and_sign(values: Tensor) -> tuple[Tensor, Tensor]:
    """The size and the direction of numbers of any scale, both of the order of 1: what a network can read.

    (log|v| / p, sgn v) where |v| ≥ e^-p, else (-1, e^p v); p = 10.
    Source: Andrychowicz et al. 2016, appendix A.
    """
    least = math.exp(-_P)
    return values.abs().clamp(min=least).log() / _P, (values / least).clamp(-1.0, 1.0)


class Update(nn.Module, abc.ABC):
    """What the recurrent layers read of an optimisee, and how their output changes its parameters θ (P,).

    features: numbers a row of the input. width: the paper's size of the input of the first layer; None: `features`.
    coordinate_wise: every parameter is a row of its own, B = P; else all of them make one row, B = 1.
    memory: numbers that each parameter has carried on from step to step, beside the state of the layers.
    scaled: what the layers' output becomes is multiplied by `scale`.
    """

    name: ClassVar[str]
    width: ClassVar[int | None] = None
    coordinate_wise: ClassVar[bool] = True
    memory: ClassVar[int] = 0
    scaled: ClassVar[bool] = False

    features: int

    def __init__(self, hidden_size: int, coordinates: int, scale: float) -> None:
        super().__init__()

    @abc.abstractmethod
    def inputs(self, theta: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        """(B, features) from θ and the gradient (P,), and the loss ()."""

    @abc.abstractmethod
    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The new θ (P,) and memory (P, memory) from the output of the layers h (B, H) and the old ones."""


class AdditiveUpdate(Update):
    """θ_t = θ_{t-1} + scale (w h_t + b), from the pre-processed gradient.

    Source: Andrychowicz et al., "Learning to learn by gradient descent by gradient descent", 2016, arXiv:1606.04474.
    """

    name = "additive"
    scaled = True
    features = 2

    def __init__(self, hidden_size: int, coordinates: int, scale: float) -> None:
        super().__init__(hidden_size, coordinates, scale)
        self.scale = scale
        self.out = nn.Linear(hidden_size, 1)

    def inputs(self, theta: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        return torch.stack(log_and_sign(gradient), -1)

    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return theta + self.scale * self.out(h).squeeze(-1), memory


class DecayedUpdate(Update):
    """θ_t = (1 - η_t λ_t) θ_{t-1} - η_t ∇_t, with a learning rate and a weight decay for each parameter.

    (η_t, λ_t) = scale (w h_t + b), from the pre-processed gradient. Shapes: w (2, H), b (2,).
    Source: EINS, appendix E.2, equations 18 and 19, which do not say how η and λ follow from h: as the additive update
    does here, so that either may have any sign.
    """

    name = "decayed"
    scaled = True
    features = 2

    def __init__(self, hidden_size: int, coordinates: int, scale: float) -> None:
        super().__init__(hidden_size, coordinates, scale)
        self.scale = scale
        self.out = nn.Linear(hidden_size, 2)

    def inputs(self, theta: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        return torch.stack(log_and_sign(gradient), -1)

    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        rate, decay = (self.scale * self.out(h)).unbind(-1)
        return (1 - rate * decay) * theta - rate * gradient, memory


class GatedUpdate(Update):
    """θ is the state of an LSTM cell with gates of its own.

    a_t = A h_t + v ⊙ θ_{t-1} + r ⊙ a_{t-1} + b        a_0 = 0
    θ_t = σ(a_u) θ_{t-1} + σ(a_q) tanh(a_g)

    Shapes, for each parameter of the optimisee: a, v, r, b (3,): u, q, g, A (3, H). The pre-processed gradient and loss
    are read. A, v and r start in U(-0.01, 0.01), b_u in U(4, 5), b_q in U(-5, -4), b_g at 0.
    Source: EINS, appendix E.2, equation 20, which says of the three units that they are recurrent and read h; how they
    begin, what else they read and that the loss is read are after Ravi, Larochelle, "Optimization as a Model for
    Few-Shot Learning", 2017, where the negative gradient stands for tanh(a_g).
    """

    name = "gated"
    features = 4
    width = 20
    memory = 3

    def __init__(self, hidden_size: int, coordinates: int, scale: float) -> None:
        super().__init__(hidden_size, coordinates, scale)
        self.A = nn.Parameter(torch.empty(3, hidden_size).uniform_(-0.01, 0.01))
        self.v = nn.Parameter(torch.empty(3).uniform_(-0.01, 0.01))
        self.r = nn.Parameter(torch.empty(3).uniform_(-0.01, 0.01))
        self.b = nn.Parameter(torch.tensor([4.5, -4.5, 0.0]) + torch.tensor([0.5, 0.5, 0.0]) * (2 * torch.rand(3) - 1))

    def inputs(self, theta: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        return torch.stack([*log_and_sign(gradient), *(part.expand_as(theta) for part in log_and_sign(loss))], -1)

    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        a = nn.functional.linear(h, self.A, self.b) + theta[:, None] * self.v + memory * self.r
        u, q, g = a.unbind(-1)
        return torch.sigmoid(u) * theta + torch.sigmoid(q) * torch.tanh(g), a


class RatesUpdate(Update):
    """θ_t = θ_{t-1} - α_t ⊙ ∇_t, with a learning rate for each parameter: α_t = U h_t, from θ_{t-1} ⊙ G_t.

    G is the product of the two parts of the pre-processed gradient ∇. One network sees all parameters, so it fits
    optimisees of one size alone. Shapes: U (P, H).
    Source: DecayNet, section 6.2 and appendices D and E; 64 neurons, propagations = 2 and layer normalisation there.
    """

    name = "rates"
    width = 28
    coordinate_wise = False

    def __init__(self, hidden_size: int, coordinates: int, scale: float) -> None:
        super().__init__(hidden_size, coordinates, scale)
        self.features = coordinates
        self.out = nn.Linear(hidden_size, coordinates, bias=False)

    def inputs(self, theta: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        size, direction = log_and_sign(gradient)
        return (theta * size * direction)[None]

    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return theta - self.out(h)[0] * gradient, memory


UPDATES: dict[str, type[Update]] = {
    update.name: update for update in (AdditiveUpdate, DecayedUpdate, GatedUpdate, RatesUpdate)
}


@dataclass(frozen=True)
class Unroll:
    """Some steps of an optimisee.

    before, after (K,): its loss on the minibatch of a step before the step, and after it; after it either on the same
    minibatch or on the next one. theta, state: after the last step.
    """

    before: Tensor
    after: Tensor
    theta: Tensor
    state: State


class LearnedOptimizer(RecurrentModel):
    """Recurrent layers that read the gradient of an optimisee's loss and change its parameters.

    model(theta (P,), gradient (P,), loss (), state) returns the new theta and state. The gradient and the loss count as
    given: no derivative of them is taken. The state is a flat tuple: that of each layer, (B, H) and so on with B = P,
    or 1 where the update is not coordinate-wise; last the update's memory (P, ·).

    update: a name of UPDATES. coordinates: P, which decides sizes of "rates".
    inputs: a linear map makes so many numbers of what is read; none: the paper's size, or no map. scale: of
    "additive" and "decayed".
    layer: the configuration of every layer alike; `layers` of them have hidden_size neurons each.
    propagations: the layers run so many times on one input before their output is used. A cell that has to be given a
    sequence whole, as decaynet without a length, is given these; its decay begins anew at each input.
    Raises UsageError for an unknown name or a size below 1.
    """

    def __init__(
        self,
        layer: LayerConfig,
        *,
        coordinates: int,
        hidden_size: int = 20,
        layers: int = 1,
        update: str = "additive",
        inputs: int | None = None,
        scale: float = 0.1,
        propagations: int = 1,
    ) -> None:
        super().__init__()
        if update not in UPDATES:
            raise nearest("update", update, UPDATES)
        sizes = {"coordinates": coordinates, "hidden_size": hidden_size, "layers": layers, "propagations": propagations}
        for name, size in sizes.items():
            if size < 1:
                raise UsageError(f"{name}: expected at least 1, got {size}")
        self.propagations = propagations
        self.update = UPDATES[update](hidden_size, coordinates, scale)
        width = inputs or self.update.width
        self.input: nn.Module = nn.Linear(self.update.features, width, bias=False) if width else nn.Identity()
        widths = [width or self.update.features] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(layer.make(size, hidden_size) for size in widths)

    def initial_state(self, theta: Tensor) -> State:
        """For an optimisee that begins at theta (P,)."""
        rows = len(theta) if self.update.coordinate_wise else 1
        layers = [s for layer in self.recurrent_layers() for s in layer.initial_state(rows, theta)]
        return (*layers, theta.new_zeros(len(theta), self.update.memory))

    def forward(self, theta: Tensor, gradient: Tensor, loss: Tensor, state: State) -> tuple[Tensor, State]:
        row = self.input(self.update.inputs(theta, gradient, loss))
        y = row.expand(self.propagations, *row.shape)
        *parts, memory = state
        last: list[Tensor] = []
        self.traces = []
        for layer in self.recurrent_layers():
            own = dict(zip(layer.states, parts, strict=False))
            parts = parts[len(own) :]
            if not layer.cell.streaming and "decay" in own:
                own["decay"] = torch.zeros_like(own["decay"])
            y, final, trace = layer(y, tuple(own.values()))
            last += final
            self.traces.append(trace)
        theta, memory = self.update(y[-1], theta, gradient, memory)
        return theta, (*last, memory)

    def unroll(
        self, optimisee: Optimisee, x: Tensor, target: Tensor, theta: Tensor, state: State, *, same: bool
    ) -> Unroll:
        """Train an optimisee for K steps on K + 1 minibatches x (K + 1, B, ...), target (K + 1, B).

        same: each loss after a step is that of the step's own minibatch; else of the one that follows. The derivative
        of every loss reaches the weights through all the steps before it.
        """

        def followed(loss: Tensor, gradient: Tensor) -> Tensor:
            # its value is the loss and its derivative by theta the gradient that is known, so that no graph of the
            # optimisee is kept or gone through twice
            return loss + (gradient * (theta - theta.detach())).sum()

        before, after, traces = [], [], []
        for now, wanted in zip(x[:-1], target[:-1], strict=True):
            loss, gradient = optimisee.gradient(theta, now, wanted)
            before.append(followed(loss, gradient))
            theta, state = self(theta, gradient, loss, state)
            traces.append(self.traces)
            if same:
                after.append(followed(*optimisee.gradient(theta, now, wanted)))
        if not same:
            after = [*before[1:], followed(*optimisee.gradient(theta, x[-1], target[-1]))]
        self.traces = [joined(list(parts)) for parts in zip(*traces, strict=True)]
        return Unroll(torch.stack(before), torch.stack(after), theta, state)
