# SPDX-License-Identifier: Apache-2.0
"""DRAW: recurrent image generation with attention."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.config import LayerConfig
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace, joined
from edgernn.model import RecurrentModel
from edgernn.training.papers.networks.pieces import open_forget_gate

ENCODERS = ("lstm", "same")


class Window(NamedTuple):
    """Attention window: N x N Gaussian filters on B images of C channels, height A_Y and width A_X.

    rows is F_Y (B, N, A_Y): N filters over the vertical positions. columns is F_X (B, N, A_X): N filters over the
    horizontal positions. intensity is γ (B, 1, 1, 1): a patch that is read is multiplied by γ, one that is written is
    divided by γ.
    """

    rows: Tensor
    columns: Tensor
    intensity: Tensor

    def read(self, images: Tensor) -> Tensor:
        """Read the patch γ F_Y X F_Xᵀ from each of the images X (B, C, height, width): patches (B, C, N, N).

        F_Y are the filters `rows`, F_X are the filters `columns`, and γ is `intensity`.
        """
        return self.intensity * (self.rows[:, None] @ images @ self.columns[:, None].mT)

    def write(self, patch: Tensor) -> Tensor:
        """Write N x N patches w (B, C, N, N) onto empty images: F_Yᵀ w F_X / γ (B, C, height, width).

        F_Y are the filters `rows`, F_X are the filters `columns`, and γ is `intensity`.
        """
        return self.rows[:, None].mT @ patch @ self.columns[:, None] / self.intensity


def window(parameters: Tensor, size: int, height: int, width: int) -> Window:
    """Build the N x N Gaussian filters of an attention window for each image of a batch.

    Each image has five parameters: relative centre g̃_X and g̃_Y (0: the middle of the image, ±1: just outside), log σ²
    (variance of a filter), log δ̃ (relative stride) and log γ (intensity, see `Window`), in this order.

    g_X = (A_X + 1)/2 · (g̃_X + 1), g_Y = (A_Y + 1)/2 · (g̃_Y + 1)          centre of the window, in pixels
    δ = (max(A_X, A_Y) - 1)/(N - 1) · δ̃                                    stride: pixels between two filters
    μ_X^i = g_X + (i - N/2 - 0.5) δ, i = 1..N, likewise μ_Y                centre of filter i, in pixels
    F_X[i, a] = exp(-(a - μ_X^i)²/(2σ²)) / Z_X, a = 1..A_X, likewise F_Y   weight of pixel a; Z_X: each filter sums to 1

    Args:
        parameters: The five parameters of each image (B, 5).
        size: N, the number of filters per axis.
        height: A_Y, the height of the images.
        width: A_X, the width of the images.

    Returns:
        The window.
    """
    centre_x, centre_y, log_variance, log_stride, log_intensity = parameters.unsqueeze(-1).unbind(1)
    stride = (max(height, width) - 1) / (size - 1) * log_stride.exp()
    offsets = (torch.arange(1, size + 1, device=parameters.device) - size / 2 - 0.5) * stride

    def filters(centre: Tensor, length: int) -> Tensor:
        means = (length + 1) / 2 * (centre + 1) + offsets
        pixels = torch.arange(1, length + 1, device=parameters.device)
        # softmax normalises by Z, and avoids 0/0 for a filter far outside the image
        return torch.softmax(-0.5 * (pixels - means[..., None]).square() * torch.exp(-log_variance)[..., None], -1)

    return Window(filters(centre_y, height), filters(centre_x, width), log_intensity.exp()[..., None, None])


class Draw(RecurrentModel):
    """DRAW with selective attention: a variational autoencoder that draws an image in steps (glimpses) t = 1..T.

    x̂_t = x - σ(c_{t-1})                          the error: the image x less the pixels of the canvas c
    r_t = [read(x), read(x̂_t)]                    two patches of an R x R attention `window` computed from hdec_{t-1}
    henc_t = encoder([r_t, hdec_{t-1}])
    z_t ~ N(μ_t, σ_t²), μ_t = W_μ henc_t + b_μ, σ_t = exp(W_σ henc_t + b_σ)
    hdec_t = decoder(z_t)
    c_t = c_{t-1} + write(W_w hdec_t + b_w)        the patch is written by a W x W attention window computed from hdec_t

    henc and hdec are the outputs of encoder and decoder. W_μ, W_σ, W_w and the vectors b are learned, as are the linear
    maps from hdec to the windows. σ() is the sigmoid. The canvas c has one logit per pixel: σ(c_T) is the probability
    of each pixel to be 1, and c_0 = 0. The loss, -log p(x | c_T) + Σ_t KL(N(μ_t, σ_t²), N(0, 1)), is in expectation an
    upper bound of -log p(x). To generate images, z_t is drawn from N(0, 1), and the encoder is not used.

    The decoder's input is z_t alone. Appendix D of the EINS paper adds hdec_{t-1} and c_{t-1} to it, but only z_t alone
    gives the numbers of decoder parameters that are published: 420,100 for eins and 2,883,200 for lstm, at 100 inputs
    and 800 neurons. If the cell has a forget gate with a bias, the bias is initialised to 1, as in appendix D; for
    `eins` and `ihc-lstm`, set forget_bias=1.

    Args:
        layer: Configuration of the decoder.
        channels: Channels of the images.
        height: Height of the images, A_Y.
        width: Width of the images, A_X.
        glimpses: T, the number of steps.
        latent: Size of z.
        hidden_size: Size of the states of decoder and encoder.
        read_size: R, filters per axis of the window that reads; at least 2.
        write_size: W, filters per axis of the window that writes; at least 2.
        encoder: "lstm", as in the DRAW paper, or "same", a layer like the decoder. With "lstm", `recurrent_layers` has
            the decoder alone, so that reported costs and updates leave the encoder out.

    Raises:
        UsageError: The encoder is unknown, or a window is smaller than 2.

    Source: Gregor et al., "DRAW: A Recurrent Neural Network for Image Generation", arXiv:1502.04623, sections 2 and 3.
    Its initial canvas and states are learned; here they are zero, as in the EINS paper, appendix D.
    """

    def __init__(
        self,
        layer: LayerConfig,
        *,
        channels: int,
        height: int,
        width: int,
        glimpses: int,
        latent: int,
        hidden_size: int,
        read_size: int,
        write_size: int,
        encoder: str = "lstm",
    ) -> None:
        super().__init__()
        if encoder not in ENCODERS:
            raise UsageError(f"encoder: expected one of {', '.join(ENCODERS)}, got {encoder!r}; choose one")
        for name, size in (("read_size", read_size), ("write_size", write_size)):
            if size < 2:
                raise UsageError(f"{name}: expected at least 2, got {size}; increase it")
        self.shape = (channels, height, width)
        self.glimpses, self.latent = glimpses, latent
        self.read_size, self.write_size = read_size, write_size
        self.same = encoder == "same"
        read_numbers = 2 * channels * read_size**2
        self.encoder = (layer if self.same else LayerConfig.of("lstm")).make(read_numbers + hidden_size, hidden_size)
        self.decoder = layer.make(latent, hidden_size)
        for recurrent in (self.encoder, self.decoder):
            open_forget_gate(recurrent.cell)
        self.posterior = nn.Linear(hidden_size, 2 * latent)
        self.read_window = nn.Linear(hidden_size, 5)
        self.write_window = nn.Linear(hidden_size, 5)
        self.patch = nn.Linear(hidden_size, channels * write_size**2)

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """Return the layers that have the configured cell: [decoder], or [encoder, decoder] with encoder="same"."""
        return [self.encoder, self.decoder] if self.same else [self.decoder]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Encode and reconstruct images x (B, channels, height, width), from 0 to 1.

        The result is the logits of the pixels, the canvas after the last glimpse, in the shape of x; and for each image
        (B,) the KL divergence of the latent variables' distributions from N(0, 1), summed over the glimpses, in nats.
        """
        if x.ndim != 4 or x.shape[1:] != self.shape:
            raise UsageError(
                f"x: expected shape (B, {', '.join(map(str, self.shape))}), got {tuple(x.shape)}; reshape the images"
            )
        encoding, decoding = (layer.initial_state(len(x), x) for layer in (self.encoder, self.decoder))
        encoded: list[Trace] = []
        decoded: list[Trace] = []
        canvas, divergence = torch.zeros_like(x), x.new_zeros(len(x))
        for _ in range(self.glimpses):
            r = self._read(x, x - canvas.sigmoid(), decoding[0])
            h, encoding, trace = self.encoder(torch.cat([r, decoding[0]], -1)[None], encoding)
            encoded.append(trace)
            mean, log_deviation = self.posterior(h[0]).chunk(2, -1)
            z = mean + log_deviation.exp() * torch.randn_like(mean)
            # 2 log σ is log σ²
            divergence = divergence + gaussian_divergence(mean, 2 * log_deviation)
            canvas, decoding, trace = self._draw(z, canvas, decoding)
            decoded.append(trace)
        self.traces = [joined(traces) for traces in ([encoded, decoded] if self.same else [decoded])]
        return canvas, divergence

    def generate(self, count: int) -> Tensor:
        """Generate images from random latent variables.

        The result is the probability of each pixel to be 1, after each glimpse: (glimpses, count, channels, height,
        width).
        """
        like = self.patch.weight
        canvas, state = like.new_zeros(count, *self.shape), self.decoder.initial_state(count, like)
        canvases = []
        for _ in range(self.glimpses):
            z = torch.randn(count, self.latent, dtype=like.dtype, device=like.device)
            canvas, state, _ = self._draw(z, canvas, state)
            canvases.append(canvas.sigmoid())
        return torch.stack(canvases)

    def _read(self, x: Tensor, error: Tensor, h: Tensor) -> Tensor:
        """Read a patch of the images x and a patch of their errors, both (B, C, height, width)."""
        attention = window(self.read_window(h), self.read_size, *self.shape[1:])
        return torch.cat([attention.read(x), attention.read(error)], 1).flatten(1)

    def _draw(self, z: Tensor, canvas: Tensor, state: State) -> tuple[Tensor, State, Trace]:
        """Run one decoder step on z (B, latent) and add its patch to the canvas."""
        h, state, trace = self.decoder(z[None], state)
        attention = window(self.write_window(h[0]), self.write_size, *self.shape[1:])
        patch = self.patch(h[0]).unflatten(1, (self.shape[0], self.write_size, self.write_size))
        return canvas + attention.write(patch), state, trace


def gaussian_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Compute the KL divergence of N(mean, variance) from N(0, 1), summed over the last axis, in nats."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1)
