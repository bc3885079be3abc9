# SPDX-License-Identifier: Apache-2.0
"""Image generation with DRAW, a recurrent variational autoencoder with attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import replacing
from edgernn.model import RecurrentModel
from edgernn.training.datasets.find import find_files
from edgernn.training.formats import read_idx
from edgernn.training.papers.formats import read_svhn
from edgernn.training.papers.networks.draw import ENCODERS, Draw
from edgernn.training.papers.networks.pieces import NOT_OF_A_LAYER, check_in_parts, without_imputer
from edgernn.training.tasks.base import SAMPLES, Means, Score, Task, work
from edgernn.training.tasks.sources import Batch, Sequences, Split, random_split

Pixels = npt.NDArray[np.uint8]

_WHITE = 255
# one in 12 of the training images is for validation, as in `LabelledImages`
_HELD_OUT = 12
# `pictures` shows _ROWS x _COLUMNS images, then the canvas of _SEQUENCES images at up to _MOST_CANVASES glimpses
_ROWS, _COLUMNS, _SEQUENCES, _MOST_CANVASES = 6, 16, 4, 16


@dataclass
class DrawImages(Task):
    """Image generation task: train DRAW, a variational autoencoder whose decoder may be any cell with any update rule.

    x (1, B, channels·height·width): pixel values 0 to 255 of an image, channel by channel and row by row. The task has
    no target. Metrics, means over the images in nats: reconstruction, the binary cross entropy of the image; kl, the
    Kullback-Leibler divergence of the latent variables from their prior; and nll_bound, the sum of both, which is the
    loss and an upper bound of the negative log likelihood. It is estimated from one sample of the latent variables.

    Settings:

    - `images`: mnist: digits, 28 x 28, binary. Each pixel is set to 0 or 255 once, at random with its grey value as
      probability, the same for every run. svhn: street view house numbers, 32 x 32 in three colours. Colour values
      divided by 255 are taken as probabilities, so that nll_bound is only useful to compare models.
    - `glimpses`: Number of steps (glimpses) in which an image is drawn.
    - `latent`: Size of the vector of latent variables of each step.
    - `read_size`, `write_size`: Number of filters per axis of the attention windows that read the image and that write
      to it, at least 2.
    - `encoder`: lstm: an LSTM, as Gregor et al. have; reported costs and updates leave it out. same: a layer like the
      decoder, which they include.

    hidden_size is the number of neurons of the decoder and of the encoder. The defaults are those of a small run. The
    EINS and IRC papers use images=svhn glimpses=32 latent=100 hidden_size=800, and the EINS paper epochs=100.

    Source: Gregor et al., "DRAW: A Recurrent Neural Network For Image Generation", arXiv:1502.04623. Anonymous authors,
    "EINS: Long Short-Term Memory with Extrapolated Input Network Simplification", section 5.4 and appendix D. IRC: Kuo
    et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020, section V-B.
    """

    images: str = "mnist"
    glimpses: Annotated[int, Field(ge=1)] = 10
    latent: Annotated[int, Field(ge=1)] = 10
    read_size: Annotated[int, Field(ge=2)] = 5
    write_size: Annotated[int, Field(ge=2)] = 5
    encoder: str = "lstm"

    name = "draw"
    help = "Generate images of digits or house numbers with DRAW (needs the MNIST or SVHN files)."
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 5,
        "hidden_size": 128,
        "batch_size": 100,
        "lr": 1e-3,
        "clip": 5.0,
    }
    network = Draw
    without = NOT_OF_A_LAYER
    # the layers run once for each glimpse
    repeats_layers = True
    objective = Score("nll_bound", False)

    def __post_init__(self) -> None:
        if self.images not in ("mnist", "svhn"):
            raise UsageError(f"images: expected mnist or svhn, got {self.images!r}")
        if self.encoder not in ENCODERS:
            raise UsageError(f"encoder: expected one of {', '.join(ENCODERS)}, got {self.encoder!r}")

    def open(self, source: Path | None, seed: int) -> None:
        images, test = self._mnist(source) if self.images == "mnist" else self._svhn(source)
        if len(images) < _HELD_OUT or not len(test):
            counts = f"{len(images)} and {len(test)}"
            raise EdgernnError(
                f"{self.images}: expected at least {_HELD_OUT} training images and 1 test image, got {counts}; "
                "download the data set again"
            )
        self.shape = images.shape[1:]
        self.input_size = self.output_size = images[0].size
        train, held_out = random_split(len(images), [len(images) // _HELD_OUT], seed)
        self.train = _sequences(images[train.numpy()], seed)
        self.validation = _sequences(images[held_out.numpy()])
        self.test = _sequences(test)

    def _mnist(self, source: Path | None) -> tuple[Pixels, Pixels]:
        names = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"]
        files = find_files(self.name, "mnist", names, source)
        rng = np.random.default_rng(0)
        train, test = (_binary(read_idx(path, (None, 28, 28))[:, None], rng) for path in files)
        return train, test

    def _svhn(self, source: Path | None) -> tuple[Pixels, Pixels]:
        files = find_files(self.name, "svhn", ["train_32x32.mat", "test_32x32.mat"], source)
        train, test = (read_svhn(path).x.transpose(0, 3, 1, 2) for path in files)
        return train, test

    def adapted(self, model: ModelConfig) -> ModelConfig:
        check_in_parts(model.layer)
        return without_imputer(model)

    def build_network(self, model: ModelConfig) -> Draw:
        channels, height, width = self.shape
        return Draw(
            model.layer,
            channels=channels,
            height=height,
            width=width,
            glimpses=self.glimpses,
            latent=self.latent,
            hidden_size=model.hidden_size,
            read_size=self.read_size,
            write_size=self.write_size,
            encoder=self.encoder,
        )

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        return self.figures(model, batch)["nll_bound"], None

    def figures(self, model: RecurrentModel, batch: Batch) -> dict[str, Tensor]:
        """Compute the metrics of a batch, in nats per image (mean over its images).

        Args:
            model: The network, a `Draw`.
            batch: The images.

        Returns:
            A dict with "reconstruction", the binary cross entropy of the images; "kl", the Kullback-Leibler divergence
            of the latent variables from their prior; and "nll_bound", the sum of both, which is the loss.
        """
        x = batch.x[0].view(-1, *self.shape) / _WHITE
        canvas, divergence = model(x)
        reconstruction, kl = _reconstruction(canvas, x), divergence.mean()
        return {"nll_bound": reconstruction + kl, "reconstruction": reconstruction, "kl": kl}

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the mean of the training images, and of one black and one white image, as the canvas of all images."""
        assert isinstance(self.train, Sequences)
        means, count = Means(), len(self.train)
        mean = (self.train.x.sum((0, 1), dtype=torch.float64) / _WHITE + 1) / (count + 2)
        for batch in self.test.chunks():
            x = batch.x[0] / _WHITE
            means.add(len(x), {"reconstruction": _reconstruction(mean.logit().float().expand_as(x), x)})
        (nats,) = means.result().values()
        return {"mean image": {"nll_bound": nats, "reconstruction": nats, "kl": 0.0}}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        means = Means()
        for batch in split.chunks():
            figures = self.figures(model, batch.to(device))
            means.add(batch.x.shape[1], {**figures, **work(model)})
        return means.result()

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        """Write samples.png: a grid of generated images, and below it the steps in which some of them are drawn.

        Each row of the lower part shows the unfinished image (canvas) of one sample after several glimpses (steps).
        """
        from matplotlib.figure import Figure

        assert isinstance(model, Draw)
        with torch.no_grad():
            canvases = model.generate(_ROWS * _COLUMNS).cpu()
        shown = torch.linspace(0, len(canvases) - 1, min(_MOST_CANVASES, len(canvases))).round().long()
        images = mosaic(canvases[-1].view(_ROWS, _COLUMNS, *self.shape))
        steps = mosaic(canvases[shown, :_SEQUENCES].transpose(0, 1))
        width = 8.0
        heights = [width * len(picture) / picture.shape[1] for picture in (images, steps)]
        figure = Figure(figsize=(width + 0.2, sum(heights) + 0.9), layout="constrained")
        titles = ("generated images", f"canvas after glimpses {', '.join(str(int(t) + 1) for t in shown)}")
        axes = figure.subplots(2, 1, height_ratios=heights)
        for ax, picture, title in zip(axes, (images, steps), titles, strict=True):
            ax.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_title(title, fontsize=10)
            ax.set_axis_off()
        with replacing(folder / SAMPLES) as temporary:
            figure.savefig(temporary, dpi=150)


def _reconstruction(canvas: Tensor, x: Tensor) -> Tensor:
    """Return the binary cross entropy in nats per image: the logits of a canvas beside images x, values 0 to 1."""
    return functional.binary_cross_entropy_with_logits(canvas, x, reduction="sum") / len(x)


def mosaic(tiles: Tensor, gap: int = 2) -> npt.NDArray[np.float32]:
    """Arrange images in a grid.

    Args:
        tiles: Images (rows, columns, channels, height, width), values from 0 to 1, with 1 or 3 channels.
        gap: Width of the white lines between images, in pixels.

    Returns:
        One image of all tiles: (total height, total width) with 1 channel, (total height, total width, 3) with 3.
    """
    tiles = functional.pad(tiles, (0, gap, 0, gap), value=1.0)
    rows, columns, channels, height, width = tiles.shape
    grid = tiles.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)[:-gap, :-gap]
    return grid.squeeze(-1).numpy()


def _sequences(images: Pixels, seed: int = 0) -> Sequences:
    """Convert images (N, channels, height, width) to sequences of one step, with one input per pixel value."""
    x = torch.from_numpy(np.ascontiguousarray(images)).flatten(1)[:, None]
    return Sequences(x, torch.empty(len(x), 0), seed=seed)


def _binary(grey: Pixels, rng: np.random.Generator) -> Pixels:
    """Convert grey images to binary ones: a pixel becomes 255 with probability grey / 255, else 0."""
    return np.where(rng.integers(_WHITE, size=grey.shape, dtype=np.uint8) < grey, _WHITE, 0).astype(np.uint8)
