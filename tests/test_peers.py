# SPDX-License-Identifier: Apache-2.0
"""The adapters of other runtimes, compared with torch and with a reference in float64, and the probes."""

import numpy as np
import pytest
import torch
from torch import nn

import edgernn
from benchmarks import roofline
from benchmarks.contenders import measure
from benchmarks.peers import OURS, PEERS, UnsupportedError, random_problem, reference, stepper_of
from edgernn.bench.case import Case, Target
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.random_models import random_model
from edgernn.runtime.packed import pack
from edgernn.runtime.probes import probes, streamed
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import Rounds, interleaved

SHORT = Rounds(rounds=2, warmup=0, block_ms=1)
cells = pytest.mark.parametrize("cell", ["gru", "lstm"])


def torch_outputs(case):
    """Return y (T, B, H) in float64 of the module with these weights."""
    module = (nn.GRU if case.cell == "gru" else nn.LSTM)(case.input_size, case.hidden_size).double()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = (case.W, case.R, case.b_x, case.b_h)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in zip(names, weights, strict=True)})
    states = [torch.from_numpy(value).double()[None] for value in case.states.values()]
    with torch.no_grad():
        y, _ = module(torch.from_numpy(case.x).double(), states[0] if len(states) == 1 else tuple(states))
    return y.numpy()


@cells
def test_reference_is_torch(cell):
    case = random_problem(cell, 3, 5, 7, batch=2)
    np.testing.assert_allclose(reference(case), torch_outputs(case), rtol=0, atol=1e-12)


def sequence(peer, case):
    call = peer.sequence(case)
    call()
    # the second call starts from the same state
    y, h = call()
    np.testing.assert_array_equal(y[-1], h)
    return y


def stream(peer, case):
    step = peer.stream(case)
    return np.stack([step(x).copy() for x in case.x])


@cells
@pytest.mark.parametrize(("batch", "hidden"), [(1, 33), (3, 33), (1, 256)])
@pytest.mark.parametrize(("run", "start"), [(sequence, 0.5), (stream, 0.0)], ids=["sequence", "stream"])
@pytest.mark.parametrize("peer", [OURS, *PEERS], ids=lambda peer: peer.name)
# ignore warnings of other packages
@pytest.mark.filterwarnings("ignore")
def test_a_runtime_computes_what_torch_does(peer, run, start, cell, batch, hidden):
    if peer is not OURS and peer.version() is None:
        pytest.skip(f"{peer.package} is not installed")
    case = random_problem(cell, 5, hidden, 20, batch, start=start)
    try:
        y = run(peer, case)
    except UnsupportedError as error:
        pytest.skip(f"{peer.name}: {error}")
    # by default OpenVINO computes in bfloat16 where the processor supports it
    np.testing.assert_allclose(y, torch_outputs(case), rtol=0, atol=1e-2 if peer.name == "OpenVINO" else 1e-3)


class Wrong:
    """A runtime with slightly wrong outputs, unsupported, failing or missing."""

    def __init__(self, name, error=None, version="1"):
        self.name, self._error, self._version = name, error, version

    def version(self):
        return self._version

    def sequence(self, case):
        if self._error is not None:
            raise self._error
        return lambda: (reference(case) + 0.002, reference(case)[-1])


def test_what_is_wrong_or_fails_is_named_and_not_timed(monkeypatch):
    peers = (
        Wrong("off"),
        Wrong("cannot", UnsupportedError("no loops")),
        Wrong("breaks", RuntimeError("two\nlines")),
        Wrong("absent", version=None),
    )
    monkeypatch.setattr("benchmarks.contenders.PEERS", (PEERS[0], *peers))
    measured = measure(Case("g", ModelConfig.of("gru", 2, 8), 5), SHORT)
    assert set(measured["contenders"]) == {"edgernn", "ONNX Runtime", "roofline", "roofline and input"}
    assert measured["left_out"] == {
        "off": "not timed: y of off differs from the float64 reference by 2.0e-03, expected at most 0.001; "
        "report a bug",
        "cannot": "no loops",
        "breaks": "RuntimeError: two lines",
        "absent": "not installed",
    }
    monkeypatch.setattr("benchmarks.contenders.OURS", Wrong("ours"))
    with pytest.raises(EdgernnError, match=r"by 2\.0e-03"):
        measure(Case("g", ModelConfig.of("gru", 2, 8), 5), SHORT)


@pytest.mark.parametrize("shape", [(3, 5), (192, 7), (384, 128), (500, 33), (64, 1)], ids=str)
def test_probe_multiplies(shape):
    R = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    probe = roofline.MatVec(R)
    h = np.random.default_rng(1).standard_normal(shape[1]).astype(np.float32)
    probe.h[:] = h
    probe(1)
    np.testing.assert_allclose(probe.y, R @ h, rtol=0, atol=1e-4)
    # each product depends on the previous one
    assert probe.h[0] == np.float32(probe.y[0] * np.float32(1e-3))
    h[0] = probe.h[0]
    probe(1)
    np.testing.assert_allclose(probe.y, R @ h, rtol=0, atol=1e-4)


def test_probe_of_the_peak_does_its_work():
    """The sum over i after n iterations of · 0.999 + 1e-6, equal on all lanes."""
    call, calls = roofline.multiply_adds(1e6, threads=2)
    sums, (library, lanes) = np.arange(12.0), roofline.library()
    for _ in range(50):
        sums = sums * 0.999 + 1e-6
    assert library.multiply_add(50) == pytest.approx(sums.sum(), rel=1e-5)
    repeats = 1e6 / calls / 2 / 12 / lanes
    assert repeats == pytest.approx(round(repeats))
    assert np.isfinite(call())


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_steps_in_c_are_those_of_the_model(cell):
    case = random_problem(cell, 3, 8, 1)
    stepper, alone = stepper_of(case), stepper_of(case)
    stepper.x[...] = alone.x[...] = case.x[0]
    # the call makes 1000 steps, half of all
    call, calls = roofline.steps_in_c(stepper, roofline._WORK / 1000)
    assert calls == 1 / 1000
    call()
    call()
    for _ in range(2000):
        alone.step()
    np.testing.assert_array_equal(stepper.y, alone.y)
    stepper.x[0, 1] = np.nan
    with pytest.raises(EdgernnError, match="x: expected finite numbers, got nan at index 1"):
        call()


@pytest.mark.parametrize("words", [False, True])
def test_sequences_in_c_are_those_of_the_model(words, tmp_path):
    model = ModelConfig.of("gru", 3, 8, vocabulary=5 if words else None)
    path = tmp_path / "model.onnx"
    to_onnx(random_model(model), path)
    stepper, alone = (Stepper(pack(path.read_bytes(), path), 1) for _ in range(2))
    rng = np.random.default_rng(0)
    x = rng.integers(5, size=(4, 6)) if words else rng.standard_normal((4, 6, 3)).astype(np.float32)
    call = streamed(stepper, x)
    stepper.x[...] = x[0, 0]
    assert stepper.step()
    for _ in range(2):
        call()
        for x_t in x[-1]:
            alone.x[...] = x_t
            assert alone.step()
        np.testing.assert_array_equal(stepper.y, alone.y)
        alone.restart()
    with pytest.raises(EdgernnError, match=r"x: expected"):
        streamed(stepper, np.full_like(x, 7) if words else x * np.nan)()


def test_a_stream_in_c_stands_beside_one_in_python_and_the_roofline():
    measured = measure(Case("g", ModelConfig.of("gru", 2, 8), 1, in_c=True, targets=(Target("roofline", 1e9),)), SHORT)
    assert measured["name"] == "gru (2, 8), T=1, from C"
    assert set(measured["contenders"]) == {"edgernn", "edgernn from Python", "roofline"}
    assert measured["contenders"]["edgernn"]["us"] < measured["contenders"]["edgernn from Python"]["us"]
    assert measured["contenders"]["edgernn"]["error"] < 1e-5
    assert measured["targets"][0]["met"]


def test_a_library_without_probes_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("edgernn.runtime.probes.train_library", lambda: tmp_path / "libedgernn_train.so")
    probes.cache_clear()
    try:
        with pytest.raises(edgernn.EdgernnError, match=r"libedgernn_train\.so: the library cannot be loaded, or"):
            probes()
    finally:
        probes.cache_clear()


def test_rounds_visit_all_and_short_calls_are_timed_together():
    seen = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    times = interleaved(calls, Rounds(rounds=4, warmup=2, block_ms=0.01))
    assert {name: len(rounds) for name, rounds in times.items()} == {"a": 4, "b": 4, "c": 4}
    visits = "".join(name for name, before in zip(seen[9:], seen[8:], strict=False) if name != before)
    assert sorted(seen[:9]) == list("aaabbbccc")
    assert len(set(visits)) == 3
    (block,) = interleaved({"a": lambda: None}, Rounds(rounds=1, warmup=0, block_ms=1, group_us=100))["a"]
    assert all(0 < seconds < 50e-6 for seconds in sorted(block)[: len(block) // 2])
