# SPDX-License-Identifier: Apache-2.0
"""Steps on numbers that are not finite: refused, held, or with a reset of the stream."""

import ctypes
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import edgernn
from edgernn.errors import UsageError
from edgernn.rules import RULES
from edgernn.runtime import Session, library_path
from edgernn.runtime.firmware.folder import c_files
from edgernn.runtime.packed import pack
from edgernn.runtime.stepper import Stepper
from tests.firmware import step_in_c
from tests.models import contractive, exported, exported_alone, file_for, packed_alone
from tests.test_frontends import DEFINITIONS, model_of
from tests.tolerances import FLOAT32

backends = pytest.mark.parametrize("backend", ["portable", "native"])
BAD = [np.nan, np.inf, -np.inf]
MEAN, STD = [0.5, -2.0, 1.0], [2.0, 0.5, 4.0]


def random_input(*shape):
    return np.random.default_rng(2).standard_normal(shape, np.float32)


def spoiled(x, start):
    """A copy of x (T, B, I) with bad numbers, what hold makes of it, and the bad steps (T, B)."""
    rng = np.random.default_rng(4)
    bad = rng.random(x.shape) < 0.2
    bad[0] = True
    sent, held = np.where(bad, rng.choice(BAD, x.shape), x).astype(np.float32), x.copy()
    last = np.broadcast_to(np.float32(start), x.shape[1:]).copy()
    for t in range(len(x)):
        last = held[t] = np.where(bad[t], last, x[t])
    return sent, held, bad.any(-1)


# a portable function has every rule's equations in the same place
@pytest.mark.parametrize(
    ("rule", "backend"), [*((rule, "native") for rule in RULES), ("always", "portable"), ("skip", "portable")]
)
def test_hold_steps_on_the_last_good_numbers(rule, backend):
    path = file_for(backend, "gru", rule, layers=2)
    session, plain = Session(path, backend=backend, on_nonfinite="hold"), Session(path, backend=backend)
    sent, held, bad = spoiled(random_input(12, 2, 3), 0)
    assert session.nonfinite is None
    for t in range(len(sent)):
        np.testing.assert_array_equal(session.step(sent[t]), plain.step(held[t]))
        np.testing.assert_array_equal(session.nonfinite, bad[: t + 1].sum(0))
        if plain.updates is not None:
            np.testing.assert_array_equal(session.updates, plain.updates)
    assert not plain.nonfinite.any()


@backends
@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ([0.5], [2.0])], ids=["of each channel", "of all channels"])
def test_the_mean_stands_in_before_the_first_good_number(mean, std, backend):
    path = exported("lstm", "selective", mean=tuple(mean), std=tuple(std))[1]
    session, plain = Session(path, backend=backend, on_nonfinite="hold"), Session(path, backend=backend)
    sent, held, _ = spoiled(random_input(12, 2, 3), mean)
    for t in range(len(sent)):
        np.testing.assert_array_equal(session.step(sent[t]), plain.step(held[t]))
    # a new stream forgets the numbers of the last one
    for each in (session, plain):
        each.reset(rows=[1])
    nothing = np.full((2, 3), np.nan, np.float32)
    np.testing.assert_array_equal(session.step(nothing), plain.step([held[-1, 0], np.broadcast_to(mean, 3)]))
    for each in (session, plain):
        each.reset()
    np.testing.assert_array_equal(session.step(nothing), plain.step(np.broadcast_to(np.float32(mean), (2, 3))))


@backends
@pytest.mark.parametrize("rule", ["always", "random", "skip", "selective"])
def test_reset_starts_the_stream_anew_with_the_last_good_numbers(rule, backend):
    path = exported("t-lstm", rule)[1]
    session, plain = Session(path, backend=backend, on_nonfinite="reset"), Session(path, backend=backend)
    sent, held, bad = spoiled(random_input(12, 3, 3), 0)
    for t in range(len(sent)):
        if t > 0:
            plain.reset(rows=np.flatnonzero(bad[t]))
        np.testing.assert_array_equal(session.step(sent[t]), plain.step(held[t]))
        np.testing.assert_array_equal(session.nonfinite, bad[: t + 1].sum(0))
    assert 0 < bad[1:].sum() < bad[1:].size


@backends
@pytest.mark.parametrize("on_nonfinite", ["hold", "reset"])
def test_the_count_is_that_since_each_stream_started(on_nonfinite, backend):
    session = Session(exported("gru")[1], backend=backend, on_nonfinite=on_nonfinite)
    x = np.zeros((3, 3))
    x[0, 1] = x[2, 0] = x[2, 2] = np.nan
    for _ in range(2):
        session.step(x)
    np.testing.assert_array_equal(session.nonfinite, [2, 0, 2])
    session.reset(rows=[2, 1])
    np.testing.assert_array_equal(session.nonfinite, [2, 0, 0])
    session.step(x)
    np.testing.assert_array_equal(session.nonfinite, [3, 0, 1])
    session.reset()
    np.testing.assert_array_equal(session.nonfinite, [0, 0, 0])


@backends
@pytest.mark.parametrize("imputer", ["gru-d", "rits"])
def test_a_nan_that_an_imputer_replaces_is_not_bad(imputer, backend):
    path = exported("lstm", input_size=9, imputer=imputer)[1]
    x = np.abs(random_input(8, 2, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    missing = np.zeros(x.shape, bool)
    missing[..., :3] = x[..., 3:6] == 0
    marked = np.where(missing, np.nan, x).astype(np.float32)
    assert 0 < missing.sum() < 48
    for on_nonfinite in ("error", "hold", "reset"):
        session, plain = Session(path, backend=backend, on_nonfinite=on_nonfinite), Session(path, backend=backend)
        np.testing.assert_array_equal(session.run(marked), plain.run(x))
        for marked_t, x_t in zip(marked, x, strict=True):
            np.testing.assert_array_equal(session.step(marked_t), plain.step(x_t))
        assert not session.nonfinite.any()
    # an infinite value is bad though missing, as is a NaN that the mask calls observed, or in masks and times
    session = Session(path, backend=backend)
    for channel, mask, value in ((0, 0, np.inf), (1, 1, np.nan), (3, 1, np.nan), (8, 1, np.nan)):
        bad = np.ones(9, np.float32)
        bad[3:6], bad[channel] = mask, value
        with pytest.raises(edgernn.UsageError, match=f"x: expected finite numbers, got {value} at index .{channel},"):
            session.step(bad)
        held = Session(path, backend=backend, on_nonfinite="hold")
        held.step(np.ones(9, np.float32))
        expected = Session(path, backend=backend)
        expected.step(np.ones(9, np.float32))
        bad_held = np.where(np.isfinite(bad), bad, 1).astype(np.float32)
        np.testing.assert_array_equal(held.step(bad), expected.step(bad_held))
        assert held.nonfinite == [1]


def test_the_mask_of_a_standardised_input_is_the_one_that_the_model_reads():
    options = {"input_size": 6, "imputer": "gru-d", "mean": (0.0, 0, -1, 1, 0, 0), "std": (1.0,) * 6}
    x = np.array([np.nan, 1, 0, 1, 1, 1], np.float32)
    for backend in ("portable", "native"):
        session = Session(exported("gru-before", **options)[1], backend=backend)
        # the model reads the mask 0 as 0 + 1, observed
        with pytest.raises(edgernn.UsageError, match=r"expected finite numbers, got nan at index .0,"):
            session.step(x)
        x_missing = np.array([1, np.nan, 0, 1, 1, 1], np.float32)
        assert np.isfinite(session.step(x_missing)).all()


@backends
def test_words_are_never_held(backend):
    path = exported("lstm", vocabulary=11, input_size=4, output="all")[1]
    session = Session(path, backend=backend, on_nonfinite="hold")
    session.step([3])
    with pytest.raises(edgernn.UsageError, match="x: expected word indices from 0 to 10, got 11"):
        session.step([11])
    np.testing.assert_array_equal(session.nonfinite, [0])


def test_unknown_actions_are_named():
    with pytest.raises(edgernn.UsageError, match="on_nonfinite: expected error, hold or reset, got 'skip'"):
        Session(exported("gru")[1], on_nonfinite="skip")


def test_a_sequence_is_refused_whatever_steps_do():
    session = Session(exported("gru")[1], on_nonfinite="hold")
    with pytest.raises(edgernn.UsageError, match="x: expected finite numbers, got nan"):
        session.run(np.full((2, 3), np.nan))
    with pytest.raises(edgernn.UsageError, match=r"finite numbers in the range of float32, got 1e\+300 at index"):
        session.run(np.full((2, 3), 1e300))


def test_a_description_with_a_wrong_mean_is_refused(tmp_path):
    proto = onnx.load(exported("gru")[1])
    (entry,) = (entry for entry in proto.metadata_props if entry.key == "edgernn")
    assert '"mean":[0.0]' in entry.value
    entry.value = entry.value.replace('"mean":[0.0]', '"mean":[0.0,1.0]')
    onnx.save(proto, tmp_path / "m.onnx")
    message = r"m\.onnx: input\.mean of its graph: expected the numbers of model\.input as in its edgernn metadata, got"
    with pytest.raises(edgernn.EdgernnError, match=message):
        Session(tmp_path / "m.onnx")


def test_the_action_may_change_between_steps_in_c():
    stepper = Stepper(packed_alone(contractive("gru", "selective")), 1)
    library, model = stepper._library, stepper._model
    good = random_input(1, 3)
    stepper.x[...] = np.nan
    assert not stepper.step()
    for action in (1, 2):
        assert library.edgernn_on_nonfinite(model, action) == 0
        assert stepper.step()
        assert stepper.nonfinite == [action]
    assert library.edgernn_on_nonfinite(model, 0) == 0
    assert not stepper.step()
    assert stepper.nonfinite == [2]
    stepper.x[...] = good
    assert stepper.step()
    for action in (-1, 3):
        assert library.edgernn_on_nonfinite(model, action) == 1
        assert library.edgernn_message().decode() == f"action: expected a value of EdgernnNonfinite, got {action}"
    counts = ctypes.c_void_p()
    assert library.edgernn_on_nonfinite(None, 1) == 1
    assert library.edgernn_nonfinite(None, ctypes.byref(counts)) == 1
    assert library.edgernn_nonfinite(model, None) == 1


@pytest.mark.parametrize("native", [False, True], ids=["portable", "native"])
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_the_op_alone_computes_with_a_nan(rule, native):
    """ONNX Runtime without Session refuses nothing, as docs/reference/streams.md says."""
    options = onnxruntime.SessionOptions()
    if native:
        options.register_custom_ops_library(library_path())
    path = exported("gru", rule)[1]
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    state = first = random_input(1, 33)
    for bad in (True, False, False):
        x = np.full((1, 1, 3), np.nan if bad else 0.5, np.float32)
        y, state = session.run(["y", "layer0.h.next"], {"x": x, "layer0.h": state})
        if rule == "always":
            assert np.isnan(y).all()
            assert np.isnan(state).all()
        else:
            # a decision on NaN updates nothing
            assert np.array_equal(state, first) == bad
            assert np.isfinite(y).all()


C_MODELS = {
    "always": lambda: contractive("gru"),
    "selective, mean": lambda: contractive("lstm", "selective", layers=2, mean=tuple(MEAN), std=tuple(STD)),
    "skip": lambda: contractive("gru", "skip"),
    "audio": lambda: model_of("floor", "gru", "selective", **next(iter(DEFINITIONS.values()))).eval(),
}


@pytest.mark.parametrize("name", C_MODELS)
@pytest.mark.parametrize("action", ["hold", "reset"])
@pytest.mark.slow
def test_c_files_hold_or_reset_as_the_library_does(action, name):
    content = exported_alone(C_MODELS[name]())
    stepper = Stepper(pack(content, Path("model.onnx")), 1, action)
    x = spoiled(random_input(12, 1, stepper.x.shape[1]), 0)[0][:, 0]
    x[5] = 0.5
    outputs, updates = [], []
    for x_t in x:
        stepper.x[0] = x_t
        assert stepper.step()
        outputs.append(stepper.y[0].copy())
        updates.append(None if stepper.updates is None else stepper.updates[0])
    got = step_in_c(content, x, action)
    np.testing.assert_allclose(got.y, outputs, rtol=0, atol=FLOAT32)
    if stepper.updates is not None:
        np.testing.assert_array_equal(got.updates, updates)
    assert got.nonfinite == (~np.isfinite(x)).any(-1).sum() < len(x)


def test_c_files_for_words_have_no_bad_numbers():
    content = exported_alone(contractive("lstm", vocabulary=40, output="all"))
    with pytest.raises(UsageError, match="expected 'error', got 'hold' for a model that reads word indices"):
        c_files(content, Path("model.onnx"), on_nonfinite="hold")
