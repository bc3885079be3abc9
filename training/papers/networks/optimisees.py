# SPDX-License-Identifier: Apache-2.0
"""Image classifiers that a learned optimiser trains (optimisees), and standard optimisers to compare it with."""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from edgernn.errors import UsageError, nearest

# draws the initial values of a parameter, from its name, its shape and a generator
Start = Callable[[str, torch.Size, torch.Generator | None], Tensor]
_STAGES = 3


class Optimisee:
    """An image classifier whose P parameters form one vector θ (P,), for a learned optimiser to train.

    Args:
        module: Network on torch's meta device, without buffers. θ is the concatenation of its flattened parameters, in
            the order of `named_parameters`.
        start: Function that draws the initial values of one parameter tensor, from its name, its shape and a torch
            generator (None: torch's default generator).
    """

    def __init__(self, module: nn.Module, start: Start) -> None:
        self._module, self._start = module, start
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return sum(shape.numel() for shape in self._shapes.values())

    def start(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw initial parameters θ (P,) on the CPU; the generator is a CPU generator, None for torch's default one."""
        return torch.cat([self._start(name, shape, generator).flatten() for name, shape in self._shapes.items()])

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """Compute the logits (B, classes) of images x (B, ...) with the parameters theta."""
        parts = torch.split(theta, [shape.numel() for shape in self._shapes.values()])
        parameters = {name: part.view(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}
        logits: Tensor = functional_call(self._module, parameters, (x,))
        return logits

    def gradient(self, theta: Tensor, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean cross entropy of images and its gradient.

        Args:
            theta: Parameters (P,).
            x: Images (B, ...).
            target: Labels (B,).

        Returns:
            The loss () and the gradient (P,), both detached from the graph.
        """
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            loss = functional.cross_entropy(self(leaf, x), target)
            (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient


def normal_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Draw the initial values of a parameter from N(0, 0.01²), as in Andrychowicz et al. 2016."""
    return 0.01 * torch.randn(shape, generator=generator)


def uniform_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Draw the initial values of a weight from U(-0.1, 0.1); the initial values of a bias are 0.

    A parameter with one axis counts as a bias. Source: the DecayNet paper (see the module `state_pictures`).
    """
    return torch.zeros(shape) if len(shape) == 1 else torch.rand(shape, generator=generator) * 0.2 - 0.1


def he_start(name: str, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Draw the initial values of a weight from N(0, 2 / n), where n is the number of inputs of a neuron.

    The scales of a normalisation layer are 1, and all biases are 0. They are the parameters with one axis; the name of
    a scale ends with "weight".
    Source: He et al. 2015, arXiv:1502.01852.
    """
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return math.sqrt(2 / shape[1:].numel()) * torch.randn(shape, generator=generator)


STARTS: dict[str, Start] = {"normal": normal_start, "uniform": uniform_start}


def perceptron(inputs: int, hidden: int, classes: int, start: str) -> Optimisee:
    """Build the perceptron of Andrychowicz et al. 2016, with one hidden layer of sigmoids, for an optimiser to train.

    Args:
        inputs: Number of values of an image: channels · height · width.
        hidden: Size of the hidden layer.
        classes: Number of classes.
        start: Name of the initialisation of the weights: normal or uniform.

    Returns:
        The network as an `Optimisee`.

    Raises:
        UsageError: `start` has another value.
    """
    if start not in STARTS:
        raise nearest("first_weights", start, STARTS)
    with torch.device("meta"):
        module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, classes))
    return Optimisee(module, STARTS[start])


def residual(channels: int, width: int, classes: int, depth: int) -> Optimisee:
    """Build a residual network (`ResNet`) for images (B, channels, 32, 32), for an optimiser to train.

    Args:
        channels: Channels of the images.
        width: Channels of the first of the three stages.
        classes: Number of classes.
        depth: Number of layers with weights, even and at least 8.

    Returns:
        The network as an `Optimisee`, with the initialisation `he_start`.

    Raises:
        UsageError: The depth is odd or too small.
    """
    with torch.device("meta"):
        module = ResNet(channels, width, classes, depth)
    return Optimisee(module, he_start)


class ResNet(nn.Module):
    """Residual network of `depth` layers: a convolution, blocks of two convolutions, and a linear map.

    The blocks are divided among three stages. If their number is not divisible by 3, the earlier stages have one block
    more: depth 16 has stages of 3, 2 and 2 blocks. The stages have width, 2 · width and 4 · width channels. The second
    and third stage halve the height and width of the image; the shortcut of their first block drops every other pixel
    and pads the channels with zeros. Every convolution is 3×3 without a bias, followed by batch normalisation without
    running statistics, so that the network has parameters but no buffers.

    Args:
        channels: Channels of the images.
        width: Channels of the first stage.
        classes: Number of classes.
        depth: Number of layers with weights, even and at least 8.

    Raises:
        UsageError: The depth is odd or too small.

    Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, section 4.2,
    with depths of 6n + 2. The papers that train depth 16 or 34 by a learned optimiser do not say how
    many blocks each stage has.
    """

    def __init__(self, channels: int, width: int, classes: int, depth: int) -> None:
        blocks = (depth - 2) // 2
        if depth % 2 or blocks < _STAGES:
            raise UsageError(f"depth: expected an even number of at least {2 * _STAGES + 2}, got {depth}; set depth=16")
        super().__init__()
        self.entry = _convolution(channels, width, 1)
        residual_blocks: list[nn.Module] = []
        inputs = width
        for stage in range(_STAGES):
            outputs = width * 2**stage
            for i in range(blocks // _STAGES + (stage < blocks % _STAGES)):
                residual_blocks.append(ResBlock(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*residual_blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(torch.relu(self.entry(x))).mean((2, 3)))
        return y


class ResBlock(nn.Module):
    """Residual block relu(shortcut(x) + f(x)); f is two 3×3 convolutions with batch normalisation, a ReLU between them.

    x has `inputs` channels. The result has `outputs` channels; its height and width are those of x divided by `stride`.
    """

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


# standard optimisers (designed by hand, not learned), as functions of parameters and learning rate
HAND_MADE: dict[str, Callable[[list[Tensor], float], torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}
# learning rates to choose from, two per decade
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def train_by_hand(
    optimisee: Optimisee, theta: Tensor, batches: Iterable[tuple[Tensor, Tensor]], name: str, lr: float
) -> tuple[Tensor, Tensor]:
    """Train an image classifier with a standard optimiser, such as Adam.

    Args:
        optimisee: The classifier.
        theta: Initial parameters (P,).
        batches: K minibatches, one per step: pairs of images (B, ...) and labels (B,).
        name: Name of the optimiser: sgd, momentum, rmsprop or adam.
        lr: Learning rate.

    Returns:
        The loss on each minibatch before its step (K,), and the final parameters (P,).
    """
    theta = theta.clone()
    optimizer = HAND_MADE[name]([theta], lr)
    curve = []
    for x, target in batches:
        loss, theta.grad = optimisee.gradient(theta, x, target)
        optimizer.step()
        curve.append(loss)
    return torch.stack(curve), theta
