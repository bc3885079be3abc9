# SPDX-License-Identifier: Apache-2.0
"""Streams of a batch: those that start and end at different times, and padded batches."""

import ctypes

import numpy as np
import pytest

import edgernn
from edgernn.errors import EdgernnError
from edgernn.rules import RULES
from edgernn.runtime import Session
from edgernn.runtime.stepper import Stepper
from tests.models import contractive, exported, file_for, packed_alone
from tests.tolerances import FLOAT32

BACKENDS = ["portable", "native"]
backends = pytest.mark.parametrize("backend", BACKENDS)
MODELS = [
    *(("gru", rule, {"layers": 2}) for rule in RULES),
    ("t-lstm", "selective", {}),
    ("gru-before", "skip", {"input_size": 9, "imputer": "gru-d"}),
    ("lstm", "always", {"vocabulary": 11, "input_size": 4, "output": "all"}),
    ("sru", "always", {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0}),
]
PORTABLE = [("gru", "selective"), ("gru", "phased"), ("gru", "delta"), *((cell, rule) for cell, rule, _ in MODELS[-4:])]
# portable functions have every rule's equations in the same place: some of them
models = pytest.mark.parametrize(
    ("cell", "rule", "options", "backend"),
    [(*model, backend) for model in MODELS for backend in BACKENDS if backend == "native" or model[:2] in PORTABLE],
)
LENGTHS = [7, 0, 3, 12, 3, 1]


def random_input(options, steps, batch):
    rng = np.random.default_rng(5)
    if "vocabulary" in options:
        return rng.integers(0, options["vocabulary"], (steps, batch))
    x = rng.standard_normal((steps, batch, options.get("input_size", 3)), np.float32)
    if "imputer" in options:
        x[..., 3:6] = x[..., 3:6] > 0
        x[..., 6:] = np.abs(x[..., 6:])
    return x


@backends
def test_a_word_may_be_an_array_without_axes(backend):
    session = Session(exported("lstm", vocabulary=11, input_size=4, output="all")[1], backend=backend)
    words = [3, 7, 7, 0]
    y = [session.step(np.array(word)) for word in words]
    np.testing.assert_allclose(y, session.run(np.array(words)[:, None])[:, 0], rtol=0, atol=FLOAT32)


@backends
def test_a_refused_first_step_does_not_fix_the_batch_size(backend):
    session = Session(exported("gru")[1], backend=backend)
    session.step(np.zeros((2, 3), np.float32))
    session.reset()
    with pytest.raises(EdgernnError, match="finite"):
        session.step(np.full((2, 3), np.nan, np.float32))
    assert len(session.step(np.zeros((4, 3), np.float32))) == 4


@models
def test_a_stream_of_a_batch_starts_anew_alone(cell, rule, options, backend):
    path = file_for(backend, cell, rule, **options)
    x = random_input(options, 14, 3)
    starts = {0: [2, 9], 1: [], 2: [3]}
    session = Session(path, backend=backend)
    got, updates = [], []
    for t, x_t in enumerate(x):
        session.reset(rows=[row for row, steps in starts.items() if t in steps])
        got.append(session.step(x_t))
        updates.append(session.updates)
    for row, steps in starts.items():
        alone = Session(path, backend=backend)
        for t, x_t in enumerate(x[:, row]):
            if t in steps:
                alone.reset()
            np.testing.assert_allclose(got[t][row], alone.step(x_t), rtol=0, atol=FLOAT32)
            if alone.updates is not None:
                assert updates[t][0, row] == alone.updates[0, 0]


def test_a_stream_of_a_normalised_cell_starts_anew_alone():
    """The cell's step counter, a state of the file, starts anew too."""
    path = exported("lstm", norm="recurrent-batch")[1]
    x = random_input({}, 8, 2)
    session, plain, fresh = (Session(path, backend="portable") for _ in range(3))
    for t, x_t in enumerate(x):
        if t == 3:
            session.reset(rows=[1])
        y, expected = session.step(x_t), plain.step(x_t)
        np.testing.assert_allclose(y[0], expected[0], rtol=0, atol=FLOAT32)
        if t >= 3:
            np.testing.assert_allclose(y[1], fresh.step(x_t[1]), rtol=0, atol=FLOAT32)
            assert (y[1] != expected[1]).any()
    assert_padded_equals_alone(session, random_input({}, 14, len(LENGTHS)), LENGTHS)


def test_rows_that_are_no_streams_of_the_batch_are_named_and_nothing_is_reset():
    session, other = (Session(exported("gru", "selective")[1]) for _ in range(2))
    # all streams are in their initial state
    session.reset(rows=[5])
    x = random_input({}, 3, 2)
    for each in (session, other):
        each.step(x[0])
    for rows, message in (
        ([0, 2], r"rows: expected indices from 0 to 1, the streams of the batch, got 2"),
        ([-1], r"rows: expected indices from 0 to 1, the streams of the batch, got -1"),
        ([0.0], r"rows: expected a list of stream indices such as \[0, 2\], got \[0\.0\]"),
        ([True, False], r"rows: expected a list of stream indices"),
        (0, r"rows: expected a list of stream indices such as \[0, 2\], got 0"),
        ([[0]], r"rows: expected a list of stream indices"),
    ):
        with pytest.raises(edgernn.UsageError, match=message):
            session.reset(rows=rows)
    np.testing.assert_array_equal(session.step(x[1]), other.step(x[1]))
    # the batch size remains that of the kept state
    session.reset(rows=[0, 1])
    with pytest.raises(edgernn.UsageError, match=r"batch size of the kept state, 2, got 1; call reset\(\) first"):
        session.step(x[1, :1])


def test_a_row_is_reset_in_c():
    stepper = Stepper(packed_alone(contractive("gru", "selective")), 2)
    reset, message = stepper._library.edgernn_reset_row, stepper._library.edgernn_message
    x = random_input({}, 1, 2)[0]
    outputs = []
    for rows in ((), (0,), (1,), (0, 1)):
        for row in rows:
            assert reset(stepper._model, row) == 0
        stepper.x[...] = x
        assert stepper.step()
        outputs.append(stepper.y.copy())
    first, second, third, fourth = outputs
    np.testing.assert_array_equal(fourth, first)
    np.testing.assert_array_equal(second[0], first[0])
    np.testing.assert_array_equal(third[1], first[1])
    assert (second[1] != first[1]).any()
    assert (third[0] != first[0]).any()
    for row in (-1, 2):
        assert reset(stepper._model, row) == 1
        assert message().decode() == f"row: expected 0 to 1, a sequence of the batch, got {row}"
    assert reset(None, ctypes.c_int64(0)) == 1


def assert_padded_equals_alone(session, x, lengths):
    """Compare a padded batch with its sequences alone: outputs, states and counts."""
    y, state = session.run_from(x, session.initial_state(x.shape[1]), lengths)
    updates, macs = session.updates, session.macs
    np.testing.assert_array_equal(session.run(x, lengths), y)
    rule = session.info["model"]["layer"]["rule"]["name"]
    steps_have_outputs = session.info["model"]["head"]["output"] == "all"
    for row, length in enumerate(lengths):
        if length == 0:
            assert not y[..., row, :].any()
            expected = {name: value[0] for name, value in session.initial_state(1).items()}
        else:
            alone, final = session.run_from(x[:length, [row]], session.initial_state(1))
            expected = {name: value[0] for name, value in final.items()}
            np.testing.assert_allclose(
                y[:length, row] if steps_have_outputs else y[row], alone[..., 0, :], rtol=0, atol=FLOAT32
            )
            if updates is not None:
                np.testing.assert_array_equal(updates[:length, row], session.updates[:, 0])
                # a kernel that waits computes one decision, H multiply-adds, in each part of the batch
                decisions = session.neurons * len(set(lengths)) if rule == "skip" and session.backend == "native" else 0
                assert 0 <= macs[row] - session.macs[0] <= decisions
        if steps_have_outputs:
            assert not y[length:, row].any()
        if updates is not None:
            assert not updates[length:, row].any()
            assert length > 0 or macs[row] == 0
        for name, value in expected.items():
            np.testing.assert_allclose(state[name][row], value, rtol=0, atol=FLOAT32)


@models
def test_a_padded_batch_equals_its_sequences_alone(cell, rule, options, backend):
    session = Session(file_for(backend, cell, rule, **options), backend=backend)
    x = random_input(options, 14, len(LENGTHS))
    for row, length in enumerate(LENGTHS):
        # padding is not read
        x[length:, row] = 99 if "vocabulary" in options else np.nan
    assert_padded_equals_alone(session, x, LENGTHS)


@backends
@pytest.mark.parametrize(
    ("cell", "options"),
    [("lstm", {"bidirectional": True, "layers": 2, "output": "all"}), ("decaynet", {})],
    ids=["bidirectional", "reads the length"],
)
def test_a_padded_batch_of_a_model_that_needs_whole_sequences(cell, options, backend):
    session = Session(exported(cell, **options)[1], backend=backend)
    assert not session.info["streaming"]
    assert_padded_equals_alone(session, random_input(options, 14, len(LENGTHS)), LENGTHS)


def test_one_sequence_may_be_padded():
    session = Session(exported("gru")[1])
    x = random_input({}, 6, 1)[:, 0]
    np.testing.assert_allclose(session.run(x, [4]), session.run(x[:4]), rtol=0, atol=FLOAT32)
    with pytest.raises(edgernn.UsageError, match=r"x: expected finite numbers, got nan at index \(1, 0\)"):
        session.run([[0, 0, 0], [np.nan, 0, 0], [np.nan] * 3], [2])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 7], r"lengths: expected from 0 to 6 \(the steps of x\), got 7 at index 1; correct lengths, or pad"),
        ([-1, 2], r"lengths: expected from 0 to 6 \(the steps of x\), got -1 at index 0"),
        ([1, 2, 3], r"lengths: expected shape \(2,\), one length for each sequence, got \(3,\)"),
        (4, r"lengths: expected shape \(2,\), one length for each sequence, got \(\)"),
        ([1.0, np.nan], "lengths: expected whole numbers, got dtype float64; pass a list or array of integers"),
    ],
)
def test_wrong_lengths_are_named(lengths, message):
    session = Session(exported("gru")[1])
    with pytest.raises(edgernn.UsageError, match=message):
        session.run(random_input({}, 6, 2), lengths)
