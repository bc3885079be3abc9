# SPDX-License-Identifier: Apache-2.0
"""Networks for a learned optimiser to train: functions of one flat vector of parameters; and hand-made optimisers."""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from edgernn.errors import UsageError, nearest

# the first values of a parameter, from its name, its shape and a generator
Start = Callable[[str, torch.Size, torch.Generator | None], Tensor]
_STAGES = 3


class Optimisee:
    """A classifier whose parameters are a vector θ (P,), that of `module` one after another.

    module: a network without buffers, on torch's meta device; it only says what is computed. start: of θ.
    """

    def __init__(self, module: nn.Module, start: Start) -> None:
        self._module, self._start = module, start
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}

    @property
    def size(self) -> int:
        """P."""
        return sum(shape.numel() for shape in self._shapes.values())

    def start(self, generator: torch.Generator | None = None) -> Tensor:
        """A new θ, on the CPU, drawn from a generator there; torch's own unless one is given."""
        return torch.cat([self._start(name, shape, generator).flatten() for name, shape in self._shapes.items()])

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """The logits (B, classes) of images x (B, ...)."""
        parts = torch.split(theta, [shape.numel() for shape in self._shapes.values()])
        parameters = {name: part.view(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}
        logits: Tensor = functional_call(self._module, parameters, (x,))
        return logits

    def gradient(self, theta: Tensor, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy of images and its gradient (P,); nothing leads back from either."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            loss = functional.cross_entropy(self(leaf, x), target)
            (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient


def normal_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """N(0, 0.01²), as Andrychowicz et al. 2016 have it."""
    return 0.01 * torch.randn(shape, generator=generator)


def uniform_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """U(-0.1, 0.1), biases 0, as the DecayNet paper has it."""
    return torch.zeros(shape) if len(shape) == 1 else torch.rand(shape, generator=generator) * 0.2 - 0.1


def he_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """N(0, 2 / inputs of a neuron) (He et al. 2015, arXiv:1502.01852); factors of a normalisation 1, biases 0."""
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return math.sqrt(2 / shape[1:].numel()) * torch.randn(shape, generator=generator)


STARTS: dict[str, Start] = {"normal": normal_start, "uniform": uniform_start}


def perceptron(inputs: int, hidden: int, classes: int, start: str) -> Optimisee:
    """Of images with so many numbers each: one hidden layer of sigmoids (Andrychowicz et al. 2016).

    start: a name of STARTS. Raises UsageError for any other.
    """
    if start not in STARTS:
        raise nearest("first_weights", start, STARTS)
    with torch.device("meta"):
        module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, classes))
    return Optimisee(module, STARTS[start])


def residual(channels: int, width: int, classes: int, depth: int) -> Optimisee:
    """A residual network for images (B, channels, 32, 32), see `ResNet`. Raises UsageError for a bad depth."""
    with torch.device("meta"):
        module = ResNet(channels, width, classes, depth)
    return Optimisee(module, he_start)


class ResNet(nn.Module):
    """A residual network of `depth` layers with weights: a convolution, blocks of two, a linear map.

    The blocks are shared out over three stages, the earlier ones having one more where they cannot be equal: depth 16
    has 3, 2 and 2. Stages have width, 2 width and 4 width channels; each but the first halves the image. A shortcut
    across such a change drops every other pixel and adds channels of zeros. Every convolution is 3×3 without a bias,
    and normalised over the batch at hand: statistics are never kept, so that θ is all the state there is.
    Raises UsageError for a depth that is odd or has fewer blocks than stages.
    Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, section 4.2;
    depths of 6n + 2 there. The papers that train a depth of 16 or 34 by a learned optimiser do not give the stages.
    """

    def __init__(self, channels: int, width: int, classes: int, depth: int) -> None:
        blocks = (depth - 2) // 2
        if depth % 2 or blocks < _STAGES:
            raise UsageError(f"depth: expected an even number of at least {2 * _STAGES + 2}, got {depth}")
        super().__init__()
        self.entry = _convolution(channels, width, 1)
        made: list[nn.Module] = []
        inputs = width
        for stage in range(_STAGES):
            outputs = width * 2**stage
            for i in range(blocks // _STAGES + (stage < blocks % _STAGES)):
                made.append(ResBlock(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*made)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(torch.relu(self.entry(x))).mean((2, 3)))
        return y


class ResBlock(nn.Module):
    """y = relu(shortcut(x) + f(x)), f two normalised convolutions with a relu between them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride)
        self.second = _convolution(outputs, outputs, 1)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        shortcut = functional.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(shortcut + self.second(torch.relu(self.first(x))))


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs, track_running_stats=False)
    )


# each makes an optimiser of parameters and a learning rate
HAND_MADE: dict[str, Callable[[list[Tensor], float], torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}
# learning rates to choose from, two to a decade
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def train_by_hand(
    optimisee: Optimisee, theta: Tensor, batches: Iterable[tuple[Tensor, Tensor]], name: str, lr: float
) -> tuple[Tensor, Tensor]:
    """The loss on each minibatch (x, target) before the step on it, and the last θ, by an optimiser of HAND_MADE."""
    theta = theta.clone()
    optimizer = HAND_MADE[name]([theta], lr)
    curve = []
    for x, target in batches:
        loss, theta.grad = optimisee.gradient(theta, x, target)
        optimizer.step()
        curve.append(loss)
    return torch.stack(curve), theta
