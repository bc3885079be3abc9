# SPDX-License-Identifier: Apache-2.0
"""The log-mel front end, compared with float64 NumPy written from its definition."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.costs import model_cost
from edgernn.errors import UsageError
from edgernn.frontends import FrontendConfig, LogMel
from edgernn.log_mel import mel_filters, smoothing
from edgernn.settings import load, record
from tests import librosa_features
from tests.oracle_frontend import features

NORMALISATIONS = ["log", "floor", "pcen"]
every_normalisation = pytest.mark.parametrize("normalise", NORMALISATIONS)
DEFINITIONS = librosa_features.DEFINITIONS
STACKED = DEFINITIONS["16 kHz"] | {"stack": 4}
_ALL = DEFINITIONS | {"stacked": STACKED}
every_definition = pytest.mark.parametrize("definition", _ALL.values(), ids=list(_ALL))


def room(T, B, hop, seed=0):
    """Draw T hops of audio (T, B, hop): digital silence, then quiet noise, a loud tone in noise, and noise again."""
    random = np.random.default_rng(seed)
    level = np.repeat([0.0, 1e-3, 3e-2, 1e-2], -(-T // 4))[:T, None, None]
    noise = random.standard_normal((T, B, hop)) * level
    tone = 0.3 * np.sin(0.21 * np.arange(T * hop)).reshape(T, 1, hop) * (level == 3e-2)
    return (noise + tone).astype(np.float32)


# what the first third of a stream may be; a bit is the smallest step of 16-bit samples
BIT = 2.0**-15
BEGINNINGS = (
    "silence",
    "1e-30",
    "1e-9",
    "1e-7",
    "1e-6",
    "1e-5",
    "bits",
    "constant bit",
    "dither",
    "constant",
    "square",
)


def beginnings(T, hop, seed=0):
    """Draw streams of audio (T, len(BEGINNINGS), hop): noise of the normal level after each of the beginnings."""
    random = np.random.default_rng(seed)
    x = 0.1 * random.standard_normal((T, len(BEGINNINGS), hop))
    noise = random.standard_normal((T // 3, hop))
    first = {
        "silence": 0.0,
        "bits": BIT * (np.arange(hop) == hop // 3),
        "constant bit": BIT,
        "dither": BIT * (noise > 0),
        "constant": 1.0,
        "square": np.sign(noise),
    }
    for b, name in enumerate(BEGINNINGS):
        x[: T // 3, b] = first[name] if name in first else float(name) * noise
    x[T // 2 : T // 2 + 3] = 0
    return x.astype(np.float32)


def front_end(normalise="log", **definition):
    return LogMel(FrontendConfig(name="logmel", normalise=normalise, **definition))


def model_of(normalise="log", cell="gru", rule=None, output="all", **definition):
    samples = definition.get("hop", 160) * definition.get("stack", 1)
    torch.manual_seed(0)
    return edgernn.SequenceModel(
        cell, samples, 8, 3, rule=rule, output=output, frontend="logmel", normalise=normalise, **definition
    )


def run(module, x):
    x = torch.as_tensor(x)
    with torch.no_grad():
        return module(x, module.initial_state(x.shape[1], x))[0].numpy()


@every_definition
@every_normalisation
def test_the_features_are_those_of_the_definition(normalise, definition):
    module = front_end(normalise, **definition)
    x = room(40, 3, module.config.samples)
    expected = features(x, module.config)
    assert np.abs(expected[30:]).max() > 0.05
    np.testing.assert_allclose(run(module, x), expected, rtol=1e-4, atol=1e-4)


@every_normalisation
def test_features_after_any_beginning_are_those_of_the_definition(normalise):
    module, x = front_end(normalise), beginnings(36, 160)
    expected = features(x, module.config)
    assert (np.abs(expected[12:]).max((0, 2)) > 0.5).all()
    np.testing.assert_allclose(run(module, x), expected, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(run(module.double(), x.astype(np.float64)), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("normalise", ["floor", "pcen"])
def test_followed_states_have_no_jump_near_silence(normalise):
    # a floor of 0 is not followed otherwise than one that rounding makes 1e-9
    module = front_end(normalise).double()
    fall, rise, silent = smoothing(module.config)
    lasts = torch.tensor(np.concatenate([[0, 1e-9, 1e-6], np.linspace(0.01, 1.2, 400)]) * silent).double()
    for value in (0.0, 0.5 * silent, 3.0):
        after = module._followed(torch.full((1, 1, len(lasts)), value).double(), lasts[None])[0, 0]
        assert (after.diff().abs() <= 3 * (value + silent) * lasts.diff() / silent).all()
    # far from silence, the rates are those of the settings; a state never falls into silence
    last = torch.tensor([[5.0, 5.0, 5.0]]).double() * silent
    after = module._followed(torch.tensor([[[1000.0, 4.9, 0.0]]]).double() * silent, last)[0, 0] / silent
    np.testing.assert_allclose(after, [5 + rise * 995, 5 - fall * 0.1, max(1, 5 - fall * 5)], rtol=1e-7)
    for _ in range(300):
        last = module._followed(torch.zeros(1, 1, 3).double(), last)[-1]
    np.testing.assert_allclose(last / silent, 1, rtol=1e-2)


@pytest.mark.parametrize("normalise", ["log", "pcen"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_features_are_those_of_librosa(name, normalise):
    with np.load(librosa_features.FILE) as arrays:
        expected = arrays[f"{name}, {normalise}"]
    module = front_end(normalise, **DEFINITIONS[name])
    x = librosa_features.signal(module.config.sample_rate, module.config.hop).reshape(-1, 1, module.config.hop)
    assert expected.shape == (len(x), module.config.bands)
    # the chirp
    assert np.abs(expected[10:20]).max(1).min() > 0.3
    np.testing.assert_allclose(run(module, x)[:, 0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(features(x, module.config)[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_learned_parameters_of_pcen_are_per_band():
    module = front_end("pcen")
    numbers = np.random.default_rng(1).uniform(0.3, 1.5, (3, 40))
    with torch.no_grad():
        for name, values in zip(("log_alpha", "log_delta", "log_r"), numbers, strict=True):
            getattr(module, name).copy_(torch.tensor(np.log(values)))
    x = room(20, 2, 160)
    expected = features(x, module.config, *numbers)
    np.testing.assert_allclose(run(module, x), expected, rtol=1e-3, atol=1e-4)


def test_filters_have_the_same_area_and_cover_the_band():
    filters = mel_filters(FrontendConfig(window_size=4096, bands=10, low_frequency=100.0, high_frequency=4000.0))
    spacing = 16000 / 4096
    np.testing.assert_allclose(filters.sum(1) * spacing, 1, rtol=0.01)
    covered = np.flatnonzero(filters.any(0)) * spacing
    assert 100 < covered[0] < 110
    assert 3990 < covered[-1] < 4000


@every_definition
@every_normalisation
@pytest.mark.parametrize("cuts", [[1, 39], [13, 1, 26], [1] * 40], ids=str)
def test_a_stream_cut_anywhere_gives_the_whole_sequence(normalise, definition, cuts):
    model = model_of(normalise, **definition)
    x = torch.from_numpy(room(40, 2, model.input_size))
    with torch.no_grad():
        whole, last = model(x)
        parts, state = [], None
        for part in x.split(cuts):
            y, state = model(part, state)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    for a, b in zip(state, last, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@every_normalisation
def test_digital_silence_is_zero_and_the_first_noise_sets_the_followed_state(normalise):
    module = front_end(normalise)
    y = run(module, np.zeros((5, 1, 160), np.float32))
    np.testing.assert_allclose(y, 0, atol=1e-6)
    x = room(40, 1, 160)
    first = np.flatnonzero(np.abs(x).max((1, 2)))[0]
    if normalise == "floor":
        np.testing.assert_allclose(run(module, x)[first], 0, atol=1e-5)


def test_a_noise_floor_takes_off_the_level_of_steady_noise():
    quiet = np.random.default_rng(0).standard_normal((400, 1, 160)).astype(np.float32) * 0.01
    plain = [run(front_end("log"), a * quiet)[300:].mean() for a in (1, 10)]
    floor = [run(front_end("floor"), a * quiet)[300:].mean() for a in (1, 10)]
    assert plain[1] - plain[0] > 4
    assert abs(floor[1] - floor[0]) < 0.1
    # the floor falls faster than it rises
    assert 0 < floor[0] < 3


@every_normalisation
def test_gradients_reach_samples_and_parameters(normalise):
    model = model_of(normalise).double()
    x = torch.from_numpy(room(12, 1, 160)[6:]).double().requires_grad_()
    model(x)[0].square().sum().backward()
    assert bool((x.grad.abs() > 0).any())
    assert all(bool(p.grad.isfinite().all()) and bool((p.grad != 0).any()) for p in model.parameters())
    assert torch.isfinite(x.grad).all()
    # one sample's derivative against a difference
    index, step = (3, 0, 40), 1e-6
    moved = []
    for sign in (1, -1):
        shifted = x.detach().clone()
        shifted[index] += sign * step
        moved.append(float(model(shifted)[0].detach().square().sum()))
    assert float(x.grad[index]) == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_the_statistics_standardise_the_features():
    model = model_of(mean=list(range(40)), std=[2.0] * 40)
    x = torch.from_numpy(room(8, 2, 160))
    plain = run(model.frontend, x)
    np.testing.assert_allclose(model.inputs(x).numpy(), (plain - np.arange(40)) / 2, rtol=1e-5, atol=1e-5)


def test_the_configuration_survives_json():
    config = model_of("pcen", bands=20, hop=128, high_frequency=7000.0).config
    assert config.frontend.name == "logmel"
    assert load(type(config), record(config), "config.json") == config


def test_weights_are_stored_without_window_and_filters():
    assert not [name for name in model_of("floor").state_dict() if name.startswith("frontend.")]
    assert [name for name in model_of("pcen").state_dict() if name.startswith("frontend.")] == [
        "frontend.log_alpha",
        "frontend.log_delta",
        "frontend.log_r",
    ]


def test_the_cost_of_the_front_end_is_apart_from_the_layers():
    model, plain = model_of("floor"), edgernn.SequenceModel("gru", 40, 8, 3)
    cost, other = model_cost(model), model_cost(plain)
    nonzero = np.count_nonzero(mel_filters(model.config.frontend))
    # window, FFT of 512 samples, powers of 257 frequencies, filters, noise floor
    assert cost.frontend_macs == 400 + 512 * 9 + 2 * 257 + nonzero + 40
    assert (cost.macs, cost.flops_paper, cost.parameters) == (other.macs, other.flops_paper, other.parameters)
    assert other.frontend_macs == 0
    assert model_cost(model_of("pcen")).parameters == other.parameters + 3 * 40
    stacked = model_of("floor", stack=3)
    assert model_cost(stacked).frontend_macs == 3 * cost.frontend_macs
    assert model_cost(stacked).macs == model_cost(edgernn.SequenceModel("gru", 3 * 40, 8, 3)).macs


REFUSED = {
    "window": ({"window_size": 100}, "window_size: expected at least hop=160, got 100"),
    "bands": ({"bands": 200}, "bands: expected a frequency of the FFT"),
    "rate": ({"high_frequency": 9000.0}, "high_frequency: expected at most half of sample_rate=16000"),
    "order": ({"low_frequency": 4000.0, "high_frequency": 300.0}, "low_frequency: expected below"),
    "zero": ({"sample_rate": 0}, "sample_rate: expected a whole number of at least 1, got 0"),
    "name": ({"frontend": "mfcc"}, "frontend: expected 'logmel' or none, got 'mfcc'"),
    "normalise": ({"normalise": "cmvn"}, "normalise: expected 'log' or 'floor' or 'pcen', got 'cmvn'"),
    "hop": ({"hop": 80}, "hop: expected the size of the input, 160"),
    "stack": (
        {"stack": 4},
        "hop: expected the size of the input, 160, as each step reads hop * stack samples, got 160 * stack=4; set "
        "hop=40, or make 640 the size of the input",
    ),
    "no stack": ({"stack": 0}, "stack: expected a whole number of at least 1 and of at most 4096, got 0"),
    "stack without": ({"frontend": None, "stack": 4}, "stack: expected frontend=logmel, got frontend=none, with"),
    "words": ({"vocabulary": 10}, "frontend: expected no vocabulary or imputer"),
    "imputer": ({"imputer": "rits"}, "frontend: expected no vocabulary or imputer"),
    "without": ({"frontend": None, "bands": 20}, "bands: expected frontend=logmel, got frontend=none, with which"),
    "floor with log": ({"floor_fall": 0.1}, "floor_fall: expected normalise=floor, got normalise=log, with which it"),
    "floor with pcen": (
        {"normalise": "pcen", "floor_rise": 0.1},
        "floor_rise: expected normalise=floor, got normalise",
    ),
    "smoothing with floor": (
        {"normalise": "floor", "pcen_smoothing": 0.1},
        "pcen_smoothing: expected normalise=pcen, got normalise=floor, with which it has no effect; set normalise=pcen",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_impossible_settings_are_refused_with_one_sentence(wrong):
    settings, message = REFUSED[wrong]
    with pytest.raises(UsageError) as error:
        edgernn.SequenceModel("gru", 160, 8, **({"frontend": "logmel"} | settings))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_samples_of_another_hop_are_refused():
    with pytest.raises(UsageError, match=r"x: expected shape \(T >= 1, B, 160\), got \(3, 1, 80\)"):
        model_of()(torch.zeros(3, 1, 80))
    with pytest.raises(UsageError, match="frontend: expected none"):
        edgernn.to_torch(model_of())
