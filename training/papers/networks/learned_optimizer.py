# SPDX-License-Identifier: Apache-2.0
"""Learned optimiser: a recurrent network that trains other networks."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.config import LayerConfig
from edgernn.errors import UsageError, nearest
from edgernn.layer import joined
from edgernn.model import RecurrentModel
from edgernn.training.papers.networks.optimisees import Optimisee

# magnitudes below e^-p are encoded linearly
_P = 10.0


def log_and_sign(values: Tensor) -> tuple[Tensor, Tensor]:
    """Encode each number v, of any scale, as two numbers of order 1 that a network can read.

    The two tensors have the shape of `values`: (log|v| / p, sgn v) if |v| ≥ e^-p, else (-1, e^p v); p = 10.
    Source: Andrychowicz et al. 2016, appendix A.
    """
    least = math.exp(-_P)
    return values.abs().clamp(min=least).log() / _P, (values / least).clamp(-1.0, 1.0)


class Update(nn.Module, abc.ABC):
    """Base class of the formulas by which a `LearnedOptimizer` changes the P parameters θ (P,) of another network.

    This other network, which the optimiser trains, is called the optimisee. An update defines what the optimiser's
    recurrent layers read, and how their output h_t changes θ. ∇_t is the gradient of the optimisee's loss at θ_{t-1}.

    Class attributes:
        name: Name of the update in UPDATES and in settings.
        width: Default output size of the linear map from the result of `inputs` to the first layer; None: no map.
        coordinate_wise: True if every parameter is a row of the batch, B = P; else all of them are one row, B = 1.
        memory: Number of values per parameter that are carried from step to step, besides the layers' state.
        scaled: True if the update has a factor `scale`.
        features: Number of values per row of the result of `inputs`.
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
        """Compute the input of the recurrent layers (B, features) from θ (P,), its gradient (P,) and the loss ()."""

    @abc.abstractmethod
    def forward(self, h: Tensor, theta: Tensor, gradient: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute new parameters θ from the output of the recurrent layers.

        Args:
            h: Output of the layers (B, H).
            theta: θ (P,).
            gradient: Gradient of the loss with respect to θ (P,).
            memory: Values that the optimiser carries from step to step for each parameter (P, memory).

        Returns:
            The new θ, and the new values of `memory`.
        """


class AdditiveUpdate(Update):
    """Additive update of another network's parameters: θ_t = θ_{t-1} + scale (w h_t + b).

    For each parameter, h_t (H,) is the output of the optimiser's recurrent layers, which read the encoded gradient
    (`log_and_sign`). w (H,) and b () are learned, and the same for all parameters; scale is a setting.
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
    """Update with a learning rate η and a weight decay λ per parameter: θ_t = (1 - η_t λ_t) θ_{t-1} - η_t ∇_t.

    (η_t, λ_t) = scale (w h_t + b)

    θ are the parameters of another network, and ∇_t is the gradient of its loss. For each parameter, h_t (H,) is the
    output of the optimiser's recurrent layers, which read the encoded gradient (`log_and_sign`). w (2, H) and b (2,)
    are learned, and the same for all parameters; scale is a setting.
    Source: EINS paper, appendix E.2, equations 18 and 19. The paper does not give η and λ as functions of h. Here they
    are linear, like the additive update, so that either may have any sign.
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
    """Gated update: each parameter θ of another network is treated as the cell state of an LSTM with gates u, q and g.

    a_t = A h_t + v θ_{t-1} + r ⊙ a_{t-1} + b          a_0 = 0
    θ_t = σ(a_u) θ_{t-1} + σ(a_q) tanh(a_g)

    For each parameter, a_t = (a_u, a_q, a_g) are the pre-activations of the gates. h_t (H,) is the output of the
    optimiser's recurrent layers, which read the encoded gradient and loss (`log_and_sign`). A (3, H), v, r and b, (3,)
    each, are learned, and the same for all parameters. A, v and r are initialised from U(-0.01, 0.01), b_u from
    U(4, 5), b_q from U(-5, -4), b_g to 0.
    Source: EINS paper, appendix E.2, equation 20: the three gates are recurrent and read h. Their initialisation, their
    other inputs, and the loss as an input of the layers are from Ravi, Larochelle, "Optimization as a Model for
    Few-Shot Learning", 2017. That paper has the negative gradient in place of tanh(a_g).
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
    """Update with a learning rate α per parameter of another network: θ_t = θ_{t-1} - α_t ⊙ ∇_t, α_t = U h_t.

    θ are the P parameters of the other network, and ∇_t is the gradient of its loss. U (P, H) is learned. h_t (H,) is
    the output of the optimiser's recurrent layers. They read θ_{t-1} ⊙ G_t (P,), where G_t has for each parameter the
    product of the two numbers by which `log_and_sign` encodes its gradient. The sizes of the first layer and of U
    depend on P, so that a trained optimiser fits networks with P parameters only.
    Source: DecayNet paper, section 6.2 and appendices D and E, with 64 neurons, propagations=2 and layer normalisation.
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
    """Result of K training steps of an optimisee, the network that a learned optimiser trains.

    Attributes:
        before: Loss (K,) on the minibatch of each step, before the step.
        after: Loss (K,) after each step, on the minibatch of the step or the next one (see `LearnedOptimizer.unroll`).
        theta: Parameters of the optimisee (P,) after the last step.
        state: State of the learned optimiser after the last step.
    """

    before: Tensor
    after: Tensor
    theta: Tensor
    state: State


class LearnedOptimizer(RecurrentModel):
    """A learned optimiser: recurrent layers that read the gradient of another network's loss and update its parameters.

    model(theta (P,), gradient (P,), loss (), state) returns the new theta and state. The gradient and the loss are
    treated as constants. The state is a flat tuple: first the states of the layers, (B, H) each, with B = P, or B = 1
    if the update is not coordinate-wise; last the memory of the update, (P, `Update.memory`).

    Args:
        layer: Configuration of every layer.
        coordinates: P, the number of parameters of the network to train. Only the update "rates" depends on it.
        hidden_size: Neurons of every layer.
        layers: Number of layers.
        update: A name of UPDATES.
        inputs: Output size of a linear map before the first layer. Default: the `width` of the update; if this is
            None too, there is no map.
        scale: Factor of the updates "additive" and "decayed".
        propagations: Number of times that the layers run on the same input before their output is used. A cell may
            depend on the length of the sequence, such as decaynet without its option length. For such a cell, the runs
            on one input are a whole sequence: the cell's state `decay`, if it has one, is set to 0 before each input.

    Raises:
        UsageError: The update is unknown, or a size is below 1.
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
                raise UsageError(f"{name}: expected at least 1, got {size}; increase it")
        self.propagations = propagations
        self.update = UPDATES[update](hidden_size, coordinates, scale)
        width = inputs or self.update.width
        self.input: nn.Module = nn.Linear(self.update.features, width, bias=False) if width else nn.Identity()
        widths = [width or self.update.features] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(layer.make(size, hidden_size) for size in widths)

    def initial_state(self, theta: Tensor) -> State:
        """Return the optimiser's state before the first step of training a network with the parameters theta (P,)."""
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
            layer_state = dict(zip(layer.states, parts, strict=False))
            parts = parts[len(layer_state) :]
            if not layer.cell.streaming and "decay" in layer_state:
                layer_state["decay"] = torch.zeros_like(layer_state["decay"])
            y, final, trace = layer(y, tuple(layer_state.values()))
            last += final
            self.traces.append(trace)
        theta, memory = self.update(y[-1], theta, gradient, memory)
        return theta, (*last, memory)

    def unroll(
        self, optimisee: Optimisee, x: Tensor, target: Tensor, theta: Tensor, state: State, *, same: bool
    ) -> Unroll:
        """Train another network for K steps; the losses are differentiable with respect to this optimiser's weights.

        Args:
            optimisee: The network to train, an image classifier.
            x: Minibatches of images (K + 1, B, ...): one for each step, and a last one for the loss after step K.
            target: Labels of the images (K + 1, B).
            theta: Initial parameters of the classifier (P,).
            state: Initial state of the optimiser.
            same: True to compute the loss after a step on the minibatch of this step, False on the next minibatch.

        Returns:
            Losses before and after each step, final parameters and final state.
        """

        def differentiable(loss: Tensor, gradient: Tensor) -> Tensor:
            # has the value of the loss and its known gradient by theta, without a graph of the optimisee
            return loss + (gradient * (theta - theta.detach())).sum()

        before, after, traces = [], [], []
        for images, labels in zip(x[:-1], target[:-1], strict=True):
            loss, gradient = optimisee.gradient(theta, images, labels)
            before.append(differentiable(loss, gradient))
            theta, state = self(theta, gradient, loss, state)
            traces.append(self.traces)
            if same:
                after.append(differentiable(*optimisee.gradient(theta, images, labels)))
        if not same:
            after = [*before[1:], differentiable(*optimisee.gradient(theta, x[-1], target[-1]))]
        self.traces = [joined(list(parts)) for parts in zip(*traces, strict=True)]
        return Unroll(torch.stack(before), torch.stack(after), theta, state)
