# SPDX-License-Identifier: Apache-2.0
"""Learning to learn: a recurrent network as the optimiser of other networks."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, nearest
from edgernn.files import replacing
from edgernn.model import RecurrentModel
from edgernn.training.datasets import SETS
from edgernn.training.datasets.find import find_either
from edgernn.training.datasets.registry import CIFAR10_SUBSET
from edgernn.training.papers.formats import read_cifar10
from edgernn.training.papers.networks.learned_optimizer import UPDATES, LearnedOptimizer
from edgernn.training.papers.networks.optimisees import HAND_MADE, RATES, perceptron, residual, train_by_hand
from edgernn.training.papers.networks.pieces import NOT_OF_A_LAYER, without_imputer
from edgernn.training.papers.tasks.unrolls import ImageSplit, Unrolls, channel_scales
from edgernn.training.tasks.base import CLASSIFICATION, SAMPLES, Means, Score, Task, work
from edgernn.training.tasks.images import SIDE, LabelledImages, MnistRows
from edgernn.training.tasks.sources import Batch, Sequences, Split, fingerprint, random_split

OPTIMISEES = ("mlp", "resnet")
META_LOSSES = ("mean", "change")
CLASSES = 10
# one in 12 of the training images is for validation
_HELD_OUT = 12
# random keys: each use has its own random minibatches and initial parameters
_TRAIN, _VALIDATION, _TEST, _TUNING = 31, 32, 33, 34

_COLOURS = ("tab:orange", "tab:red", "tab:green", "tab:blue")


@dataclass(frozen=True)
class Trial:
    """Result of the training of one image classifier (optimisee) in an evaluation of an optimiser.

    `curve` (steps,) is the loss on the minibatch of each step, before the parameters are changed. `scores` is a dict
    from metric to value: final_loss and final_accuracy, after the training, on all validation or test images;
    mean_loss, the mean of `curve`; late_loss, the mean of its last fifth.
    """

    curve: Tensor
    scores: dict[str, float]


# function that trains an optimisee, given initial parameters θ (P,) and batches; returns `Trial.curve` and the final θ
Trainer = Callable[[Tensor, Iterable[Batch]], tuple[Tensor, Tensor]]


@dataclass
class LearningToLearn(Task):
    """Learning to learn: train a recurrent network to be the optimiser of image classifiers ("optimisees").

    An evaluation trains optimisees on the training images. Each has its own initial parameters and minibatches.
    Metrics, means over the optimisees: final_loss and final_accuracy, after the training, on all validation or test
    images; mean_loss, the minibatch loss averaged over all steps; late_loss, the minibatch loss averaged over the last
    fifth of the steps (updates 80 to 100 of 100 in the DecayNet paper, section 6.2). The test also trains the same
    optimisees with the standard optimisers sgd, momentum, rmsprop and adam on the same minibatches. Their metrics have
    the optimiser's name in front, such as sgd_final_loss. sgd_lr is the learning rate among 0.0001, 0.0003, 0.001 and
    so on up to 10 with the lowest final loss on the validation images. A rate with an infinite loss or NaN in the test
    is passed over.

    Settings:

    - `optimisee`: mlp: a perceptron with 784 inputs, `width` hidden sigmoid neurons and 10 outputs, on MNIST. resnet: a
      residual network on CIFAR-10. The pixels are standardised per channel over the training images.
    - `width`: Hidden size of the mlp (default 20), or channels of the first of three stages of the resnet (default 16).
    - `depth`: Number of layers with weights of the resnet, even and at least 8 (default 16).
    - `first_weights`: Initial parameters of the mlp. normal (default): N(0, 0.01²). uniform: U(-0.1, 0.1), biases 0.
    - `minibatch`: Batch size in the training of an optimisee.
    - `update`: Formula by which the output h of the recurrent layers changes the parameters θ, whose gradient is ∇.
      additive: θ + scale (w h + b). decayed, with a learning rate and a weight decay per parameter: (1 - η λ) θ - η ∇,
      where (η, λ) = scale (w h + b). gated: θ is the cell state of an LSTM, whose gates read h. rates, with a learning
      rate per parameter: θ - U h ⊙ ∇; the layers read all parameters at once, and fit optimisees of one size only.
    - `inputs`: Output size of a linear map before the first layer. Default: 20 for gated, 28 for rates, else no map.
    - `scale`: Factor of the updates additive and decayed (default 0.1).
    - `propagations`: Number of times that the layers run on the same input before their output is used.
    - `run_steps`: Number of training steps of an optimisee, a multiple of `unroll`.
    - `unroll`: Number of successive training steps of an optimisee (an unroll) through which the loss of the learned
      optimiser is backpropagated at once (truncated backpropagation through time).
    - `optimisees`: Number of optimisees in an epoch.
    - `meta_loss`: Loss of the learned optimiser. mean: the optimisee's loss after each step, on the next minibatch,
      averaged over the steps of an unroll. change: the optimisee's loss after a step minus that before it, both on the
      minibatch of the step, averaged likewise (DecayNet paper, appendix D).
    - `trials`: Number of optimisees in an evaluation.
    - `test_steps`: Number of training steps of an optimisee in the test. Default: `run_steps`.
    - `tuning`: Number of further optimisees on which the learning rates of the standard optimisers are chosen.

    Source: Andrychowicz et al., "Learning to learn by gradient descent by gradient descent", 2016, arXiv:1606.04474,
    for the defaults. Anonymous authors, "EINS: Long Short-Term Memory with Extrapolated Input Network Simplification",
    appendix E: optimisee=resnet update=gated layers=1 norm=layer unroll=10. Anonymous authors, "DecayNet: A Study on
    the Cell States of Long-Short Term Memories", section 6.2: update=rates hidden_size=64 layers=1 norm=layer
    first_weights=uniform minibatch=32 meta_loss=change optimisees=5, and for the cell decaynet alone propagations=2.
    """

    optimisee: str = "mlp"
    width: Annotated[int | None, Field(ge=1)] = None
    depth: Annotated[int | None, Field(ge=1)] = None
    first_weights: str | None = None
    minibatch: Annotated[int, Field(ge=1)] = 128
    update: str = "additive"
    inputs: Annotated[int | None, Field(ge=1)] = None
    scale: Annotated[float | None, Field(gt=0)] = None
    propagations: Annotated[int, Field(ge=1)] = 1
    run_steps: Annotated[int, Field(ge=1)] = 100
    unroll: Annotated[int, Field(ge=1)] = 20
    optimisees: Annotated[int, Field(ge=1)] = 10
    meta_loss: str = "mean"
    trials: Annotated[int, Field(ge=1)] = 10
    test_steps: Annotated[int | None, Field(ge=1)] = None
    tuning: Annotated[int, Field(ge=1)] = 2

    name = "l2l"
    help = "Train a recurrent network to be the optimiser of other networks (needs the MNIST or CIFAR-10 files)."
    # like Andrychowicz et al., keep the best evaluation
    defaults = {"epochs": 20, "hidden_size": 20, "layers": 2, "lr": 1e-3, "keep": "best"}  # noqa: RUF012
    network = LearnedOptimizer
    without = NOT_OF_A_LAYER - {"layers"} | {"batch_size"}
    # a batch trains one optimisee, so that processes cannot share it
    divides = False
    # the layers run once for each training step of an optimisee
    repeats_layers = True
    objective = Score("final_loss", False)
    # per parameter of an optimisee: its gradient and its new value
    input_size, output_size = 1, 1

    def __post_init__(self) -> None:
        for name, known in (("optimisee", OPTIMISEES), ("update", UPDATES), ("meta_loss", META_LOSSES)):
            if (value := getattr(self, name)) not in known:
                raise nearest(name, value, known)
        if self.run_steps % self.unroll:
            raise UsageError(f"run_steps: expected a multiple of unroll={self.unroll}, got {self.run_steps}; change it")
        absent = {"depth": self.optimisee == "mlp", "first_weights": self.optimisee == "resnet"}
        for name, is_absent in {**absent, "scale": not UPDATES[self.update].scaled}.items():
            if is_absent and (value := getattr(self, name)) is not None:
                chosen = f"optimisee={self.optimisee} update={self.update}"
                raise UsageError(f"{name}: expected none with {chosen}, got {value}; leave {name} out")
        if self.optimisee == "mlp":
            self.classifier = perceptron(SIDE * SIDE, self.width or 20, CLASSES, self.first_weights or "normal")
        else:
            self.classifier = residual(3, self.width or 16, CLASSES, self.depth or 16)

    def open(self, source: Path | None, seed: int) -> None:
        parts = self._read_mnist(source, seed) if self.optimisee == "mlp" else self._read_cifar10(source, seed)
        self.fingerprint = fingerprint(tensor for part in parts for tensor in part)
        scales = channel_scales(parts[0][0])
        self.images, self.validation, self.test = (ImageSplit(x, y, *scales) for x, y in parts)
        self.train = self._unrolls(_TRAIN, self.run_steps, seed)
        self._compared: dict[str, tuple[float, list[Trial]]] = {}
        self._tested: list[Trial] = []

    def adapted(self, model: ModelConfig) -> ModelConfig:
        return without_imputer(model)

    def build_network(self, model: ModelConfig) -> LearnedOptimizer:
        return LearnedOptimizer(
            model.layer,
            coordinates=self.classifier.size,
            hidden_size=model.hidden_size,
            layers=model.layers,
            update=self.update,
            inputs=self.inputs,
            scale=self.scale or 0.1,
            propagations=self.propagations,
        )

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        assert isinstance(model, LearnedOptimizer)
        if carry is None:
            theta = self.classifier.start().to(batch.x.device)
            carry = (theta, *model.initial_state(theta))
        theta, *state = carry
        change = self.meta_loss == "change"
        unrolled = model.unroll(self.classifier, batch.x, batch.target, theta, tuple(state), same=change)
        loss = unrolled.after.mean() - unrolled.before.mean() if change else unrolled.after.mean()
        return loss, tuple(t.detach() for t in (unrolled.theta, *unrolled.state))

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        skipped = Means()
        trials = self._network_trials(model, split, device, skipped)
        figures = summary(trials) | skipped.result()
        if split is self.test:
            self._tested = trials
            for name, (lr, trials) in self._standard_trials(device).items():
                figures |= {f"{name}_{key}": value for key, value in {"lr": lr, **summary(trials)}.items()}
        return figures

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return optimisees that stay as they start; the standard optimisers are metrics of the test."""
        trials = self._trials(self._standard_trainer("sgd", 0.0), self.test, _TEST, self.trials, "cpu")
        return {"not trained": summary(trials)}

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        """Write samples.png, a plot of the losses of the test's image classifiers against their training steps.

        A curve with the mean and the range over the classifiers is drawn for each optimiser, learned or standard.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        ax = figure.subplots()
        drawn = {f"learned: {model.recurrent_layers()[0].kernel_name}": self._tested}
        drawn |= {f"{name}, lr {lr:g}": trials for name, (lr, trials) in self._standard_trials(device).items()}
        for (label, trials), colour in zip(drawn.items(), ("black", *_COLOURS), strict=True):
            curves = torch.stack([trial.curve for trial in trials]).numpy()
            steps = np.arange(curves.shape[1])
            ax.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.12, linewidth=0)
            ax.plot(steps, curves.mean(0), color=colour, linewidth=1.4, label=label)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(f"step of the optimisee ({self.optimisee})")
        ax.set_ylabel(f"loss, mean and range of {self.trials}")
        ax.legend(frameon=False)
        with replacing(folder / SAMPLES) as temporary:
            figure.savefig(temporary, dpi=120)

    def series(self, model: RecurrentModel, device: str) -> dict[str, list[float]]:
        """Return the minibatch loss at each training step, averaged over the image classifiers trained in the test.

        The dict has one list per optimiser: loss_by_step for the learned optimiser, and sgd_loss_by_step and so on for
        the standard optimisers.
        """
        by_hand = {f"{name}_": trials for name, (_, trials) in self._standard_trials(device).items()}
        runs = {"": self._tested, **by_hand}
        return {
            f"{name}loss_by_step": torch.stack([t.curve for t in trials]).mean(0).tolist()
            for name, trials in runs.items()
        }

    def _network_trials(self, model: RecurrentModel, split: Split, device: str, skipped: Means) -> list[Trial]:
        """Train the image classifiers of an evaluation with the learned optimiser, and return a `Trial` for each."""
        assert isinstance(model, LearnedOptimizer)

        def train(theta: Tensor, parts: Iterable[Batch]) -> tuple[Tensor, Tensor]:
            curve, state = [], model.initial_state(theta)
            for part in parts:
                unrolled = model.unroll(self.classifier, part.x, part.target, theta, state, same=False)
                theta, state = unrolled.theta, unrolled.state
                curve.append(unrolled.before)
                skipped.add(len(unrolled.before), work(model))
            return torch.cat(curve), theta

        key = _TEST if split is self.test else _VALIDATION
        return self._trials(train, split, key, self.trials, device)

    def _standard_trials(self, device: str) -> dict[str, tuple[float, list[Trial]]]:
        """Train the image classifiers of the test with each standard optimiser."""
        if not self._compared:
            self._compared = {name: self._tune(name, device) for name in HAND_MADE}
        return self._compared

    def _tune(self, name: str, device: str) -> tuple[float, list[Trial]]:
        """Choose the learning rate of a standard optimiser on the validation images, then train and test with it."""

        def loss(lr: float) -> float:
            trials = self._trials(self._standard_trainer(name, lr), self.validation, _TUNING, self.tuning, device)
            final_loss = summary(trials)["final_loss"]
            return final_loss if math.isfinite(final_loss) else math.inf

        for lr in sorted(RATES, key=loss):
            trials = self._trials(self._standard_trainer(name, lr), self.test, _TEST, self.trials, device)
            # a rate close to divergence may pass the tuning but not the test
            if all(map(math.isfinite, summary(trials).values())):
                break
        return lr, trials

    def _standard_trainer(self, name: str, lr: float) -> Trainer:
        def train(theta: Tensor, parts: Iterable[Batch]) -> tuple[Tensor, Tensor]:
            # the last minibatch of a part is the first of the next one
            batches = ((x, y) for part in parts for x, y in zip(part.x[:-1], part.target[:-1], strict=True))
            return train_by_hand(self.classifier, theta, batches, name, lr)

        return train

    def _trials(self, train: Trainer, split: Split, key: int, count: int, device: str) -> list[Trial]:
        """Train image classifiers with an optimiser, and score each of them on all images of a split."""
        unrolls = self._unrolls(key, self.run_steps if key == _VALIDATION else self.test_steps or self.run_steps)
        trials = []
        for number in range(count):
            theta = self.classifier.start(torch.Generator().manual_seed(1000 * key + number)).to(device)
            curve, theta = train(theta, (unrolls.part(number, i).to(device) for i in range(unrolls.parts)))
            scores = Means()
            for batch in split.chunks():
                moved = batch.to(device)
                metrics = CLASSIFICATION.metrics(self.classifier(theta, moved.x), moved.target)
                final = {"final_loss": metrics["cross_entropy"], "final_accuracy": metrics["accuracy"]}
                scores.add(len(batch.target), final)
            late = curve[-max(1, len(curve) // 5) :]
            losses = {"mean_loss": float(curve.mean()), "late_loss": float(late.mean())}
            trials.append(Trial(curve.cpu(), {**scores.result(), **losses}))
        return trials

    def _unrolls(self, key: int, steps: int, seed: int = 0) -> Unrolls:
        return Unrolls(self.images, steps, self.unroll, self.minibatch, key=key, seed=seed, optimisees=self.optimisees)

    def _read_mnist(self, source: Path | None, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Read MNIST, and return images (N, 1, 28, 28) and labels (N,) of the training, validation and test part."""
        rows = _Digits()
        rows.open(source, seed)
        parts = (rows.train, rows.validation, rows.test)
        return [(part.x[:, None], part.y) for part in parts if isinstance(part, Sequences)]

    def _read_cifar10(self, source: Path | None, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Read CIFAR-10, and return images (N, 3, 32, 32) and labels (N,) of the training, validation and test part."""
        cifar10 = SETS["cifar10"]
        files = find_either(self.name, "cifar10", cifar10.forms, source)
        if files[0].name.startswith(CIFAR10_SUBSET):
            warnings.warn(cifar10.note, EdgernnWarning, stacklevel=2)
        (x, y), test = (
            (torch.from_numpy(part.x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(part.y).long())
            for part in read_cifar10(files)
        )
        if len(x) < _HELD_OUT:
            raise EdgernnError(
                f"{files[0]}: expected at least {_HELD_OUT} training images, got {len(x)}; download it again"
            )
        train, held_out = random_split(len(x), [len(x) // _HELD_OUT], seed)
        return [(x[train], y[train]), (x[held_out], y[held_out]), test]


def summary(trials: list[Trial]) -> dict[str, float]:
    """Average each metric over the trained classifiers: a dict from metric to mean, with the keys of `Trial.scores`."""
    means = Means()
    for trial in trials:
        means.add(1, trial.scores)
    return means.result()


class _Digits(LabelledImages):
    """MNIST images for the task l2l (learning to learn); error messages about missing files name this task."""

    name = LearningToLearn.name
    folder = MnistRows.folder
