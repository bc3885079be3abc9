# SPDX-License-Identifier: Apache-2.0
"""Front ends: parts of a model that compute the features of raw audio, so that an app needs no signal processing.

The input of a model with a front end is raw samples (T, B, stack * hop), from -1 to 1. One step reads `stack` hops of
new samples and computes one frame of features for each hop. The layers read these frames side by side, oldest first:
(T, B, stack * bands). By default, `stack` is 1. The state of the model begins with the state of its front end, so a
stream may be cut anywhere between two steps.

`SequenceModel("sarnn", 160, 96, 12, frontend="logmel", normalise="floor")` reads 10 ms of audio at 16 kHz at each step,
and `SequenceModel("gru", 640, 96, 2, frontend="logmel", stack=4)` reads 40 ms. On the command line the settings are
words: `frontend=logmel hop=160 bands=40 stack=4`. `mean` and `std` standardise the features, not the samples.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.constants import Constants
from edgernn.errors import UsageError
from edgernn.log_mel import fft_size, hann_window, mel_filters, smoothing
from edgernn.settings import Word, configuration

Samples = Annotated[int, Field(ge=1)]


@configuration
class FrontendConfig:
    """Audio front end of a model, which computes features of raw samples, and the definition of its features."""

    name: Annotated[
        Literal["logmel"] | None,
        Field(description="Front end that computes features of raw audio: logmel. Default: none."),
        Word("frontend"),
    ] = None
    sample_rate: Annotated[Samples, Field(description="Samples of audio per second.")] = 16000
    window_size: Annotated[
        Samples, Field(description="Length in samples of the windows that features are computed from.")
    ] = 400
    hop: Annotated[Samples, Field(description="Samples from the start of a window to that of the next one.")] = 160
    stack: Annotated[
        Samples,
        Field(
            le=4096,
            description="Number of windows at each step, whose features are stacked; a step reads as many hops.",
        ),
    ] = 1
    bands: Annotated[Samples, Field(description="Number of mel bands, which are the features.")] = 40
    low_frequency: Annotated[float, Field(ge=0, description="Lowest frequency of the mel bands in Hz.")] = 20.0
    high_frequency: Annotated[
        float | None,
        Field(gt=0, description="Highest frequency of the mel bands in Hz. Default: half the sample rate."),
    ] = None
    energy_floor: Annotated[
        float, Field(gt=0, description="Energy of a band below which its feature is close to 0.")
    ] = 1e-6
    normalise: Annotated[
        Literal["log", "floor", "pcen"],
        Field(description="Normalisation of energies: log, floor (log less a noise floor) or pcen."),
    ] = "log"
    floor_rise: Annotated[
        float,
        Field(gt=0, le=1, description="Share of the gap to the log energy by which the noise floor rises per hop."),
    ] = 0.02
    floor_fall: Annotated[
        float,
        Field(gt=0, le=1, description="Share of the gap to the log energy by which the noise floor falls per hop."),
    ] = 0.2
    pcen_smoothing: Annotated[
        float,
        Field(gt=0, le=1, description="Share of the gap to the energy that pcen's smooth energy closes per hop."),
    ] = 0.025

    @property
    def samples(self) -> int:
        """Number of new samples at each step."""
        return self.stack * self.hop

    @property
    def features(self) -> int:
        """Number of features at each step."""
        return self.stack * self.bands


# largest number of samples in frames whose energies are computed at once
_CACHED = 1 << 18


class LogMel(Constants):
    """Front end that computes mel energies of the newest samples, with the normalisation log, floor or pcen.

    At each hop t, where a step has `stack` hops:

    s_t = the last window_size samples up to the end of hop t; samples before the first are 0
    X_t = FFT_N(w ⊙ s_t)                         w_n = 1/2 - 1/2 cos(2πn / window_size); zeros up to N, a power of two
    E_t = M |X_t|²                               (bands,), M: the filters of `mel_filters`
    x_t = log(1 + E_t / energy_floor)

    log: the features are x_t, which is log(E_t + energy_floor) shifted so that digital silence is 0.

    floor: the features are x_t less a noise floor n, which falls fast and rises slowly:

    n_t = follow(n_{t-1}, x_t)                   fall = floor_fall, rise = floor_rise, c = 0.01
    y_t = x_t - n_t

    pcen: per-channel energy normalisation, where ε is energy_floor:

    m_t = follow(m_{t-1}, E_t)                   fall = rise = pcen_smoothing, c = 0.01 ε
    y_t = (E_t / (ε + m_t)^α + δ)^r - δ^r

    Both states follow a value v. Below the level c of digital silence a state has not started: it only rises, and
    from 0 it goes all the way to v. From c on, it never falls below c:

    q = min(s_{t-1}, c)
    a_t = max(1 - (q / c)², fall where v_t < s_{t-1}, else rise)
    s_t = max(q, s_{t-1} + a_t (v_t - s_{t-1}))

    Shapes: log_alpha = log α, log_delta = log δ and log_r = log r (bands,) are learned; initially α = 0.98, δ = 2 and
    r = 0.5. The states are samples (window_size - hop,), noise_floor = n and smooth_energy = m (bands,). They start at
    0, so that at the first hop n becomes x_t and m becomes E_t. A hop near silence barely changes the next ones,
    because `follow` has no jump. A window shorter than the hop, a filter that covers no frequency of the FFT, and
    frequencies above half the sample rate raise UsageError.
    Source of the noise floor: the asymmetric filter of Kim, Stern, "Power-Normalized Cepstral Coefficients (PNCC) for
    Robust Speech Recognition", IEEE/ACM TASLP 24 (7), 2016, here for the logarithm of the energy.
    Source of pcen: Wang et al., "Trainable Frontend for Robust and Far-Field Keyword Spotting", 2017,
    https://arxiv.org/abs/1607.05666, equations 1 and 2, with one fixed s.
    """

    name: ClassVar[str] = "logmel"

    window: Tensor
    filters: Tensor

    def __init__(self, config: FrontendConfig) -> None:
        super().__init__()
        if config.window_size < config.hop:
            raise UsageError(
                f"window_size: expected at least hop={config.hop}, got {config.window_size}, which skips samples; use "
                "a longer window or a smaller hop"
            )
        self.config = config
        self._reads_energies = False
        self.size = fft_size(config.window_size)
        filters = mel_filters(config)
        self._weights = int(np.count_nonzero(filters))
        # computed from the configuration, so not part of the stored weights
        for name, values in (("window", hann_window(config.window_size)), ("filters", filters)):
            self.register_constant(name, values)
        if config.normalise == "pcen":
            for name, start in (("log_alpha", 0.98), ("log_delta", 2.0), ("log_r", 0.5)):
                self.register_parameter(name, nn.Parameter(torch.full((config.bands,), math.log(start))))

    @property
    def memory(self) -> str | None:
        """Name of the normalisation's state (B, bands): "noise_floor" or "smooth_energy"; None for "log"."""
        return {"log": None, "floor": "noise_floor", "pcen": "smooth_energy"}[self.config.normalise]

    @property
    def widths(self) -> dict[str, int]:
        """Dict from the name of each state of the front end to its size n; the tensors of the states are (B, n)."""
        overlap = self.config.window_size - self.config.hop
        samples = {"samples": overlap} if overlap else {}
        return samples | ({} if self.memory is None else {self.memory: self.config.bands})

    @property
    def input_size(self) -> int:
        """Number of inputs at a step: samples, or energies within `on_energies`."""
        return self.config.features if self._reads_energies else self.config.samples

    @contextmanager
    def on_energies(self) -> Iterator[None]:
        """Within this context the input is mel energies (T, B, stack * bands), as `energies` computes them."""
        before, self._reads_energies = self._reads_energies, True
        try:
            yield
        finally:
            self._reads_energies = before

    def initial_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, width) for width in self.widths.values())

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Compute the features of samples, and the state of the front end after the last step.

        Args:
            x: Samples (T, B, stack * hop), or energies (T, B, stack * bands) within `on_energies`, which leave the
                state of the samples as it is.
            state: State to start from. Default: `initial_state`.

        Returns:
            The features (T, B, stack * bands), those of a step's first hop first, and the state.
        """
        state = self.initial_state(x.shape[1], x) if state is None else state
        named = dict(zip(self.widths, state, strict=True))
        if self._reads_energies:
            frames = x.reshape(*x.shape[:2], self.config.stack, self.config.bands)
            energy = frames.transpose(1, 2).flatten(0, 1)
        else:
            signal = x.transpose(0, 1).reshape(x.shape[1], -1)
            if "samples" in named:
                signal = torch.cat([named["samples"], signal], 1)
                named["samples"] = signal[:, -self.widths["samples"] :]
            energy = self.energies(signal)
        y = energy if self.config.normalise == "pcen" else torch.log(1 + energy / self.config.energy_floor)
        if self.memory is not None:
            followed = self._followed(y, named[self.memory])
            named[self.memory] = followed[-1]
            y = self._pcen(energy, followed) if self.config.normalise == "pcen" else y - followed
        if self.config.stack > 1:
            y = y.reshape(len(x), self.config.stack, *y.shape[1:]).transpose(1, 2).flatten(2)
        return y, tuple(named.values())

    def energies(self, signal: Tensor) -> Tensor:
        """Compute the mel energies (T, B, bands) of a signal (B, window_size + (T - 1) hop).

        Step t, counted from 0, has the energies of the window_size samples from sample t · hop on.
        """
        frames = signal.unfold(1, self.config.window_size, self.config.hop)
        # some steps at a time, so that all values of one chunk stay in the processor's cache
        steps = max(1, _CACHED // (len(signal) * self.size))
        energies = []
        for part in torch.split(frames, steps, 1):
            spectrum = torch.fft.rfft(part * self.window, self.size)
            power = spectrum.real.square() + spectrum.imag.square()
            energies.append(torch.matmul(power, self.filters.T).transpose(0, 1))
        return torch.cat(energies)

    def _followed(self, values: Tensor, last: Tensor) -> Tensor:
        """Compute the state (T, B, bands) that follows `values`; `last` (B, bands) is the state before step 0."""
        fall, rise, silent = smoothing(self.config)
        states = []
        for value in values.unbind(0):
            quiet = last.clamp(max=silent)
            rate = torch.maximum(1 - (quiet / silent).square(), torch.where(value < last, fall, rise))
            last = torch.maximum(quiet, last + rate * (value - last))
            states.append(last)
        return torch.stack(states)

    def _pcen(self, energy: Tensor, smooth: Tensor) -> Tensor:
        """Normalise energies (T, B, bands) by pcen; `smooth` (T, B, bands) is the smooth energy at each step."""
        alpha, delta, r = (getattr(self, f"log_{name}").exp() for name in ("alpha", "delta", "r"))
        gain = (self.config.energy_floor + smooth).pow(alpha)
        normalised: Tensor = (energy / gain + delta).pow(r) - delta.pow(r)
        return normalised

    def macs(self) -> int:
        """Count the multiply-adds of a step, with a real FFT: those of a hop times `stack`.

        The product with the window takes window_size multiply-adds. The FFT of N real numbers takes N log₂ N. It is
        computed as a radix-2 FFT of N/2 complex numbers, from which the spectrum of the N real ones is then formed;
        each complex product takes four multiply-adds. The squared magnitudes of the N/2 + 1 frequencies take N + 2, the
        mel filters one for each nonzero weight, and a noise floor or a smooth energy one for each band. Logarithms and
        powers are not counted.
        """
        tracking = 0 if self.memory is None else self.config.bands
        transform = self.size * (self.size.bit_length() - 1)
        return self.config.stack * (self.config.window_size + transform + self.size + 2 + self._weights + tracking)
